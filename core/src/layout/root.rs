//! The root: the first words of segment 0, from which everything is found.

use crate::layout::bucket::SUBTABLE_BLOCKS;
use crate::limits::{BLOCK_BYTES, MAX_DEPTH};

/// `SIDESTEP` as a little-endian word.
pub const MAGIC: u64 = u64::from_le_bytes(*b"SIDESTEP");
/// Version of the byte format.
pub const FORMAT_VERSION: u64 = 1;

/// Word of the magic.
pub const MAGIC_WORD: u64 = 0;
/// Word of the format version.
pub const FORMAT_WORD: u64 = 1;
/// Word of the table id, the seed of both hashes.
pub const TABLE_ID_WORD: u64 = 2;
/// Word of the boot id, new at every start.
pub const BOOT_ID_WORD: u64 = 3;
/// Word of a segment's size in bytes.
pub const SEGMENT_BYTES_WORD: u64 = 4;
/// Word of the whole space's size in bytes.
pub const MEMORY_BYTES_WORD: u64 = 5;
/// Word of the current directory: a [`DirectoryWord`](crate::layout::directory::DirectoryWord) with the global depth.
pub const CURRENT_DIRECTORY_WORD: u64 = 6;
/// Word of the version ceiling: no item ever had a version above it.
pub const VERSION_CEILING_WORD: u64 = 7;
/// Word of the clock floor: the server's clock never goes below it, in milliseconds since the Unix epoch.
pub const CLOCK_FLOOR_WORD: u64 = 8;
/// Word of the version floor: no write gets a version at or below it. Of a table that was rebuilt from a log, whose last
/// writes may be lost: their versions are not given again.
pub const VERSION_FLOOR_WORD: u64 = 9;
/// First of one word for each depth 0..=34: the directory of that depth, if there ever was one.
pub const DIRECTORIES_WORD: u64 = 16;
/// First of the split intents.
pub const INTENTS_WORD: u64 = 64;
/// Splits that may be under way at once.
pub const INTENTS: u64 = 64;
/// First word of the segment table: two words for each segment.
pub const SEGMENTS_WORD: u64 = 128;
/// Most segments: 1 TiB of 1 GiB segments.
pub const MAX_SEGMENTS: u64 = 1024;
/// Bytes of the root.
pub const ROOT_BYTES: u64 = 32 << 10;
/// Blocks of the root.
pub const ROOT_BLOCKS: u64 = ROOT_BYTES / BLOCK_BYTES as u64;

const _: () = assert!(DIRECTORIES_WORD + (MAX_DEPTH as u64) < INTENTS_WORD);
const _: () = assert!(INTENTS_WORD + INTENTS <= SEGMENTS_WORD);
const _: () = assert!((SEGMENTS_WORD + 2 * MAX_SEGMENTS) * 8 <= ROOT_BYTES);
const _: () = assert!(ROOT_BLOCKS.is_multiple_of(SUBTABLE_BLOCKS));

/// Of a segment in use: `| in use 1 | reserved 31 | rkey 32 |`, the second of its two words; the first is its remote base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentWord(pub u64);

impl SegmentWord {
    /// A segment in use with this rkey, 0 where it is not registered.
    pub fn in_use(rkey: u32) -> Self {
        Self(1 << 63 | u64::from(rkey))
    }

    /// Whether the segment is in use.
    pub fn is_in_use(self) -> bool {
        self.0 >> 63 == 1
    }

    /// Its rkey.
    pub fn rkey(self) -> u32 {
        self.0 as u32
    }
}

/// A split under way: `| depth 6 | page of S 28 | page of S' 28 |`. The depth is the new one, so that 0 is "none".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntentWord(pub u64);

impl IntentWord {
    const PAGE: u64 = (1 << 28) - 1;

    /// The intent to split the subtable at block `old` into itself and `new`, both at `depth` afterwards.
    pub fn new(depth: u8, old: u64, new: u64) -> Self {
        debug_assert!(old.is_multiple_of(SUBTABLE_BLOCKS) && new.is_multiple_of(SUBTABLE_BLOCKS));
        Self(u64::from(depth) << 56 | (old / SUBTABLE_BLOCKS) << 28 | new / SUBTABLE_BLOCKS)
    }

    /// Depth after the split.
    pub fn depth(self) -> u8 {
        (self.0 >> 56) as u8
    }

    /// First block of the subtable that is split.
    pub fn old(self) -> u64 {
        ((self.0 >> 28) & Self::PAGE) * SUBTABLE_BLOCKS
    }

    /// First block of its sibling.
    pub fn new_sibling(self) -> u64 {
        (self.0 & Self::PAGE) * SUBTABLE_BLOCKS
    }

    /// Whether there is none.
    pub fn is_none(self) -> bool {
        self.0 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        let intent = IntentWord::new(34, 64 * 3, 64 * ((1 << 28) - 1));
        assert_eq!(intent.0, 34 << 56 | 3 << 28 | 0xfff_ffff);
        assert_eq!((intent.depth(), intent.old(), intent.new_sibling()), (34, 192, 64 * 0xfff_ffff));
        assert!(!intent.is_none());
        let segment = SegmentWord::in_use(0xdead_beef);
        assert_eq!((segment.is_in_use(), segment.rkey()), (true, 0xdead_beef));
        assert!(!SegmentWord(0).is_in_use());
    }

    #[test]
    fn golden_magic() {
        assert_eq!(MAGIC.to_le_bytes(), *b"SIDESTEP");
    }
}
