//! Sessions: what the server remembers of a client's writes, so that a repeat is applied once.
//!
//! A session outlives its connection for a while, so that a client can reconnect and repeat what
//! was not acknowledged. A write holds its session's lock from the look at the window to the
//! remembered reply: a repeat of a write still being applied waits at the lock, finds the reply,
//! and nothing needs to be said about writes in progress. The lock is the client's own, so nobody
//! else ever waits for it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use mio::Waker;
use parking_lot::Mutex;
use sidestep_core::limits::MAX_WRITES_IN_FLIGHT;
use sidestep_core::message::Status;
use tracing::warn;

use crate::access::Pass;

/// How a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) status: Status,
    pub(crate) version: u64,
}

/// What came of a write that may be a repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Applied {
    /// It was done now.
    Now(Outcome),
    /// It had been done before, and this came of it.
    Before(Outcome),
    /// It is older than what is remembered: it may have been done or not.
    Unknown,
    /// The session goes on over another connection; this one has no say any more.
    Superseded,
}

/// The last outcomes of a session's writes.
#[derive(Debug, Default)]
struct Window {
    highest: u64,
    /// In the order of application. Those too old to be asked for leave at the front.
    outcomes: VecDeque<(u64, Outcome)>,
}

const REMEMBERED: u64 = MAX_WRITES_IN_FLIGHT as u64;

impl Window {
    /// Some if the write must not be done: what came of it, or that this is not known any more.
    fn seen(&self, sequence: u64) -> Option<Applied> {
        if sequence > self.highest {
            return None;
        }
        if self.highest - sequence >= REMEMBERED {
            return Some(Applied::Unknown);
        }
        // Only repeats come here. One that is not found was never done: everything this young is kept.
        self.outcomes.iter().rev().find(|(of, _)| *of == sequence).map(|(_, outcome)| Applied::Before(*outcome))
    }

    fn remember(&mut self, sequence: u64, outcome: Outcome) {
        self.highest = self.highest.max(sequence);
        while self.outcomes.front().is_some_and(|(of, _)| self.highest - of >= REMEMBERED) {
            self.outcomes.pop_front();
        }
        self.outcomes.push_back((sequence, outcome));
    }
}

#[derive(Debug)]
struct State {
    /// The number of the connection that the session belongs to.
    owner: u64,
    /// Since when that connection is closed.
    detached: Option<Instant>,
    window: Window,
}

/// One client's session.
#[derive(Debug)]
struct Session {
    ticket: [u8; 16],
    /// Of the client that began it: nobody else's goes on with it.
    holder: Pass,
    state: Mutex<State>,
}

/// Whether the time of any session runs, and who is to look at the clock then.
#[derive(Debug, Default)]
struct Timer {
    runs: AtomicBool,
    waker: OnceLock<Arc<Waker>>,
}

impl Timer {
    fn start(&self) {
        if !self.runs.swap(true, Ordering::AcqRel)
            && let Some(waker) = self.waker.get()
            && let Err(error) = waker.wake()
        {
            warn!(%error, "cannot wake the acceptor");
        }
    }
}

/// A connection's hold on its session. Dropping it lets the session's time run.
#[derive(Debug)]
pub(crate) struct Attached {
    session: Arc<Session>,
    timer: Arc<Timer>,
    owner: u64,
    pass: Pass,
}

impl Attached {
    /// Does the write `sequence` unless it was done before.
    pub(crate) fn apply(&self, sequence: u64, write: impl FnOnce() -> Outcome) -> Applied {
        let mut state = self.session.state.lock();
        if state.owner != self.owner {
            return Applied::Superseded;
        }
        if let Some(seen) = state.window.seen(sequence) {
            return seen;
        }
        let outcome = write();
        state.window.remember(sequence, outcome);
        Applied::Now(outcome)
    }

    /// What [`Attached::apply`] would say without doing the write; None: it would do it.
    pub(crate) fn seen(&self, sequence: u64) -> Option<Applied> {
        let state = self.session.state.lock();
        if state.owner != self.owner { Some(Applied::Superseded) } else { state.window.seen(sequence) }
    }

    /// What the connection was let in with.
    pub(crate) fn pass(&self) -> &Pass {
        &self.pass
    }

    /// What the client presents to be handed the table's memory.
    pub(crate) fn ticket(&self) -> [u8; 16] {
        self.session.ticket
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let mut state = self.session.state.lock();
        if state.owner == self.owner {
            state.detached = Some(Instant::now());
            drop(state);
            self.timer.start();
        }
    }
}

/// All sessions of this start of the server.
#[derive(Debug)]
pub(crate) struct Sessions {
    by_client: DashMap<u64, Arc<Session>>,
    /// What each was given out for.
    tickets: DashMap<[u8; 16], Pass>,
    connections: AtomicU64,
    timeout: Duration,
    timer: Arc<Timer>,
}

impl Sessions {
    /// Sessions that outlive their connections by `timeout`.
    pub(crate) fn new(timeout: Duration) -> Self {
        let (by_client, tickets) = (DashMap::new(), DashMap::new());
        Self { by_client, tickets, connections: AtomicU64::new(0), timeout, timer: Arc::default() }
    }

    /// Who sweeps, and is woken when there begins to be something to sweep.
    pub(crate) fn swept_by(&self, waker: Arc<Waker>) {
        // There is one, for good.
        let _ = self.timer.waker.set(waker);
    }

    /// Whether [`Sessions::sweep`] will have something to do by and by.
    pub(crate) fn needs_sweep(&self) -> bool {
        self.timer.runs.load(Ordering::Acquire)
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Number of sessions, those without a connection too.
    pub(crate) fn len(&self) -> usize {
        self.by_client.len()
    }

    /// Gives a connection the session of its client: with `resume` the one it has, else a new one
    /// under the `ticket`. True if it was resumed. The session leaves the connection it had before. Refused if the
    /// session is of a holder of another token.
    pub(crate) fn attach(
        &self,
        client_id: u64,
        resume: bool,
        ticket: [u8; 16],
        pass: Pass,
    ) -> Result<(Attached, bool), String> {
        let owner = self.connections.fetch_add(1, Ordering::Relaxed) + 1;
        let new = || {
            let state = State { owner, detached: None, window: Window::default() };
            self.tickets.insert(ticket, pass.clone());
            Arc::new(Session { ticket, holder: pass.clone(), state: Mutex::new(state) })
        };
        let (session, resumed) = match self.by_client.entry(client_id) {
            Entry::Occupied(entry) if !entry.get().holder.is_of_same_holder(&pass) => {
                return Err(format!("expected a client id that is not in use by another token, found {client_id:#x}"));
            }
            Entry::Occupied(entry) if resume => {
                let session = Arc::clone(entry.get());
                self.tickets.insert(session.ticket, pass.clone());
                let mut state = session.state.lock();
                state.owner = owner;
                state.detached = None;
                drop(state);
                (session, true)
            }
            Entry::Occupied(mut entry) => {
                let session = new();
                let before = entry.insert(Arc::clone(&session));
                self.tickets.remove(&before.ticket);
                (session, false)
            }
            Entry::Vacant(entry) => (Arc::clone(&entry.insert(new())), false),
        };
        Ok((Attached { session, timer: self.timer.clone(), owner, pass }, resumed))
    }

    /// What the ticket's session was last let in with; None: no session has that ticket.
    pub(crate) fn pass_of(&self, ticket: &[u8; 16]) -> Option<Pass> {
        self.tickets.get(ticket).map(|pass| pass.clone())
    }

    /// Ends the sessions that have been without a connection for too long.
    pub(crate) fn sweep(&self, now: Instant) {
        // Before they are looked at: one that is detached behind the look starts it again.
        self.timer.runs.store(false, Ordering::Release);
        let mut are_left = false;
        self.by_client.retain(|_, session| {
            let detached = session.state.lock().detached;
            let over = detached.is_some_and(|since| now.saturating_duration_since(since) >= self.timeout);
            if over {
                self.tickets.remove(&session.ticket);
            }
            are_left |= detached.is_some() && !over;
            !over
        });
        if are_left {
            self.timer.runs.store(true, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests;
