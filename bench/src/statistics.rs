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

/// Values of each side below which a change is not called one: with three the medians' intervals are no intervals.
const FEWEST: usize = 4;

/// What changed from one set of repetitions to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// Median before.
    pub before: f64,
    /// Median after.
    pub after: f64,
    /// After as a multiple of before, with the 95 % interval of the bootstrap over both; none where either is 0.
    pub ratio: Option<Interval>,
    /// Whether there are too few values for the interval to mean anything.
    pub too_few: bool,
}

impl Change {
    /// From the values before to those after, with a fixed seed; `None` if either has none.
    #[must_use]
    pub fn between(before: &[f64], after: &[f64]) -> Option<Self> {
        let (median_before, median_after) = (median(before)?, median(after)?);
        let mut random = Xoshiro256PlusPlus::seed_from_u64(0x0051_DE57_EB01);
        let mut resampled = |values: &[f64]| {
            let resample: Vec<f64> = values.iter().map(|_| values[random.random_range(0..values.len())]).collect();
            median(&resample)
        };
        let mut ratios: Vec<f64> = (0..RESAMPLES)
            .filter_map(|_| Some(resampled(after)? / resampled(before)?))
            .filter(|ratio| ratio.is_finite())
            .collect();
        ratios.sort_by(f64::total_cmp);
        let at = |share: f64| ratios[((ratios.len() - 1) as f64 * share).round() as usize];
        let zero = median_before <= 0.0 || median_after <= 0.0 || ratios.is_empty();
        Some(Self {
            before: median_before,
            after: median_after,
            ratio: (!zero).then(|| Interval { median: median_after / median_before, low: at(0.025), high: at(0.975) }),
            too_few: before.len().min(after.len()) < FEWEST,
        })
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
    fn changes_of_known_data() {
        assert_eq!(Change::between(&[], &[1.0]), None);
        let doubled = Change::between(&[2.0; 5], &[4.0; 5]).expect("values");
        assert_eq!(doubled.ratio, Some(Interval { median: 2.0, low: 2.0, high: 2.0 }));
        assert!(!doubled.too_few && Change::between(&[2.0; 3], &[4.0; 5]).expect("values").too_few);
        assert_eq!(Change::between(&[0.0; 5], &[1.0; 5]).expect("values").ratio, None);
        // The whole range of each is within its median's interval, so that of the ratio goes from 1/3 to 3.
        let same = [1.0, 2.0, 3.0];
        let ratio = Change::between(&same, &same).and_then(|change| change.ratio).expect("a ratio");
        assert_eq!((ratio.low, ratio.median), (1.0 / 3.0, 1.0));
        assert!((ratio.high - 3.0).abs() < 1e-9, "{ratio:?}");
    }

    /// Of pairs that do not differ few are said to; of pairs a fifth apart with little noise, all are.
    #[test]
    fn noise_is_told_from_change() {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(5);
        let mut five = |middle: f64| -> Vec<f64> { (0..5).map(|_| middle + random.random::<f64>() * 0.1).collect() };
        let differs = |before: &[f64], after: &[f64]| {
            let ratio = Change::between(before, after).and_then(|change| change.ratio).expect("a ratio");
            ratio.low > 1.0 || ratio.high < 1.0
        };
        let false_alarms = (0..200).filter(|_| differs(&five(1.0), &five(1.0))).count();
        assert!(false_alarms <= 20, "{false_alarms} of 200");
        assert_eq!((0..50).filter(|_| differs(&five(1.0), &five(1.2))).count(), 50);
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
