//! The message channel of a session: its frames in SENDs instead of over the socket.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use sidestep_core::handshake::MessagesEnd;
use sidestep_core::message::{LentValue, REQUEST_BYTES};
use sidestep_fabric::rdma::{Buffer, BufferPool, Channel, Exchange, MESSAGE_BYTES, RdmaError};

use super::connect::Nic;
use crate::pipeline::Lent;
use crate::watch::Watched;

/// Messages of 8 KiB that the server may have under way to a session.
const RECEIVES: u16 = 32;
/// A clock is looked at once in so many empty polls.
const POLLS_PER_LOOK: u32 = 32;

/// How long to wait for a message: polling, and in all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    pub(crate) spin: Duration,
    pub(crate) most: Duration,
}

/// A channel and what it needs. After any error it is of no use: drop it.
#[derive(Debug)]
pub(crate) struct Messages {
    exchange: Exchange,
    channel: Channel,
    patience: Patience,
    /// Buffers that the server may read. Of this channel alone: what one that is gone had lent is never used again.
    lent: BufferPool,
    /// Whether the server's device reads and ours serves READs.
    lends: bool,
}

/// A buffer with a value that the server may read.
struct LentBuffer(Buffer);

impl AsRef<[u8]> for LentBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Messages {
    /// A channel that is not connected yet, and what the server is to be told.
    pub(super) fn open(nic: &Nic, patience: Patience, keep_bytes: usize) -> Result<(Self, MessagesEnd), RdmaError> {
        let mut exchange = Exchange::new(&nic.domain, &nic.port, 1, RECEIVES)?;
        let (channel, end) = exchange.open(0, true)?;
        let lent = BufferPool::lent(&nic.domain, keep_bytes);
        let lends = end.end.reads_served > 0;
        Ok((Self { exchange, channel, patience, lent, lends }, end))
    }

    pub(super) fn connect(&mut self, peer: &MessagesEnd) -> Result<(), RdmaError> {
        self.lends &= peer.end.reads_issued > 0;
        self.exchange.connect(&self.channel, peer)
    }

    /// Copies the value of a put that would not fit one message to where the server may read it. None: it fits, or a
    /// device does not do that.
    pub(crate) fn lend(&mut self, key_bytes: usize, value: &[u8]) -> Result<Option<Lent>, String> {
        if !self.lends || REQUEST_BYTES + key_bytes + value.len() <= MESSAGE_BYTES {
            return Ok(None);
        }
        let value_bytes = u32::try_from(value.len()).map_err(|error| error.to_string())?;
        let mut buffer = self.lent.take(value.len()).map_err(|error| error.to_string())?;
        buffer[..value.len()].copy_from_slice(value);
        let Some((address, rkey)) = buffer.lent_at() else { return Ok(None) };
        let at = LentValue { address: address.into(), rkey: rkey.into(), value_bytes: value_bytes.into() };
        Ok(Some(Lent { at, memory: Box::new(LentBuffer(buffer)) }))
    }

    /// Whether anything happened on it. No system call.
    fn poll(&mut self) -> Result<bool, RdmaError> {
        self.exchange.poll(|_| ()).map(|count| count > 0)
    }

    /// Sends what goes into one message now; 0 = nothing.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<usize, RdmaError> {
        match self.exchange.send(&self.channel, bytes)? {
            0 if self.poll()? => self.exchange.send(&self.channel, bytes),
            sent => Ok(sent),
        }
    }

    /// Receives what is there; 0 = nothing.
    pub(crate) fn try_receive(&mut self, into: &mut [u8]) -> Result<usize, RdmaError> {
        self.poll()?;
        self.exchange.receive(&self.channel, into)
    }

    /// Waits until something happens on the channel, or fails with `TimedOut`, or with `UnexpectedEof` if the control
    /// connection, whose end is the channel's, ends.
    pub(crate) fn wait(&mut self, watched: &Watched) -> io::Result<()> {
        // Most replies come before there is a need to look at a clock.
        let mut started = None;
        let mut is_armed = false;
        let mut polls = 0u32;
        loop {
            if self.poll().map_err(io::Error::other)? {
                return Ok(());
            }
            polls = polls.wrapping_add(1);
            if !is_armed && !polls.is_multiple_of(POLLS_PER_LOOK) {
                std::hint::spin_loop();
                continue;
            }
            if watched.has_ended() {
                // What was sent before the end has come by now.
                let last = self.poll().map_err(io::Error::other)?;
                return if last { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
            let waited = started.get_or_insert_with(Instant::now).elapsed();
            if waited >= self.patience.most {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if waited < self.patience.spin {
                // Whoever has something to do goes first, the server on this host too.
                std::thread::yield_now();
            } else if is_armed {
                let left = self.patience.most - waited;
                if self.exchange.sleep(watched.stream().as_fd(), left).map_err(io::Error::other)? {
                    watched.set_ended();
                }
                is_armed = false;
            } else {
                // What completes between the last poll and this is found by the next poll.
                self.exchange.arm().map_err(io::Error::other)?;
                is_armed = true;
            }
        }
    }
}
