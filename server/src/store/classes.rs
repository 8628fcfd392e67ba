//! Size classes of extents: a fixed function of the size, so that recovery needs no record of them.

use sidestep_core::limits::BLOCK_BYTES;

/// Blocks of a slab, 64 KiB; a slab is aligned to its size and holds extents of one class.
pub(crate) const SLAB_BLOCKS: u64 = (64 << 10) / BLOCK_BYTES as u64;
/// Largest extent that lives in a slab, 8 KiB. Longer ones are runs of blocks.
pub(crate) const MAX_SLAB_EXTENT: u64 = 128;
/// Runs of blocks begin and end at multiples of this, 1 KiB.
pub(crate) const RUN_UNIT: u64 = 16;
/// Number of classes.
pub(crate) const CLASSES: usize = 40;

/// Class number and blocks of an extent for `blocks` blocks in a slab. Classes are at most 12.5 % apart.
pub(crate) fn class_of(blocks: u64) -> (usize, u64) {
    debug_assert!((1..=MAX_SLAB_EXTENT).contains(&blocks));
    if blocks <= 16 {
        return (blocks as usize - 1, blocks);
    }
    // Above 16 each doubling has eight steps: 18..=32 by 2, 36..=64 by 4, 72..=128 by 8.
    let doubling = (blocks - 1).ilog2() - 4;
    let step = 2u64 << doubling;
    let rounded = blocks.next_multiple_of(step);
    let class = 16 + 8 * doubling as usize + ((rounded - (16 << doubling)) / step) as usize - 1;
    (class, rounded)
}

/// Blocks that an item of `blocks` blocks takes.
pub(crate) fn extent_blocks(blocks: u64) -> u64 {
    if blocks <= MAX_SLAB_EXTENT { class_of(blocks).1 } else { blocks.next_multiple_of(RUN_UNIT) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_dense_ordered_and_close() {
        let mut last = (0, 1);
        for blocks in 1..=MAX_SLAB_EXTENT {
            let (class, size) = class_of(blocks);
            assert!(size >= blocks && (size - blocks) * 8 <= blocks, "{blocks} -> {size}");
            assert_eq!(class_of(size), (class, size), "the class of a class's size is itself");
            assert!(class == last.0 && size == last.1 || class == last.0 + 1 && size > last.1 || blocks == 1);
            last = (class, size);
        }
        assert_eq!(last.0, CLASSES - 1);
    }

    #[test]
    fn runs_waste_little() {
        for blocks in MAX_SLAB_EXTENT + 1..5000 {
            assert!((extent_blocks(blocks) - blocks) * 8 <= blocks);
        }
    }
}
