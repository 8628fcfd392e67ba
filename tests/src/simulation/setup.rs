//! The table, the keys, and what a seed makes of them.

use std::sync::{Arc, OnceLock};

use rand::Rng;
use rand::seq::SliceRandom;
use rand_xoshiro::Xoshiro256PlusPlus;
use sidestep_core::hash::KeyHash;
use sidestep_server::store::{Eviction, Store, StoreOptions};

use super::memory::WordByWord;

/// A table that fills up is smaller, so that the hand comes round.
pub(super) fn memory_bytes(evictions: bool) -> u64 {
    if evictions { SEGMENT_BYTES } else { 1 << 20 }
}

const SEGMENT_BYTES: u64 = 256 << 10;
pub(super) const TABLE_ID: u64 = 0x51de_57e9;

pub(super) fn options(evictions: bool) -> StoreOptions {
    StoreOptions {
        segment_bytes: Some(SEGMENT_BYTES),
        table_id: Some(TABLE_ID),
        reuse_at_once: true,
        eviction: if evictions { Eviction::Clock } else { Eviction::None },
        ..StoreOptions::default()
    }
}

/// Puts a key that nobody looks at, so that others are evicted for it.
pub(super) fn fill(store: &Arc<Store<WordByWord>>, number: usize, bytes: usize) -> Result<(), String> {
    let key = format!("fill {number}");
    store.put(key.as_bytes(), &vec![0; bytes], None, 0).map(drop).map_err(|error| format!("{key}: {error}"))
}

/// Fills the table until keys are evicted, and on for a while, so that the hand is anywhere. Returns the next number.
pub(super) fn fill_up(store: &Arc<Store<WordByWord>>, mix: &Mix, random: &mut impl Rng) -> Result<usize, String> {
    let mut after = None;
    for number in 0.. {
        fill(store, number, mix.lengths[number % mix.lengths.len()])?;
        if after.is_none() && evicted(store) > 0 {
            after = Some(number + random.random_range(0..1000));
        }
        if after == Some(number) {
            return Ok(number + 1);
        }
    }
    Err("a table that never fills".to_owned())
}

/// Keys that were evicted so far.
pub(super) fn evicted(store: &Store<WordByWord>) -> u64 {
    store.stats().into_iter().find(|(name, _)| name == "evicted").map_or(0, |(_, value)| value)
}

/// Keys that crowd into two windows, some of them with the same fingerprint.
pub fn keys() -> &'static [Vec<u8>] {
    static KEYS: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    KEYS.get_or_init(|| {
        let mut keys = Vec::new();
        let mut wanted = |count: usize, good: &dyn Fn(KeyHash) -> bool| {
            (0u64..)
                .map(|i| format!("{i:x}").into_bytes())
                .filter(|key| good(KeyHash::of(key, TABLE_ID)))
                .take(count)
                .for_each(|key| {
                    if !keys.contains(&key) {
                        keys.push(key);
                    }
                });
        };
        wanted(24, &|hash| hash.home() == 9);
        wanted(4, &|hash| hash.home() == 10);
        wanted(4, &|hash| hash.home() == 9 && hash.fingerprint() == 77);
        keys
    })
}

/// What a seed makes of the operations. Many keys split subtables; few of one length come back to the same extents.
pub(super) struct Mix {
    pub(super) keys: Vec<usize>,
    pub(super) lengths: Vec<usize>,
}

impl Mix {
    pub(super) fn new(random: &mut Xoshiro256PlusPlus) -> Self {
        let mut all: Vec<usize> = (0..keys().len()).collect();
        if random.random() {
            all.shuffle(random);
            all.truncate([2, 2, 3, 6][random.random_range(0..4)]);
        }
        let lengths = if random.random() { vec![8, 30, 100, 250] } else { vec![[8, 100][random.random_range(0..2)]] };
        Self { keys: all, lengths }
    }
}
