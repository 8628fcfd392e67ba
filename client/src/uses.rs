//! What this client finds without the server's CPU, for a server that evicts: a sample of it, gathered until it is
//! reported.

use std::time::{Duration, Instant};

use sidestep_core::hash::KeyHash;
use sidestep_core::uses::MAX_REPORTED;

/// A report by itself waits for [`MAX_REPORTED`] uses, but no longer than this after the first of them: who reads little
/// would have to wait for hours.
const REPORT_AFTER: Duration = Duration::from_secs(1);

/// Uses that were noted, and when to note the next one.
#[derive(Debug)]
pub(crate) struct Uses {
    /// Keys to be found until one is noted. 0: none is.
    left: u64,
    one_in: u32,
    /// State of a generator (xorshift64, Marsaglia 2003). Steps of one length would meet the same keys again and again
    /// where reads go in circles.
    random: u64,
    noted: Vec<KeyHash>,
    /// When the first of them was noted, or they could not be reported.
    since: Option<Instant>,
    /// Where the next one goes once there is no room.
    oldest: usize,
    is_under_way: bool,
}

impl Uses {
    /// Notes one use in so many; none: 0.
    pub(crate) fn new(one_in: u32, seed: u64) -> Self {
        let mut uses =
            Self { left: 0, one_in, random: seed | 1, noted: Vec::new(), since: None, oldest: 0, is_under_way: false };
        if one_in > 0 {
            uses.left = uses.step();
        }
        uses
    }

    /// A key was found; whether it is to be noted.
    #[inline]
    pub(crate) fn is_due(&mut self) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        self.left == 0
    }

    /// Keys until the next one that is noted: `one_in` on average, evenly from 1 to twice that.
    fn step(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let steps = 2 * u128::from(self.one_in) - 1;
        // Below `steps`, of 34 bits.
        1 + (u128::from(self.random >> 32) * steps >> 32) as u64
    }

    /// Notes the one that was due; whether it is time to report. Without room the oldest is forgotten.
    pub(crate) fn note(&mut self, hash: KeyHash, now: Instant) -> bool {
        self.left = self.step();
        if self.noted.len() < MAX_REPORTED {
            self.noted.reserve_exact(MAX_REPORTED - self.noted.len());
            self.noted.push(hash);
        } else {
            self.noted[self.oldest] = hash;
            self.oldest = (self.oldest + 1) % MAX_REPORTED;
        }
        let since = *self.since.get_or_insert(now);
        let is_time = now.saturating_duration_since(since) >= REPORT_AFTER
            || (self.noted.len() == MAX_REPORTED && self.oldest == 0);
        if is_time {
            // Should it not be had now, it is not tried for each use.
            self.since = Some(now);
        }
        is_time
    }

    /// Whether a report is without its answer: no other is sent meanwhile.
    pub(crate) fn is_under_way(&self) -> bool {
        self.is_under_way
    }

    /// What is to be reported now, if anything.
    pub(crate) fn take(&mut self) -> Option<impl ExactSizeIterator<Item = KeyHash>> {
        if self.noted.is_empty() {
            return None;
        }
        self.is_under_way = true;
        self.since = None;
        self.oldest = 0;
        Some(self.noted.drain(..))
    }

    /// An answer to a report has come; whether one was under way.
    pub(crate) fn answered(&mut self) -> bool {
        std::mem::take(&mut self.is_under_way)
    }

    /// The connection is lost, and a report that was under way with it.
    pub(crate) fn lost(&mut self) {
        self.is_under_way = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted_of(uses: &mut Uses, found: u64) -> Vec<u64> {
        (0..found)
            .filter(|&i| {
                let is_due = uses.is_due();
                if is_due {
                    uses.note(KeyHash(i), Instant::now());
                }
                is_due
            })
            .collect()
    }

    #[test]
    fn one_in_so_many_is_noted() {
        assert_eq!(noted_of(&mut Uses::new(0, 7), 1000), []);
        assert_eq!(noted_of(&mut Uses::new(1, 7), 1000).len(), 1000);
        for one_in in [2, 32, 1000] {
            let expected = 1_000_000 / u64::from(one_in);
            let noted = noted_of(&mut Uses::new(one_in, 7), 1_000_000).len() as u64;
            assert!((expected * 9 / 10..expected * 11 / 10).contains(&noted), "{noted} of {expected}");
        }
        assert!(noted_of(&mut Uses::new(u32::MAX, 7), 1000).len() < 2);
    }

    /// A server may say any number.
    #[test]
    fn no_number_is_too_large() {
        for one_in in [1 << 31, (1 << 31) + 1, u32::MAX] {
            let mut uses = Uses::new(one_in, 7);
            let steps: Vec<u64> = (0..1000).map(|_| uses.step()).collect();
            let mean = steps.iter().sum::<u64>() / 1000;
            assert!(steps.iter().all(|&step| step <= 2 * u64::from(one_in)));
            assert!((u64::from(one_in) * 9 / 10..u64::from(one_in) * 11 / 10).contains(&mean), "{mean} of {one_in}");
        }
    }

    /// Each key of a circle has its share, whatever the length of the circle.
    #[test]
    fn no_key_is_missed_for_ever() {
        for circle in [2, 32, 64, 100] {
            let mut counts = vec![0; circle as usize];
            noted_of(&mut Uses::new(32, 3), 6400 * circle).iter().for_each(|i| counts[(i % circle) as usize] += 1);
            assert!(counts.iter().all(|count| (100..300).contains(count)), "{counts:?}");
        }
    }

    #[test]
    fn it_is_time_when_many_are_noted_or_a_while_has_passed() {
        let mut uses = Uses::new(1, 7);
        let now = Instant::now();
        for i in 1..=3 * MAX_REPORTED {
            assert_eq!(uses.note(KeyHash(i as u64), now), i % MAX_REPORTED == 0, "{i}");
        }
        assert!(!uses.note(KeyHash(0), now + REPORT_AFTER / 2));
        assert!(uses.note(KeyHash(0), now + REPORT_AFTER));
        assert!(!uses.note(KeyHash(0), now + REPORT_AFTER), "it was not to be had");
        assert!(uses.note(KeyHash(0), now + 2 * REPORT_AFTER));
    }

    #[test]
    fn the_latest_are_kept_and_one_report_is_under_way_at_a_time() {
        let mut uses = Uses::new(1, 7);
        assert!(uses.take().is_none());
        let now = Instant::now();
        (0..MAX_REPORTED as u64 + 3).for_each(|i| _ = uses.note(KeyHash(i), now));
        let mut taken: Vec<u64> = uses.take().unwrap().map(|hash| hash.0).collect();
        taken.sort_unstable();
        assert_eq!(taken, (3..MAX_REPORTED as u64 + 3).collect::<Vec<_>>());
        assert!(uses.is_under_way() && uses.take().is_none());
        assert!(uses.answered() && !uses.answered());
        uses.note(KeyHash(1), now);
        assert!(uses.take().is_some());
        uses.lost();
        assert!(!uses.is_under_way());
    }
}
