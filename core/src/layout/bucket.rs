//! Subtables, buckets, windows and their slot words.

use crate::hash::KeyHash;
use crate::limits::{BLOCK_BYTES, BLOCK_WORDS};
use crate::location::Location;

/// Slots of a bucket; a bucket is one block.
pub const BUCKET_SLOTS: u64 = BLOCK_WORDS;
/// Buckets of a subtable that are homes; the last bucket is only the second half of a window.
pub const HOMES: u64 = 63;
/// Bytes of a subtable: 64 buckets, aligned to its size.
pub const SUBTABLE_BYTES: usize = 4096;
/// Blocks of a subtable.
pub const SUBTABLE_BLOCKS: u64 = (SUBTABLE_BYTES / BLOCK_BYTES) as u64;
/// Slots of a subtable.
pub const SUBTABLE_SLOTS: usize = SUBTABLE_BYTES / 8;
/// Slots of a window: the home bucket and the next.
pub const WINDOW_SLOTS: usize = 16;

/// First word of the window of a key in a subtable.
#[inline]
pub fn window_word(subtable: u64, hash: KeyHash) -> u64 {
    (subtable + hash.home()) * BLOCK_WORDS
}

/// `| depth 6 | fingerprint 10 | size 14 | address 34 |`
///
/// The depth is the subtable's local depth when the word was written, in empty words too. Empty: size 0.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct SlotWord(pub u64);

impl SlotWord {
    /// Bits of the fingerprint.
    pub const FINGERPRINT_BITS: u64 = 0x3ff << 48;

    /// A full slot.
    #[inline]
    pub fn new(depth: u8, fingerprint: u16, location: Location) -> Self {
        debug_assert!(depth < 64 && fingerprint < 1024 && location.size() > 0);
        Self(u64::from(depth) << 58 | u64::from(fingerprint) << 48 | location.bits())
    }

    /// An empty slot of a subtable of this depth.
    #[inline]
    pub fn empty(depth: u8) -> Self {
        Self(u64::from(depth) << 58)
    }

    /// Depth stamp.
    #[inline]
    pub fn depth(self) -> u8 {
        (self.0 >> 58) as u8
    }

    /// Fingerprint of the key.
    #[inline]
    pub fn fingerprint(self) -> u16 {
        ((self.0 >> 48) & 0x3ff) as u16
    }

    /// Where the item is.
    #[inline]
    pub fn location(self) -> Location {
        Location::from_bits(self.0)
    }

    /// Whether no item is named.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.location().size() == 0
    }

    /// The same slot stamped with another depth.
    #[inline]
    pub fn at_depth(self, depth: u8) -> Self {
        Self(self.0 & (u64::MAX >> 6) | u64::from(depth) << 58)
    }
}

impl std::fmt::Debug for SlotWord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SlotWord(depth {}, fingerprint {:#x}, {:?})", self.depth(), self.fingerprint(), self.location())
    }
}

/// The words of a window as it was read.
#[inline]
pub fn window_from_bytes(bytes: &[u8; WINDOW_SLOTS * 8]) -> [u64; WINDOW_SLOTS] {
    let mut window = [0; WINDOW_SLOTS];
    for (word, bytes) in window.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    window
}

/// What one look over a window finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scan {
    /// Some word is stamped deeper than the directory entry said.
    pub deeper: bool,
    /// Bit i: slot i is full and has the fingerprint.
    pub candidates: u16,
}

/// Looks at all words of a window, without a branch per word.
#[inline]
pub fn scan(window: &[u64; WINDOW_SLOTS], depth: u8, fingerprint: u16) -> Scan {
    let pattern = u64::from(fingerprint) << 48;
    let limit = u64::from(depth);
    let mut deeper = 0u64;
    let mut candidates = 0u16;
    for (i, &word) in window.iter().enumerate() {
        deeper |= limit.wrapping_sub(word >> 58);
        let matches = (word ^ pattern) & SlotWord::FINGERPRINT_BITS == 0;
        let full = word & (Location::LONG << 34) != 0;
        candidates |= u16::from(matches & full) << i;
    }
    Scan { deeper: deeper >> 63 == 1, candidates }
}

const _: () = assert!(BUCKET_SLOTS * (HOMES + 1) == SUBTABLE_SLOTS as u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        let word = SlotWord::new(5, 0x2a5, Location::new(0x1_2345_6789, 17));
        assert_eq!(word.0, 5 << 58 | 0x2a5 << 48 | 17 << 34 | 0x1_2345_6789);
        assert_eq!((word.depth(), word.fingerprint(), word.location().size()), (5, 0x2a5, 17));
        assert_eq!(word.at_depth(6).depth(), 6);
        assert_eq!(word.at_depth(6).location(), word.location());
        assert!(SlotWord::empty(34).is_empty());
        assert_eq!(SlotWord::empty(34).depth(), 34);
    }

    #[test]
    fn scan_agrees_with_the_fields() {
        let mut window = [0u64; WINDOW_SLOTS];
        for (i, word) in window.iter_mut().enumerate() {
            *word = match i % 4 {
                0 => SlotWord::new(3, 7, Location::new(9, 1)),
                1 => SlotWord::empty(3),
                2 => SlotWord::new(2, 8, Location::new(9, 1)),
                _ => SlotWord(3 << 58 | 7 << 48),
            }
            .0;
        }
        assert_eq!(scan(&window, 3, 7), Scan { deeper: false, candidates: 0b0001_0001_0001_0001 });
        assert!(scan(&window, 2, 7).deeper);
        assert_eq!(scan(&window, 3, 8).candidates, 0b0100_0100_0100_0100);
    }

    #[test]
    fn the_last_window_ends_with_the_subtable() {
        let hash = KeyHash(0xf_ffff);
        assert_eq!(window_word(64, hash) + WINDOW_SLOTS as u64, 128 * BLOCK_WORDS);
    }
}
