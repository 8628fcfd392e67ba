//! Directory entries as they were last seen: spares a lookup the READs of root and directory.
//!
//! An entry is kept under the prefix that it is for. It may be old: the window behind it tells.

use sidestep_core::hash::KeyHash;
use sidestep_core::layout::directory::DirectoryWord;
use sidestep_core::limits::MAX_DEPTH;

/// Entries, 16 bytes each: enough for 16 GiB of subtables of which each is met.
const ENTRIES: usize = 1 << 14;

#[derive(Clone, Copy, Default)]
struct Entry {
    word: DirectoryWord,
    prefix: u64,
}

/// A direct-mapped table.
pub(super) struct DirectoryCache {
    entries: Box<[Entry]>,
    /// The deepest entry seen: keys are told apart by so many bits.
    depth: u8,
}

impl DirectoryCache {
    pub(super) fn new() -> Self {
        Self { entries: vec![Entry::default(); ENTRIES].into_boxed_slice(), depth: 0 }
    }

    fn index(&self, hash: KeyHash) -> usize {
        hash.directory_index(self.depth) as usize % ENTRIES
    }

    /// The entry that this key had when it was kept.
    pub(super) fn find(&self, hash: KeyHash) -> Option<DirectoryWord> {
        let Entry { word, prefix } = self.entries[self.index(hash)];
        (word.address() != 0 && hash.directory_index(word.depth()) == prefix).then_some(word)
    }

    /// Keeps what a lookup of this key went by.
    pub(super) fn keep(&mut self, hash: KeyHash, word: DirectoryWord) {
        if word.address() == 0 || word.depth() > MAX_DEPTH {
            return;
        }
        self.depth = self.depth.max(word.depth());
        let index = self.index(hash);
        self.entries[index] = Entry { word, prefix: hash.directory_index(word.depth()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_for_its_prefix_alone() {
        let mut cache = DirectoryCache::new();
        let (low, high) = (KeyHash(1 << 40), KeyHash(1 << 63));
        assert_eq!(cache.find(low), None);
        let whole = DirectoryWord::new(0, 64);
        cache.keep(low, whole);
        assert_eq!((cache.find(low), cache.find(high)), (Some(whole), Some(whole)));
        // The table has doubled: one half each.
        let (left, right) = (DirectoryWord::new(1, 64), DirectoryWord::new(1, 128));
        cache.keep(low, left);
        assert_eq!(cache.find(low), Some(left));
        assert_eq!(cache.find(high), None);
        cache.keep(high, right);
        assert_eq!((cache.find(low), cache.find(high)), (Some(left), Some(right)));
    }

    #[test]
    fn nonsense_is_not_kept() {
        let mut cache = DirectoryCache::new();
        cache.keep(KeyHash(5), DirectoryWord::new(0, 0));
        cache.keep(KeyHash(5), DirectoryWord::new(40, 64));
        assert_eq!(cache.find(KeyHash(5)), None);
    }
}
