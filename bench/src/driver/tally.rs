//! What one thread counts, and the sum over all.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::target::Route;

/// Longest time that is told apart: 5 minutes, in nanoseconds.
const MAX_NS: u64 = 300_000_000_000;
/// Significant digits of a time.
const DIGITS: u8 = 3;

/// A histogram of times in nanoseconds.
#[must_use]
#[expect(clippy::missing_panics_doc, reason = "the bounds are constants that it accepts")]
pub fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, MAX_NS, DIGITS).expect("bounds that a histogram accepts")
}

/// Counts of the measured part of a run.
#[derive(Debug)]
pub struct Tally {
    /// Operations that ended.
    pub operations: u64,
    /// Of which wrote; a read-modify-write counts as one operation and one write.
    pub writes: u64,
    /// Reads by the route that served them.
    pub routes: [u64; Route::ALL.len()],
    /// Times of the operations: from submission to reply.
    pub service: Histogram<u64>,
    /// Open loop: from the intended start to the reply.
    pub response: Histogram<u64>,
    /// Sum over threads of operations per second of each one's own measured time.
    pub rate: f64,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            operations: 0,
            writes: 0,
            routes: [0; Route::ALL.len()],
            service: new_histogram(),
            response: new_histogram(),
            rate: 0.0,
        }
    }
}

impl Tally {
    pub(super) fn time(&mut self, service: Duration) {
        self.service.saturating_record(service.as_nanos() as u64);
    }

    /// Adds another thread's.
    pub fn merge(&mut self, other: &Self) {
        self.operations += other.operations;
        self.writes += other.writes;
        for (sum, count) in self.routes.iter_mut().zip(other.routes) {
            *sum += count;
        }
        self.rate += other.rate;
        // Same bounds, so that it cannot fail.
        let _ = self.service.add(&other.service);
        let _ = self.response.add(&other.response);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_histograms_equal_that_of_all() {
        let (mut all, mut merged) = (Tally::default(), Tally::default());
        for thread in 0..4_u64 {
            let mut one = Tally::default();
            for step in 1..1000_u64 {
                let time = Duration::from_nanos(step * step * (thread + 1));
                one.time(time);
                all.time(time);
            }
            merged.merge(&one);
        }
        assert_eq!(merged.service, all.service);
    }
}
