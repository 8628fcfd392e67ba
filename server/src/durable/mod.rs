//! The log on disk, from which the table is rebuilt after a crash of the machine.
//!
//! ```text
//! store ── records, under each key's lock ──> queue ── batches ──> writer ── commit and sync ──> segments
//!   ^                                          │ how far it is                                      │
//!   │                          replies that waited go out                                           │
//!   └───────────────────────────────────── rebuild, at a start ─────────────────────────────────────┘
//! ```
//!
//! The engine is redb: a batch is one transaction, whole after a crash or not there. The table itself says what is still of
//! use, so the log has no index: compaction ([`compact`]) begins it anew with what the table has.
//!
//! Which is believed at a start, the table or the log, is decided in `table.rs`.

mod compact;
mod counters;
mod disk;
mod error;
mod folder;
mod queue;
mod rebuild;
mod record;
mod segment;
#[cfg(test)]
mod tape;
mod writer;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::{error, info, warn};

pub(crate) use compact::Bell;
pub use error::LogError;
pub(crate) use folder::write_synced;
pub(crate) use queue::Queue;
#[cfg(feature = "fuzzing")]
pub(crate) use rebuild::rebuild_any;

use crate::backing::Backing;
use crate::store::Store;
use compact::Compactor;
use counters::Counters;
use folder::Folder;
use queue::Batch;
use segment::Segment;
use writer::Writer;

/// When writes are on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMode {
    /// When some have gathered, or half a minute has passed.
    Off,
    /// So long after they were done, and what the disk takes.
    Interval(Duration),
    /// Before they are acknowledged.
    Always,
}

/// What [`SyncMode::Off`] waits at most.
const OFF_WAIT: Duration = Duration::from_secs(30);

impl fmt::Display for SyncMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("sync off"),
            Self::Interval(time) => write!(f, "sync within {} ms", time.as_millis()),
            Self::Always => f.write_str("sync always"),
        }
    }
}

impl SyncMode {
    fn longest_wait(self) -> Duration {
        match self {
            Self::Off => OFF_WAIT,
            Self::Interval(time) => time,
            Self::Always => Duration::ZERO,
        }
    }
}

/// Where the log is, and when it is synced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// The folder.
    pub path: PathBuf,
    /// When writes are on the disk.
    pub sync: SyncMode,
}

/// A log that was opened and checked, and is not written yet.
#[derive(Debug)]
pub(crate) struct Stored {
    folder: Folder,
    sync: SyncMode,
    counters: Arc<Counters>,
    /// Those that are needed, in order.
    segments: Vec<Segment>,
    /// The first of them.
    base: u64,
    clean: Option<u64>,
    /// Number of the record after the last one.
    next: u64,
    /// The last batch, unless the log was ended in order.
    last: Option<Batch>,
    clock_ms: u64,
}

impl Stored {
    /// Opens the log in a folder, or makes it. Reads all of it, by several threads.
    pub(crate) fn open(config: &LogConfig) -> Result<Self, LogError> {
        let since = Instant::now();
        let folder = Folder::open(&config.path)?;
        let counters = Arc::new(Counters::default());
        let clean = folder.clean()?;
        let numbers = folder.segments()?;
        let mut segments = open_all(&folder, &numbers, &counters)?;
        let base = segments.iter().map(|segment| segment.facts().base).max().unwrap_or(1);
        segments.retain(|segment| segment.facts().number >= base);
        let mut stored =
            Self { folder, sync: config.sync, counters, segments, base, clean, next: 0, last: None, clock_ms: 0 };
        stored.check_order()?;
        stored.find_last()?;
        stored.report_losses();
        if !stored.is_empty() {
            let (segments, ms) = (stored.segments.len(), since.elapsed().as_millis());
            info!(segments, records = stored.next, ms, log = %config.path.display(), "log checked");
        }
        Ok(stored)
    }

    /// Whether nothing was ever written to it.
    pub(crate) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Whether it has nothing that the table has not: it is empty, or was being filled from a table when a start failed or
    /// was killed.
    pub(crate) fn is_to_be_filled(&self) -> Result<bool, LogError> {
        Ok(self.is_empty() || self.folder.is_filling()?)
    }

    pub(crate) fn id(&self) -> u64 {
        self.folder.log_id()
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Whether it was last written in this life of a table.
    pub(crate) fn knows(&self, life: u64) -> Result<bool, LogError> {
        self.folder.knows(life)
    }

    /// Notes the lives of a table in which it may be written from now on, until [`Log::settle`]. `is_filling`: until then it
    /// is of no use without that table.
    pub(crate) fn set_lives(&self, lives: &[u64], is_filling: bool) -> Result<(), LogError> {
        self.folder.set_lives(lives, is_filling)
    }

    /// Takes back that it was ended in order: the table that comes may have less than it.
    pub(crate) fn reopen(&self) -> Result<(), LogError> {
        self.folder.remove_clean()
    }

    /// No version above this was ever given by a server with this log.
    pub(crate) fn ceiling(&self) -> u64 {
        self.segments.iter().map(|segment| segment.facts().ceiling).max().unwrap_or(0)
    }

    /// Each segment is of this log, and none is missing between two. (The oldest may have been moved away.)
    fn check_order(&self) -> Result<(), LogError> {
        let oldest = self.segments.first().map_or(self.base, |segment| segment.facts().number);
        if oldest > self.base {
            warn!(from = self.base, to = oldest - 1, "segments of the log are not there: what they had is left out");
        }
        for (number, segment) in (oldest..).zip(&self.segments) {
            let facts = segment.facts();
            if facts.number > number {
                return Err(LogError::Missing { path: self.path().to_owned(), number });
            }
            let is_named = self.folder.segment(facts.number) == segment.path();
            if facts.log_id != self.id() || !is_named {
                let reason = format!("it is segment {} of the log {:016x}", facts.number, facts.log_id);
                return Err(LogError::damaged(segment.path(), reason));
            }
        }
        Ok(())
    }

    /// What was there when the last server was at work, and is not now.
    fn report_losses(&self) {
        for segment in self.segments.iter().filter(|segment| segment.is_torn) {
            self.counters.torn_commits.fetch_add(1, Ordering::Relaxed);
            let file = segment.path().display();
            warn!(%file, "the last batch was not whole on the disk, and is left out: it was being written at the end");
        }
        let tail = self.folder.tail().unwrap_or_default();
        let synced = tail.synced.max(self.clean.unwrap_or(0));
        if synced > self.next {
            let lost = synced - self.next;
            self.counters.lost_records.store(lost, Ordering::Relaxed);
            error!(lost, after = self.next, "the disk has lost writes that it had said to have");
        } else if tail.begun > self.next {
            let (records, after) = (tail.begun - self.next, self.next);
            warn!(records, after, "writes that were not synced when the server ended are gone");
        }
    }

    /// Goes on with the log of this table. `is_ahead`: the table may have what the log has not; then all of it is put into
    /// the log first.
    pub(crate) fn go_on<M: Backing>(self, store: &Arc<Store<M>>, is_ahead: bool) -> Result<Log, LogError> {
        // One that is being filled may have been ended in order, and the table written without it since.
        let is_ahead = is_ahead && (self.clean != Some(self.next) || self.folder.is_filling()?);
        // What was evicted while the table was made is in the log still. Nobody may find it absent, and see it again later.
        let is_smaller = store.stats().into_iter().any(|stat| stat.0 == "evicted" && stat.1 > 0);
        let path = self.path().to_owned();
        let copy = |reason| LogError::Copy { path: path.clone(), reason };
        if is_ahead || is_smaller {
            // Before anything is begun.
            compact::look_for_room(&self.folder, store).map_err(copy)?;
        }
        let (mut log, compactor) = self.begin(store)?;
        if is_ahead || is_smaller {
            let since = Instant::now();
            compactor.compact().map_err(copy)?;
            info!(keys = store.keys(), ms = since.elapsed().as_millis(), "the table was put into the log");
        }
        log.queue.set_whole();
        let compact = Builder::new().name("sidestep-compact".into()).spawn(move || compactor.run());
        log.compacting = Some(compact.map_err(cannot_start(&path))?);
        Ok(log)
    }

    /// Begins to write.
    fn begin<M: Backing>(self, store: &Arc<Store<M>>) -> Result<(Log, Compactor<M>), LogError> {
        let ceiling = self.ceiling().max(store.version_ceiling());
        let clock_ms = self.clock_ms.max(store.clock_floor_ms());
        let queue = Arc::new(Queue::new(self.sync, self.next, ceiling, self.counters));
        let last = self.segments.last().map_or(0, |segment| segment.facts().number);
        // Closes their files.
        drop(self.segments);
        self.folder.remove_clean()?;
        let (folder, bell) = (Arc::new(self.folder), Arc::new(Bell::default()));
        let at = (last, self.base);
        let writer = Writer::begin(folder.clone(), queue.clone(), bell.clone(), at, self.last, clock_ms)?;
        // Only now what says that they are not needed is certain to be on the disk.
        folder.remove_before(self.base)?;
        let mourner = Mourner(queue.clone(), folder.path().to_owned());
        let write = move || {
            let _mourner = mourner;
            writer.run()
        };
        let writing = Builder::new().name("sidestep-log".into()).spawn(write);
        let writing = writing.map_err(cannot_start(folder.path()))?;
        let log = Log {
            folder: folder.clone(),
            queue: queue.clone(),
            bell: bell.clone(),
            writing: Some(writing),
            compacting: None,
        };
        store.set_journal(queue.clone());
        Ok((log, Compactor { store: store.clone(), queue, folder, bell }))
    }
}

/// Says that nothing is written any more, should the writing thread panic: else everybody would wait for it for ever.
struct Mourner(Arc<Queue>, PathBuf);

impl Drop for Mourner {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.failed(&LogError::io("write to", &self.1)(std::io::Error::other("its thread has panicked")));
        }
    }
}

fn cannot_start(folder: &Path) -> impl FnOnce(std::io::Error) -> LogError {
    LogError::io("start the threads of the log in", folder)
}

fn open_all(folder: &Folder, numbers: &[u64], counters: &Arc<Counters>) -> Result<Vec<Segment>, LogError> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(numbers.len());
    let (next, opened) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(&number) = numbers.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let segment = Segment::open(&folder.segment(number), counters);
                    opened.lock().push((number, segment));
                }
            });
        }
    });
    let mut opened = opened.into_inner();
    opened.sort_by_key(|(number, _)| *number);
    opened.into_iter().map(|(_, segment)| segment).collect()
}

/// A log that is written. It ends, with everything on the disk that takes it, when it is dropped.
#[derive(Debug)]
pub(crate) struct Log {
    folder: Arc<Folder>,
    queue: Arc<Queue>,
    bell: Arc<Bell>,
    writing: Option<JoinHandle<bool>>,
    compacting: Option<JoinHandle<()>>,
}

/// What those who serve clients have of the log.
#[derive(Clone, Debug)]
pub(crate) struct LogHandle {
    pub(crate) queue: Arc<Queue>,
    pub(crate) bell: Arc<Bell>,
}

impl Log {
    pub(crate) fn handle(&self) -> LogHandle {
        LogHandle { queue: self.queue.clone(), bell: self.bell.clone() }
    }

    pub(crate) fn id(&self) -> u64 {
        self.folder.log_id()
    }

    /// Notes that it is written in this life of a table, and in no other, and has all of that.
    pub(crate) fn settle(&self, life: u64) -> Result<(), LogError> {
        self.folder.set_lives(&[life], false)
    }

    /// Ends it. Returns how many records the disk has refused to the end.
    pub(crate) fn end(mut self) -> u64 {
        self.close();
        self.queue.tail().saturating_sub(self.queue.durable())
    }

    fn close(&mut self) {
        self.bell.stop();
        if self.compacting.take().is_some_and(|thread| thread.join().is_err()) {
            error!("the thread that compacts the log panicked");
        }
        self.queue.close();
        if self.writing.take().is_some_and(|thread| thread.join().is_err()) {
            error!("the thread that writes the log panicked");
        }
    }
}

impl LogHandle {
    /// That of a log which nobody writes, with a record of so many bytes that waits.
    #[cfg(test)]
    pub(crate) fn stuck(bytes: usize) -> Self {
        use crate::store::Journal;
        let queue = Queue::new(SyncMode::Always, 0, 0, Arc::default());
        queue.put(b"waits", vec![0; bytes].into(), 1, 0);
        Self { queue: Arc::new(queue), bell: Arc::default() }
    }

    /// The same, and its disk refuses.
    #[cfg(test)]
    pub(crate) fn failing() -> Self {
        let handle = Self::stuck(0);
        let full = std::io::ErrorKind::StorageFull.into();
        handle.queue.failed(&LogError::io("write to", Path::new("here"))(full));
        handle
    }

    /// Counters by name.
    pub(crate) fn stats(&self) -> impl Iterator<Item = (String, u64)> {
        let counters = self.queue.list().into_iter().chain(self.queue.counters.list());
        counters.map(|(name, value)| (name.to_owned(), value))
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod crash_tests;

#[cfg(test)]
mod fault_tests;

#[cfg(test)]
mod start_tests;

#[cfg(test)]
mod tests;
