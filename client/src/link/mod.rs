//! One connection: sends without waiting, receives with or without. Its bytes travel over the socket, plain or in TLS, or
//! in messages beside it.

mod tls;

use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::dial::Dialled;
use crate::options::Path;
use crate::pipeline::Lent;
use crate::rdma::Messages;
use crate::watch::{Watch, Watched};

/// A connection after its handshake. Dropping it closes it, whoever still watches it.
pub(crate) struct Link {
    /// Carries everything, if there is one. The socket is then a sign of life.
    messages: Option<Messages>,
    /// Between the socket and everything else.
    tls: Option<tls::Tls>,
    /// Why the message channel is of no use any more.
    broken: Option<String>,
    watched: Arc<Watched>,
    spin: bool,
    timeout: Duration,
}

impl Link {
    /// Takes a connection whose stream's read timeout is `timeout`, and has it watched.
    pub(crate) fn new(connection: Dialled, spin: bool, timeout: Duration, watch: &Watch) -> Self {
        let Dialled { stream, tls } = connection;
        Self { messages: None, tls: tls.map(tls::Tls::new), broken: None, watched: watch.add(stream), spin, timeout }
    }

    fn stream(&self) -> &TcpStream {
        self.watched.stream()
    }

    /// What tells others whether this connection still stands.
    pub(crate) fn watched(&self) -> &Arc<Watched> {
        &self.watched
    }

    /// Has everything travel in messages from now on.
    #[cfg(feature = "rdma")]
    pub(crate) fn carry_by(&mut self, messages: Messages) {
        self.messages = Some(messages);
    }

    /// The path of its requests.
    pub(crate) fn path(&self) -> Path {
        if self.messages.is_some() { Path::RdmaRpc } else { Path::Tcp }
    }

    /// What ended the message channel, if there was one.
    pub(crate) fn take_error(&mut self) -> Option<String> {
        let ended = || "the connection ended".to_owned();
        self.messages.as_ref().map(|_| self.broken.take().unwrap_or_else(ended))
    }

    fn broken<E: ToString>(broken: &mut Option<String>) -> impl FnOnce(E) -> io::Error {
        |error| {
            let error = error.to_string();
            *broken = Some(error.clone());
            io::Error::other(error)
        }
    }

    /// Sends what the connection takes now; 0 = nothing.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(messages) = &mut self.messages {
            return messages.send(bytes).map_err(Self::broken(&mut self.broken));
        }
        if let Some(tls) = &mut self.tls {
            return tls.send(self.watched.stream(), bytes);
        }
        loop {
            match send(self.stream(), bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(n) => return Ok(n),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(0),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Puts a value where the server may read it, by messages only. None: it is better sent. An error says why it cannot.
    pub(crate) fn lend(&mut self, key_bytes: usize, value: &[u8]) -> Result<Option<Lent>, String> {
        self.messages.as_mut().map_or(Ok(None), |messages| messages.lend(key_bytes, value))
    }

    /// Receives what is there; `None` = nothing.
    pub(crate) fn try_receive(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        if let Some(messages) = &mut self.messages {
            let received = messages.try_receive(into).map_err(Self::broken(&mut self.broken))?;
            return match received {
                0 if self.watched.has_ended() => Err(io::ErrorKind::UnexpectedEof.into()),
                0 => Ok(None),
                received => Ok(Some(received)),
            };
        }
        self.try_receive_socket(into)
    }

    fn try_receive_socket(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        if let Some(tls) = &mut self.tls {
            return tls.try_receive(self.watched.stream(), into);
        }
        match recv(self.stream(), into, RecvFlags::DONTWAIT) {
            Ok((0, _)) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((n, _)) => Ok(Some(n)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Receives at least one byte, or fails with `TimedOut`. One system call when it sleeps.
    pub(crate) fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if let Some(messages) = &mut self.messages {
            loop {
                match messages.try_receive(into).map_err(Self::broken(&mut self.broken))? {
                    0 => messages.wait(&self.watched)?,
                    received => return Ok(received),
                }
            }
        }
        if self.spin {
            return self.receive_spinning(into);
        }
        if let Some(tls) = &mut self.tls {
            return tls.receive(self.watched.stream(), into, &timespec(self.timeout)?);
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

    fn receive_spinning(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let deadline = Instant::now() + self.timeout;
        loop {
            if let Some(n) = self.try_receive_socket(into)? {
                return Ok(n);
            }
            if Instant::now() >= deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::hint::spin_loop();
        }
    }

    /// Waits until the connection takes bytes or has some, or fails with `TimedOut`. May return early.
    pub(crate) fn wait_writable_or_readable(&mut self) -> io::Result<()> {
        if let Some(messages) = &mut self.messages {
            return messages.wait(&self.watched);
        }
        let timeout = timespec(self.timeout)?;
        if let Some(tls) = &mut self.tls {
            return tls.wait_writable_or_readable(self.watched.stream(), &timeout);
        }
        let mut fds = [PollFd::new(self.stream(), PollFlags::IN | PollFlags::OUT)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) => Err(io::ErrorKind::TimedOut.into()),
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn timespec(timeout: Duration) -> io::Result<Timespec> {
    Timespec::try_from(timeout).map_err(|_| io::ErrorKind::InvalidInput.into())
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.say_goodbye(self.watched.stream());
        }
        // The watch may hold the socket a moment longer; the peer is told now. An error means that it is closed already.
        let _ = self.stream().shutdown(Shutdown::Both);
    }
}
