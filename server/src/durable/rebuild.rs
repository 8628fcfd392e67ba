//! The table from the log: all records in their order, each key's by one of several threads.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use tracing::info;
use xxhash_rust::xxh3::xxh3_64;

use super::Stored;
use super::error::LogError;
use super::queue::Batch;
use super::record::{BATCH_HEADER_BYTES, records};
use crate::backing::Backing;
use crate::store::Store;

/// Batches that a thread may be behind.
const BEHIND: usize = 4;
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
        let since = Instant::now();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let clock_ms = std::thread::scope(|scope| {
            let (senders, receivers): (Vec<_>, Vec<_>) = (0..threads).map(|_| bounded(BEHIND)).unzip();
            let appliers: Vec<_> = receivers
                .into_iter()
                .enumerate()
                .map(|(part, batches)| scope.spawn(move || apply(store, &batches, (part, threads))))
                .collect();
            let read = self.read(store, &senders);
            drop(senders);
            for applier in appliers {
                // Its own error is why nothing more could be read.
                applier.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
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

/// Applies the records whose keys are this part's.
fn apply<M: Backing>(
    store: &Arc<Store<M>>,
    batches: &Receiver<Arc<Vec<u8>>>,
    (part, parts): (usize, usize),
) -> Result<(), LogError> {
    for batch in batches {
        for record in records(&batch[BATCH_HEADER_BYTES..]) {
            let record = record.map_err(|reason| LogError::NoRoom(reason.to_owned()))?;
            if xxh3_64(record.key) % parts as u64 != part as u64 {
                continue;
            }
            match record.value {
                None => store.restore_absence(record.key),
                Some(value) => store
                    .restore(record.key, value, record.version, record.expires_ms)
                    .map_err(|error| LogError::NoRoom(error.to_string()))?,
            }
        }
        // Space of what was replaced comes back.
        store.hand_over_retired(&crossbeam_epoch::pin());
    }
    Ok(())
}
