//! Compaction: the log begins anew with what the table has, and what was before is dropped.
//!
//! A new segment begins. Then every item of the table is put into the log, each under its key's lock, so between its
//! earlier and later writes. When all of that is synced, nothing before the new segment is needed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use parking_lot::{Condvar, Mutex};
use tracing::{info, warn};

use super::folder::Folder;
use super::queue::{Order, Queue};
use super::writer::source;
use crate::backing::Backing;
use crate::store::{JournalFrom, Store};

/// A log that is smaller is left alone.
const LEAST_BYTES: u64 = 64 << 20;
/// So many segments are compacted, whatever their size: a start makes one.
const MOST_SEGMENTS: usize = 32;
/// Room that a compaction leaves.
const ROOM_BYTES: u64 = 64 << 20;
/// Bytes of items between two looks at the queue.
const STEP_BYTES: usize = 1 << 20;
/// With so much waiting to be written, the compaction lets others go first for a while. More than a batch, which is then
/// due. Not for ever: a log that is written without a pause must not grow without an end.
const WAITING_BYTES: u64 = 8 << 20;
const PATIENCE: Duration = Duration::from_millis(10);
const WAIT: Duration = Duration::from_millis(1);
/// After one that failed.
const REST: Duration = Duration::from_secs(10);

/// Has the log compacted when it is time.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    state: Mutex<State>,
    rung: Condvar,
}

#[derive(Debug, Default)]
struct State {
    has_grown: bool,
    is_rung: bool,
    stop: bool,
    /// What the table's items took at the last compaction: a log has at least that.
    live_bytes: u64,
}

impl State {
    fn is_wanted(&self) -> bool {
        self.has_grown || self.is_rung
    }
}

impl Bell {
    /// The log has this size.
    pub(super) fn grown(&self, bytes: u64, segments: usize) {
        let mut state = self.state.lock();
        if bytes > LEAST_BYTES + 2 * state.live_bytes || segments > MOST_SEGMENTS {
            state.has_grown = true;
            self.rung.notify_one();
        }
    }

    /// It was compacted, to this size and what was written meanwhile.
    fn compacted(&self, live_bytes: u64) {
        let mut state = self.state.lock();
        state.live_bytes = live_bytes;
        // It was heard of when the log was largest. If it still is, it is heard of again; a ring is not, and may be for what
        // was put into the log already.
        state.has_grown = false;
    }

    /// There is much less to keep than there was.
    pub(crate) fn ring(&self) {
        self.state.lock().is_rung = true;
        self.rung.notify_one();
    }

    /// Ends [`Bell::wait`], for good.
    pub(super) fn stop(&self) {
        self.state.lock().stop = true;
        self.rung.notify_all();
    }

    fn has_stopped(&self) -> bool {
        self.state.lock().stop
    }

    /// Waits until it is time. False: end.
    fn wait(&self) -> bool {
        let mut state = self.state.lock();
        while !state.is_wanted() && !state.stop {
            self.rung.wait(&mut state);
        }
        (state.has_grown, state.is_rung) = (false, false);
        !state.stop
    }

    fn rest(&self, time: Duration) {
        let mut state = self.state.lock();
        let until = Instant::now() + time;
        while !state.stop && !self.rung.wait_until(&mut state, until).timed_out() {}
    }
}

/// What a compaction needs.
#[derive(Debug)]
pub(super) struct Compactor<M: Backing> {
    pub(super) store: Arc<Store<M>>,
    pub(super) queue: Arc<Queue>,
    pub(super) folder: Arc<Folder>,
    pub(super) bell: Arc<Bell>,
}

impl<M: Backing> Compactor<M> {
    /// Compacts whenever it is time, until the bell is stopped.
    pub(super) fn run(&self) {
        while self.bell.wait() {
            let since = Instant::now();
            let counters = &self.queue.counters;
            let before = counters.segment_bytes.load(Ordering::Relaxed);
            match self.compact() {
                Ok(()) => {
                    counters.compactions.fetch_add(1, Ordering::Relaxed);
                    let after = counters.segment_bytes.load(Ordering::Relaxed);
                    info!(before, after, ms = since.elapsed().as_millis(), "log compacted");
                }
                Err(_) if self.bell.has_stopped() => {}
                Err(reason) => {
                    counters.compactions_failed.fetch_add(1, Ordering::Relaxed);
                    warn!(reason, "the log was not compacted; it is tried again when it has grown");
                    self.bell.rest(REST);
                }
            }
        }
    }

    /// Returns when the old segments are gone, or why they stay.
    pub(super) fn compact(&self) -> Result<(), String> {
        look_for_room(&self.folder, &self.store)?;
        let (answer, rotated) = crossbeam_channel::bounded(1);
        self.queue.order(Order::Rotate(answer));
        let base = self.answer(&rotated)?;
        let mut from = Some(JournalFrom::default());
        while let Some(at) = from {
            let until = Instant::now() + PATIENCE;
            while self.queue.is_full() || (self.queue.pending_bytes() >= WAITING_BYTES && Instant::now() < until) {
                self.look()?;
                self.bell.rest(WAIT);
            }
            self.look()?;
            from = self.store.journal_all(at, STEP_BYTES);
        }
        let (answer, dropped) = crossbeam_channel::bounded(1);
        // Whatever waits is written before it.
        self.queue.order(Order::DropBefore(base, answer));
        // With the old segments comes back what was deleted or evicted without a record: a start must not serve then.
        self.answer(&dropped)?.map_err(|error| format!("{error}: {}", source(&error)))?;
        self.bell.compacted(live_bytes(&self.store));
        Ok(())
    }

    /// Waits for the writing thread to answer.
    fn answer<T>(&self, answer: &Receiver<T>) -> Result<T, String> {
        loop {
            match answer.recv_timeout(WAIT) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Timeout) => self.look()?,
                Err(RecvTimeoutError::Disconnected) => return Err("the log cannot begin a new segment".to_owned()),
            }
        }
    }

    /// Whether there is a reason to give up.
    fn look(&self) -> Result<(), String> {
        if self.queue.is_failing() {
            return Err("the log cannot be written".to_owned());
        }
        if self.bell.has_stopped() { Err("the server ends".to_owned()) } else { Ok(()) }
    }
}

/// About what a table's items take.
fn live_bytes<M: Backing>(store: &Store<M>) -> u64 {
    let stats = store.stats();
    stats.into_iter().find(|stat| stat.0 == "extent_bytes").map_or(0, |stat| stat.1)
}

/// Whether the log's disk can take all of a table.
pub(super) fn look_for_room<M: Backing>(folder: &Folder, store: &Store<M>) -> Result<(), String> {
    let free = folder.free_bytes().map_err(|error| error.to_string())?;
    let wanted = live_bytes(store) + ROOM_BYTES;
    if free < wanted {
        return Err(format!("expected room for {wanted} bytes on the log's disk, found {free}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A flush while the log is compacted leaves much that was put into it and is of no use. A growth meanwhile does not.
    #[test]
    fn a_ring_during_a_compaction_is_not_forgotten() {
        let bell = Bell::default();
        let is_wanted = || bell.state.lock().is_wanted();
        bell.ring();
        assert!(bell.wait() && !is_wanted());
        bell.grown(u64::MAX, 1);
        bell.compacted(0);
        assert!(!is_wanted());
        bell.ring();
        bell.compacted(0);
        assert!(is_wanted());
    }
}
