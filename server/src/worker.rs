//! One thread with an event loop over its share of the connections.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use crossbeam_epoch::Guard;
use mio::event::Event;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token, Waker};
use tracing::{debug, warn};

use crate::backing::Backing;
use crate::connection::{Connection, Next, Turn};
use crate::input::Input;
use crate::service::Service;

/// The waker's token; connections count from 0.
const WAKE: Token = Token(usize::MAX);
/// How often deadlines are looked at while any connection has one.
const TICK: Duration = Duration::from_millis(100);
/// Bytes that a connection may receive and send before it is the next one's turn.
const TURN_BYTES: usize = 256 << 10;
/// The same for the last turn before the server stops: all that the kernel may have received for it.
const LAST_TURN_BYTES: usize = 16 << 20;

/// A connection that was accepted.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) stream: TcpStream,
    /// Why it is not to be served.
    pub(crate) refused: Option<String>,
}

/// The other threads' side of a worker.
#[derive(Debug)]
pub(crate) struct Handle {
    inbox: Sender<Arrival>,
    stop: Arc<AtomicBool>,
    waker: Arc<Waker>,
}

impl Handle {
    /// Gives the worker a connection. Back if the worker is no more.
    pub(crate) fn serve(&self, arrival: Arrival) -> Result<(), Arrival> {
        self.inbox.send(arrival).map_err(|unsent| unsent.0)?;
        self.wake();
        Ok(())
    }

    /// Has the worker finish what it has received, and end.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        if let Err(error) = self.waker.wake() {
            warn!(%error, "cannot wake a worker");
        }
    }
}

struct Seat<M: Backing> {
    connection: Connection<TcpStream, M>,
    queued: bool,
}

/// What a worker lends to the connection whose turn it is.
struct Desk<M> {
    index: usize,
    service: Arc<Service<M>>,
    input: Input,
    spare: Vec<u8>,
}

impl<M: Backing> Desk<M> {
    fn turn<'a>(&'a mut self, now: Instant, budget: usize, stopping: bool, guard: &'a mut Guard) -> Turn<'a, M> {
        let Self { index, service, input, spare } = self;
        Turn { service, metrics: service.metrics.worker(*index), guard, input, spare, now, budget, stopping }
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
    /// When to look at deadlines again; none while no connection has one.
    tick: Option<Instant>,
    /// Once stopping: until when connections may take to end.
    stop_by: Option<Instant>,
}

impl<M: Backing> Worker<M> {
    pub(crate) fn new(index: usize, service: Arc<Service<M>>) -> io::Result<(Self, Handle)> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
        let (sender, inbox) = crossbeam_channel::unbounded();
        let stop = Arc::new(AtomicBool::new(false));
        let handle = Handle { inbox: sender, stop: stop.clone(), waker };
        let worker = Self {
            desk: Desk { index, service, input: Input::new(), spare: Vec::new() },
            poll,
            inbox,
            stop,
            seats: Vec::new(),
            free: Vec::new(),
            queue: VecDeque::new(),
            tick: None,
            stop_by: None,
        };
        Ok((worker, handle))
    }

    /// Serves until told to stop. An error is one of the event loop itself.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(1024);
        loop {
            match self.poll.poll(&mut events, self.patience()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                polled => polled?,
            }
            let now = Instant::now();
            for event in &events {
                self.note(event, now);
            }
            let mut guard = crossbeam_epoch::pin();
            if self.stop_by.is_none() && self.stop.load(Ordering::Acquire) {
                self.take_last_requests(now, &mut guard);
            }
            for _ in 0..self.queue.len() {
                let Some(index) = self.queue.pop_front() else { break };
                self.turn(index, now, TURN_BYTES, &mut guard);
            }
            self.look_at_deadlines(now, &mut guard);
            self.desk.service.store.hand_over_retired(&guard);
            if let Some(by) = self.stop_by
                && (now >= by || self.free.len() == self.seats.len())
            {
                return Ok(());
            }
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

    fn welcome(&mut self, Arrival { mut stream, refused }: Arrival, now: Instant) {
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
        let mut connection = Connection::new(stream, now, self.desk.service.timeouts.handshake);
        if let Some(reason) = refused {
            connection.refuse(&reason, self.desk.service.metrics.worker(self.desk.index));
        }
        self.seats[index] = Some(Seat { connection, queued: false });
        self.enqueue(index);
    }

    fn turn(&mut self, index: usize, now: Instant, budget: usize, guard: &mut Guard) {
        let Some(Some(seat)) = self.seats.get_mut(index) else { return };
        seat.queued = false;
        let mut turn = self.desk.turn(now, budget, self.stop_by.is_some(), guard);
        let next = seat.connection.turn(&mut turn);
        if seat.connection.deadline().is_some() && self.tick.is_none() {
            self.tick = Some(now + TICK);
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
        self.free.push(index);
        self.desk.service.metrics.closed();
    }

    fn look_at_deadlines(&mut self, now: Instant, guard: &mut Guard) {
        if self.tick.is_none_or(|at| now < at) {
            return;
        }
        let mut any = self.stop_by.is_some();
        for index in 0..self.seats.len() {
            let Some(seat) = &mut self.seats[index] else { continue };
            let Some(deadline) = seat.connection.deadline() else { continue };
            if now < deadline {
                any = true;
                continue;
            }
            seat.connection.expire(&mut self.desk.turn(now, 0, false, guard));
            self.dismiss(index);
        }
        self.tick = any.then(|| now + TICK);
    }

    /// Answers what has been received so far; from here on requests are refused and connections end
    /// as soon as their replies are out.
    fn take_last_requests(&mut self, now: Instant, guard: &mut Guard) {
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
