//! What one thread counts, and the sum over all.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::target::{Effort, Route};
use crate::workload::Operation;

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

/// Times of operations, by what the operations were.
#[derive(Debug)]
pub struct Times([Histogram<u64>; Operation::ALL.len()]);

impl Default for Times {
    fn default() -> Self {
        Self(std::array::from_fn(|_| new_histogram()))
    }
}

impl Times {
    /// Of one operation.
    #[must_use]
    pub fn of(&self, operation: Operation) -> &Histogram<u64> {
        &self.0[operation as usize]
    }

    /// Of all.
    #[must_use]
    pub fn all(&self) -> Histogram<u64> {
        let mut all = new_histogram();
        self.add_to(&mut all);
        all
    }

    /// Adds all of them to a histogram made by [`new_histogram`].
    pub fn add_to(&self, sum: &mut Histogram<u64>) {
        for times in self.0.iter().filter(|times| !times.is_empty()) {
            // Same bounds, so that it cannot fail.
            let _ = sum.add(times);
        }
    }

    /// Whether nothing was timed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Histogram::is_empty)
    }

    pub(crate) fn record(&mut self, operation: Operation, time: Duration) {
        self.record_n(operation, time, 1);
    }

    /// `count` operations that each took `time`.
    pub(crate) fn record_n(&mut self, operation: Operation, time: Duration, count: u64) {
        self.0[operation as usize].saturating_record_n(time.as_nanos() as u64, count);
    }

    fn merge(&mut self, other: &Self) {
        for (sum, times) in self.0.iter_mut().zip(&other.0).filter(|(_, times)| !times.is_empty()) {
            let _ = sum.add(times);
        }
    }
}

/// Counts of the measured part of a run.
#[derive(Debug, Default)]
pub struct Tally {
    /// Operations that ended.
    pub operations: u64,
    /// The same by what they were.
    pub by_operation: [u64; Operation::ALL.len()],
    /// Reads by the route that served them.
    pub routes: [u64; Route::ALL.len()],
    /// Reads that another route served than the one that was asked for.
    pub fallbacks: u64,
    /// What the operations took beside their answers.
    pub effort: Effort,
    /// Times of the operations: from submission to reply.
    pub service: Times,
    /// Open loop: from the intended start to the submission.
    pub wait: Times,
    /// Open loop: from the intended start to the reply.
    pub response: Times,
    /// Sum over threads of operations per second of each one's own measured time.
    pub rate: f64,
}

impl Tally {
    /// Operations that wrote; a read-modify-write is one.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.operations - self.by_operation[Operation::Read as usize]
    }

    /// Adds another thread's.
    pub fn merge(&mut self, other: &Self) {
        self.operations += other.operations;
        for (sum, count) in self.by_operation.iter_mut().zip(other.by_operation) {
            *sum += count;
        }
        for (sum, count) in self.routes.iter_mut().zip(other.routes) {
            *sum += count;
        }
        self.fallbacks += other.fallbacks;
        self.effort += other.effort;
        self.rate += other.rate;
        self.service.merge(&other.service);
        self.wait.merge(&other.wait);
        self.response.merge(&other.response);
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
                let operation = Operation::ALL[step as usize % Operation::ALL.len()];
                one.service.record(operation, time);
                all.service.record(operation, time);
            }
            merged.merge(&one);
        }
        for operation in Operation::ALL {
            assert_eq!(merged.service.of(operation), all.service.of(operation));
        }
        assert_eq!(merged.service.all().len(), 4 * 999);
    }
}
