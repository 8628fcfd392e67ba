//! A path that breaks again and again is left alone for a while.

use std::time::{Duration, Instant};

/// So many failures…
const FAILURES: usize = 3;
/// …within this time are one too many.
const WITHIN: Duration = Duration::from_secs(10);
/// The longest pause, in first ones: each doubles the one before.
const LONGEST: u32 = 10;

/// When a path broke, and until when it is not tried.
#[derive(Debug)]
pub(crate) struct Cooldown {
    first: Duration,
    recent: [Option<Instant>; FAILURES],
    until: Option<Instant>,
    pause: Duration,
    reason: String,
}

impl Cooldown {
    /// One that has not failed yet, with the length of its first pause.
    pub(crate) fn new(first: Duration) -> Self {
        Self { first, recent: [None; FAILURES], until: None, pause: Duration::ZERO, reason: String::new() }
    }

    /// The path broke.
    pub(crate) fn failed(&mut self, now: Instant, reason: String) {
        // After a long time without a pause the next one is short again.
        if self.until.is_some_and(|until| now.saturating_duration_since(until) > self.first * LONGEST) {
            (self.until, self.pause) = (None, Duration::ZERO);
        }
        self.recent.rotate_left(1);
        self.recent[FAILURES - 1] = Some(now);
        self.reason = reason;
        if self.recent[0].is_some_and(|first| now.saturating_duration_since(first) <= WITHIN) {
            self.pause = (self.pause * 2).clamp(self.first, self.first * LONGEST);
            self.until = Some(now + self.pause);
            self.recent = [None; FAILURES];
        }
    }

    /// Whether it may be tried, or why not.
    pub(crate) fn check(&self, now: Instant) -> Result<(), String> {
        match self.until {
            Some(until) if now < until => Err(format!(
                "it failed {FAILURES} times within {WITHIN:?} and is left alone for {:?}: {}",
                self.pause, self.reason
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_failures_in_ten_seconds_pause_and_pauses_double() {
        let start = Instant::now();
        let mut cooldown = Cooldown::new(Duration::from_secs(30));
        let mut now = start;
        for expected in [30, 60, 120, 240, 300, 300] {
            for _ in 0..FAILURES {
                assert!(cooldown.check(now).is_ok());
                cooldown.failed(now, "down".to_owned());
                now += Duration::from_secs(1);
            }
            now -= Duration::from_secs(1);
            assert!(cooldown.check(now).unwrap_err().contains("down"));
            let pause = Duration::from_secs(expected);
            assert!(cooldown.check(now + pause - Duration::from_millis(1)).is_err());
            now += pause;
            assert!(cooldown.check(now).is_ok());
        }
        // A long quiet time is forgiven.
        now += Duration::from_secs(301);
        for _ in 0..FAILURES {
            cooldown.failed(now, String::new());
        }
        assert!(cooldown.check(now + Duration::from_secs(30)).is_ok());
    }

    #[test]
    fn failures_far_apart_do_not_count() {
        let mut cooldown = Cooldown::new(Duration::from_secs(30));
        let start = Instant::now();
        for i in 0..100 {
            let now = start + Duration::from_secs(6 * i);
            cooldown.failed(now, String::new());
            assert!(cooldown.check(now).is_ok());
        }
    }
}
