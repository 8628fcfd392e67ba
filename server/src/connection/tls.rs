//! One connection's TLS: records on its socket, plain bytes above.
//!
//! Like the socket under it, it does not block. Memory is bounded: at most one record is kept of what comes (64 KiB while
//! hands are shaken), and records of at most [`BATCH_BYTES`] of what goes, made only once those before are gone.

use std::io::{self, BufRead, IoSlice, Read, Write};
use std::net::IpAddr;
use std::os::fd::AsFd;

use rustix::net::{RecvFlags, recv};
use rustls::{Reader, ServerConnection};
use sidestep_core::memory::Memory;
use sidestep_fabric::region::Region;

use super::records::Records;

/// Plain bytes that are encrypted at once.
const BATCH_BYTES: usize = 64 << 10;
/// Of a value, which is copied for it: one record's worth.
const VALUE_BYTES: usize = 16 << 10;
/// Whole words with these among them, wherever they begin.
const WORDS_BYTES: usize = VALUE_BYTES + 8;
/// The first byte of a ClientHello's record (RFC 8446 §5.1).
pub(crate) const HANDSHAKE_RECORD: u8 = 22;

/// The server's end of TLS on one connection.
#[derive(Debug)]
pub(crate) struct Tls {
    session: ServerConnection,
    from: IpAddr,
    records: Records,
    /// Whether the client is known to speak TLS.
    has_begun: bool,
    /// It is over: nothing can be sent, and what comes is nothing's beginning.
    has_failed: bool,
    /// The socket took less than there was.
    is_blocked: bool,
    /// Whether the socket has taken anything since that was last asked.
    has_moved: bool,
    /// Whether the last read of the socket has left something there.
    has_more: bool,
}

/// A socket whose bytes are counted on their way to the session.
struct Noted<'a, S> {
    stream: &'a mut S,
    records: &'a mut Records,
    has_more: &'a mut bool,
}

impl<S: Read> Read for Noted<'_, S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let received = self.stream.read(into)?;
        self.records.note(&into[..received]);
        *self.has_more = received == into.len();
        Ok(received)
    }
}

impl Tls {
    pub(crate) fn new(mut session: ServerConnection, from: IpAddr) -> Self {
        session.set_buffer_limit(Some(BATCH_BYTES));
        Self {
            session,
            from,
            records: Records::default(),
            has_begun: false,
            has_failed: false,
            is_blocked: false,
            has_moved: false,
            has_more: true,
        }
    }

    /// Where its client is.
    pub(crate) fn from(&self) -> IpAddr {
        self.from
    }

    /// Whether it has ended with an error, of which the client is told if it can be.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Whether records wait for the socket.
    pub(crate) fn is_waiting(&self) -> bool {
        self.session.wants_write()
    }

    /// Whether the socket has taken all that it was given.
    pub(crate) fn is_writable(&self) -> bool {
        !self.is_blocked
    }

    /// Whether the socket has taken anything since the last call.
    pub(crate) fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.has_moved)
    }

    /// Whether the last read of the socket may have left something there.
    pub(crate) fn has_more(&self) -> bool {
        self.has_more
    }

    /// Whether a record has begun and is not whole.
    pub(crate) fn is_partial(&self) -> bool {
        self.records.is_partial()
    }

    /// Looks at the first byte, once. False: the client speaks no TLS.
    pub(crate) fn begins(&mut self, stream: &impl AsFd) -> io::Result<bool> {
        if self.has_begun {
            return Ok(true);
        }
        let mut first = [0];
        let (come, _) = recv(stream, &mut first, RecvFlags::PEEK | RecvFlags::DONTWAIT)?;
        // The end of the stream is met by whoever reads next.
        self.has_begun = true;
        Ok(come == 0 || first[0] == HANDSHAKE_RECORD)
    }

    /// As of the socket. `Interrupted`: something came, but nothing of it is for whoever is above.
    pub(crate) fn receive(&mut self, stream: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
        if self.has_failed {
            return stream.read(into);
        }
        self.take(stream, |reader| reader.read(into))
    }

    /// Into the region, from byte `offset` on.
    pub(crate) fn receive_into(
        &mut self,
        stream: &mut impl Read,
        region: &Region,
        offset: u64,
        bytes: usize,
    ) -> io::Result<usize> {
        self.take(stream, |reader| {
            let mut received = 0;
            while received < bytes {
                let come = match reader.fill_buf() {
                    Ok([]) => break,
                    Ok(come) => &come[..come.len().min(bytes - received)],
                    Err(_) if received > 0 => break,
                    Err(error) => return Err(error),
                };
                region.write_at(offset + received as u64, come);
                let taken = come.len();
                reader.consume(taken);
                received += taken;
            }
            Ok(received)
        })
    }

    /// What is there already, or else what one read of the socket brings.
    fn take(
        &mut self,
        stream: &mut impl Read,
        mut from: impl FnMut(&mut Reader<'_>) -> io::Result<usize>,
    ) -> io::Result<usize> {
        match from(&mut self.session.reader()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            there => {
                // More may have come since the last read, and its being told of may have been between two turns.
                self.has_more = true;
                return end(there);
            }
        }
        let mut noted = Noted { stream, records: &mut self.records, has_more: &mut self.has_more };
        let received = self.session.read_tls(&mut noted)?;
        if let Err(error) = self.session.process_new_packets() {
            self.has_failed = true;
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        match from(&mut self.session.reader()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && received == 0 => Ok(0),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(io::ErrorKind::Interrupted.into()),
            come => end(come),
        }
    }

    /// Sends the records that wait, as far as the socket takes them.
    pub(crate) fn push(&mut self, stream: &mut impl Write) -> io::Result<()> {
        self.is_blocked = false;
        while self.session.wants_write() {
            match self.session.write_tls(stream) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => self.has_moved = true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.is_blocked = error.kind() == io::ErrorKind::WouldBlock;
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// As of the socket, but what was taken may wait here.
    pub(crate) fn send(&mut self, stream: &mut impl Write, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.push(stream)?;
        if self.session.is_handshaking() {
            // Who it is said to is not known yet.
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let taken = self.session.writer().write_vectored(parts)?;
        match self.push(stream) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(taken),
        }
    }

    /// `prefix`, and after it bytes of the region.
    pub(crate) fn send_from(
        &mut self,
        stream: &mut impl Write,
        prefix: &[u8],
        region: &Region,
        (offset, bytes): (u64, usize),
    ) -> io::Result<usize> {
        if prefix.len() > BATCH_BYTES - VALUE_BYTES {
            return self.send(stream, &[IoSlice::new(prefix)]);
        }
        let mut words = [0; WORDS_BYTES];
        let value = piece(region, offset, bytes.min(VALUE_BYTES), &mut words);
        self.send(stream, &[IoSlice::new(prefix), IoSlice::new(value)])
    }

    /// Tells the client that nothing comes behind what was sent, if the socket takes that.
    pub(crate) fn say_goodbye(&mut self, stream: &mut impl Write) {
        if !self.has_failed && !self.session.is_handshaking() {
            self.session.send_close_notify();
            // Without it the client knows that something may be missing, which is all that it is for.
            let _ = self.push(stream);
        }
    }
}

/// Bytes of the region from any of them on. (A session that changes its keys takes a part of what it is given, of any
/// length, and what follows begins there.)
fn piece<'w>(region: &Region, offset: u64, bytes: usize, words: &'w mut [u8; WORDS_BYTES]) -> &'w [u8] {
    let begin = (offset % 8) as usize;
    let end = begin + bytes;
    region.read(offset / 8, &mut words[..end.next_multiple_of(8)]);
    &words[begin..end]
}

/// A stream that was cut off has ended like one that was closed: frames have lengths, and one that is not whole counts for
/// nothing.
fn end(received: io::Result<usize>) -> io::Result<usize> {
    match received {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            tracing::debug!("a client's TLS was cut off without a close_notify");
            Ok(0)
        }
        received => received,
    }
}

#[cfg(test)]
mod tests {
    use sidestep_core::memory::MemoryMut;

    use super::*;

    #[test]
    fn a_value_is_sent_from_any_of_its_bytes_on() {
        let region = Region::memfd(1 << 20).unwrap();
        let value: Vec<u8> = (0..40_000).map(|i| (i % 251) as u8).collect();
        region.write(0, &value);
        let mut words = [0; WORDS_BYTES];
        for begin in (0..17).chain(16_370..16_390) {
            for bytes in [1, 7, 8, 9, 1000, VALUE_BYTES] {
                let found = piece(&region, begin as u64, bytes, &mut words);
                assert_eq!(found, &value[begin..begin + bytes], "{bytes} bytes from {begin} on");
            }
        }
    }
}
