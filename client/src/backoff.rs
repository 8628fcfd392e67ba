//! Waiting between attempts: exponential, bounded, jittered, so that many clients that lose one
//! server do not come back as one.

use std::time::{Duration, Instant};

use rand::Rng;

const FIRST: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_secs(1);

/// Attempts until a deadline.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
    deadline: Instant,
}

impl Backoff {
    pub(crate) fn until(deadline: Instant) -> Self {
        Self { next: FIRST, deadline }
    }

    /// How long to wait before the next attempt; `None`: there is no time for one.
    fn step(&mut self) -> Option<Duration> {
        let left = self.deadline.checked_duration_since(Instant::now())?;
        if left.is_zero() {
            return None;
        }
        let wait = self.next.mul_f64(rand::rng().random_range(0.5..1.0));
        self.next = (self.next * 2).min(LONGEST);
        Some(wait.min(left))
    }

    /// Waits; false when the deadline has passed.
    pub(crate) fn wait(&mut self) -> bool {
        let Some(wait) = self.step() else { return false };
        std::thread::sleep(wait);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_and_end() {
        let mut backoff = Backoff::until(Instant::now() + Duration::from_secs(3600));
        let waits: Vec<Duration> = std::iter::repeat_with(|| backoff.step().unwrap()).take(20).collect();
        assert!(waits[0] < FIRST && waits[19] >= LONGEST / 2 && waits.iter().all(|wait| *wait <= LONGEST));
        assert!(!Backoff::until(Instant::now()).wait());
    }
}
