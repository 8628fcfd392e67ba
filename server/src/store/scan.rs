//! All keys of a table, in the order of their hashes, without stopping it.
//!
//! A scan is stateless: it goes on from a hash. A hash stays where it is when its subtable is split or the directory
//! doubles, so a key that is there from the first page to the last is met exactly once. A key that comes or goes
//! meanwhile is met once or not at all. Each item is the value of its key at some moment of its page.

use crossbeam_epoch::Guard;
use sidestep_core::hash::KeyHash;
use sidestep_core::layout::bucket::{SUBTABLE_SLOTS, SlotWord};
use sidestep_core::layout::item::LinkState;
use sidestep_core::limits::{BLOCK_BYTES, BLOCK_WORDS};
use sidestep_core::location::Location;
use sidestep_core::memory::MemoryMut;

use super::Store;
use super::read::{Got, Item};
use super::write::Place;

/// Subtables that one step looks at, at most: some 40 µs each where nothing of them is in the CPU's cache.
const SUBTABLES_A_STEP: usize = 4;
/// Items whose headers are fetched ahead.
const PREFETCH: usize = 16;

/// Where a scan goes on.
#[derive(Clone, Copy, Debug)]
pub struct ScanFrom<'a> {
    /// From this hash on.
    pub hash: u64,
    /// Of the keys with just this hash, those behind this one.
    pub after: &'a [u8],
}

/// An item that a scan meets.
#[derive(Debug)]
pub struct Met<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Its version.
    pub version: u64,
    /// When it expires, in milliseconds since the Unix epoch; 0 = never.
    pub expires_ms: u64,
    /// Length of its value.
    pub value_bytes: u32,
    location: Location,
}

struct Entry {
    hash: u64,
    item: Item,
}

impl<M: MemoryMut + Send + Sync + 'static> Store<M> {
    /// Hands out items until `limit_bytes` are passed, by what `each` says that it took. Returns the hash from which on
    /// to go on, none at the end of the table. Takes no lock; looks at a bounded number of subtables.
    ///
    /// `guard` must have been pinned before, and is what keeps the items.
    pub fn scan(
        &self,
        from: ScanFrom<'_>,
        limit_bytes: usize,
        guard: &Guard,
        each: &mut dyn FnMut(&Met<'_>) -> usize,
    ) -> Option<u64> {
        let mut hash = from.hash;
        // A key of another hash says nothing about this one.
        let after = Some(from.after).filter(|key| !key.is_empty() && self.hash(key).0 == hash);
        let (mut taken, mut is_first, mut key) = (0, true, Vec::new());
        for _ in 0..SUBTABLES_A_STEP {
            let (entries, end) = self.entries(hash, guard);
            let mut last = hash;
            for entry in entries {
                self.key_at(&entry.item, &mut key);
                let is_before = entry.hash < hash || (entry.hash == from.hash && after.is_some_and(|a| &key[..] <= a));
                if is_before || self.is_expired(entry.item.header.expires_ms) {
                    continue;
                }
                // Every page but the last has a record or whole subtables behind it, so a scan comes to its end.
                if taken >= limit_bytes && !is_first {
                    return Some(last);
                }
                is_first = false;
                let header = &entry.item.header;
                taken += each(&Met {
                    key: &key,
                    version: header.version,
                    expires_ms: header.expires_ms,
                    value_bytes: header.value_bytes,
                    location: entry.item.location,
                });
                last = entry.hash;
            }
            hash = end?;
        }
        Some(hash)
    }

    /// Appends the value of an item that was met if it has at most `copy_limit` bytes, or takes a hold on it. Under the
    /// pin of the scan.
    pub fn take_met(&self, met: &Met<'_>, copy_limit: usize, reply: &mut Vec<u8>) -> Got {
        self.copy_or_hold(met.location, met.key.len(), met.version, met.value_bytes, copy_limit, reply)
    }

    /// The items of the subtable to which a hash belongs, in the order of hash and key, and where the next one begins.
    fn entries(&self, hash: u64, _guard: &Guard) -> (Vec<Entry>, Option<u64>) {
        loop {
            let subtable = self.route(KeyHash(hash));
            if let Some(mut entries) = self.try_entries(subtable.address(), subtable.depth()) {
                let (start, end) = range(hash, subtable.depth());
                // In the middle of a split there are words of the sibling's items too.
                entries.retain(|entry| entry.hash >= start && end.is_none_or(|end| entry.hash < end));
                self.sort(&mut entries);
                return (entries, end);
            }
            // A split is publishing: the directory has the deeper entry already. Or an update is between two stores.
            std::hint::spin_loop();
            self.memory.yield_turn();
        }
    }

    /// None if the subtable is being split.
    fn try_entries(&self, subtable: u64, depth: u8) -> Option<Vec<Entry>> {
        let mut bytes = vec![0; SUBTABLE_SLOTS * 8];
        self.memory.read(subtable * BLOCK_WORDS, &mut bytes);
        let (words, _) = bytes.as_chunks::<8>();
        let words = words.iter().map(|word| SlotWord(u64::from_le_bytes(*word)));
        let mut used = Vec::with_capacity(SUBTABLE_SLOTS);
        for word in words {
            if word.depth() > depth {
                return None;
            }
            if !word.is_empty() {
                used.push(word.location());
            }
        }
        let prefetch = |location: &Location| self.memory.prefetch(location.word(), 2 * BLOCK_BYTES);
        used.iter().take(PREFETCH).for_each(prefetch);
        let (mut entries, mut key) = (Vec::with_capacity(used.len()), Vec::new());
        for (i, location) in used.iter().enumerate() {
            if let Some(ahead) = used.get(i + PREFETCH) {
                prefetch(ahead);
            }
            // Its slot is of use for marking a use, which a scan is not.
            let found = Item { location: *location, header: self.header(*location), slot: 0 };
            let item = match found.header.link.state() {
                LinkState::Current => Some(found),
                LinkState::Dead => None,
                LinkState::Forward => self.follow(found),
                LinkState::Pending => return None,
            };
            if let Some(item) = item {
                self.key_at(&item, &mut key);
                entries.push(Entry { hash: self.hash(&key).0, item });
            }
        }
        Some(entries)
    }

    /// By hash, then by key. A key that was removed and written anew while the words were read may be there twice: the
    /// newer one stays.
    fn sort(&self, entries: &mut Vec<Entry>) {
        let key = |entry: &Entry| {
            let mut key = Vec::new();
            self.key_at(&entry.item, &mut key);
            key
        };
        entries.sort_by(|a, b| {
            let by_key = || key(a).cmp(&key(b)).then(b.item.header.version.cmp(&a.item.header.version));
            a.hash.cmp(&b.hash).then_with(by_key)
        });
        entries.dedup_by(|later, earlier| later.hash == earlier.hash && key(later) == key(earlier));
    }

    fn key_at(&self, item: &Item, key: &mut Vec<u8>) {
        self.key_of(item.location, &item.header, key);
    }

    /// Removes all keys from a hash on, as far as it goes in one step. Returns where to go on, none at the end of the
    /// table, and how many keys are gone. Each removal is a delete of its own, under its subtable's lock.
    pub fn flush(&self, from: u64) -> (Option<u64>, u32) {
        let (mut hash, mut removed) = (from, 0);
        for _ in 0..SUBTABLES_A_STEP {
            let mut locked = self.lock_subtable(KeyHash(hash));
            let first = locked.entry.address() * BLOCK_WORDS;
            for slot in first..first + SUBTABLE_SLOTS as u64 {
                let word = SlotWord(self.memory.load(slot));
                if !word.is_empty() {
                    let location = word.location();
                    self.remove(&mut locked, &Place { slot, location, header: self.header(location) });
                    self.counters.deletes.add_one();
                    removed += 1;
                }
            }
            match range(hash, locked.entry.depth()).1 {
                Some(next) => hash = next,
                None => return (None, removed),
            }
        }
        (Some(hash), removed)
    }
}

/// The hashes of a subtable at a depth: the first, and that after the last.
pub(super) fn range(hash: u64, depth: u8) -> (u64, Option<u64>) {
    if depth == 0 {
        return (0, None);
    }
    let shift = 64 - u32::from(depth);
    let prefix = hash >> shift;
    (prefix << shift, (prefix + 1).checked_shl(shift).filter(|_| prefix + 1 < 1 << depth))
}

#[cfg(test)]
#[path = "scan_tests.rs"]
mod tests;
