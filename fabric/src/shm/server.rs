//! The server's end: a thread that serves many clients and waits for none of them.

use std::fmt;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags};

use super::{GRANTED, TICKET_BYTES, TICKET_REFUSED, USER_REFUSED, retry};

/// Clients that may be in the middle of asking at once; more wait in the socket's backlog.
const MAX_PENDING: usize = 256;
/// How long the listener is left alone after it failed to accept (out of descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Whom an [`FdServer`] serves.
#[derive(Clone, Debug)]
pub struct FdServerOptions {
    /// Users beside the server's own (effective uid) who are served.
    pub allowed_uids: Vec<u32>,
    /// How long a client may take to present its ticket.
    pub deadline: Duration,
}

impl Default for FdServerOptions {
    fn default() -> Self {
        Self { allowed_uids: Vec::new(), deadline: Duration::from_secs(2) }
    }
}

/// Hands one descriptor to every client with a good ticket, on a thread of its own.
///
/// Stops when it is dropped.
pub struct FdServer {
    socket_name: Vec<u8>,
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl FdServer {
    /// Binds an abstract socket of a random name and starts serving `fd` on it.
    ///
    /// `check` says whether a ticket is good. It runs on the server's thread and should be quick.
    pub fn start(
        fd: OwnedFd,
        options: FdServerOptions,
        check: impl Fn(&[u8; TICKET_BYTES]) -> bool + Send + 'static,
    ) -> io::Result<Self> {
        let socket_name = format!("sidestep-{:032x}", rand::random::<u128>()).into_bytes();
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&socket_name)?)?;
        listener.set_nonblocking(true)?;
        let stop = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let mut serving = Serving {
            listener,
            stop: stop.try_clone()?,
            fd,
            own_uid: rustix::process::geteuid().as_raw(),
            options,
            check,
            pending: Vec::new(),
            accept_after: None,
        };
        let thread = Builder::new().name("sidestep-shm".into()).spawn(move || serving.run())?;
        Ok(Self { socket_name, stop, thread: Some(thread) })
    }

    /// The name that clients connect to, without the leading NUL.
    pub fn socket_name(&self) -> &[u8] {
        &self.socket_name
    }

    /// Stops serving and waits for the thread. Clients that were asking see the connection end.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if let Some(thread) = self.thread.take() {
            // It fails only where the counter is full, and then the thread is awake anyhow.
            _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
            if thread.join().is_err() {
                tracing::error!("the thread that hands out shared memory had panicked");
            }
        }
    }
}

impl Drop for FdServer {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for FdServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FdServer").field("socket_name", &self.socket_name.escape_ascii().to_string()).finish()
    }
}

/// A client that has not presented its whole ticket yet.
struct Pending {
    socket: OwnedFd,
    ticket: [u8; TICKET_BYTES],
    filled: usize,
    deadline: Instant,
}

struct Serving<C> {
    listener: UnixListener,
    stop: OwnedFd,
    fd: OwnedFd,
    own_uid: u32,
    options: FdServerOptions,
    check: C,
    pending: Vec<Pending>,
    accept_after: Option<Instant>,
}

impl<C: Fn(&[u8; TICKET_BYTES]) -> bool> Serving<C> {
    fn run(&mut self) {
        loop {
            match self.wait() {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => return tracing::error!(%error, "shared memory is no longer handed out: cannot poll"),
            }
            self.serve_pending();
            self.accept_all();
        }
    }

    /// Waits for something to do; true = stop.
    fn wait(&mut self) -> rustix::io::Result<bool> {
        let now = Instant::now();
        if self.accept_after.is_some_and(|at| at <= now) {
            self.accept_after = None;
        }
        let mut fds = Vec::with_capacity(2 + self.pending.len());
        fds.push(PollFd::new(&self.stop, PollFlags::IN));
        let accepting = self.accept_after.is_none() && self.pending.len() < MAX_PENDING;
        fds.push(PollFd::new(&self.listener, if accepting { PollFlags::IN } else { PollFlags::empty() }));
        fds.extend(self.pending.iter().map(|client| PollFd::new(&client.socket, PollFlags::IN)));

        let next = self.pending.iter().map(|client| client.deadline).chain(self.accept_after).min();
        let timeout = next.map(|at| {
            let left = at.saturating_duration_since(now);
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        retry(|| rustix::event::poll(&mut fds, timeout.as_ref()))?;
        Ok(!fds[0].revents().is_empty())
    }

    /// Reads what has come, answers whole tickets, and drops who is late or gone.
    fn serve_pending(&mut self) {
        let now = Instant::now();
        let mut index = 0;
        while index < self.pending.len() {
            if self.serve(index, now) {
                index += 1;
            } else {
                self.pending.swap_remove(index);
            }
        }
    }

    /// Whether the client goes on waiting.
    fn serve(&mut self, index: usize, now: Instant) -> bool {
        let client = &mut self.pending[index];
        let rest = &mut client.ticket[client.filled..];
        match retry(|| rustix::net::recv(&client.socket, &mut *rest, RecvFlags::DONTWAIT)) {
            Ok((0, _)) => return false,
            Ok((bytes, _)) => client.filled += bytes,
            Err(Errno::AGAIN) => {}
            Err(_) => return false,
        }
        if client.filled < TICKET_BYTES {
            return now < client.deadline;
        }
        let answer = if (self.check)(&client.ticket) { GRANTED } else { TICKET_REFUSED };
        self.answer(&self.pending[index].socket, answer);
        false
    }

    fn accept_all(&mut self) {
        while self.accept_after.is_none() && self.pending.len() < MAX_PENDING {
            match rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => self.admit(socket),
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a client of shared memory, trying again");
                    self.accept_after = Some(Instant::now() + ACCEPT_PAUSE);
                }
            }
        }
    }

    /// Other users are refused before anything is read from them, so that they take up no place.
    fn admit(&mut self, socket: OwnedFd) {
        let uid = match socket_peercred(&socket) {
            Ok(peer) => peer.uid.as_raw(),
            Err(error) => return tracing::warn!(%error, "a client of shared memory without credentials"),
        };
        if uid != self.own_uid && !self.options.allowed_uids.contains(&uid) {
            tracing::warn!(uid, "shared memory refused to another user");
            return self.answer(&socket, USER_REFUSED);
        }
        let deadline = Instant::now() + self.options.deadline;
        self.pending.push(Pending { socket, ticket: [0; TICKET_BYTES], filled: 0, deadline });
    }

    /// One byte, with the descriptor if granted. A client that cannot take it is given up.
    fn answer(&self, socket: &OwnedFd, answer: u8) {
        let fds = [self.fd.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if answer == GRANTED && !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
            return;
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = retry(|| rustix::net::sendmsg(socket, &[IoSlice::new(&[answer])], &mut ancillary, flags));
        if let Err(error) = sent {
            tracing::debug!(%error, "a client of shared memory left before its answer");
        }
    }
}
