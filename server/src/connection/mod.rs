//! One connection: bytes in, requests answered in their order, bytes out.
//!
//! It knows nothing of the event loop: it is told that its socket may be ready and given a turn,
//! in which it reads what has come, answers all of it, and writes once.

mod carrier;
mod deadlines;
mod pull;
mod records;
mod requests;
mod secure;
mod tls;

use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use crossbeam_epoch::Guard;
use sidestep_core::message::RequestHeader;
use sidestep_fabric::region::Region;
use tracing::debug;

pub(crate) use self::carrier::Carrier;
pub(crate) use self::tls::{HANDSHAKE_RECORD, Tls};
use crate::access::Pass;
use crate::backing::Backing;
use crate::control::Handshake;
use crate::input::Input;
use crate::metrics::{Carried, WorkerMetrics};
use crate::output::{LogState, Output, Sent};
use crate::rdma::{Channel, Messages, QueuePair};
use crate::service::Service;
use crate::sessions::Attached;
use crate::store::Reservation;

/// How long a connection that is closed waits for the client to close its side too: closing over
/// unread bytes would be a reset, and could take the last replies with it.
const LINGER: Duration = Duration::from_millis(500);

/// What an interrupted read counts for: records of TLS that bring nothing must not hold up the others.
const INTERRUPTION_BYTES: usize = 4 << 10;

/// More records that bring nothing are not waited out on a socket on which nothing should come.
const MOST_INTERRUPTIONS: usize = 64;

/// What a worker lends to a connection for a turn.
pub(crate) struct Turn<'a, M = Region> {
    pub(crate) service: &'a Service<M>,
    pub(crate) metrics: &'a WorkerMetrics,
    pub(crate) guard: &'a mut Guard,
    pub(crate) input: &'a mut Input,
    /// An empty buffer for replies.
    pub(crate) spare: &'a mut Vec<u8>,
    pub(crate) messages: &'a mut Messages,
    /// By which the worker knows the connection.
    pub(crate) seat: usize,
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
    /// A large value, into its item. What the client sent behind it waits until it is whole.
    Large(Box<Large<M>>),
    /// So many bytes that are of no use, and the reply to what they belong to.
    Dropped(u64, Vec<u8>),
}

#[derive(Debug)]
struct Large<M: Backing> {
    header: RequestHeader,
    reservation: Reservation<M>,
    filled: usize,
    /// Read from the client's memory, rather than sent.
    is_pulled: bool,
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
    /// Between the socket and everything else; the message channel has none.
    tls: Option<Box<Tls>>,
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
    /// For the client to ask for anything; none while anything is under way.
    idle_by: Option<Instant>,
    /// By which the client's NIC reads the table: as long as the connection.
    queue_pair: Option<QueuePair>,
    /// Carries all frames in place of the socket, which stays open as a sign of life.
    channel: Option<Channel>,
    /// The same, from when the reply that tells the client of it has been sent over the socket.
    next_channel: Option<Channel>,
    /// While there is a channel: whether the socket may have ended.
    socket_ready: bool,
    /// Requests wait until the log has written more.
    stalled: bool,
}

impl<S: Read + Write + AsFd, M: Backing> Connection<S, M> {
    /// A connection whose client has yet to introduce itself, over TLS if there is any.
    pub(crate) fn new(stream: S, from: IpAddr, tls: Option<Tls>, now: Instant, handshake: Duration) -> Self {
        Self {
            stream,
            tls: tls.map(Box::new),
            phase: Phase::Handshake(Handshake::Hello { from }),
            kept: Vec::new(),
            output: Output::default(),
            readable: true,
            writable: true,
            hung_up: false,
            ended: false,
            receive_by: Some(now + handshake),
            send_by: None,
            idle_by: None,
            queue_pair: None,
            channel: None,
            next_channel: None,
            socket_ready: false,
            stalled: false,
        }
    }

    pub(crate) fn stream(&mut self) -> &mut S {
        &mut self.stream
    }

    /// What its client was let in with, if it was.
    pub(crate) fn pass(&self) -> Option<&Pass> {
        match &self.phase {
            Phase::Open(session, _) => Some(session.pass()),
            _ => None,
        }
    }

    /// Whether it is to have a turn when the log has come further.
    pub(crate) fn waits_for_log(&self) -> bool {
        self.stalled || self.output.is_waiting()
    }

    /// Memory of what its client has yet to take or to complete.
    pub(crate) fn buffered(&self) -> usize {
        self.output.memory() + self.kept.capacity()
    }

    /// Whether its client has to take some replies before it is served on: enough of them wait, or any where all
    /// connections together hold as much as they may.
    fn is_full(&self, turn: &Turn<'_, M>) -> bool {
        self.output.is_full() || (!self.output.is_empty() && turn.service.metrics.buffers_full().is_some())
    }

    /// What carries its frames.
    pub(crate) fn carried(&self) -> Carried {
        if self.channel.is_some() { Carried::Messages } else { Carried::Socket }
    }

    /// The channels that it had, to be closed.
    pub(crate) fn take_channels(&mut self) -> impl Iterator<Item = Channel> + use<S, M> {
        self.channel.take().into_iter().chain(self.next_channel.take())
    }

    /// Something happened on the message channel.
    pub(crate) fn messages_ready(&mut self) {
        if self.channel.is_some() {
            (self.readable, self.writable) = (true, true);
        }
    }

    /// The socket may be ready for this.
    pub(crate) fn ready(&mut self, readable: bool, writable: bool, hung_up: bool) {
        if self.channel.is_some() {
            self.socket_ready |= readable || hung_up;
            return;
        }
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
        self.set_idle_deadline(turn);
        next
    }

    fn run(&mut self, turn: &mut Turn<'_, M>) -> io::Result<Next> {
        let mut budget = turn.budget;
        if std::mem::take(&mut self.socket_ready) {
            self.check_socket(turn.metrics)?;
        }
        loop {
            self.consume(turn);
            let full = self.is_full(turn) || self.stalled;
            if self.readable && !full && budget > 0 && self.next_channel.is_none() {
                if !self.speaks_as_expected(turn.metrics)? {
                    continue;
                }
                budget = budget.saturating_sub(self.receive(turn)?);
                continue;
            }
            if self.writable {
                budget = budget.saturating_sub(self.send(turn)?);
            }
            if self.is_unsent() || self.stalled {
                return Ok(Next::Wait);
            }
            if self.next_channel.is_some() {
                self.change_over(turn)?;
                continue;
            }
            if full && budget > 0 {
                continue; // there may be requests in the buffer that were waiting for room
            }
            if full || (self.readable && budget == 0) {
                return Ok(Next::Again);
            }
            if self.ended {
                self.say_goodbye();
                return Ok(Next::Close);
            }
            match self.phase {
                Phase::Closing(false) => {
                    // The end of the socket must not overtake the last replies.
                    if let Some(channel) = &self.channel
                        && !turn.messages.is_delivered(channel)
                    {
                        return Ok(Next::Wait);
                    }
                    self.shut(turn.now)?;
                }
                Phase::Open(_, Body::Frames) if turn.stopping => self.phase = Phase::Closing(false),
                Phase::Open(_, Body::Frames) if self.has_idled(turn.now) => {
                    turn.metrics.idle_closed.add(1);
                    self.phase = Phase::Closing(false);
                }
                _ => return Ok(Next::Wait),
            }
        }
    }

    /// From here on the message channel carries everything: the client has been told of it, and may have used it already.
    fn change_over(&mut self, turn: &mut Turn<'_, M>) -> io::Result<()> {
        if !turn.input.is_empty() {
            turn.metrics.malformed.add(1);
            return Err(io::Error::other("expected nothing behind a connect for messages, found more requests"));
        }
        self.channel = self.next_channel.take();
        (self.readable, self.writable, self.socket_ready) = (true, true, false);
        self.check_socket(turn.metrics)
    }

    /// Beside a channel the socket only tells of its end.
    fn check_socket(&mut self, metrics: &WorkerMetrics) -> io::Result<()> {
        let mut carrier = match &mut self.tls {
            None => Carrier::Socket(&mut self.stream),
            Some(tls) => Carrier::Tls(&mut self.stream, tls),
        };
        for _ in 0..MOST_INTERRUPTIONS {
            match carrier.receive(&mut [0; 1]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                Ok(_) => break,
            }
        }
        metrics.malformed.add(1);
        Err(io::Error::other("expected nothing on the socket beside a message channel, found bytes"))
    }

    /// One read: into the item of a large value that is on its way, else into the buffer. While a value is read from the
    /// client's memory nothing else is received: what comes behind it waits.
    fn receive(&mut self, turn: &mut Turn<'_, M>) -> io::Result<usize> {
        let mut carrier = match (&self.channel, &mut self.tls) {
            (None, None) => Carrier::Socket(&mut self.stream),
            (None, Some(tls)) => Carrier::Tls(&mut self.stream, tls),
            (Some(channel), _) => Carrier::Channel(turn.messages, channel),
        };
        let (result, room) = match &mut self.phase {
            Phase::Open(_, Body::Large(large)) if large.is_pulled => (carrier.pulled(), large.left()),
            Phase::Open(_, Body::Large(large)) => {
                let offset = large.reservation.offset() + large.filled as u64;
                let region = turn.service.store.memory().region();
                let result = carrier.receive_into(region, offset, large.left());
                (result, large.left())
            }
            _ => {
                let room = turn.input.room();
                (carrier.receive(room), room.len())
            }
        };
        let received = match result {
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.readable = false;
                return Ok(0);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(INTERRUPTION_BYTES),
            Err(error) => return self.lost(error, turn.metrics),
        };
        if received == 0 {
            self.ended = true;
        }
        self.idle_by = None;
        let mut is_pulled = false;
        match &mut self.phase {
            Phase::Open(_, Body::Large(large)) => {
                large.filled += received;
                large.reservation.arrived(large.filled);
                is_pulled = large.is_pulled;
                if is_pulled {
                    self.receive_by = None;
                }
            }
            _ => turn.input.received(received),
        }
        // A short read has emptied the socket (epoll(7)); only the end of the stream may be behind it. Behind what was pulled
        // a failure may be, of which nobody tells again; behind a record, another one.
        self.readable = received != 0 && (received == room || self.hung_up || is_pulled || self.has_more_records());
        let count = if is_pulled { &turn.metrics.pulled_bytes } else { &turn.metrics.received_bytes };
        count.add(received as u64);
        Ok(received)
    }

    fn flush(&mut self, turn: &mut Turn<'_, M>) -> io::Result<Sent> {
        if let Some(log) = turn.service.queue() {
            self.output.open_gates(LogState { durable: log.durable(), is_failing: log.is_failing() });
        }
        let carrier = match (&self.channel, &mut self.tls) {
            (None, None) => Carrier::Socket(&mut self.stream),
            (None, Some(tls)) => {
                Self::push(&mut self.stream, tls)?;
                Carrier::Tls(&mut self.stream, tls)
            }
            (Some(channel), _) => Carrier::Channel(turn.messages, channel),
        };
        self.output.flush(carrier, turn.service.store.memory().region())
    }

    fn send(&mut self, turn: &mut Turn<'_, M>) -> io::Result<usize> {
        let Sent { bytes: sent, is_carrier_full } = self.flush(turn)?;
        self.writable = self.is_writable(is_carrier_full);
        if self.writable {
            self.send_by = None;
        } else if self.has_moved(sent) || self.send_by.is_none() {
            self.send_by = Some(turn.now + turn.service.timeouts.send);
        }
        turn.metrics.sent_bytes.add(sent as u64);
        Ok(sent)
    }

    /// Shuts our side: everything has been sent.
    fn shut(&mut self, now: Instant) -> io::Result<()> {
        self.say_goodbye();
        rustix::net::shutdown(&self.stream, rustix::net::Shutdown::Write)?;
        self.phase = Phase::Closing(true);
        self.receive_by = Some(now + LINGER);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
