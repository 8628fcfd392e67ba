//! The thread that takes connections and hands them to the workers, and keeps the sessions tidy.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use rustix::net::sockopt;
use tracing::{debug, warn};

use crate::backing::Backing;
use crate::handle::{Arrival, Handle};
use crate::service::Service;

const LISTENER: Token = Token(0);
const WAKE: Token = Token(1);
/// Pause after the system could not give a connection, as when descriptors have run out.
const PAUSE: Duration = Duration::from_millis(50);
/// Between two warnings about that.
const WARN_EVERY: Duration = Duration::from_secs(10);
/// Connections beyond the limit that are told why they are refused; more are dropped without a word. Where the limit is low,
/// which it may be for want of descriptors, not so many.
const TURNED_AWAY: usize = 256;
const LEAST_TURNED_AWAY: usize = 16;
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;
/// How many times the kernel asks whether a silent client is still there.
const PROBES: u32 = 4;

/// The other threads' side of the acceptor.
#[derive(Debug)]
pub(crate) struct AcceptorHandle {
    stop: Arc<AtomicBool>,
    waker: Arc<Waker>,
}

impl AcceptorHandle {
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    /// Has it look whether there is something to do by the clock.
    pub(crate) fn wake(&self) {
        if let Err(error) = self.waker.wake() {
            warn!(%error, "cannot wake the acceptor");
        }
    }
}

pub(crate) struct Acceptor<M> {
    listener: TcpListener,
    service: Arc<Service<M>>,
    workers: Arc<[Handle]>,
    max_connections: usize,
    poll: Poll,
    stop: Arc<AtomicBool>,
    /// The worker whose turn it is.
    next: usize,
    /// When it was last warned that a connection cannot be accepted.
    warned: Option<Instant>,
}

impl<M: Backing> Acceptor<M> {
    pub(crate) fn new(
        listener: std::net::TcpListener,
        service: Arc<Service<M>>,
        workers: Arc<[Handle]>,
        max_connections: usize,
    ) -> io::Result<(Self, AcceptorHandle)> {
        listener.set_nonblocking(true)?;
        // The standard library listens with a backlog of 128: too short for all clients to come back at once.
        rustix::net::listen(&listener, BACKLOG)?;
        let mut listener = TcpListener::from_std(listener);
        let poll = Poll::new()?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
        service.sessions.swept_by(waker.clone());
        let stop = Arc::new(AtomicBool::new(false));
        let handle = AcceptorHandle { stop: stop.clone(), waker };
        Ok((Self { listener, service, workers, max_connections, poll, stop, next: 0, warned: None }, handle))
    }

    /// Accepts until told to stop. The listener comes back still bound: while the workers answer what they have
    /// received, no other server is to take writes at this address.
    pub(crate) fn run(mut self) -> io::Result<TcpListener> {
        let mut events = Events::with_capacity(8);
        // Sessions end somewhat later than they may.
        let sweep_every = (self.service.sessions.timeout() / 8).clamp(PAUSE, Duration::from_secs(5));
        let mut sweep_at = Instant::now() + sweep_every;
        let mut more = false;
        loop {
            // With nothing to do by the clock it sleeps, so that a server whose clients only read takes no CPU at all.
            let patience = match self.service.sessions.needs_sweep() || self.service.access.has_end() {
                _ if more => Some(PAUSE),
                true => Some(sweep_at.saturating_duration_since(Instant::now())),
                false => None,
            };
            match self.poll.poll(&mut events, patience) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                polled => polled?,
            }
            if self.stop.load(Ordering::Acquire) {
                return Ok(self.listener);
            }
            if more || events.iter().any(|event| event.token() == LISTENER) {
                more = self.accept_all();
            }
            let now = Instant::now();
            if now >= sweep_at {
                self.service.sessions.sweep(now);
                if self.service.access.note_time() {
                    self.workers.iter().for_each(Handle::wake);
                }
                sweep_at = now + sweep_every;
            }
        }
    }

    /// Takes all connections that wait. True if the system could not give one and may do so later.
    fn accept_all(&mut self) -> bool {
        loop {
            match self.listener.accept() {
                Ok((stream, from)) => {
                    debug!(%from, "connection accepted");
                    self.place(stream, from.ip());
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return false,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    _ => {
                        if self.warned.is_none_or(|warned| warned.elapsed() >= WARN_EVERY) {
                            warn!(%error, "cannot accept connections for now");
                            self.warned = Some(Instant::now());
                        }
                        return true;
                    }
                },
            }
        }
    }

    fn place(&mut self, stream: TcpStream, from: IpAddr) {
        let open = usize::try_from(self.service.metrics.connections()).unwrap_or(usize::MAX);
        let turned_away = (self.max_connections / 2).clamp(LEAST_TURNED_AWAY, TURNED_AWAY);
        if open >= self.max_connections.saturating_add(turned_away) {
            debug!("connection dropped: too many are being refused already");
            return;
        }
        if let Err(error) = prepare(&stream, self.service.timeouts.silence) {
            debug!(%error, "connection lost before it was served");
            return;
        }
        self.service.metrics.opened();
        let refused = match self.service.metrics.buffers_full() {
            _ if open >= self.max_connections => {
                Some(format!("the server has all {} connections that it may have", self.max_connections))
            }
            Some(most) => Some(format!("the server's connections hold all {most} bytes that they may hold")),
            None => None,
        };
        let mut arrival = Arrival { stream, from, refused };
        for _ in 0..self.workers.len() {
            let worker = &self.workers[self.next];
            self.next = (self.next + 1) % self.workers.len();
            match worker.serve(arrival) {
                Ok(()) => return,
                Err(back) => arrival = back,
            }
        }
        warn!("no worker is left to serve a connection");
        self.service.metrics.closed();
    }
}

/// Replies go out at once, and a client whose host is gone is noticed after `silence`: asked for a sign of life in the
/// second half of that, or, where it has not taken what was sent, given up without asking.
fn prepare(stream: &TcpStream, silence: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    // The kernel counts these in whole seconds, and knows no zero.
    let seconds = |time: Duration| time.max(Duration::from_secs(1));
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, seconds(silence / 2))?;
    sockopt::set_tcp_keepintvl(stream, seconds(silence / 2 / PROBES))?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    // Without this the kernel repeats what was not taken for a quarter of an hour, and asks nothing meanwhile.
    sockopt::set_tcp_user_timeout(stream, u32::try_from(silence.as_millis()).unwrap_or(u32::MAX))?;
    Ok(())
}
