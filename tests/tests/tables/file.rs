//! The bytes of a table's file, by the format and no code of the server's.

use std::collections::BTreeMap;
use std::ops::Range;

use sidestep_core::hash::KeyHash;
use sidestep_core::layout::bucket::{self, SUBTABLE_SLOTS, SlotWord, WINDOW_SLOTS};
use sidestep_core::layout::directory::DirectoryWord;
use sidestep_core::layout::item::{self, LinkState};
use sidestep_core::layout::root;
use sidestep_core::limits::{BLOCK_BYTES, BLOCK_WORDS};
use sidestep_core::location::Location;

/// Where a key is.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// Word of its slot.
    pub(crate) slot: u64,
    /// First block of its item.
    pub(crate) address: u64,
    /// Bytes of its item.
    pub(crate) bytes: Range<usize>,
}

/// A table's file in memory.
#[derive(Clone)]
pub(crate) struct TableFile {
    pub(crate) bytes: Vec<u8>,
}

impl TableFile {
    pub(crate) fn load(&self, word: u64) -> u64 {
        let at = word as usize * 8;
        u64::from_le_bytes(self.bytes[at..at + 8].try_into().expect("8 bytes"))
    }

    pub(crate) fn store(&mut self, word: u64, value: u64) {
        let at = word as usize * 8;
        self.bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn table_id(&self) -> u64 {
        self.load(root::TABLE_ID_WORD)
    }

    pub(crate) fn current_directory(&self) -> DirectoryWord {
        DirectoryWord(self.load(root::CURRENT_DIRECTORY_WORD))
    }

    /// The directory entry that leads to a key, and its word.
    pub(crate) fn entry(&self, key: &[u8]) -> (u64, DirectoryWord) {
        let current = self.current_directory();
        let word = current.address() * BLOCK_WORDS + KeyHash::of(key, self.table_id()).directory_index(current.depth());
        (word, DirectoryWord(self.load(word)))
    }

    /// Words of the slots of a key's window.
    pub(crate) fn window(&self, key: &[u8]) -> Range<u64> {
        let first = bucket::window_word(self.entry(key).1.address(), KeyHash::of(key, self.table_id()));
        first..first + WINDOW_SLOTS as u64
    }

    pub(crate) fn slot(&self, word: u64) -> SlotWord {
        SlotWord(self.load(word))
    }

    /// All keys of a table that is sound.
    pub(crate) fn keys(&self) -> BTreeMap<Vec<u8>, Found> {
        let current = self.current_directory();
        let entries =
            (0..1u64 << current.depth()).map(|i| DirectoryWord(self.load(current.address() * BLOCK_WORDS + i)));
        let mut subtables: Vec<u64> = entries.map(DirectoryWord::address).collect();
        subtables.dedup();
        let slots = subtables
            .iter()
            .flat_map(|subtable| subtable * BLOCK_WORDS..subtable * BLOCK_WORDS + SUBTABLE_SLOTS as u64);
        slots.filter(|&slot| !self.slot(slot).is_empty()).map(|slot| self.found(slot)).collect()
    }

    fn found(&self, slot: u64) -> (Vec<u8>, Found) {
        let address = self.slot(slot).location().address();
        let first = address as usize * BLOCK_BYTES;
        let item = item::validate(&self.bytes[first..], self.table_id()).expect("a whole item");
        assert_eq!(item.header.link.state(), LinkState::Current);
        (item.key.to_vec(), Found { slot, address, bytes: first..first + item.header.exact_bytes() })
    }

    /// The first block of some that nothing was ever written to.
    pub(crate) fn free_block(&self, bytes: usize) -> u64 {
        let blocks = bytes.div_ceil(BLOCK_BYTES);
        let last = self.bytes.iter().rposition(|&byte| byte != 0).expect("a root");
        let block = last / BLOCK_BYTES + 1;
        assert!((block + blocks) * BLOCK_BYTES <= self.bytes.len());
        block as u64
    }

    /// Writes bytes from a block on.
    pub(crate) fn write(&mut self, block: u64, bytes: &[u8]) -> Location {
        let first = block as usize * BLOCK_BYTES;
        self.bytes[first..first + bytes.len()].copy_from_slice(bytes);
        Location::new(block, bytes.len().div_ceil(BLOCK_BYTES) as u64)
    }
}
