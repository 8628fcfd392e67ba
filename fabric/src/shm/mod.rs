//! Handing the table's memory to processes on the same host.
//!
//! The server listens on an abstract Unix socket. A client that has been let in over TCP presents
//! there the ticket that it was given, and gets one byte, with the read-only descriptor attached
//! (SCM_RIGHTS, unix(7)) if the byte says that it was granted:
//!
//! ```text
//!     client -> server  ticket, 16 bytes
//!     server -> client  0 + descriptor | 1 ticket refused | 2 user refused
//! ```

mod server;
#[cfg(test)]
mod tests;

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType,
};
use thiserror::Error;

pub use server::{FdServer, FdServerOptions};

/// Bytes of a ticket.
pub const TICKET_BYTES: usize = 16;

const GRANTED: u8 = 0;
const TICKET_REFUSED: u8 = 1;
const USER_REFUSED: u8 = 2;

/// Why the descriptor could not be had.
#[derive(Debug, Error)]
pub enum ShmError {
    /// Nobody listens there: the server has ended, or is in another network namespace (a container).
    #[error("cannot connect to the server's abstract socket: {0}")]
    Connect(#[source] io::Error),
    /// Not a ticket of a session that is open.
    #[error("the server refused the ticket for its memory")]
    TicketRefused,
    /// The server runs as another user and does not allow this one.
    #[error("the server refuses its memory to this user: see its --allow-uid")]
    UserRefused,
    /// No answer within the time given.
    #[error("the server did not hand out its memory within {0:?}")]
    Timeout(Duration),
    /// An end of the connection or an answer that is none.
    #[error("expected a descriptor of the server's memory, found {0}")]
    Protocol(String),
    /// The system refused.
    #[error("cannot {attempt}: {source}")]
    Io {
        /// What was attempted.
        attempt: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

/// Which start of which host this is: processes on the same running host read the same.
pub fn host_boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Gets the read-only descriptor of the server's memory: a connection, a message each way.
///
/// Blocks for at most `timeout`.
pub fn fetch_fd(socket_name: &[u8], ticket: [u8; TICKET_BYTES], timeout: Duration) -> Result<OwnedFd, ShmError> {
    let io = |attempt| move |errno: Errno| ShmError::Io { attempt, source: errno.into() };
    let timed_out = |errno, otherwise: &dyn Fn(Errno) -> ShmError| match errno {
        Errno::AGAIN | Errno::INPROGRESS => ShmError::Timeout(timeout),
        errno => otherwise(errno),
    };
    let deadline = Instant::now() + timeout;
    // Zero would stand for no limit.
    let left = || Some(deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1)));

    let connect_error = |errno: Errno| ShmError::Connect(errno.into());
    let address = SocketAddrUnix::new_abstract_name(socket_name).map_err(connect_error)?;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(io("make a Unix socket"))?;
    // It bounds connect too, where the server's backlog is full.
    set_socket_timeout(&socket, Timeout::Send, left()).map_err(io("set a socket's timeout"))?;
    retry(|| rustix::net::connect(&socket, &address)).map_err(|errno| timed_out(errno, &connect_error))?;
    let sent = retry(|| rustix::net::send(&socket, &ticket, SendFlags::NOSIGNAL));
    match sent {
        Ok(TICKET_BYTES) => {}
        Ok(bytes) => return Err(ShmError::Protocol(format!("only {bytes} bytes of the ticket taken"))),
        // The user was refused before the ticket was sent; the reason is there to be read.
        Err(Errno::PIPE | Errno::CONNRESET) => {}
        Err(errno) => return Err(timed_out(errno, &io("send the ticket"))),
    }

    let mut answer = [u8::MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = retry(|| {
        set_socket_timeout(&socket, Timeout::Recv, left())?;
        rustix::net::recvmsg(&socket, &mut [IoSliceMut::new(&mut answer)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    });
    let received = received.map_err(|errno| timed_out(errno, &io("receive the descriptor")))?;
    let fd = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    match (received.bytes, answer[0], fd) {
        (0, ..) => Err(ShmError::Protocol("the end of the connection".into())),
        (_, GRANTED, Some(fd)) => Ok(fd),
        (_, GRANTED, None) => Err(ShmError::Protocol("an answer without one (too many open files?)".into())),
        (_, TICKET_REFUSED, _) => Err(ShmError::TicketRefused),
        (_, USER_REFUSED, _) => Err(ShmError::UserRefused),
        (_, other, _) => Err(ShmError::Protocol(format!("answer {other:#04x}"))),
    }
}

fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    rustix::io::retry_on_intr(&mut call)
}
