//! Where an item is: the low 48 bits of a slot word and of a FORWARD link.

use crate::limits::{BLOCK_BYTES, BLOCK_WORDS};

/// `| size 14 | address 34 |`, both in blocks. Size 0 is nowhere; [`Location::LONG`] means "read the header first".
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Location(u64);

impl Location {
    /// Bits of a location.
    pub const BITS: u32 = 48;
    /// The size field of an item of this many blocks or more.
    pub const LONG: u64 = 0x3fff;
    const ADDRESS: u64 = (1 << 34) - 1;

    /// The location of `blocks` blocks from block `address` on.
    #[inline]
    pub fn new(address: u64, blocks: u64) -> Self {
        debug_assert!(address <= Self::ADDRESS && blocks > 0);
        Self(blocks.min(Self::LONG) << 34 | (address & Self::ADDRESS))
    }

    /// From the low 48 bits of a word.
    #[inline]
    pub fn from_bits(word: u64) -> Self {
        Self(word & ((1 << Self::BITS) - 1))
    }

    /// The 48 bits.
    #[inline]
    pub fn bits(self) -> u64 {
        self.0
    }

    /// First block.
    #[inline]
    pub fn address(self) -> u64 {
        self.0 & Self::ADDRESS
    }

    /// First word.
    #[inline]
    pub fn word(self) -> u64 {
        self.address() * BLOCK_WORDS
    }

    /// Length in blocks as far as the field tells; [`Location::LONG`] for a long item.
    #[inline]
    pub fn size(self) -> u64 {
        self.0 >> 34
    }

    /// Whether the header must be read to know the length.
    #[inline]
    pub fn is_long(self) -> bool {
        self.size() == Self::LONG
    }

    /// Bytes of the first READ: the whole item, or the first block of a long one.
    #[inline]
    pub fn first_read_bytes(self) -> usize {
        if self.is_long() { BLOCK_BYTES } else { self.size() as usize * BLOCK_BYTES }
    }
}

impl std::fmt::Debug for Location {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Location({:#x}+{})", self.address(), self.size())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        let location = Location::new(0x3_ffff_ffff, 2);
        assert_eq!(location.bits(), 2 << 34 | 0x3_ffff_ffff);
        assert_eq!((location.address(), location.size(), location.first_read_bytes()), (0x3_ffff_ffff, 2, 128));
        let long = Location::new(1, 1 << 20);
        assert!(long.is_long());
        assert_eq!(long.first_read_bytes(), 64);
        assert_eq!(Location::from_bits(u64::MAX).bits(), (1 << 48) - 1);
    }
}
