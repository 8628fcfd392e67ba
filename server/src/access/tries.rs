//! How often an address may fail to prove a token.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Failures that are free.
const AT_ONCE: u64 = 10;
/// One more is forgiven after this time.
const FORGIVEN_AFTER_MS: u64 = 5000;
const ROWS: usize = 2;
const COLUMNS: usize = 4096;

/// Failures by address, in memory of a fixed size: an address has a place in each row, by a hash that nobody can foresee,
/// and is held back only if both are full. So no number of addresses makes it forget one, and one that shares a place
/// with a guilty one suffers only if it shares both.
///
/// A place holds the time, in milliseconds since the start, at which all its failures will be forgiven (a leaky bucket as
/// one number: "generic cell rate algorithm", ITU-T I.371 Annex A).
pub(crate) struct FailedTries {
    start: Instant,
    hashers: [RandomState; ROWS],
    rows: Box<[[AtomicU64; COLUMNS]; ROWS]>,
}

impl FailedTries {
    pub(crate) fn new(now: Instant) -> Self {
        let rows = Box::new([const { [const { AtomicU64::new(0) }; COLUMNS] }; ROWS]);
        Self { start: now, hashers: [RandomState::new(), RandomState::new()], rows }
    }

    fn places(&self, from: IpAddr) -> impl Iterator<Item = &AtomicU64> {
        let who = network(from);
        self.hashers
            .iter()
            .zip(self.rows.iter())
            .map(move |(hasher, row)| &row[hasher.hash_one(who) as usize % COLUMNS])
    }

    fn ms(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.start).as_millis()).unwrap_or(u64::MAX)
    }

    /// How long the address has to wait before it may try; None: it may.
    pub(crate) fn wait(&self, from: IpAddr, now: Instant) -> Option<Duration> {
        let now_ms = self.ms(now);
        let full_ms = now_ms.saturating_add((AT_ONCE - 1) * FORGIVEN_AFTER_MS);
        let over_ms = self.places(from).map(|place| place.load(Ordering::Relaxed).saturating_sub(full_ms)).min();
        over_ms.filter(|&ms| ms > 0).map(Duration::from_millis)
    }

    /// The address has failed.
    pub(crate) fn failed(&self, from: IpAddr, now: Instant) {
        let now_ms = self.ms(now);
        for place in self.places(from) {
            let add = |until: u64| Some(until.max(now_ms).saturating_add(FORGIVEN_AFTER_MS));
            // It always has something to store.
            let _ = place.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        }
    }
}

/// What counts as one address: of IPv6 the network, since a host has all of it to choose from.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from(u128::from(v6) >> 64 << 64).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUILTY: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    #[test]
    fn some_failures_are_free_and_time_forgives() {
        let start = Instant::now();
        let tries = FailedTries::new(start);
        for _ in 0..AT_ONCE {
            assert_eq!(tries.wait(GUILTY, start), None);
            tries.failed(GUILTY, start);
        }
        let wait = tries.wait(GUILTY, start).expect("it has failed too often");
        assert_eq!(wait, Duration::from_millis(FORGIVEN_AFTER_MS));
        assert_eq!(tries.wait(GUILTY, start + wait - Duration::from_millis(1)), Some(Duration::from_millis(1)));
        assert_eq!(tries.wait(GUILTY, start + wait), None);
        // One, and not ten more.
        tries.failed(GUILTY, start + wait);
        assert!(tries.wait(GUILTY, start + wait).is_some());
        let later = start + Duration::from_secs(3600);
        for _ in 0..AT_ONCE {
            assert_eq!(tries.wait(GUILTY, later), None);
            tries.failed(GUILTY, later);
        }
        assert!(tries.wait(GUILTY, later).is_some());
    }

    #[test]
    fn many_guilty_addresses_neither_hide_one_nor_block_most_others() {
        let start = Instant::now();
        let tries = FailedTries::new(start);
        let guilty = |i: u32| IpAddr::from((0x0a00_0000 + i).to_be_bytes());
        for i in 0..100 {
            (0..AT_ONCE).for_each(|_| tries.failed(guilty(i), start));
        }
        assert!((0..100).all(|i| tries.wait(guilty(i), start).is_some()));
        let innocent = |i: u32| IpAddr::from((0xc000_0000 + i).to_be_bytes());
        // Expected: (100/4096)^2 of them, 6 in 10,000.
        let held_back = (0..10_000).filter(|&i| tries.wait(innocent(i), start).is_some()).count();
        assert!(held_back < 100, "{held_back}");
    }

    #[test]
    fn an_ipv6_network_is_one_address_and_a_mapped_ipv4_the_ipv4() {
        let [a, b, c] = ["2001:db8::1", "2001:db8::ffff:1", "2001:db8:0:1::1"].map(|text| text.parse().unwrap());
        assert_eq!(network(a), network(b));
        assert_ne!(network(a), network(c));
        assert_eq!(network("::ffff:192.0.2.1".parse().unwrap()), GUILTY);
    }
}
