//! Directory words: a depth and the address of a subtable or of a directory.

/// `| depth 6 | reserved 24 | address 34 |`
///
/// In a directory: local depth and first block of a subtable. In the root: global depth and first block of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct DirectoryWord(pub u64);

impl DirectoryWord {
    const ADDRESS: u64 = (1 << 34) - 1;

    /// Packs depth and block address.
    #[inline]
    pub fn new(depth: u8, address: u64) -> Self {
        debug_assert!(depth < 64 && address <= Self::ADDRESS);
        Self(u64::from(depth) << 58 | address)
    }

    /// Local or global depth.
    #[inline]
    pub fn depth(self) -> u8 {
        (self.0 >> 58) as u8
    }

    /// First block; 0 where there is none, since block 0 is the root's.
    #[inline]
    pub fn address(self) -> u64 {
        self.0 & Self::ADDRESS
    }
}

impl std::fmt::Debug for DirectoryWord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DirectoryWord(depth {}, {:#x})", self.depth(), self.address())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        let word = DirectoryWord::new(34, 0x3_0000_0001);
        assert_eq!(word.0, 34 << 58 | 0x3_0000_0001);
        assert_eq!((word.depth(), word.address()), (34, 0x3_0000_0001));
    }
}
