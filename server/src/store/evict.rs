//! Eviction: when nothing is free, items that were not used lately make room.
//!
//! CLOCK, an approximation of LRU: each slot has a bit beside the table, set by the server's own reads and writes and by
//! what clients say of theirs; a hand goes over the slots, clears the bits it finds, and takes the items that have none.
//! One-sided readers report a sample of theirs, and need nothing of it: an evicted item is deleted like any other, under its subtable's lock.
//!
//! Space is in slabs of one size class each, so the hand takes items of the class that is asked for. So that classes do
//! not keep for ever what they once had, it counts what is cold in others on its way, and now and then empties a slab
//! of theirs. A slab is emptied as well where the class has nothing to give, or where whole pages are needed. Items longer
//! than those in slabs take the place of one that is as long; where that is cold which is not, or nothing is so long, a
//! row of neighbours is emptied, whatever they are.
//!
//! Other subtables are only try-locked: a split that needs space has a lock already.

use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use sidestep_core::hash::KeyHash;
use sidestep_core::layout::bucket::{self, SUBTABLE_BLOCKS, SUBTABLE_SLOTS, SlotWord, WINDOW_SLOTS};
use sidestep_core::layout::item;
use sidestep_core::limits::{BLOCK_BYTES, BLOCK_WORDS};
use sidestep_core::location::Location;
use sidestep_core::memory::MemoryMut;

use super::classes::{MAX_SLAB_EXTENT, SLAB_BLOCKS, extent_blocks};
use super::extents::Row;
use super::need::Need;
use super::write::Place;
use super::{Locked, Store};

/// Subtables that the hand passes at most before it lets go of its lock.
const MOST_SUBTABLES: u64 = 1024;
/// Items that are evicted at a time, so that most writes find room that an earlier one made.
const BATCH: u32 = 16;
/// The same for large ones: so many blocks.
const BATCH_BLOCKS: u64 = SLAB_BLOCKS;
/// Cold blocks of other classes that the hand passes before it empties a slab of theirs: 1 MiB, but no more than one part
/// in so many of the memory.
const COLD_BLOCKS: u64 = (1 << 20) / BLOCK_BYTES as u64;
const COLD_PARTS: u64 = 256;

/// Slabs of which the coldest is emptied, and extents of each that are looked at.
const SAMPLED_SLABS: usize = 8;
const SAMPLED_EXTENTS: usize = 32;

/// Of the keys that clients find without this process they report one in so many. A hot key is read far more often than
/// that in a turn of the hand; and a report's cost on both sides, divided by this, is little beside a read's.
const REPORT_ONE_IN: u32 = 32;

/// What to do when memory is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eviction {
    /// Refuse writes.
    #[default]
    None,
    /// Evict what was not used lately.
    Clock,
}

/// Where the hand is.
#[derive(Debug)]
pub(super) struct Hand {
    hash: KeyHash,
    slot: u64,
    /// Cold blocks of other classes passed since a slab of theirs was emptied.
    cold_blocks: u64,
    /// Where to look for the next slab or row to be emptied.
    row: u64,
    /// Thousandths of a turn in which a large item gets its room from slabs.
    slab_credit: u64,
}

/// What a turn of the hand came to.
#[derive(Default)]
struct Turn {
    evicted: u32,
    /// Whether there was anything that would have served, used lately or not.
    any: bool,
    /// An item of another class, where a slab or a row is to be emptied.
    cold: Option<Location>,
}

/// The policy and its state.
#[derive(Debug)]
pub(super) struct Clock {
    policy: Eviction,
    hand: Mutex<Hand>,
    /// One more than the depth of a subtable that could not be split for want of room; 0 = none.
    crowded: AtomicU32,
}

impl Clock {
    pub(super) fn new(policy: Eviction) -> Self {
        Self {
            policy,
            crowded: AtomicU32::new(0),
            hand: Mutex::new(Hand { hash: KeyHash(0), slot: 0, cold_blocks: 0, row: 0, slab_credit: 0 }),
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.policy == Eviction::Clock
    }
}

impl<M: MemoryMut + Send + Sync + 'static> Store<M> {
    /// Whether items are evicted when memory is full.
    pub fn evicts(&self) -> bool {
        self.clock.is_on()
    }

    /// Of the keys that a client finds by itself it is to report one in so many; 0: none, nothing would come of it.
    pub fn report_one_in(&self) -> u32 {
        if self.evicts() { REPORT_ONE_IN } else { 0 }
    }

    /// The item that this slot names was used. A load, unless it is the first use since the hand was there.
    #[inline]
    pub(super) fn touch(&self, slot: u64) {
        if !self.clock.is_on() {
            return;
        }
        let (subtable, slot) = (slot / SUBTABLE_SLOTS as u64 * SUBTABLE_BLOCKS, slot % SUBTABLE_SLOTS as u64);
        let (word, bit) = (&self.locks.beside(subtable).referenced[(slot / 64) as usize], 1 << (slot % 64));
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// A client used a key with this hash. Others of the same fingerprint in the same window count as used, too.
    pub fn touch_hash(&self, hash: KeyHash) {
        if !self.clock.is_on() {
            return;
        }
        let entry = self.route(hash);
        let first = bucket::window_word(entry.address(), hash);
        let mut candidates = bucket::scan(&self.window(first), entry.depth(), hash.fingerprint()).candidates;
        while candidates != 0 {
            self.touch(first + u64::from(candidates.trailing_zeros()));
            candidates &= candidates - 1;
        }
    }

    /// A sibling has items of the old subtable in the slots that they had. Both are locked.
    pub(super) fn inherit_references(&self, old: u64, sibling: u64) {
        let (old, sibling) = (self.locks.beside(old), self.locks.beside(sibling));
        for (old, sibling) in old.referenced.iter().zip(&sibling.referenced) {
            sibling.store(old.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Evicts something, if anything can be, whose space may serve the need once readers have left it.
    pub(super) fn evict(&self, need: Need) {
        let mut hand = self.lock(&self.clock.hand);
        let slabs_first = match need {
            Need::Stock(_) => true,
            Need::Item(blocks) if blocks > MAX_SLAB_EXTENT => self.is_turn_of_slabs(&mut hand),
            _ => false,
        };
        if slabs_first && self.empty_row(&mut hand, Row::Slabs, need.row()) {
            return;
        }
        let turn = self.turn(&mut hand, need);
        match turn.cold {
            Some(cold) if cold.size() <= MAX_SLAB_EXTENT => {
                hand.row = cold.address() / SLAB_BLOCKS * SLAB_BLOCKS;
                self.empty_row(&mut hand, Row::Slabs, (SLAB_BLOCKS, SLAB_BLOCKS));
            }
            Some(cold) if need.blocks() > MAX_SLAB_EXTENT => {
                hand.row = cold.address();
                self.empty_row(&mut hand, Row::Any, need.row());
            }
            Some(cold) => self.evict_at((cold.address(), cold.size())),
            None => {}
        }
        if turn.evicted == 0 && !turn.any && !self.empty_row(&mut hand, Row::Slabs, need.row()) {
            self.empty_row(&mut hand, Row::Any, need.row());
        }
    }

    /// Whether a large item is to have its room from slabs: as often as their share of the memory says, so that neither
    /// small nor large items keep for ever what they once had.
    fn is_turn_of_slabs(&self, hand: &mut Hand) -> bool {
        let counts = self.space.lock().extents.counts();
        let slab_blocks = counts.slabs * SLAB_BLOCKS;
        hand.slab_credit += 1000 * slab_blocks / (slab_blocks + counts.run_blocks).max(1);
        let is_turn = hand.slab_credit >= 1000;
        if is_turn {
            hand.slab_credit -= 1000;
        }
        is_turn
    }

    /// Moves the hand until it has evicted a batch of items that serve the need, or has gone far enough.
    fn turn(&self, hand: &mut Hand, need: Need) -> Turn {
        let mut turn = Turn::default();
        let most = (BATCH_BLOCKS / need.blocks().max(1)).clamp(1, u64::from(BATCH)) as u32;
        for _ in 0..self.subtables.load(Ordering::Relaxed).min(MOST_SUBTABLES) {
            let Some(mut locked) = self.try_lock_subtable(hand.hash) else {
                // Someone writes there, or splits. It comes again.
                hand.pass(self.route(hand.hash).depth());
                continue;
            };
            self.turn_in(&mut locked, hand, need, most, &mut turn);
            if turn.evicted >= most {
                break;
            }
            hand.pass(locked.entry.depth());
        }
        turn
    }

    fn turn_in(&self, locked: &mut Locked<'_>, hand: &mut Hand, need: Need, most: u32, turn: &mut Turn) {
        let subtable = locked.entry.address();
        let beside = self.locks.beside(subtable);
        while hand.slot < SUBTABLE_SLOTS as u64 && turn.evicted < most {
            let at = hand.slot;
            hand.slot += 1;
            let slot = subtable * BLOCK_WORDS + at;
            let word = SlotWord(self.memory.load(slot));
            if word.is_empty() {
                continue;
            }
            let location = word.location();
            // Long items have their length in their header alone.
            let blocks =
                if location.size() < Location::LONG { location.size() } else { self.header(location).blocks() };
            let serves = need.is_served_by(blocks);
            turn.any |= serves;
            if need.blocks() > MAX_SLAB_EXTENT && blocks <= MAX_SLAB_EXTENT {
                // Large items are few: what is small would be passed many times between two of them, and has turns of its own.
                continue;
            }
            let (referenced, bit) = (&beside.referenced[(at / 64) as usize], 1 << (at % 64));
            if referenced.load(Ordering::Relaxed) & bit != 0 {
                referenced.fetch_and(!bit, Ordering::Relaxed);
            } else if serves {
                self.evict_slot(locked, slot);
                turn.evicted += 1;
            } else {
                hand.cold_blocks += extent_blocks(blocks);
                if hand.cold_blocks > COLD_BLOCKS.min(self.memory_bytes / BLOCK_BYTES as u64 / COLD_PARTS) {
                    hand.cold_blocks = 0;
                    turn.cold = Some(location);
                }
            }
        }
    }

    /// Evicts what is in the next row that has so many blocks, from a multiple of so many on; false if there is none.
    fn empty_row(&self, hand: &mut Hand, of: Row, (blocks, align): (u64, u64)) -> bool {
        if of == Row::Slabs && blocks <= SLAB_BLOCKS {
            hand.row = self.coldest_slab(hand);
        }
        let found = {
            let mut space = self.space.lock();
            // What was closed before and did not become empty has items that are locked or on their way.
            space.extents.open_slabs();
            space.extents.close_row(of, hand.row, blocks, align)
        };
        let Some((next, extents)) = found else { return false };
        hand.row = next;
        self.counters.evictions_for_space.add_one();
        for extent in extents {
            self.evict_at(extent);
        }
        true
    }

    /// Of some slabs from the hand on, the one with the fewest items that were used lately, by a sample.
    fn coldest_slab(&self, hand: &Hand) -> u64 {
        let samples = self.space.lock().extents.sample_slabs(hand.row, SAMPLED_SLABS, SAMPLED_EXTENTS);
        let used = |extents: &[(u64, u64)]| extents.iter().filter(|extent| self.is_in_use(**extent)).count();
        samples.iter().min_by_key(|(_, extents)| used(extents)).map_or(0, |(base, _)| *base)
    }

    /// Whether the item in this extent was used lately.
    fn is_in_use(&self, extent: (u64, u64)) -> bool {
        let Some(hash) = self.hash_in(extent) else { return false };
        let subtable = self.route(hash).address();
        self.slot_of(subtable, hash, extent.0).is_some_and(|slot| {
            let at = slot % SUBTABLE_SLOTS as u64;
            self.locks.beside(subtable).referenced[(at / 64) as usize].load(Ordering::Relaxed) >> (at % 64) & 1 == 1
        })
    }

    /// Evicts the item in this extent, if one is there that a slot names and nobody is about to change it.
    fn evict_at(&self, extent: (u64, u64)) {
        let Some(hash) = self.hash_in(extent) else { return };
        let Some(mut locked) = self.try_lock_subtable(hash) else { return };
        if let Some(slot) = self.slot_of(locked.entry.address(), hash, extent.0) {
            self.evict_slot(&mut locked, slot);
        }
    }

    /// The hash of the key that is, or was, in an extent of this address and so many blocks. Nothing protects the words:
    /// what they say is only where to look.
    fn hash_in(&self, (address, blocks): (u64, u64)) -> Option<KeyHash> {
        let word = address * BLOCK_WORDS;
        let key_bytes = usize::from(self.memory.load(word + item::LENGTHS) as u16);
        if key_bytes == 0 || item::HEADER_BYTES + item::pad(key_bytes) > blocks as usize * BLOCK_BYTES {
            return None;
        }
        let mut key = vec![0; item::pad(key_bytes)];
        self.memory.read(word + item::HEADER_BYTES as u64 / 8, &mut key);
        Some(self.hash(&key[..key_bytes]))
    }

    /// The slot that names this address, in the window of a hash.
    fn slot_of(&self, subtable: u64, hash: KeyHash, address: u64) -> Option<u64> {
        let first = bucket::window_word(subtable, hash);
        let names = |&word: &u64| !SlotWord(word).is_empty() && SlotWord(word).location().address() == address;
        self.window(first).iter().take(WINDOW_SLOTS).position(names).map(|index| first + index as u64)
    }

    /// Evicts what a slot of the locked subtable names.
    fn evict_slot(&self, locked: &mut Locked<'_>, slot: u64) {
        let location = SlotWord(self.memory.load(slot)).location();
        let header = self.header(location);
        self.remove(locked, &Place { slot, location, header });
        self.counters.evicted.add_one();
    }

    /// Frees a slot of a key's window, which is full and cannot be split: the first that was not used lately, or any. If
    /// the subtable has more items than one has on average, the full window was no accident: the next write sees to it
    /// that there is room for splits.
    pub(super) fn evict_in_window(&self, locked: &mut Locked<'_>, hash: KeyHash) {
        let first = bucket::window_word(locked.entry.address(), hash);
        let beside = self.locks.beside(locked.entry.address());
        let unused = (0..WINDOW_SLOTS as u64).map(|i| first + i).find(|slot| {
            let at = slot % SUBTABLE_SLOTS as u64;
            let (referenced, bit) = (&beside.referenced[(at / 64) as usize], 1 << (at % 64));
            referenced.fetch_and(!bit, Ordering::Relaxed) & bit == 0
        });
        let slot = unused.unwrap_or(first + hash.0 % WINDOW_SLOTS as u64);
        self.evict_slot(locked, slot);
        let slots = locked.entry.address() * BLOCK_WORDS..(locked.entry.address() + SUBTABLE_BLOCKS) * BLOCK_WORDS;
        let used = slots.filter(|&slot| !SlotWord(self.memory.load(slot)).is_empty()).count();
        if used > SUBTABLE_SLOTS / 2 {
            self.clock.crowded.store(1 + u32::from(locked.entry.depth()), Ordering::Relaxed);
        }
    }

    /// Makes room for a split that found none. The caller has no lock, and nothing written yet that could be evicted for it.
    pub(super) fn relieve(&self) {
        if self.clock.is_on() && self.clock.crowded.load(Ordering::Relaxed) > 0 {
            let crowded = self.clock.crowded.swap(0, Ordering::Relaxed);
            if let Some(depth) = crowded.checked_sub(1) {
                // If it fails, the next full window makes do as the last one did.
                let _ = self.stock_for_split(depth as u8);
            }
        }
    }

    /// The subtable that a hash has, unless somebody has its lock.
    fn try_lock_subtable(&self, hash: KeyHash) -> Option<Locked<'_>> {
        let entry = self.route(hash);
        let floor = self.locks.of(entry.address()).try_lock()?;
        let again = self.route(hash);
        (again.address() == entry.address()).then_some(Locked { floor, entry: again })
    }
}

impl Hand {
    /// On to the next subtable.
    fn pass(&mut self, depth: u8) {
        (self.hash, self.slot) = (self.hash.after_prefix(depth).unwrap_or(KeyHash(0)), 0);
    }
}

#[cfg(test)]
#[path = "evict_tests.rs"]
mod tests;
