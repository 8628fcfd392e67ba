//! The table from the log: all records in their order, each key's by one of several threads.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use tracing::info;
use xxhash_rust::xxh3::xxh3_64;

use super::Stored;
use super::error::LogError;
use super::queue::Batch;
use super::record::{BATCH_HEADER_BYTES, Record, records};
use crate::backing::Backing;
use crate::store::{Store, WriteError};

/// Batches that a thread may be behind.
const BEHIND: usize = 4;
/// What one thread may be ahead of another, as a part of the memory.
const WINDOW_PARTS: u64 = 1024;
const LEAST_WINDOW_BYTES: u64 = 64 << 10;
/// Longest that all threads together put off.
const MOST_PUT_OFF_BYTES: usize = 256 << 20;
/// Between two lines about how far it is.
const PROGRESS: Duration = Duration::from_secs(2);

impl Stored {
    /// Finds the last batch. One whose sync has failed is followed by a segment that begins with the same record, and may be
    /// empty.
    pub(super) fn find_last(&mut self) -> Result<(), LogError> {
        let mut last = None;
        for segment in self.segments.iter().rev() {
            let next = segment.batches(&mut |header, bytes| {
                last = Some((*header, bytes));
                Ok(())
            })?;
            self.next = self.next.max(next);
            if last.is_some() {
                break;
            }
        }
        if self.clean != Some(self.next) {
            self.last = last.map(|(header, bytes)| Batch::again(&header, bytes));
        }
        Ok(())
    }

    /// Puts everything that the log has into a table, which is new.
    pub(crate) fn rebuild<M: Backing>(&mut self, store: &Arc<Store<M>>) -> Result<(), LogError> {
        if self.folder.is_filling()? {
            return Err(LogError::Unfilled { path: self.path().to_owned() });
        }
        let since = Instant::now();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let pace = &Pace::new(threads, store.memory_bytes());
        let clock_ms = std::thread::scope(|scope| {
            let (senders, receivers): (Vec<_>, Vec<_>) = (0..threads).map(|_| bounded(BEHIND)).unzip();
            let appliers: Vec<_> = receivers
                .into_iter()
                .enumerate()
                .map(|(part, batches)| {
                    let log = self.path();
                    scope.spawn(move || apply(store, log, &batches, pace.of(part)))
                })
                .collect();
            let read = self.read(store, &senders);
            drop(senders);
            let mut all_put_off = Vec::new();
            for applier in appliers {
                // Its own error is why nothing more could be read.
                all_put_off.push(applier.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
            }
            // Now everything that makes room is done.
            for mut put_off in all_put_off {
                put_off.try_again(store)?;
                if !put_off.is_empty() {
                    return Err(LogError::NoRoom(put_off.full));
                }
            }
            read
        })?;
        self.clock_ms = clock_ms;
        let (keys, records, ms) = (store.keys(), self.next, since.elapsed().as_millis());
        info!(keys, records, ms, threads, log = %self.path().display(), "table rebuilt from the log");
        Ok(())
    }

    /// Hands every batch to every thread. Returns the highest clock.
    fn read<M: Backing>(&self, store: &Store<M>, senders: &[Sender<Arc<Vec<u8>>>]) -> Result<u64, LogError> {
        let (mut clock_ms, mut next, mut told) = (0, None, Instant::now());
        for segment in &self.segments {
            let first = segment.facts().first;
            if next.is_some_and(|next| first > next) {
                let reason = format!("expected record {} or an earlier one, found {first}", next.unwrap_or(0));
                return Err(LogError::damaged(segment.path(), reason));
            }
            next = Some(segment.batches(&mut |header, batch| {
                clock_ms = clock_ms.max(header.clock_ms.get());
                // Before its records: what had expired then stays so.
                store.raise_clock_floor(clock_ms);
                if told.elapsed() >= PROGRESS {
                    told = Instant::now();
                    let (record, of) = (header.first.get(), self.next);
                    info!(record, of, keys = store.keys(), "the table is being rebuilt from the log");
                }
                let batch = Arc::new(batch);
                // One that has gone has failed, and says why.
                let all_go_on = senders.iter().all(|sender| sender.send(batch.clone()).is_ok());
                if all_go_on { Ok(()) } else { Err(LogError::NoRoom("a thread has ended".to_owned())) }
            })?);
        }
        Ok(clock_ms)
    }
}

/// Keeps the threads together, so that the table has at no time much that it had not, and is packed about as it was.
struct Pace {
    /// Bytes of records that each has passed.
    at: Vec<AtomicU64>,
    /// What one may be ahead of another.
    window: u64,
}

/// One thread's.
struct PaceOf<'p> {
    all: &'p Pace,
    part: usize,
    at: u64,
    told: u64,
}

impl Pace {
    fn new(threads: usize, memory_bytes: u64) -> Self {
        let window = (memory_bytes / WINDOW_PARTS).max(LEAST_WINDOW_BYTES);
        Self { at: (0..threads).map(|_| AtomicU64::new(0)).collect(), window }
    }

    fn of(&self, part: usize) -> PaceOf<'_> {
        PaceOf { all: self, part, at: 0, told: 0 }
    }
}

impl PaceOf<'_> {
    /// Has passed a record of so many bytes. Waits for those that are far behind.
    fn passed(&mut self, bytes: usize) {
        self.at += bytes as u64;
        if self.at - self.told < self.all.window / 4 {
            return;
        }
        self.told = self.at;
        self.all.at[self.part].store(self.at, Ordering::Relaxed);
        while self.all.at.iter().any(|other| other.load(Ordering::Relaxed).saturating_add(self.all.window) < self.at) {
            std::thread::yield_now();
        }
    }
}

impl Drop for PaceOf<'_> {
    /// Nobody waits for one that has ended.
    fn drop(&mut self) {
        self.all.at[self.part].store(u64::MAX, Ordering::Relaxed);
    }
}

/// Applies the records whose keys are this part's. Returns those for which there is no room yet.
fn apply<M: Backing>(
    store: &Arc<Store<M>>,
    log: &Path,
    batches: &Receiver<Arc<Vec<u8>>>,
    mut pace: PaceOf<'_>,
) -> Result<PutOff, LogError> {
    let (part, parts) = (pace.part, pace.all.at.len());
    let mut put_off = PutOff::default();
    for batch in batches {
        for record in records(&batch[BATCH_HEADER_BYTES..]) {
            let record = sound(record, store.version_ceiling()).map_err(|reason| LogError::damaged(log, reason))?;
            pace.passed(record.key.len() + record.value.map_or(0, <[u8]>::len));
            if xxh3_64(record.key) % parts as u64 != part as u64 {
                continue;
            }
            put_off.forget(record.key);
            match record.value {
                None => store.restore_absence(record.key),
                Some(value) if put_off.is_empty() => match restore(store, &record, value)? {
                    None => {}
                    Some(full) => put_off.add(&record, value, full, parts)?,
                },
                // Not tried, so that a table without room is found out soon.
                Some(value) => {
                    store.restore_absence(record.key);
                    put_off.add(&record, value, put_off.full.clone(), parts)?;
                }
            }
        }
        // Space of what was evicted comes back.
        store.hand_over_retired(&crossbeam_epoch::pin());
        put_off.try_again(store)?;
    }
    Ok(put_off)
}

/// A record that can be: no version is above the ceiling, which the table was made with.
fn sound<'r>(record: Result<Record<'r>, &str>, ceiling: u64) -> Result<Record<'r>, String> {
    let record = record?;
    if record.version > ceiling {
        return Err(format!("a record has version {}, above the version ceiling {ceiling}", record.version));
    }
    Ok(record)
}

/// A batch of any bytes, into a table that was made with a version ceiling, for the fuzz target. Returns how many of its
/// records were taken: all that are whole and can be, until one is not, or has no room.
#[cfg(feature = "fuzzing")]
pub(crate) fn rebuild_any<M: Backing>(store: &Arc<Store<M>>, batch: &[u8]) -> usize {
    use super::record::{BatchHeader, HEADER_BYTES};
    use zerocopy::IntoBytes;

    let Some(header) = BatchHeader::read(batch) else { return 0 };
    assert_eq!(header.as_bytes(), &batch[..BATCH_HEADER_BYTES]);
    let mut rest = &batch[BATCH_HEADER_BYTES..];
    let mut taken = 0;
    for record in records(rest) {
        let Ok(record) = sound(record, store.version_ceiling()) else { break };
        let bytes = HEADER_BYTES + record.key.len() + record.value.map_or(0, <[u8]>::len);
        rest = &rest[bytes..];
        match record.value {
            None => store.restore_absence(record.key),
            Some(value) if matches!(restore(store, &record, value), Ok(None)) => {}
            Some(_) => break,
        }
        taken += 1;
    }
    taken
}

/// Gives a key its value. Why there is no room, if there is none.
fn restore<M: Backing>(store: &Arc<Store<M>>, record: &Record<'_>, value: &[u8]) -> Result<Option<String>, LogError> {
    match store.restore(record.key, value, record.version, record.expires_ms) {
        Ok(()) => Ok(None),
        Err(error @ WriteError::Full(_)) => Ok(Some(error.to_string())),
        Err(error) => Err(LogError::NoRoom(error.to_string())),
    }
}

/// Puts that found no room: the threads are not equally far, and what makes room for one of them may be another's to do.
/// Their keys are absent meanwhile.
#[derive(Default)]
struct PutOff {
    /// Version, expiry and value by key.
    puts: HashMap<Vec<u8>, (u64, u64, Vec<u8>)>,
    bytes: usize,
    /// Why the first found none.
    full: String,
}

impl PutOff {
    fn is_empty(&self) -> bool {
        self.puts.is_empty()
    }

    /// The key has a newer record.
    fn forget(&mut self, key: &[u8]) {
        if let Some((_, _, value)) = self.puts.remove(key) {
            self.bytes -= key.len() + value.len();
        }
    }

    fn add(&mut self, record: &Record<'_>, value: &[u8], full: String, parts: usize) -> Result<(), LogError> {
        self.bytes += record.key.len() + value.len();
        self.puts.insert(record.key.to_owned(), (record.version, record.expires_ms, value.to_owned()));
        self.full = full;
        if self.bytes > MOST_PUT_OFF_BYTES / parts { Err(LogError::NoRoom(self.full.clone())) } else { Ok(()) }
    }

    /// Puts in what there is room for now, until there is none.
    fn try_again<M: Backing>(&mut self, store: &Arc<Store<M>>) -> Result<(), LogError> {
        while let Some(key) = self.puts.keys().next().cloned() {
            let Some((version, expires_ms, value)) = self.puts.get(&key) else { break };
            let record = Record { key: &key, version: *version, value: Some(value), expires_ms: *expires_ms };
            if let Some(full) = restore(store, &record, value)? {
                self.full = full;
                break;
            }
            self.forget(&key);
        }
        Ok(())
    }
}
