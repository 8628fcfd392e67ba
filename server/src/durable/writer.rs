//! The thread that writes the log.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tracing::{error, info, warn};

use super::compact::Bell;
use super::error::LogError;
use super::folder::{Folder, Tail};
use super::queue::{Batch, Order, Queue};
use super::segment::{Facts, Segment};

/// A segment of so many bytes is followed by the next one.
const SEGMENT_BYTES: u64 = 256 << 20;
/// The files are looked at after so many bytes.
const MEASURE_BYTES: u64 = 1 << 20;
/// Pause before what failed is tried again.
const PAUSE: Duration = Duration::from_millis(200);

/// Everything that the thread has.
#[derive(Debug)]
pub(super) struct Writer {
    folder: Arc<Folder>,
    queue: Arc<Queue>,
    bell: Arc<Bell>,
    segment: Segment,
    /// Bytes of records in the segment.
    segment_bytes: u64,
    /// Of those, since the files were last looked at.
    unmeasured_bytes: u64,
    clock_ms: u64,
}

impl Writer {
    /// Begins the segment after `last`, for records from the queue's next one on, and before them for the log's last batch
    /// `again`, which is on the disk when this returns: where its sync had failed, only the kernel's cache may have had it.
    pub(super) fn begin(
        folder: Arc<Folder>,
        queue: Arc<Queue>,
        bell: Arc<Bell>,
        (last, base): (u64, u64),
        again: Option<Batch>,
        clock_ms: u64,
    ) -> Result<Self, LogError> {
        let (number, first) = (last + 1, again.as_ref().map_or(queue.durable(), |batch| batch.first));
        let facts = Facts { log_id: folder.log_id(), number, base, first, ceiling: queue.ceiling() };
        let mut segment = Segment::create(&folder.segment(number), facts, &queue.counters)?;
        if let Some(batch) = again {
            segment.append(&batch, clock_ms)?;
        }
        let mut writer = Self { folder, queue, bell, segment, segment_bytes: 0, unmeasured_bytes: 0, clock_ms };
        writer.measure();
        Ok(writer)
    }

    /// Writes until the queue is closed and empty. True if everything is on the disk.
    pub(super) fn run(mut self) -> bool {
        while let Some(work) = self.queue.next() {
            if work.batch.records > 0 && !self.write(&work.batch) {
                return false;
            }
            for order in work.orders {
                self.obey(order);
            }
            if self.segment_bytes >= SEGMENT_BYTES {
                self.rotate();
            }
        }
        let end = self.queue.durable();
        self.folder.set_tail(Tail { synced: end, begun: end });
        // The engine ends its file before it is said to be in order.
        drop(self.segment);
        if !self.queue.is_whole() {
            // The start has failed before the table was put in: the next one has that to do.
            return true;
        }
        match self.folder.set_clean(end) {
            Ok(()) => true,
            Err(error) => {
                warn!(%error, "the log is whole, but cannot say so");
                true
            }
        }
    }

    /// Writes a batch, however long it takes. False: given up, since the server ends.
    fn write(&mut self, batch: &Batch) -> bool {
        let mut failures = 0;
        while let Err(error) = self.try_write(batch, failures > 0) {
            self.queue.counters.failures.fetch_add(1, Ordering::Relaxed);
            if failures == 0 {
                error!(%error, source = source(&error), "the log cannot be written; writes are refused until it can");
            }
            failures += 1;
            self.queue.failed(&error);
            if self.queue.is_closed() {
                return false;
            }
            self.queue.rest(PAUSE);
        }
        if failures > 0 {
            info!(failures, "the log can be written again");
        }
        self.queue.written(batch);
        self.segment_bytes += batch.bytes;
        self.unmeasured_bytes += batch.bytes;
        if self.unmeasured_bytes >= MEASURE_BYTES {
            self.measure();
        }
        true
    }

    /// After a failure the engine trusts its file no more: the batch goes to a new segment. If the old one has it too, it
    /// is not followed: the new one begins with the same record. Where the old one was begun for this batch it has nothing
    /// else, and the new one takes its place: each try would keep some of the room that a full disk has again.
    fn try_write(&mut self, batch: &Batch, is_repeat: bool) -> Result<(), LogError> {
        if is_repeat {
            let number = self.segment.facts().number;
            let is_in_place = self.segment.is_empty() && self.segment.facts().first == batch.first;
            self.begin_segment(if is_in_place { number } else { number + 1 }, batch.first)?;
        }
        self.folder.set_tail(Tail { synced: batch.first, begun: batch.end() });
        let system_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis() as u64);
        self.clock_ms = self.clock_ms.max(system_ms);
        self.segment.append(batch, self.clock_ms)?;
        // Only now, and before anybody is told: should the disk lose it, that is no loss of what was being written.
        self.folder.set_tail(Tail { synced: batch.end(), begun: batch.end() });
        Ok(())
    }

    fn begin_segment(&mut self, number: u64, first: u64) -> Result<(), LogError> {
        let facts = Facts { number, first, ceiling: self.queue.ceiling(), ..*self.segment.facts() };
        self.segment = Segment::create(&self.folder.segment(number), facts, &self.queue.counters)?;
        self.segment_bytes = 0;
        Ok(())
    }

    /// Whether there is a new segment. Else the old one goes on.
    fn rotate(&mut self) -> bool {
        let begun = self.begin_segment(self.segment.facts().number + 1, self.queue.durable());
        if let Err(error) = &begun {
            warn!(%error, source = source(error), "the log cannot begin a new segment");
        }
        self.measure();
        begun.is_ok()
    }

    /// Answers, if whoever asked has not gone.
    fn obey(&mut self, order: Order) {
        match order {
            Order::Rotate(answer) => {
                // One that has a record is no answer, not even that of the start's own: what is put in now may lack its key.
                if self.rotate() {
                    let _ = answer.send(self.segment.facts().number);
                }
            }
            Order::DropBefore(base, answer) => {
                let dropped = self.segment.set_base(base).and_then(|()| self.folder.remove_before(base));
                self.measure();
                let _ = answer.send(dropped);
            }
        }
    }

    /// Takes the sizes, and has the log compacted if it has grown.
    fn measure(&mut self) {
        self.unmeasured_bytes = 0;
        let (Ok(bytes), Ok(segments)) = (self.folder.disk_bytes(), self.folder.segments()) else { return };
        let counters = &self.queue.counters;
        counters.segment_bytes.store(bytes, Ordering::Relaxed);
        counters.segments.store(segments.len() as u64, Ordering::Relaxed);
        self.bell.grown(bytes, segments.len());
    }
}

pub(super) fn source(error: &LogError) -> String {
    std::error::Error::source(error).map(ToString::to_string).unwrap_or_default()
}
