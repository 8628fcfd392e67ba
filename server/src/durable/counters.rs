//! What the log counts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

#[derive(Debug)]
pub(crate) struct Counters {
    begin: Instant,
    pub(super) written_bytes: AtomicU64,
    pub(super) syncs: AtomicU64,
    /// Milliseconds after the beginning.
    last_sync_ms: AtomicU64,
    pub(super) stalls: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) failures: AtomicU64,
    pub(super) compactions: AtomicU64,
    pub(super) compactions_failed: AtomicU64,
    pub(super) segments: AtomicU64,
    pub(super) segment_bytes: AtomicU64,
    /// Records that were not whole, or were gone, at the start.
    pub(super) lost_records: AtomicU64,
    pub(super) torn_commits: AtomicU64,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            begin: Instant::now(),
            written_bytes: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            last_sync_ms: AtomicU64::new(0),
            stalls: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            compactions: AtomicU64::new(0),
            compactions_failed: AtomicU64::new(0),
            segments: AtomicU64::new(0),
            segment_bytes: AtomicU64::new(0),
            lost_records: AtomicU64::new(0),
            torn_commits: AtomicU64::new(0),
        }
    }
}

impl Counters {
    pub(super) fn synced(&self) {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.last_sync_ms.store(self.begin.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    pub(super) fn list(&self) -> [(&'static str, u64); 12] {
        let age_ms =
            (self.begin.elapsed().as_millis() as u64).saturating_sub(self.last_sync_ms.load(Ordering::Relaxed));
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("log_written_bytes", value(&self.written_bytes)),
            ("log_syncs", value(&self.syncs)),
            ("log_last_sync_age_ms", age_ms),
            ("log_write_stalls", value(&self.stalls)),
            ("log_writes_refused", value(&self.refused)),
            ("log_failures", value(&self.failures)),
            ("log_compactions", value(&self.compactions)),
            ("log_compactions_failed", value(&self.compactions_failed)),
            ("log_segments", value(&self.segments)),
            ("log_bytes", value(&self.segment_bytes)),
            ("log_lost_records", value(&self.lost_records)),
            ("log_torn_commits", value(&self.torn_commits)),
        ]
    }
}
