//! When an open loop means to begin its operations, whatever became of those before.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

/// A start further away than this is slept to, the rest is spun.
const SPIN: Duration = Duration::from_micros(100);

/// How the starts of an open loop lie in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arrivals {
    /// As those of many users who know nothing of each other: gaps are exponential, so that some come in bunches.
    #[default]
    Poisson,
    /// Evenly spaced over all threads, as YCSB's `-target`: what waits does so because of the store alone.
    Fixed,
}

impl Arrivals {
    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Poisson => "poisson",
            Self::Fixed => "fixed",
        }
    }
}

impl fmt::Display for Arrivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Poisson => "Poisson arrivals",
            Self::Fixed => "fixed arrivals",
        })
    }
}

impl FromStr for Arrivals {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = [Self::Poisson, Self::Fixed].into_iter().find(|arrivals| arrivals.name() == text);
        found.ok_or_else(|| format!("expected poisson or fixed, found {text:?}"))
    }
}

/// The intended starts of one thread.
#[derive(Debug)]
pub(super) struct Intended {
    arrivals: Arrivals,
    random: Xoshiro256PlusPlus,
    mean_ns: f64,
    /// Since `start`; a float, so that no part of a nanosecond is lost from start to start.
    next_ns: f64,
    start: Instant,
}

impl Intended {
    /// For thread `place` of `of`, each at `rate` operations per second.
    pub(super) fn new(arrivals: Arrivals, rate: f64, seed: u64, (place, of): (usize, usize)) -> Self {
        let mean_ns = 1e9 / rate;
        // One thread after the other within a gap; of a Poisson process any part is one.
        let next_ns = match arrivals {
            Arrivals::Poisson => 0.0,
            Arrivals::Fixed => mean_ns * (place as f64 / of.max(1) as f64 - 1.0),
        };
        let random = Xoshiro256PlusPlus::seed_from_u64(seed.wrapping_add(place as u64));
        Self { arrivals, random, mean_ns, next_ns, start: Instant::now() }
    }

    /// Counts from now on.
    pub(super) fn begin(&mut self) {
        self.start = Instant::now();
    }

    /// The next start, in nanoseconds after the beginning.
    fn next_ns(&mut self) -> f64 {
        let gap = match self.arrivals {
            Arrivals::Poisson => -(1.0 - self.random.random::<f64>()).ln(),
            Arrivals::Fixed => 1.0,
        };
        self.next_ns += self.mean_ns * gap;
        self.next_ns
    }

    /// Waits for the next start, which may have passed.
    pub(super) fn wait_for_next(&mut self) -> Instant {
        let next = self.start + Duration::from_nanos(self.next_ns() as u64);
        let left = next.saturating_duration_since(Instant::now());
        if left > SPIN {
            std::thread::sleep(left - SPIN);
        }
        while Instant::now() < next {
            std::hint::spin_loop();
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gaps(arrivals: Arrivals, count: usize) -> Vec<f64> {
        let mut intended = Intended::new(arrivals, 3e6, 7, (0, 1));
        let starts: Vec<f64> = (0..=count).map(|_| intended.next_ns()).collect();
        starts.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    #[test]
    fn fixed_arrivals_are_evenly_spaced() {
        let gaps = gaps(Arrivals::Fixed, 1_000_000);
        assert!(gaps.iter().all(|gap| (gap - 1e3 / 3.0).abs() < 1e-3));
        // A third of a nanosecond in each of a million gaps would be 333 of them too many.
        assert!((gaps.iter().sum::<f64>() - 1e9 / 3.0).abs() < 1.0);
    }

    #[test]
    fn threads_take_turns_at_fixed_times() {
        let mut threads: Vec<Intended> =
            (0..4).map(|place| Intended::new(Arrivals::Fixed, 250.0, 7, (place, 4))).collect();
        let mut starts: Vec<f64> =
            (0..5).flat_map(|_| threads.iter_mut().map(Intended::next_ns).collect::<Vec<_>>()).collect();
        starts.sort_by(f64::total_cmp);
        let even: Vec<f64> = (0..20).map(|start| f64::from(start) * 1e6).collect();
        assert_eq!(starts, even);
    }

    /// Mean and deviation of an exponential distribution are the same; a third of the gaps are longer than the mean.
    #[test]
    fn poisson_gaps_are_exponential() {
        let (mean, count) = (1e3 / 3.0, 200_000);
        let gaps = gaps(Arrivals::Poisson, count);
        let average = gaps.iter().sum::<f64>() / count as f64;
        let deviation = (gaps.iter().map(|gap| (gap - average).powi(2)).sum::<f64>() / count as f64).sqrt();
        let longer = gaps.iter().filter(|gap| **gap > mean).count() as f64 / count as f64;
        assert!((average / mean - 1.0).abs() < 0.01, "{average}");
        assert!((deviation / mean - 1.0).abs() < 0.02, "{deviation}");
        assert!((longer - (-1.0_f64).exp()).abs() < 0.005, "{longer}");
    }

    #[test]
    fn names_are_those_of_the_command_line() {
        for arrivals in [Arrivals::Poisson, Arrivals::Fixed] {
            assert_eq!(arrivals.name().parse(), Ok(arrivals));
            assert_eq!(serde_json::to_value(arrivals).expect("JSON"), arrivals.name());
        }
        assert!("uniform".parse::<Arrivals>().is_err());
    }
}
