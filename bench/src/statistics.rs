//! Medians and their intervals.

use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

/// Resamples of the bootstrap.
const RESAMPLES: usize = 2000;

/// A median and the 95 % interval of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The median of the repetitions.
    pub median: f64,
    /// Lower end of the percentile bootstrap's 95 % interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// The middle of `values`, or the mean of the two middle ones; `None` of none.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

impl Interval {
    /// Median and percentile bootstrap interval of `values`, with a fixed seed, so that the same values give the same
    /// interval. With fewer than six values it can be no wider than they are, nor narrower than their middle: read it as
    /// the spread. `None` of none.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        let median_of_all = median(values)?;
        let mut random = Xoshiro256PlusPlus::seed_from_u64(0x0051_DE57_EB00);
        let mut medians: Vec<f64> = (0..RESAMPLES)
            .filter_map(|_| {
                let resample: Vec<f64> = values.iter().map(|_| values[random.random_range(0..values.len())]).collect();
                median(&resample)
            })
            .collect();
        medians.sort_by(f64::total_cmp);
        let at = |share: f64| medians[((medians.len() - 1) as f64 * share).round() as usize];
        Some(Self { median: median_of_all, low: at(0.025), high: at(0.975) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[5.0, 1.0, 3.0]), Some(3.0));
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
    }

    #[test]
    fn intervals_of_known_data() {
        assert_eq!(Interval::of(&[]), None);
        assert_eq!(Interval::of(&[2.0; 5]), Some(Interval { median: 2.0, low: 2.0, high: 2.0 }));
        // The bootstrap median of five is the smallest with probability Σ C(5,k)(1/5)^k(4/5)^(5-k), k = 3..5 = 5.8 %,
        // which passes 2.5 %: the interval is the whole range.
        let five = Interval::of(&[1.0, 2.0, 3.0, 4.0, 5.0]).expect("of five");
        assert_eq!((five.low, five.median, five.high), (1.0, 3.0, 5.0));
    }

    #[test]
    fn intervals_cover_the_true_median_about_as_often_as_they_say() {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(3);
        let covered = (0..300)
            .filter(|_| {
                let sample: Vec<f64> = (0..31).map(|_| random.random::<f64>()).collect();
                let interval = Interval::of(&sample).expect("not empty");
                interval.low <= 0.5 && 0.5 <= interval.high
            })
            .count();
        assert!((270..=298).contains(&covered), "{covered} of 300");
    }
}
