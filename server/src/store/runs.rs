//! Free runs of blocks: first fit by length, neighbours joined, never across a segment's end.

use std::collections::{BTreeMap, BTreeSet};

/// All free runs.
#[derive(Debug)]
pub(crate) struct Runs {
    by_address: BTreeMap<u64, u64>,
    by_length: BTreeSet<(u64, u64)>,
    segment_blocks: u64,
    free_blocks: u64,
}

impl Runs {
    pub(crate) fn new(segment_blocks: u64) -> Self {
        Self { by_address: BTreeMap::new(), by_length: BTreeSet::new(), segment_blocks, free_blocks: 0 }
    }

    pub(crate) fn free_blocks(&self) -> u64 {
        self.free_blocks
    }

    pub(crate) fn begins_segment(&self, address: u64) -> bool {
        address.is_multiple_of(self.segment_blocks)
    }

    /// The first that begins at this address or behind it, and its length.
    pub(crate) fn first_from(&self, address: u64) -> Option<(u64, u64)> {
        self.by_address.range(address..).next().map(|(&start, &length)| (start, length))
    }

    /// Takes `blocks` blocks at a multiple of `align` out of the shortest run that has them.
    pub(crate) fn take(&mut self, blocks: u64, align: u64) -> Option<u64> {
        let (length, address, start) = self.by_length.range((blocks, 0)..).find_map(|&(length, address)| {
            let start = address.next_multiple_of(align);
            (start + blocks <= address + length).then_some((length, address, start))
        })?;
        self.remove(address, length);
        self.insert(address, start - address);
        self.insert(start + blocks, address + length - start - blocks);
        Some(start)
    }

    /// Takes exactly these blocks; false, and nothing is changed, if they are not all free.
    pub(crate) fn take_at(&mut self, start: u64, blocks: u64) -> bool {
        let Some((&address, &length)) = self.by_address.range(..=start).next_back() else { return false };
        if start + blocks > address + length {
            return false;
        }
        self.remove(address, length);
        self.insert(address, start - address);
        self.insert(start + blocks, address + length - start - blocks);
        true
    }

    /// Gives blocks back.
    pub(crate) fn give(&mut self, mut address: u64, mut blocks: u64) {
        if blocks == 0 {
            return;
        }
        let begins_segment = self.begins_segment(address);
        if let Some((&before, &length)) = self.by_address.range(..address).next_back() {
            debug_assert!(before + length <= address, "freed twice");
            if before + length == address && !begins_segment {
                self.remove(before, length);
                (address, blocks) = (before, blocks + length);
            }
        }
        let end = address + blocks;
        if let Some(&length) = self.by_address.get(&end)
            && !self.begins_segment(end)
        {
            self.remove(end, length);
            blocks += length;
        }
        self.insert(address, blocks);
    }

    fn insert(&mut self, address: u64, blocks: u64) {
        if blocks > 0 {
            self.by_address.insert(address, blocks);
            self.by_length.insert((blocks, address));
            self.free_blocks += blocks;
        }
    }

    fn remove(&mut self, address: u64, blocks: u64) {
        self.by_address.remove(&address);
        self.by_length.remove(&(blocks, address));
        self.free_blocks -= blocks;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn joins_neighbours_but_not_segments() {
        let mut runs = Runs::new(100);
        runs.give(90, 10);
        runs.give(100, 10);
        assert_eq!(runs.take(15, 1), None);
        runs.give(110, 5);
        assert_eq!(runs.take(15, 1), Some(100));
        assert_eq!(runs.free_blocks(), 10);
    }

    proptest! {
        #[test]
        fn never_overlaps(ops in proptest::collection::vec((1u64..40, 0u32..5, any::<bool>()), 1..200)) {
            let mut runs = Runs::new(1 << 20);
            runs.give(0, 1000);
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (blocks, align, free) in ops {
                if free && !taken.is_empty() {
                    let (address, blocks) = taken.swap_remove(blocks as usize % taken.len());
                    runs.give(address, blocks);
                } else if let Some(address) = runs.take(blocks, 1 << align) {
                    prop_assert!(address % (1 << align) == 0 && address + blocks <= 1000);
                    prop_assert!(taken.iter().all(|&(a, n)| address + blocks <= a || a + n <= address));
                    taken.push((address, blocks));
                }
                prop_assert_eq!(runs.free_blocks(), 1000 - taken.iter().map(|t| t.1).sum::<u64>());
            }
            for (address, blocks) in taken {
                runs.give(address, blocks);
            }
            prop_assert_eq!(runs.take(1000, 1), Some(0));
        }
    }
}
