//! What space is asked for, and what is done for it.

use super::classes::{MAX_SLAB_EXTENT, RUN_UNIT, SLAB_BLOCKS, extent_blocks};
use super::space::RECLAIM_ROUNDS;

/// Space that is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Need {
    /// An extent for an item of so many blocks.
    Item(u64),
    /// So many blocks in a row for a directory or a subtable, by a caller who has a subtable's lock. Evicts nothing: of
    /// what lies in a row, some would be in that subtable.
    Pages(u64),
    /// The same, for the next who needs them, by a caller who has no lock.
    Stock(u64),
}

impl Need {
    pub(super) fn blocks(self) -> u64 {
        match self {
            Self::Item(blocks) | Self::Pages(blocks) | Self::Stock(blocks) => blocks,
        }
    }

    pub(super) fn may_evict(self) -> bool {
        !matches!(self, Self::Pages(_))
    }

    /// What a row has to have that is emptied for it: blocks, from a multiple of so many on.
    pub(super) fn row(self) -> (u64, u64) {
        match self {
            Self::Item(blocks) if blocks > MAX_SLAB_EXTENT => (extent_blocks(blocks), RUN_UNIT),
            Self::Item(_) => (SLAB_BLOCKS, SLAB_BLOCKS),
            Self::Pages(blocks) | Self::Stock(blocks) => (blocks.next_multiple_of(SLAB_BLOCKS), SLAB_BLOCKS),
        }
    }

    /// Attempts before it is given up.
    pub(super) fn rounds(self, evicts: bool) -> u32 {
        match self {
            _ if !evicts => RECLAIM_ROUNDS,
            Self::Pages(_) => 1,
            Self::Stock(_) => RECLAIM_ROUNDS,
            Self::Item(_) => 16 * RECLAIM_ROUNDS,
        }
    }

    /// Whether space of an item of `blocks` blocks could serve.
    pub(super) fn is_served_by(self, blocks: u64) -> bool {
        match self {
            Self::Item(need) if need <= MAX_SLAB_EXTENT => {
                blocks <= MAX_SLAB_EXTENT && extent_blocks(blocks) == extent_blocks(need)
            }
            Self::Item(need) => extent_blocks(blocks) >= extent_blocks(need),
            Self::Pages(need) | Self::Stock(need) => blocks > MAX_SLAB_EXTENT && extent_blocks(blocks) >= need,
        }
    }
}
