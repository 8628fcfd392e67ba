//! Frequencies against closed forms: chi-square with fixed seeds.

use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::super::zipfian::zeta;
use super::*;

const DRAWS: u64 = 1_000_000;

fn counts(distribution: Distribution, records: u64) -> Vec<u64> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(7);
    let mut chooser = RecordChooser::new(distribution, records);
    let mut counts = vec![0; records as usize];
    for _ in 0..DRAWS {
        counts[chooser.sample(&mut random) as usize] += 1;
    }
    counts
}

/// Chi-square per degree of freedom's distance from 1, in standard deviations (Wilson-Hilferty).
fn deviation(counts: &[u64], probability: impl Fn(usize) -> f64) -> f64 {
    let statistic: f64 = counts
        .iter()
        .enumerate()
        .map(|(record, &seen)| {
            let expected = probability(record) * DRAWS as f64;
            (seen as f64 - expected).powi(2) / expected
        })
        .sum();
    let freedom = (counts.len() - 1) as f64;
    let spread = 2.0 / (9.0 * freedom);
    ((statistic / freedom).cbrt() - (1.0 - spread)) / spread.sqrt()
}

/// Probability that Gray's method gives `item`, from its inverse: item < k iff u < u(k).
fn gray(item: usize, items: u64) -> f64 {
    let zeta_items = zeta(items, THETA);
    match item {
        0 => return 1.0 / zeta_items,
        1 => return 0.5_f64.powf(THETA) / zeta_items,
        _ => {}
    }
    let eta = (1.0 - (2.0 / items as f64).powf(1.0 - THETA)) / (1.0 - zeta(2, THETA) / zeta_items);
    let uniform_below = |k: usize| ((k as f64 / items as f64).powf(1.0 - THETA) - 1.0 + eta) / eta;
    uniform_below(item + 1) - uniform_below(item)
}

#[test]
fn uniform_is_uniform() {
    assert!(deviation(&counts(Distribution::Uniform, 1000), |_| 1e-3).abs() < 3.5);
}

#[test]
fn zipfian_exact_is_grays() {
    let counts = counts(Distribution::ZipfianExact, 1000);
    assert!(deviation(&counts, |item| gray(item, 1000)).abs() < 3.5);
    // 13 % for the hottest of 1,000.
    let hottest = counts[0] as f64 / DRAWS as f64;
    assert!((hottest - 1.0 / zeta(1000, THETA)).abs() < 0.002, "{hottest}");
}

#[test]
fn grays_method_is_close_to_the_power_law() {
    let zeta_items = zeta(1000, THETA);
    let distance: f64 =
        (0..1000).map(|item| (gray(item, 1000) - ((item + 1) as f64).powf(-THETA) / zeta_items).abs()).sum();
    assert!(distance / 2.0 < 0.05, "total variation {distance}");
}

#[test]
fn scrambled_zipfian_has_ycsbs_hottest_key() {
    let counts = counts(Distribution::ScrambledZipfian, 1000);
    let hottest = counts[(fnv64(0) % 1000) as usize] as f64 / DRAWS as f64;
    // 3.78 %, and what else falls on that record by the hash (about a thousandth of the rest).
    assert!((0.0370..0.0395).contains(&hottest), "{hottest}");
    assert_eq!(counts.iter().max(), Some(&counts[(fnv64(0) % 1000) as usize]));
}

#[test]
fn latest_is_zipfian_from_the_newest() {
    let mut counts = counts(Distribution::Latest, 1000);
    counts.reverse();
    assert!(deviation(&counts, |item| gray(item, 1000)).abs() < 3.5);
}

#[test]
fn latest_follows_inserts() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(7);
    let mut chooser = RecordChooser::new(Distribution::Latest, 1000);
    chooser.grow_to(1500);
    let newest = (0..10_000).filter(|_| chooser.sample(&mut random) == 1499).count() as f64 / 10_000.0;
    assert!((newest - 1.0 / zeta(1500, THETA)).abs() < 0.015, "{newest}");
}

#[test]
fn hotspot_splits_as_asked() {
    let counts = counts(Distribution::Hotspot { data: 0.2, operations: 0.8 }, 1000);
    let probability = |record| if record < 200 { 0.8 / 200.0 } else { 0.2 / 800.0 };
    assert!(deviation(&counts, probability).abs() < 3.5);
}

#[test]
fn exponential_is_exponential() {
    let (percentile, fraction, records) = (95.0, 0.857_142_857_1, 1000_u64);
    let mut counts = counts(Distribution::Exponential { percentile, fraction }, records);
    counts.reverse();
    let gamma = -(1.0_f64 - percentile / 100.0).ln() / (records as f64 * fraction);
    let kept = 1.0 - (-gamma * records as f64).exp();
    let probability = |back: usize| ((-gamma * back as f64).exp() - (-gamma * (back + 1) as f64).exp()) / kept;
    assert!(deviation(&counts, probability).abs() < 3.5);
}

#[test]
fn sequential_goes_round() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(7);
    let mut chooser = RecordChooser::new(Distribution::Sequential, 3);
    let drawn: Vec<u64> = (0..7).map(|_| chooser.sample(&mut random)).collect();
    assert_eq!(drawn, [0, 1, 2, 0, 1, 2, 0]);
}

#[test]
fn one_record_is_enough() {
    for distribution in
        [Distribution::Uniform, Distribution::ScrambledZipfian, Distribution::ZipfianExact, Distribution::Latest]
    {
        assert_eq!(counts(distribution, 1), [DRAWS]);
    }
}
