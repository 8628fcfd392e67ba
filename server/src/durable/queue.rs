//! Writes on their way to the log, and how far the log has come.
//!
//! Writers add records under their key's lock, so one key's are in the order of its versions. One thread takes all that
//! has gathered, writes and syncs it as one batch, and says so: then replies that waited for it go out. While it syncs,
//! the next batch gathers: that is the group commit.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use parking_lot::{Condvar, Mutex};

use super::SyncMode;
use super::counters::Counters;
use super::error::LogError;
use super::record::{self, BATCH_HEADER_BYTES, BatchHeader, HEADER_BYTES};
use crate::store::Journal;

/// Longer values are handed over as they are, not copied.
const COPY_LIMIT_BYTES: usize = 16 << 10;
/// Pieces that short values are gathered in.
const PIECE_BYTES: usize = 256 << 10;
/// With so many bytes waiting a batch is written, whatever the mode.
const BATCH_BYTES: u64 = 4 << 20;
/// With so many bytes not written yet, requests wait.
const LIMIT_BYTES: u64 = 32 << 20;
/// How far the ceiling is above the versions that are given: it is on disk long before they come near it.
const CEILING_STEP: u64 = 1 << 40;

/// Records that are written and synced together.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// One after the other the bytes of all records.
    pub(super) pieces: Vec<Vec<u8>>,
    pub(super) bytes: u64,
    pub(super) records: u32,
    /// Number of the first.
    pub(super) first: u64,
    pub(super) ceiling: u64,
    /// When the first record came.
    pub(super) since: Option<Instant>,
}

impl Batch {
    /// One that a log has, to be written once more. `bytes`: with the header in front.
    pub(super) fn again(header: &BatchHeader, mut bytes: Vec<u8>) -> Self {
        bytes.drain(..BATCH_HEADER_BYTES);
        let (first, records) = (header.first.get(), header.records.get());
        Self { bytes: bytes.len() as u64, pieces: vec![bytes], records, first, ceiling: 0, since: None }
    }

    /// Number of the next record after it.
    pub(super) fn end(&self) -> u64 {
        self.first + u64::from(self.records)
    }

    fn piece(&mut self, room: usize) -> &mut Vec<u8> {
        match self.pieces.last() {
            Some(piece) if piece.len() + room <= PIECE_BYTES => {}
            _ => self.pieces.push(Vec::with_capacity(room)),
        }
        let last = self.pieces.len() - 1;
        &mut self.pieces[last]
    }
}

/// What the writing thread is asked for beside batches.
pub(super) enum Order {
    /// Begin a new segment, after everything that is waiting. Answered with its number.
    Rotate(Sender<u64>),
    /// Nothing before this segment is needed any more. Answered when that is on the disk and the others are gone, or with
    /// why not.
    DropBefore(u64, Sender<Result<(), LogError>>),
}

/// Something to do for the writing thread.
#[derive(Default)]
pub(super) struct Work {
    /// May be empty.
    pub(super) batch: Batch,
    pub(super) orders: VecDeque<Order>,
}

#[derive(Default)]
struct Waiting {
    work: Work,
    closed: bool,
}

/// See the module. Shared by all who write, and the thread that writes the log.
pub(crate) struct Queue {
    sync: SyncMode,
    waiting: Mutex<Waiting>,
    given: Condvar,
    /// Number of the next record.
    tail: AtomicU64,
    /// All records before this are synced.
    durable: AtomicU64,
    /// Bytes that are not synced yet.
    pending_bytes: AtomicU64,
    ceiling: AtomicU64,
    /// Whether everything that the table has was put in, or was there.
    is_whole: AtomicBool,
    is_failing: AtomicBool,
    failure: Mutex<String>,
    /// Counts changes that somebody may be waiting for.
    progress: AtomicU64,
    on_progress: OnceLock<Box<dyn Fn() + Send + Sync>>,
    pub(super) counters: Arc<Counters>,
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("tail", &self.tail).field("durable", &self.durable).finish_non_exhaustive()
    }
}

impl Queue {
    /// Records are numbered from `first` on; no version above `ceiling` is in the log.
    pub(super) fn new(sync: SyncMode, first: u64, ceiling: u64, counters: Arc<Counters>) -> Self {
        Self {
            sync,
            waiting: Mutex::default(),
            given: Condvar::new(),
            tail: first.into(),
            durable: first.into(),
            pending_bytes: AtomicU64::new(0),
            ceiling: (ceiling + CEILING_STEP).into(),
            is_whole: AtomicBool::new(false),
            is_failing: AtomicBool::new(false),
            failure: Mutex::default(),
            progress: AtomicU64::new(0),
            on_progress: OnceLock::new(),
            counters,
        }
    }

    /// No version above this is given before it is raised.
    pub(super) fn ceiling(&self) -> u64 {
        self.ceiling.load(Ordering::Relaxed)
    }

    /// The number that a reply to a write must wait for, if replies wait for the disk: that of the next record.
    pub(crate) fn reply_after(&self) -> Option<u64> {
        (self.sync == SyncMode::Always).then(|| self.tail.load(Ordering::Acquire))
    }

    pub(super) fn tail(&self) -> u64 {
        self.tail.load(Ordering::Acquire)
    }

    /// All records before this one are synced.
    pub(crate) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Whether requests are to wait until more is written.
    pub(crate) fn is_full(&self) -> bool {
        self.pending_bytes.load(Ordering::Relaxed) >= LIMIT_BYTES && !self.is_failing()
    }

    /// Bytes that are not synced yet.
    pub(super) fn pending_bytes(&self) -> u64 {
        self.pending_bytes.load(Ordering::Relaxed)
    }

    /// Whether the disk refuses.
    pub(crate) fn is_failing(&self) -> bool {
        self.is_failing.load(Ordering::Acquire)
    }

    /// Why writes are refused for now.
    pub(crate) fn refusal(&self) -> Option<String> {
        self.is_failing().then(|| self.failure.lock().clone())
    }

    /// Changes whenever something has happened that somebody may wait for.
    pub(crate) fn progress(&self) -> u64 {
        self.progress.load(Ordering::Acquire)
    }

    /// Is called after each progress, on the writing thread. Once.
    pub(crate) fn on_progress(&self, call: impl Fn() + Send + Sync + 'static) {
        let _ = self.on_progress.set(Box::new(call));
    }

    /// A write was refused.
    pub(crate) fn count_refusal(&self) {
        self.counters.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// A request waits because [`Queue::is_full`].
    pub(crate) fn count_stall(&self) {
        self.counters.stalls.fetch_add(1, Ordering::Relaxed);
    }

    fn made_progress(&self) {
        self.progress.fetch_add(1, Ordering::AcqRel);
        if let Some(call) = self.on_progress.get() {
            call();
        }
    }

    fn add(&self, version: u64, bytes: usize, append: impl FnOnce(&mut Batch)) {
        if version + CEILING_STEP / 2 > self.ceiling.load(Ordering::Relaxed) {
            self.ceiling.fetch_max(version + CEILING_STEP, Ordering::Relaxed);
        }
        let mut waiting = self.waiting.lock();
        let batch = &mut waiting.work.batch;
        let before = batch.bytes;
        append(batch);
        batch.records += 1;
        batch.bytes += bytes as u64;
        if batch.since.is_none() {
            batch.since = Some(Instant::now());
        }
        let wake = before == 0 || (before < BATCH_BYTES && batch.bytes >= BATCH_BYTES);
        self.pending_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.tail.fetch_add(1, Ordering::Release);
        drop(waiting);
        if wake {
            self.given.notify_one();
        }
    }

    /// When a batch has to be written.
    fn due(&self, batch: &Batch) -> Option<Instant> {
        let since = batch.since?;
        Some(if batch.bytes >= BATCH_BYTES { since } else { since + self.sync.longest_wait() })
    }

    /// Waits for something to do. None: closed, and everything was taken.
    pub(super) fn next(&self) -> Option<Work> {
        let mut waiting = self.waiting.lock();
        loop {
            let due = self.due(&waiting.work.batch);
            let is_due = due.is_some_and(|due| due <= Instant::now());
            if is_due || !waiting.work.orders.is_empty() || waiting.closed {
                break;
            }
            match due {
                None => self.given.wait(&mut waiting),
                Some(due) => {
                    self.given.wait_until(&mut waiting, due);
                }
            }
        }
        if waiting.closed && waiting.work.batch.records == 0 && waiting.work.orders.is_empty() {
            return None;
        }
        let mut work = std::mem::take(&mut waiting.work);
        work.batch.first = self.tail() - u64::from(work.batch.records);
        drop(waiting);
        work.batch.ceiling = self.ceiling();
        Some(work)
    }

    /// Asks the writing thread.
    pub(super) fn order(&self, order: Order) {
        self.waiting.lock().work.orders.push_back(order);
        self.given.notify_one();
    }

    /// Ends [`Queue::next`] once all is taken.
    pub(super) fn close(&self) {
        self.waiting.lock().closed = true;
        self.given.notify_one();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.waiting.lock().closed
    }

    /// Sleeps, not beyond the queue's being closed.
    pub(super) fn rest(&self, time: Duration) {
        let mut waiting = self.waiting.lock();
        let until = Instant::now() + time;
        while !waiting.closed && !self.given.wait_until(&mut waiting, until).timed_out() {}
    }

    /// The log has, or will have been given before it is closed, all that the table has.
    pub(super) fn set_whole(&self) {
        self.is_whole.store(true, Ordering::Release);
    }

    pub(super) fn is_whole(&self) -> bool {
        self.is_whole.load(Ordering::Acquire)
    }

    /// A batch is synced.
    pub(super) fn written(&self, batch: &Batch) {
        self.pending_bytes.fetch_sub(batch.bytes, Ordering::Relaxed);
        self.durable.store(batch.end(), Ordering::Release);
        self.is_failing.store(false, Ordering::Release);
        self.made_progress();
    }

    /// A batch could not be written. It will be tried again; no more are taken until then.
    pub(super) fn failed(&self, error: &LogError) {
        *self.failure.lock() = error.to_string();
        self.is_failing.store(true, Ordering::Release);
        self.made_progress();
    }

    /// Counters of what is waiting.
    pub(super) fn list(&self) -> [(&'static str, u64); 4] {
        let durable = self.durable();
        [
            ("log_records", durable),
            ("log_records_waiting", self.tail().saturating_sub(durable)),
            ("log_waiting_bytes", self.pending_bytes.load(Ordering::Relaxed)),
            ("log_failing", self.is_failing().into()),
        ]
    }
}

impl Journal for Queue {
    fn put(&self, key: &[u8], value: Cow<'_, [u8]>, version: u64, expires_ms: u64) {
        let head = HEADER_BYTES + key.len();
        let bytes = head + value.len();
        self.add(version, bytes, |batch| match value {
            Cow::Owned(value) if value.len() > COPY_LIMIT_BYTES => {
                record::begin_put(batch.piece(head), key, value.len(), version, expires_ms);
                batch.pieces.push(value);
            }
            value => {
                let piece = batch.piece(bytes);
                record::begin_put(piece, key, value.len(), version, expires_ms);
                piece.extend_from_slice(&value);
            }
        });
    }

    fn delete(&self, key: &[u8], version: u64) {
        let bytes = HEADER_BYTES + key.len();
        self.add(version, bytes, |batch| record::delete(batch.piece(bytes), key, version));
    }
}
