//! Extents: the places of items. Slabs of one size class each, runs of blocks for longer items.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::classes::{CLASSES, MAX_SLAB_EXTENT, SLAB_BLOCKS, class_of, extent_blocks};
use super::runs::Runs;

/// A slab in use.
#[derive(Debug)]
struct Slab {
    class: usize,
    extent: u64,
    used: u32,
    bitmap: [u64; (SLAB_BLOCKS / 64) as usize],
}

impl Slab {
    fn new(class: usize, extent: u64) -> Self {
        Self { class, extent, used: 0, bitmap: [0; (SLAB_BLOCKS / 64) as usize] }
    }

    fn capacity(&self) -> u32 {
        (SLAB_BLOCKS / self.extent) as u32
    }

    fn take(&mut self) -> Option<u64> {
        let capacity = self.capacity() as usize;
        let (i, word) = self.bitmap.iter_mut().enumerate().find(|(_, word)| **word != u64::MAX)?;
        let bit = word.trailing_ones() as usize;
        if i * 64 + bit >= capacity {
            return None;
        }
        *word |= 1 << bit;
        self.used += 1;
        Some((i * 64 + bit) as u64)
    }

    /// Offsets of the extents in use, in blocks.
    fn used(&self) -> impl Iterator<Item = u64> {
        let is_used = |index: u64| self.bitmap[(index / 64) as usize] >> (index % 64) & 1 == 1;
        (0..u64::from(self.capacity())).filter(move |&index| is_used(index)).map(|index| index * self.extent)
    }

    /// Sets or clears an extent's bit; false if it was so already.
    fn set(&mut self, index: u64, used: bool) -> bool {
        let word = &mut self.bitmap[(index / 64) as usize];
        let bit = 1 << (index % 64);
        if (*word & bit != 0) == used {
            return false;
        }
        *word ^= bit;
        self.used = if used { self.used + 1 } else { self.used - 1 };
        true
    }
}

/// Someone is sending an item's bytes: it is freed when the last of them is done.
#[derive(Debug, Default)]
struct Held {
    count: u32,
    freed_blocks: Option<u64>,
}

/// What a row to be emptied is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Row {
    Slabs,
    /// Slabs, longer extents, free runs: all but what is never given back.
    Any,
}

/// Counts of extents.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ExtentCounts {
    pub(crate) extents: u64,
    pub(crate) extent_blocks: u64,
    /// Of those, blocks of extents outside of slabs.
    pub(crate) run_blocks: u64,
    pub(crate) slabs: u64,
    pub(crate) held: u64,
}

/// All space: free runs, slabs, holds. Addresses and lengths are in blocks.
#[derive(Debug)]
pub(crate) struct Extents {
    runs: Runs,
    slabs: BTreeMap<u64, Slab>,
    /// Extents in use outside of slabs: where they begin and their lengths.
    large: BTreeMap<u64, u64>,
    /// For each class the slabs that have room.
    partial: Vec<BTreeSet<u64>>,
    /// Slabs that are being emptied: nothing is taken from them, whatever room they have.
    closed: BTreeSet<u64>,
    held: HashMap<u64, Held>,
    counts: ExtentCounts,
}

impl Extents {
    pub(crate) fn new(segment_blocks: u64) -> Self {
        Self {
            runs: Runs::new(segment_blocks),
            slabs: BTreeMap::new(),
            large: BTreeMap::new(),
            partial: vec![BTreeSet::new(); CLASSES],
            closed: BTreeSet::new(),
            held: HashMap::new(),
            counts: ExtentCounts::default(),
        }
    }

    pub(crate) fn counts(&self) -> ExtentCounts {
        ExtentCounts { slabs: self.slabs.len() as u64, held: self.held.len() as u64, ..self.counts }
    }

    pub(crate) fn free_blocks(&self) -> u64 {
        self.runs.free_blocks()
    }

    /// Adds blocks that were never used.
    pub(crate) fn add(&mut self, address: u64, blocks: u64) {
        self.runs.give(address, blocks);
    }

    /// Blocks that are never given back: directories, subtables.
    pub(crate) fn take_for_ever(&mut self, blocks: u64, align: u64) -> Option<u64> {
        self.runs.take(blocks, align)
    }

    /// The same at a known place, in recovery; false if it is taken.
    pub(crate) fn take_for_ever_at(&mut self, address: u64, blocks: u64) -> bool {
        self.runs.take_at(address, blocks)
    }

    /// An extent for an item of `blocks` blocks.
    pub(crate) fn take(&mut self, blocks: u64) -> Option<u64> {
        let address = if blocks > MAX_SLAB_EXTENT {
            let start = self.runs.take(extent_blocks(blocks), super::classes::RUN_UNIT)?;
            self.note_large(start, extent_blocks(blocks));
            start
        } else {
            self.take_in_slab(blocks)?
        };
        self.counts.extents += 1;
        self.counts.extent_blocks += extent_blocks(blocks);
        Some(address)
    }

    /// The same, if so many blocks are left free.
    pub(crate) fn take_leaving(&mut self, blocks: u64, kept_blocks: u64) -> Option<u64> {
        let fresh_blocks = match blocks {
            run if run > MAX_SLAB_EXTENT => extent_blocks(run),
            _ if self.partial[class_of(blocks).0].is_empty() => SLAB_BLOCKS,
            _ => 0,
        };
        if fresh_blocks > 0 && self.free_blocks() < fresh_blocks + kept_blocks { None } else { self.take(blocks) }
    }

    fn take_in_slab(&mut self, blocks: u64) -> Option<u64> {
        let (class, extent) = class_of(blocks);
        let base = match self.partial[class].first() {
            Some(&base) => base,
            None => {
                let base = self.runs.take(SLAB_BLOCKS, SLAB_BLOCKS)?;
                self.slabs.insert(base, Slab::new(class, extent));
                self.partial[class].insert(base);
                base
            }
        };
        let slab = self.slabs.get_mut(&base)?;
        let index = slab.take()?;
        if slab.used == slab.capacity() {
            self.partial[class].remove(&base);
        }
        Some(base + index * extent)
    }

    /// The extent of an item found in recovery; false if any of it is taken by something else.
    pub(crate) fn take_at(&mut self, address: u64, blocks: u64) -> bool {
        let is_large = blocks > MAX_SLAB_EXTENT;
        let taken = if is_large {
            self.runs.take_at(address, extent_blocks(blocks))
        } else {
            self.take_in_slab_at(address, blocks)
        };
        if taken {
            self.counts.extents += 1;
            self.counts.extent_blocks += extent_blocks(blocks);
        }
        if taken && is_large {
            self.note_large(address, extent_blocks(blocks));
        }
        taken
    }

    fn note_large(&mut self, address: u64, blocks: u64) {
        self.large.insert(address, blocks);
        self.counts.run_blocks += blocks;
    }

    fn take_in_slab_at(&mut self, address: u64, blocks: u64) -> bool {
        let (class, extent) = class_of(blocks);
        let base = address / SLAB_BLOCKS * SLAB_BLOCKS;
        let offset = address - base;
        if !offset.is_multiple_of(extent) || offset + extent > SLAB_BLOCKS {
            return false;
        }
        let slab = match self.slabs.entry(base) {
            Entry::Occupied(slab) => slab.into_mut(),
            Entry::Vacant(place) => {
                if !self.runs.take_at(base, SLAB_BLOCKS) {
                    return false;
                }
                self.partial[class].insert(base);
                place.insert(Slab::new(class, extent))
            }
        };
        if slab.class != class || !slab.set(offset / extent, true) {
            return false;
        }
        if slab.used == slab.capacity() {
            self.partial[class].remove(&base);
        }
        true
    }

    /// Gives an extent back, now or when the last hold on it ends.
    pub(crate) fn give(&mut self, address: u64, blocks: u64) {
        if !self.held.is_empty()
            && let Some(held) = self.held.get_mut(&address)
        {
            held.freed_blocks = Some(blocks);
            return;
        }
        self.counts.extents -= 1;
        self.counts.extent_blocks -= extent_blocks(blocks);
        if blocks > MAX_SLAB_EXTENT {
            self.counts.run_blocks -= extent_blocks(blocks);
            let noted = self.large.remove(&address);
            debug_assert_eq!(noted, Some(extent_blocks(blocks)), "an extent was given back that was not taken so");
            self.runs.give(address, extent_blocks(blocks));
            return;
        }
        let base = address / SLAB_BLOCKS * SLAB_BLOCKS;
        let Some(slab) = self.slabs.get_mut(&base) else {
            debug_assert!(false, "an extent outside any slab was given back");
            return;
        };
        let cleared = slab.set((address - base) / slab.extent, false);
        debug_assert!(cleared, "an extent was given back twice");
        let class = slab.class;
        let closed = self.closed.contains(&base);
        // The last slab with room stays, so that a key rewritten for ever does not make and unmake one.
        if slab.used == 0 && (closed || self.partial[class].iter().any(|&other| other != base)) {
            self.closed.remove(&base);
            self.partial[class].remove(&base);
            self.slabs.remove(&base);
            self.runs.give(base, SLAB_BLOCKS);
        } else if !closed {
            self.partial[class].insert(base);
        }
    }

    /// Gives every empty slab back to the free runs; true if there was one.
    pub(crate) fn give_empty_slabs(&mut self) -> bool {
        let empty: Vec<u64> = self.slabs.iter().filter(|(_, slab)| slab.used == 0).map(|(&base, _)| base).collect();
        for base in &empty {
            if let Some(slab) = self.slabs.remove(base) {
                self.closed.remove(base);
                self.partial[slab.class].remove(base);
                self.runs.give(*base, SLAB_BLOCKS);
            }
        }
        !empty.is_empty()
    }

    /// Closes the first row, at or after `from` or else anywhere, of slabs, or of whatever can become free, that has
    /// `blocks` blocks from a multiple of `align` on. Gives the address after it, and every extent that is in use in it,
    /// with its length. When these are given back the row is a free run.
    pub(crate) fn close_row(&mut self, of: Row, from: u64, blocks: u64, align: u64) -> Option<(u64, Vec<(u64, u64)>)> {
        for from in [from, 0] {
            let (mut begin, mut end) = (0, 0);
            let mut at = from;
            while let Some((start, length)) = self.piece_from(of, at) {
                // As free runs are joined: never across a segment's end.
                if start != end || self.runs.begins_segment(start) {
                    begin = start;
                }
                end = start + length;
                if begin.next_multiple_of(align) + blocks <= end {
                    return Some((end, self.close(begin, end)));
                }
                at = end;
            }
        }
        None
    }

    /// The first piece of a row that begins at this address or behind it, and its length.
    fn piece_from(&self, of: Row, at: u64) -> Option<(u64, u64)> {
        let slab = self.slabs.range(at..).next().map(|(&base, _)| (base, SLAB_BLOCKS));
        if of == Row::Slabs {
            return slab;
        }
        let large = self.large.range(at..).next().map(|(&start, &length)| (start, length));
        [slab, large, self.runs.first_from(at)].into_iter().flatten().min()
    }

    /// Some slabs at or after `from` and round to it again, each with some of its extents that are in use.
    pub(crate) fn sample_slabs(&self, from: u64, slabs: usize, extents: usize) -> Vec<(u64, Vec<(u64, u64)>)> {
        let round = self.slabs.range(from..).chain(self.slabs.range(..from));
        let sample = |(&base, slab): (&u64, &Slab)| {
            let step = (slab.used as usize / extents).max(1);
            (base, slab.used().step_by(step).map(|at| (base + at, slab.extent)).collect())
        };
        round.take(slabs).map(sample).collect()
    }

    fn close(&mut self, begin: u64, end: u64) -> Vec<(u64, u64)> {
        let mut used = Vec::new();
        for (&base, slab) in self.slabs.range(begin..end) {
            self.partial[slab.class].remove(&base);
            self.closed.insert(base);
            used.extend(slab.used().map(|at| (base + at, slab.extent)));
        }
        used.extend(self.large.range(begin..end).map(|(&start, &length)| (start, length)));
        used
    }

    /// Ends the emptying of slabs: what room they have is to be had again.
    pub(crate) fn open_slabs(&mut self) {
        for base in std::mem::take(&mut self.closed) {
            if let Some(slab) = self.slabs.get(&base)
                && slab.used < slab.capacity()
            {
                self.partial[slab.class].insert(base);
            }
        }
    }

    /// Slabs that are to become empty.
    #[cfg(test)]
    pub(crate) fn closed_slabs(&self) -> BTreeSet<u64> {
        self.closed.clone()
    }

    /// Keeps an extent from being reused. The caller knows that it is not free yet.
    pub(crate) fn hold(&mut self, address: u64) {
        self.held.entry(address).or_default().count += 1;
    }

    /// Ends one hold.
    pub(crate) fn release(&mut self, address: u64) {
        let Some(held) = self.held.get_mut(&address) else { return };
        held.count -= 1;
        if held.count == 0 {
            let freed = held.freed_blocks;
            self.held.remove(&address);
            if let Some(blocks) = freed {
                self.give(address, blocks);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SEGMENT: u64 = 16 * SLAB_BLOCKS;

    fn extents() -> Extents {
        let mut extents = Extents::new(SEGMENT);
        extents.add(0, SEGMENT);
        extents
    }

    #[test]
    fn an_empty_slab_serves_another_class() {
        let mut extents = extents();
        let all: Vec<u64> = std::iter::from_fn(|| extents.take(17)).collect();
        assert_eq!(all.len() as u64, 16 * (SLAB_BLOCKS / 18));
        assert_eq!(extents.take(100), None);
        all.iter().for_each(|&address| extents.give(address, 17));
        assert_eq!(extents.counts().extents, 0);
        assert!(extents.take(100).is_some());
        extents.give_empty_slabs();
        assert_eq!(extents.free_blocks(), SEGMENT - SLAB_BLOCKS);
    }

    #[test]
    fn a_held_extent_is_freed_when_the_hold_ends() {
        let mut extents = extents();
        let address = extents.take(5000).unwrap();
        extents.hold(address);
        extents.hold(address);
        extents.give(address, 5000);
        extents.release(address);
        assert_eq!(extents.counts().extents, 1);
        extents.release(address);
        assert_eq!((extents.counts().extents, extents.counts().held), (0, 0));
        assert_eq!(extents.free_blocks(), SEGMENT);
    }

    proptest! {
        #[test]
        fn extents_never_overlap_and_recovery_agrees(ops in proptest::collection::vec((1u64..400, any::<bool>()), 1..300)) {
            let mut extents = extents();
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (blocks, free) in ops {
                if free && !taken.is_empty() {
                    let (address, blocks) = taken.swap_remove(blocks as usize % taken.len());
                    extents.give(address, blocks);
                } else if let Some(address) = extents.take(blocks) {
                    prop_assert!(taken.iter().all(|&(a, n)| address + blocks <= a || a + extent_blocks(n) <= address));
                    taken.push((address, blocks));
                }
            }
            let mut recovered = self::extents();
            for &(address, blocks) in &taken {
                prop_assert!(recovered.take_at(address, blocks));
                prop_assert!(!recovered.take_at(address, blocks));
            }
            extents.give_empty_slabs();
            prop_assert_eq!(recovered.free_blocks(), extents.free_blocks());
        }
    }
}
