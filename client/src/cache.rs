//! Where values were last found: a table of fixed size that forgets on collision.
//!
//! An entry may be wrong in every way; the lookup proves what it finds there or looks again.

use sidestep_core::hash::KeyHash;
use sidestep_core::lookup::CachedLocation;

use crate::counters::{Count, Counters};

#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u64,
    address: u64,
    /// 0 = no entry: an item is never empty.
    bytes: u32,
}

const NONE: Entry = Entry { hash: 0, address: 0, bytes: 0 };

/// Locations by key hash. Direct-mapped: one cache line to look, none to evict.
#[derive(Debug)]
pub(crate) struct LocationCache {
    entries: Box<[Entry]>,
    mask: usize,
}

impl LocationCache {
    /// Room for `entries`, rounded up to a power of two; `None` for 0.
    pub(crate) fn new(entries: usize) -> Option<Self> {
        let entries = entries.checked_next_power_of_two().filter(|_| entries > 0)?;
        Some(Self { entries: vec![NONE; entries].into_boxed_slice(), mask: entries - 1 })
    }

    // The low bits choose the home bucket on the server and are as good as any.
    #[inline]
    fn index(&self, hash: KeyHash) -> usize {
        hash.0 as usize & self.mask
    }

    #[inline]
    pub(crate) fn find(&self, hash: KeyHash) -> Option<CachedLocation> {
        let entry = self.entries[self.index(hash)];
        (entry.bytes != 0 && entry.hash == hash.0)
            .then_some(CachedLocation { address: entry.address, bytes: entry.bytes })
    }

    #[inline]
    pub(crate) fn keep(&mut self, hash: KeyHash, location: CachedLocation) {
        let index = self.index(hash);
        self.entries[index] = Entry { hash: hash.0, address: location.address, bytes: location.bytes };
    }

    pub(crate) fn drop_entry(&mut self, hash: KeyHash) {
        let index = self.index(hash);
        if self.entries[index].hash == hash.0 {
            self.entries[index] = NONE;
        }
    }
}

/// What a lookup says of the cache.
#[inline]
pub(crate) fn note(
    cache: &mut LocationCache,
    counters: &Counters,
    hash: KeyHash,
    cached: Option<CachedLocation>,
    now_at: Option<CachedLocation>,
) {
    let count = match cached {
        None => Count::CacheMisses,
        Some(_) if cached == now_at => Count::CacheHits,
        Some(_) => Count::CacheDropped,
    };
    counters.add(count, 1);
    match now_at {
        Some(location) if cached != now_at => cache.keep(hash, location),
        None if cached.is_some() => cache.drop_entry(hash),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forgets_on_collision_and_on_demand() {
        assert!(LocationCache::new(0).is_none());
        let mut cache = LocationCache::new(3).unwrap();
        let (a, b) = (KeyHash(1), KeyHash(1 + 4));
        let at = |address| CachedLocation { address, bytes: 64 };
        cache.keep(a, at(10));
        assert_eq!((cache.find(a), cache.find(b)), (Some(at(10)), None));
        cache.keep(b, at(20));
        assert_eq!((cache.find(a), cache.find(b)), (None, Some(at(20))));
        cache.drop_entry(a);
        assert_eq!(cache.find(b), Some(at(20)));
        cache.drop_entry(b);
        assert_eq!(cache.find(b), None);
        assert_eq!(cache.find(KeyHash(0)), None, "no entry is no location");
    }
}
