//! One thread with an event loop over its share of the connections.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use crossbeam_epoch::Guard;
use mio::event::Event;
use mio::net::TcpStream;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use tracing::{debug, info, warn};

use crate::backing::Backing;
use crate::connection::{Connection, Next, Tls, Turn};
use crate::durable::Queue;
use crate::handle::{Arrival, Handle};
use crate::input::Input;
use crate::metrics::Carried;
use crate::rdma::Messages;
use crate::service::Service;
use crate::tls::TlsDoor;

/// The waker's token; connections count from 0.
const WAKE: Token = Token(usize::MAX);
/// Of the descriptor that tells of messages.
const MESSAGES: Token = Token(usize::MAX - 1);
/// After it had something to do, a worker with message channels polls for so long before it sleeps: a client that waits
/// for its reply asks again within this time, and is then answered without anybody's being woken.
const SPIN: Duration = Duration::from_micros(50);
/// A clock is looked at once in so many empty polls.
const POLLS_PER_LOOK: u32 = 32;
/// Sockets and clock are looked at once in so many wake-ups that messages came in.
const WAKES_PER_LOOK: u32 = 16;
/// How often deadlines are looked at while any connection has one.
const TICK: Duration = Duration::from_millis(100);
/// Bytes that a connection may receive and send before it is the next one's turn.
const TURN_BYTES: usize = 256 << 10;
/// The same for the last turn before the server stops: all that the kernel may have received for it.
const LAST_TURN_BYTES: usize = 16 << 20;

struct Seat<M: Backing> {
    connection: Connection<TcpStream, M>,
    queued: bool,
    /// Among those that wait for the log.
    waiting: bool,
    /// As of its last turn.
    buffered: usize,
}

/// What a worker lends to the connection whose turn it is.
struct Desk<M> {
    index: usize,
    service: Arc<Service<M>>,
    input: Input,
    spare: Vec<u8>,
    messages: Messages,
}

impl<M: Backing> Desk<M> {
    fn turn<'a>(&'a mut self, of: (usize, Carried), now: Instant, guard: &'a mut Guard) -> Turn<'a, M> {
        let Self { index, service, input, spare, messages } = self;
        let (seat, carried) = of;
        let metrics = service.metrics.worker(*index, carried);
        Turn { service, metrics, guard, input, spare, messages, seat, now, budget: 0, stopping: false }
    }
}

/// A worker before and while it runs.
pub(crate) struct Worker<M: Backing> {
    desk: Desk<M>,
    poll: Poll,
    inbox: Receiver<Arrival>,
    stop: Arc<AtomicBool>,
    seats: Vec<Option<Seat<M>>>,
    free: Vec<usize>,
    /// Connections whose turn it is.
    queue: VecDeque<usize>,
    /// When to look at deadlines again; none while no connection has one, and no closed channel is left.
    tick: Option<Instant>,
    /// Once stopping: until when connections may take to end.
    stop_by: Option<Instant>,
    /// The descriptor that is watched for messages.
    watched: Option<RawFd>,
    /// Wake-ups since the sockets and the clock were looked at.
    wakes: u32,
    /// The generation of passes that the connections were last looked at for.
    passes_seen: u64,
    /// Connections that wait for the log, and its progress when they were last looked at.
    waiting: Vec<usize>,
    progress_seen: u64,
    /// When the clock was looked at: all deadlines are long beside the time between two looks.
    now: Instant,
}

impl<M: Backing> Worker<M> {
    pub(crate) fn new(index: usize, service: Arc<Service<M>>) -> io::Result<(Self, Handle)> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
        let (sender, inbox) = crossbeam_channel::unbounded();
        let stop = Arc::new(AtomicBool::new(false));
        let handle = Handle::new(sender, stop.clone(), waker);
        let worker = Self {
            desk: Desk { index, service, input: Input::new(), spare: Vec::new(), messages: Messages::default() },
            poll,
            inbox,
            stop,
            seats: Vec::new(),
            free: Vec::new(),
            queue: VecDeque::new(),
            tick: None,
            stop_by: None,
            watched: None,
            wakes: 0,
            passes_seen: 0,
            waiting: Vec::new(),
            progress_seen: 0,
            now: Instant::now(),
        };
        Ok((worker, handle))
    }

    /// Serves until told to stop. An error is one of the event loop itself.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(1024);
        loop {
            self.wait(&mut events)?;
            let now = self.now;
            for event in &events {
                self.note(event, now);
            }
            self.look_at_log();
            let mut guard = crossbeam_epoch::pin();
            if self.stop_by.is_none() && self.stop.load(Ordering::Acquire) {
                self.take_last_requests(now, &mut guard);
            }
            for _ in 0..self.queue.len() {
                let Some(index) = self.queue.pop_front() else { break };
                self.turn(index, now, TURN_BYTES, &mut guard);
            }
            self.look_at_passes();
            self.look_at_deadlines(now, &mut guard);
            self.desk.service.store.hand_over_retired(&guard);
            self.publish_counts();
            if let Some(by) = self.stop_by
                && (now >= by || self.free.len() == self.seats.len())
            {
                return Ok(());
            }
        }
    }

    /// Waits for something to do. Messages are polled for, for a short while if need be; then it sleeps.
    fn wait(&mut self, events: &mut Events) -> io::Result<()> {
        events.clear();
        let mut patience = self.patience();
        if self.desk.messages.raw_fd().is_none() {
            // Lost: the next one may have the same number, and is another one.
            self.watched = None;
        }
        if self.desk.messages.channels() > 0 {
            self.watch_messages()?;
            let has_come = match patience {
                Some(Duration::ZERO) => self.take_messages(),
                _ => self.poll_for_messages(),
            };
            self.wakes += 1;
            if has_come && self.wakes < WAKES_PER_LOOK {
                return Ok(());
            }
            if !has_come && patience != Some(Duration::ZERO) {
                self.desk.messages.arm();
            }
            // What came before it was armed is not told of.
            if has_come || self.take_messages() {
                patience = Some(Duration::ZERO);
            }
        }
        self.wakes = 0;
        let polled = self.poll.poll(events, patience);
        self.now = Instant::now();
        match polled {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            polled => polled,
        }
    }

    /// Polls until messages come, or for a short while.
    fn poll_for_messages(&mut self) -> bool {
        let mut until = None;
        for polls in 1u32.. {
            if self.take_messages() {
                return true;
            }
            if polls.is_multiple_of(POLLS_PER_LOOK) {
                self.now = Instant::now();
                if self.now >= *until.get_or_insert(self.now + SPIN) {
                    break;
                }
                // Whoever has something to do goes first, the client on this host too.
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
        false
    }

    /// Gives a turn to the connections that messages came for. False: none came.
    fn take_messages(&mut self) -> bool {
        let Self { desk, seats, queue, .. } = self;
        desk.messages.poll(|index| {
            if let Some(Some(seat)) = seats.get_mut(index) {
                seat.connection.messages_ready();
                if !std::mem::replace(&mut seat.queued, true) {
                    queue.push_back(index);
                }
            }
        })
    }

    /// Has the event loop told of messages, from the first channel on.
    fn watch_messages(&mut self) -> io::Result<()> {
        let fd = self.desk.messages.raw_fd();
        if let Some(raw) = fd
            && self.watched != fd
        {
            self.poll.registry().register(&mut SourceFd(&raw), MESSAGES, Interest::READABLE)?;
            self.watched = fd;
        }
        Ok(())
    }

    fn publish_counts(&self) {
        if self.watched.is_some() {
            let metrics = self.desk.service.metrics.worker(self.desk.index, Carried::Messages);
            let (received, sent) = self.desk.messages.counts();
            metrics.channels.set(self.desk.messages.channels() as u64);
            metrics.messages_received.set(received);
            metrics.messages_sent.set(sent);
        }
    }

    /// How long to wait for events.
    fn patience(&self) -> Option<Duration> {
        if !self.queue.is_empty() {
            return Some(Duration::ZERO);
        }
        self.tick.map(|at| at.saturating_duration_since(Instant::now()))
    }

    fn note(&mut self, event: &Event, now: Instant) {
        if event.token() == WAKE {
            while let Ok(arrival) = self.inbox.try_recv() {
                self.welcome(arrival, now);
            }
            return;
        }
        if event.token() == MESSAGES {
            self.desk.messages.wake();
            self.take_messages();
            return;
        }
        let index = event.token().0;
        if let Some(Some(seat)) = self.seats.get_mut(index) {
            seat.connection.ready(event.is_readable(), event.is_writable(), event.is_read_closed());
            self.enqueue(index);
        }
    }

    fn enqueue(&mut self, index: usize) {
        if let Some(Some(seat)) = self.seats.get_mut(index)
            && !seat.queued
        {
            seat.queued = true;
            self.queue.push_back(index);
        }
    }

    fn welcome(&mut self, Arrival { mut stream, from, refused }: Arrival, now: Instant) {
        let Ok(tls) = self.desk.service.tls.as_ref().map(TlsDoor::open).transpose() else {
            warn!("cannot begin TLS on a connection");
            self.desk.service.metrics.closed();
            return;
        };
        let index = self.free.pop().unwrap_or_else(|| {
            self.seats.push(None);
            self.seats.len() - 1
        });
        let interest = Interest::READABLE | Interest::WRITABLE;
        if let Err(error) = self.poll.registry().register(&mut stream, Token(index), interest) {
            warn!(%error, "cannot watch a connection");
            self.free.push(index);
            self.desk.service.metrics.closed();
            return;
        }
        let tls = tls.map(|session| Tls::new(session, from));
        let mut connection = Connection::new(stream, from, tls, now, self.desk.service.timeouts.handshake);
        if let Some(reason) = refused {
            connection.refuse(&reason, self.desk.service.metrics.worker(self.desk.index, Carried::Socket));
        }
        self.seats[index] = Some(Seat { connection, queued: false, waiting: false, buffered: 0 });
        self.enqueue(index);
    }

    fn turn(&mut self, index: usize, now: Instant, budget: usize, guard: &mut Guard) {
        let Some(Some(seat)) = self.seats.get_mut(index) else { return };
        seat.queued = false;
        let mut turn = self.desk.turn((index, seat.connection.carried()), now, guard);
        (turn.budget, turn.stopping) = (budget, self.stop_by.is_some());
        let next = seat.connection.turn(&mut turn);
        let buffered = seat.connection.buffered();
        self.desk.service.metrics.buffers_changed(std::mem::replace(&mut seat.buffered, buffered), buffered);
        if seat.connection.deadline().is_some() && self.tick.is_none() {
            self.tick = Some(now + TICK);
        }
        if seat.connection.waits_for_log() && !std::mem::replace(&mut seat.waiting, true) {
            self.waiting.push(index);
        }
        // A long round must not keep extents from being used again.
        guard.repin();
        match next {
            Next::Wait => {}
            Next::Again => self.enqueue(index),
            Next::Close => self.dismiss(index),
        }
    }

    fn dismiss(&mut self, index: usize) {
        let Some(mut seat) = self.seats[index].take() else { return };
        if let Err(error) = self.poll.registry().deregister(seat.connection.stream()) {
            debug!(%error, "cannot stop watching a connection");
        }
        for channel in seat.connection.take_channels() {
            self.desk.messages.close(channel);
            self.tick.get_or_insert_with(|| Instant::now() + TICK);
        }
        self.free.push(index);
        self.desk.service.metrics.buffers_changed(seat.buffered, 0);
        self.desk.service.metrics.closed();
    }

    /// Gives a turn to the connections that wait for the log, if it has come further.
    fn look_at_log(&mut self) {
        let progress = self.desk.service.queue().map_or(0, Queue::progress);
        if self.waiting.is_empty() || progress == std::mem::replace(&mut self.progress_seen, progress) {
            return;
        }
        for index in std::mem::take(&mut self.waiting) {
            if let Some(seat) = &mut self.seats[index] {
                seat.waiting = false;
            }
            self.enqueue(index);
        }
    }

    /// Ends the connections whose pass is worth nothing any more, with all that they have. Their clients learn why when
    /// they come again.
    fn look_at_passes(&mut self) {
        let generation = self.desk.service.access.generation();
        if generation == std::mem::replace(&mut self.passes_seen, generation) {
            return;
        }
        for index in 0..self.seats.len() {
            let pass = self.seats[index].as_ref().and_then(|seat| seat.connection.pass());
            let Some(pass) = pass.filter(|pass| !self.desk.service.access.holds(pass)) else { continue };
            info!(token = pass.name(), "a session ends: its token is gone, has changed or has expired");
            self.desk.service.access.session_ended();
            self.dismiss(index);
        }
    }

    fn look_at_deadlines(&mut self, now: Instant, guard: &mut Guard) {
        if self.tick.is_none_or(|at| now < at) {
            return;
        }
        let mut any = self.desk.messages.tidy() || self.stop_by.is_some();
        for index in 0..self.seats.len() {
            let Some(seat) = &mut self.seats[index] else { continue };
            let Some(deadline) = seat.connection.deadline() else { continue };
            if now < deadline {
                any = true;
                continue;
            }
            if seat.connection.has_idled(now) {
                any = true;
                self.enqueue(index);
                continue;
            }
            seat.connection.expire(&mut self.desk.turn((index, seat.connection.carried()), now, guard));
            self.dismiss(index);
        }
        self.tick = any.then(|| now + TICK);
    }

    /// Answers what has been received so far; from here on requests are refused and connections end
    /// as soon as their replies are out.
    fn take_last_requests(&mut self, now: Instant, guard: &mut Guard) {
        while self.take_messages() {}
        for index in 0..self.seats.len() {
            if let Some(seat) = &mut self.seats[index] {
                seat.connection.ready(true, true, false);
                self.turn(index, now, LAST_TURN_BYTES, guard);
            }
        }
        self.stop_by = Some(now + self.desk.service.timeouts.stop);
        self.tick = Some(now + TICK);
        for index in 0..self.seats.len() {
            self.enqueue(index);
        }
    }
}
