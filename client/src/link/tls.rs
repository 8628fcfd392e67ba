//! The bytes of a connection under TLS.
//!
//! Records that a socket does not take now wait in the session, at most [`BATCH_BYTES`], and go out with the next call.

use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, send, sendmsg};
use rustls::ClientConnection;

/// Plain bytes that are encrypted at once.
const BATCH_BYTES: usize = 64 << 10;

/// The client's end of TLS on one connection, after its handshake.
pub(super) struct Tls(Box<ClientConnection>);

/// A socket, of which these flags are asked.
struct Socket<'a>(&'a TcpStream, RecvFlags);

impl Read for Socket<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        recv(self.0, into, self.1).map(|(received, _)| received).map_err(io::Error::from)
    }
}

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(send(self.0, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(sendmsg(self.0, parts, &mut SendAncillaryBuffer::default(), flags)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Tls {
    pub(super) fn new(mut session: Box<ClientConnection>) -> Self {
        session.set_buffer_limit(Some(BATCH_BYTES));
        Self(session)
    }

    /// Sends the records that wait. False: the socket took not all of them.
    fn push(&mut self, stream: &TcpStream) -> io::Result<bool> {
        while self.0.wants_write() {
            match self.0.write_tls(&mut Socket(stream, RecvFlags::DONTWAIT)) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Takes what may be sent now, and sends it as far as the socket goes; 0 = nothing.
    pub(super) fn send(&mut self, stream: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
        if !self.push(stream)? {
            return Ok(0);
        }
        let taken = self.0.writer().write(bytes)?;
        self.push(stream)?;
        Ok(taken)
    }

    /// Receives what is there; `None` = nothing.
    pub(super) fn try_receive(&mut self, stream: &TcpStream, into: &mut [u8]) -> io::Result<Option<usize>> {
        self.push(stream)?;
        self.take(stream, into, RecvFlags::DONTWAIT)
    }

    /// Bytes that have been decrypted, or else what one read of the socket brings: `None` = nothing for whoever is above.
    fn take(&mut self, stream: &TcpStream, into: &mut [u8], flags: RecvFlags) -> io::Result<Option<usize>> {
        if let Some(there) = self.plain(into)? {
            return Ok(Some(there));
        }
        match self.0.read_tls(&mut Socket(stream, flags)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return if flags.contains(RecvFlags::DONTWAIT) {
                    Ok(None)
                } else {
                    Err(io::ErrorKind::TimedOut.into())
                };
            }
            received => received?,
        };
        if let Err(error) = self.0.process_new_packets() {
            // The server is told why, if it can be.
            let _ = self.push(stream);
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        self.plain(into)
    }

    /// The end of the stream is an error, whether it was closed or cut off.
    fn plain(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        match self.0.reader().read(into) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(there) => Ok(Some(there)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Receives at least one byte, or fails with `TimedOut` after the socket's own timeout, which is `timeout` too.
    pub(super) fn receive(&mut self, stream: &TcpStream, into: &mut [u8], timeout: &Timespec) -> io::Result<usize> {
        loop {
            // What was read ahead comes first: the socket may have nothing more to wait for.
            let flags = if self.push(stream)? { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
            if let Some(received) = self.take(stream, into, flags)? {
                return Ok(received);
            }
            if self.0.wants_write() {
                wait(stream, timeout)?;
            }
        }
    }

    /// Waits until bytes are taken or there are some, or fails with `TimedOut`. May return early.
    pub(super) fn wait_writable_or_readable(&mut self, stream: &TcpStream, timeout: &Timespec) -> io::Result<()> {
        let has_plain = matches!(self.0.process_new_packets(), Ok(state) if state.plaintext_bytes_to_read() > 0);
        if has_plain || self.push(stream)? { Ok(()) } else { wait(stream, timeout) }
    }

    /// Tells the server that nothing comes behind what was sent, if the socket takes that.
    pub(super) fn say_goodbye(&mut self, stream: &TcpStream) {
        self.0.send_close_notify();
        // Without it the server takes the stream for cut off, which changes nothing.
        let _ = self.push(stream);
    }
}

fn wait(stream: &TcpStream, timeout: &Timespec) -> io::Result<()> {
    let mut fds = [PollFd::new(stream, PollFlags::IN | PollFlags::OUT)];
    match poll(&mut fds, Some(timeout)) {
        Ok(0) => Err(io::ErrorKind::TimedOut.into()),
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
