//! Zipfian numbers after Gray et al., "Quickly generating billion-record synthetic databases" (SIGMOD 1994),
//! with YCSB's constants.

use rand::Rng;

/// YCSB's exponent.
pub const THETA: f64 = 0.99;
/// Items that YCSB's scrambled generator draws from, whatever the number of records.
const SCRAMBLED_ITEMS: u64 = 10_000_000_000;
/// ζ of [`SCRAMBLED_ITEMS`] at [`THETA`], as YCSB has it.
const SCRAMBLED_ZETA: f64 = 26.469_028_201_783_02;
/// Terms of ζ that are summed before the Euler-Maclaurin tail takes over.
const SUMMED_TERMS: u64 = 1000;

/// ζ(n) = Σ i^-θ for i in 1..=n: summed at first, then by Euler-Maclaurin. Exact to about 1e-13.
#[must_use]
pub fn zeta(items: u64, theta: f64) -> f64 {
    let summed = items.min(SUMMED_TERMS);
    let head: f64 = (1..=summed).map(|item| (item as f64).powf(-theta)).sum();
    if items == summed {
        return head;
    }
    let (from, to) = (summed as f64, items as f64);
    let integral =
        if theta == 1.0 { (to / from).ln() } else { (to.powf(1.0 - theta) - from.powf(1.0 - theta)) / (1.0 - theta) };
    let value = |x: f64| x.powf(-theta);
    let first = |x: f64| -theta * x.powf(-theta - 1.0);
    let third = |x: f64| -theta * (theta + 1.0) * (theta + 2.0) * x.powf(-theta - 3.0);
    head + integral + (value(to) - value(from)) / 2.0 + (first(to) - first(from)) / 12.0
        - (third(to) - third(from)) / 720.0
}

/// Item `i` of `0..items` with a weight of `(i + 1)^-θ`.
///
/// Items 0 and 1 come with exactly that probability; the others by Gray's continuous approximation, as in YCSB.
#[derive(Clone, Debug)]
pub struct Zipfian {
    items: u64,
    theta: f64,
    zeta_items: f64,
    zeta_two: f64,
    alpha: f64,
    eta: f64,
}

impl Zipfian {
    /// Over `items` (at least 1) with exponent `theta` below 1.
    #[must_use]
    pub fn new(items: u64, theta: f64) -> Self {
        Self::with_zeta(items.max(1), theta, zeta(items.max(1), theta))
    }

    /// The generator under YCSB's scrambled one.
    #[must_use]
    pub fn scrambled_base() -> Self {
        Self::with_zeta(SCRAMBLED_ITEMS, THETA, SCRAMBLED_ZETA)
    }

    fn with_zeta(items: u64, theta: f64, zeta_items: f64) -> Self {
        let mut zipfian =
            Self { items, theta, zeta_items, zeta_two: zeta(2, theta), alpha: 1.0 / (1.0 - theta), eta: 0.0 };
        zipfian.eta = zipfian.eta();
        zipfian
    }

    fn eta(&self) -> f64 {
        let head = 1.0 - (2.0 / self.items as f64).powf(1.0 - self.theta);
        head / (1.0 - self.zeta_two / self.zeta_items)
    }

    /// Makes room for a larger population; costs one power per new item.
    pub fn grow_to(&mut self, items: u64) {
        if items <= self.items {
            return;
        }
        self.zeta_items += (self.items + 1..=items).map(|item| (item as f64).powf(-self.theta)).sum::<f64>();
        self.items = items;
        self.eta = self.eta();
    }

    /// Draws one item.
    pub fn sample(&self, random: &mut impl Rng) -> u64 {
        let uniform: f64 = random.random();
        let scaled = uniform * self.zeta_items;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < self.zeta_two {
            return 1.min(self.items - 1);
        }
        let item = (self.items as f64 * (self.eta * uniform - self.eta + 1.0).powf(self.alpha)) as u64;
        item.min(self.items - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeta_agrees_with_the_sum() {
        for theta in [0.5, 0.9, 0.99] {
            for items in [1, 2, 999, 1000, 1001, 5000, 1_000_000] {
                let sum: f64 = (1..=items).map(|item| (item as f64).powf(-theta)).sum();
                assert!((zeta(items, theta) - sum).abs() < 1e-9, "ζ({items}, {theta})");
            }
        }
    }

    #[test]
    fn zeta_has_ycsbs_constants() {
        assert!((zeta(2, THETA) - 1.503_477_775_028_359_4).abs() < 1e-14);
        assert!((zeta(SCRAMBLED_ITEMS, THETA) - SCRAMBLED_ZETA).abs() < 1e-6);
    }

    #[test]
    fn growing_is_the_same_as_starting_large() {
        let mut grown = Zipfian::new(1000, THETA);
        for items in 1001..=5000 {
            grown.grow_to(items);
        }
        let direct = Zipfian::new(5000, THETA);
        assert!((grown.zeta_items - direct.zeta_items).abs() < 1e-9);
        assert!((grown.eta - direct.eta).abs() < 1e-9);
    }
}
