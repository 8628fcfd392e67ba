//! One connection: bytes in, requests answered in their order, bytes out.
//!
//! It knows nothing of the event loop: it is told that its socket may be ready and given a turn,
//! in which it reads what has come, answers all of it, and writes once.

mod deadlines;
mod requests;

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use crossbeam_epoch::Guard;
use sidestep_core::message::RequestHeader;
use sidestep_fabric::region::Region;
use tracing::debug;

use crate::backing::Backing;
use crate::control::Handshake;
use crate::input::Input;
use crate::metrics::WorkerMetrics;
use crate::output::Output;
use crate::rdma::QueuePair;
use crate::service::Service;
use crate::sessions::Attached;
use crate::store::Reservation;

/// How long a connection that is closed waits for the client to close its side too: closing over
/// unread bytes would be a reset, and could take the last replies with it.
const LINGER: Duration = Duration::from_millis(500);

/// What a worker lends to a connection for a turn.
pub(crate) struct Turn<'a, M = Region> {
    pub(crate) service: &'a Service<M>,
    pub(crate) metrics: &'a WorkerMetrics,
    pub(crate) guard: &'a mut Guard,
    pub(crate) input: &'a mut Input,
    /// An empty buffer for replies.
    pub(crate) spare: &'a mut Vec<u8>,
    pub(crate) now: Instant,
    /// Bytes to receive and send, more or less, before it is the next one's turn.
    pub(crate) budget: usize,
    /// Whether the server is stopping: requests are not taken any more.
    pub(crate) stopping: bool,
}

/// What a connection waits for after its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Its socket to be ready.
    Wait,
    /// Another turn, once the others have had theirs.
    Again,
    /// Nothing: it is over.
    Close,
}

#[derive(Debug)]
enum Phase<M: Backing> {
    Handshake(Handshake),
    Open(Attached, Body<M>),
    /// The last replies go out, what still comes in is dropped. True once our side is shut.
    Closing(bool),
}

/// What of a request is being received.
#[derive(Debug)]
enum Body<M: Backing> {
    /// Frames, from the input buffer.
    Frames,
    /// A large value, into its item.
    Large(Box<Large<M>>),
    /// So many bytes that are of no use.
    Dropped(u64),
}

#[derive(Debug)]
struct Large<M: Backing> {
    header: RequestHeader,
    reservation: Reservation<M>,
    filled: usize,
}

impl<M: Backing> Large<M> {
    fn left(&self) -> usize {
        self.reservation.value_bytes() as usize - self.filled
    }
}

/// A client's connection over the stream `S`, which does not block.
#[derive(Debug)]
pub(crate) struct Connection<S, M: Backing = Region> {
    stream: S,
    phase: Phase<M>,
    /// Received and not used yet, between turns.
    kept: Vec<u8>,
    output: Output,
    readable: bool,
    writable: bool,
    /// The client has shut its side; there may be bytes left to read.
    hung_up: bool,
    /// Everything that the client sent has been read.
    ended: bool,
    /// For the frame or handshake that has begun to be whole, or for the client to close.
    receive_by: Option<Instant>,
    /// For the client to take some of its replies.
    send_by: Option<Instant>,
    /// By which the client's NIC reads the table: as long as the connection.
    queue_pair: Option<QueuePair>,
}

impl<S: Read + Write + AsFd, M: Backing> Connection<S, M> {
    /// A connection whose client has yet to introduce itself.
    pub(crate) fn new(stream: S, now: Instant, handshake: Duration) -> Self {
        Self {
            stream,
            phase: Phase::Handshake(Handshake::Hello),
            kept: Vec::new(),
            output: Output::default(),
            readable: true,
            writable: true,
            hung_up: false,
            ended: false,
            receive_by: Some(now + handshake),
            send_by: None,
            queue_pair: None,
        }
    }

    pub(crate) fn stream(&mut self) -> &mut S {
        &mut self.stream
    }

    /// The socket may be ready for this.
    pub(crate) fn ready(&mut self, readable: bool, writable: bool, hung_up: bool) {
        self.readable |= readable || hung_up;
        self.writable |= writable;
        self.hung_up |= hung_up;
    }

    /// Receives, answers and sends what there is.
    pub(crate) fn turn(&mut self, turn: &mut Turn<'_, M>) -> Next {
        turn.input.load(&mut self.kept);
        self.output.take(turn.spare);
        let next = self.run(turn).unwrap_or_else(|error| {
            debug!(%error, "connection lost");
            Next::Close
        });
        turn.input.save(&mut self.kept);
        self.output.give_back(turn.spare);
        self.set_receive_deadline(turn);
        next
    }

    fn run(&mut self, turn: &mut Turn<'_, M>) -> io::Result<Next> {
        let mut budget = turn.budget;
        loop {
            self.consume(turn);
            let full = self.output.is_full();
            if self.readable && !full && budget > 0 {
                budget = budget.saturating_sub(self.receive(turn)?);
                continue;
            }
            if self.writable {
                budget = budget.saturating_sub(self.send(turn)?);
            }
            if !self.output.is_empty() {
                return Ok(Next::Wait);
            }
            if full && budget > 0 {
                continue; // there may be requests in the buffer that were waiting for room
            }
            if full || (self.readable && budget == 0) {
                return Ok(Next::Again);
            }
            if self.ended {
                return Ok(Next::Close);
            }
            match self.phase {
                Phase::Closing(false) => self.shut(turn.now)?,
                Phase::Open(_, Body::Frames) if turn.stopping => self.phase = Phase::Closing(false),
                _ => return Ok(Next::Wait),
            }
        }
    }

    /// One read: into the item of a large value that is on its way, else into the buffer.
    fn receive(&mut self, turn: &mut Turn<'_, M>) -> io::Result<usize> {
        let (result, room) = match &mut self.phase {
            Phase::Open(_, Body::Large(large)) => {
                let offset = large.reservation.offset() + large.filled as u64;
                let result =
                    turn.service.store.memory().region().receive_into(self.stream.as_fd(), offset, large.left());
                (result, large.left())
            }
            _ => {
                let room = turn.input.room();
                (self.stream.read(room), room.len())
            }
        };
        let received = match result {
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.readable = false;
                return Ok(0);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(0),
            Err(error) => return Err(error),
        };
        if received == 0 {
            self.ended = true;
        }
        // A short read has emptied the socket (epoll(7)); only the end of the stream may be behind it.
        self.readable = received != 0 && (received == room || self.hung_up);
        match &mut self.phase {
            Phase::Open(_, Body::Large(large)) => {
                large.filled += received;
                large.reservation.arrived(large.filled);
            }
            _ => turn.input.received(received),
        }
        turn.metrics.received_bytes.add(received as u64);
        Ok(received)
    }

    fn send(&mut self, turn: &mut Turn<'_, M>) -> io::Result<usize> {
        let sent = self.output.flush(&mut self.stream, turn.service.store.memory().region())?;
        self.writable = self.output.is_empty();
        if self.writable {
            self.send_by = None;
        } else if sent > 0 || self.send_by.is_none() {
            self.send_by = Some(turn.now + turn.service.timeouts.send);
        }
        turn.metrics.sent_bytes.add(sent as u64);
        Ok(sent)
    }

    /// Shuts our side: everything has been sent.
    fn shut(&mut self, now: Instant) -> io::Result<()> {
        rustix::net::shutdown(&self.stream, rustix::net::Shutdown::Write)?;
        self.phase = Phase::Closing(true);
        self.receive_by = Some(now + LINGER);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
