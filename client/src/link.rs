//! One connected socket: sends without waiting, receives with or without.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::watch::{Watch, Watched};

/// A connection after its handshake. Dropping it closes it, whoever still watches it.
pub(crate) struct Link {
    watched: Arc<Watched>,
    spin: bool,
    timeout: Duration,
}

impl Link {
    /// Takes a stream whose read timeout is `timeout`, and has it watched.
    pub(crate) fn new(stream: TcpStream, spin: bool, timeout: Duration, watch: &Watch) -> Self {
        Self { watched: watch.add(stream), spin, timeout }
    }

    fn stream(&self) -> &TcpStream {
        self.watched.stream()
    }

    /// What tells others whether this connection still stands.
    pub(crate) fn watched(&self) -> &Arc<Watched> {
        &self.watched
    }

    /// Sends what the socket takes now; 0 = nothing.
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match send(self.stream(), bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(n) => return Ok(n),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(0),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Receives what is there; `None` = nothing.
    pub(crate) fn try_receive(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        match recv(self.stream(), into, RecvFlags::DONTWAIT) {
            Ok((0, _)) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((n, _)) => Ok(Some(n)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Receives at least one byte, or fails with `TimedOut`. One system call when it sleeps.
    pub(crate) fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        if self.spin {
            return self.receive_spinning(into);
        }
        loop {
            match recv(self.stream(), &mut *into, RecvFlags::empty()) {
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((n, _)) => return Ok(n),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn receive_spinning(&self, into: &mut [u8]) -> io::Result<usize> {
        let deadline = Instant::now() + self.timeout;
        loop {
            if let Some(n) = self.try_receive(into)? {
                return Ok(n);
            }
            if Instant::now() >= deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::hint::spin_loop();
        }
    }

    /// Waits until the socket takes bytes or has some, or fails with `TimedOut`.
    pub(crate) fn wait_writable_or_readable(&self) -> io::Result<()> {
        let timeout = Timespec::try_from(self.timeout).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut fds = [PollFd::new(self.stream(), PollFlags::IN | PollFlags::OUT)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) => Err(io::ErrorKind::TimedOut.into()),
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // The watch may hold the socket a moment longer; the peer is told now. An error means that it is closed already.
        let _ = self.stream().shutdown(Shutdown::Both);
    }
}
