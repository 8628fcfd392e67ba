//! What the store counts.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter that threads add to now and then; not for the path of a GET.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) inserts: Counter,
    pub(crate) updates: Counter,
    pub(crate) deletes: Counter,
    pub(crate) splits: Counter,
    pub(crate) doublings: Counter,
    pub(crate) refused_full: Counter,
    pub(crate) version_mismatches: Counter,
    pub(crate) large_rehashed: Counter,
    pub(crate) evicted: Counter,
    pub(crate) evictions_for_space: Counter,
    pub(crate) expired: Counter,
    pub(crate) sweeps: Counter,
    pub(crate) growth_waits: Counter,
    pub(crate) reclaim_waits: Counter,
    pub(crate) growth_failures: Counter,
}

impl Counters {
    pub(crate) fn list(&self) -> impl Iterator<Item = (String, u64)> {
        [
            ("inserts", &self.inserts),
            ("updates", &self.updates),
            ("deletes", &self.deletes),
            ("splits", &self.splits),
            ("directory_doublings", &self.doublings),
            ("writes_refused_full", &self.refused_full),
            ("version_mismatches", &self.version_mismatches),
            ("large_values_hashed_again", &self.large_rehashed),
            ("evicted", &self.evicted),
            ("evictions_for_space", &self.evictions_for_space),
            ("expired_removed", &self.expired),
            ("expiry_sweeps", &self.sweeps),
            ("growth_waits", &self.growth_waits),
            ("reclaim_waits", &self.reclaim_waits),
            ("growth_failures", &self.growth_failures),
        ]
        .map(|(name, counter)| (name.to_owned(), counter.value()))
        .into_iter()
    }
}
