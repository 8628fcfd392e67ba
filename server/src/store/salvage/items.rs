//! Items by themselves: whole or not.

use std::collections::BTreeSet;
use std::ops::Range;

use sidestep_core::layout::item::{self, CHECKSUM, HEADER_BYTES, Header, LINK, Link, LinkState};
use sidestep_core::layout::root;
use sidestep_core::limits::{BLOCK_BYTES, BLOCK_WORDS};
use sidestep_core::memory::Memory;

use crate::store::Root;

/// Reads items, one at a time.
pub(super) struct Items<'m, M> {
    pub(super) memory: &'m M,
    table_id: u64,
    /// Of the file.
    pub(super) blocks: u64,
    longest_blocks: u64,
    /// Of all items that were whole.
    pub(super) highest_version: u64,
    body: Vec<u8>,
}

impl<'m, M: Memory> Items<'m, M> {
    pub(super) fn new(memory: &'m M, root: &Root) -> Self {
        Self {
            memory,
            table_id: root.table_id,
            // Whatever the root says of its length, which may be what is damaged: an item proves itself.
            blocks: memory.words() * 8 / BLOCK_BYTES as u64,
            longest_blocks: root.segment_bytes / BLOCK_BYTES as u64,
            highest_version: 0,
            body: Vec::new(),
        }
    }

    /// First blocks of all items that are the values of their keys.
    pub(super) fn current(&mut self, ranges: &[Range<u64>]) -> BTreeSet<u64> {
        let (mut found, mut block) = (BTreeSet::new(), root::ROOT_BLOCKS);
        for range in ranges {
            // What an item has inside is its value.
            block = block.max(range.start / BLOCK_BYTES as u64);
            let end = range.end.div_ceil(BLOCK_BYTES as u64).min(self.blocks);
            while block < end {
                match self.read_if_current(block) {
                    Some(header) => {
                        found.insert(block);
                        block += header.blocks();
                    }
                    None => block += 1,
                }
            }
        }
        found
    }

    /// Two words tell almost always that it is none.
    fn read_if_current(&mut self, block: u64) -> Option<Header> {
        let first = block * BLOCK_WORDS;
        let checksum = self.memory.load(first + CHECKSUM);
        let is_current = self.memory.load(first + LINK) == Link::bound(LinkState::Current, checksum).0;
        if is_current { self.read(block) } else { None }
    }

    /// The header of an item that is whole, whatever its link says.
    pub(super) fn read(&mut self, block: u64) -> Option<Header> {
        let header = self.header(block)?;
        self.body.resize(item::pad(header.exact_bytes()), 0);
        self.memory.read(block * BLOCK_WORDS, &mut self.body);
        self.body.truncate(header.exact_bytes());
        if item::checksum(&self.body, self.table_id) != header.checksum {
            return None;
        }
        self.highest_version = self.highest_version.max(header.version);
        Some(header)
    }

    /// A header whose lengths are possible there.
    fn header(&self, block: u64) -> Option<Header> {
        if !(root::ROOT_BLOCKS..self.blocks).contains(&block) {
            return None;
        }
        let header = Header::from_words(std::array::from_fn(|i| self.memory.load(block * BLOCK_WORDS + i as u64)));
        let blocks = header.blocks();
        (header.is_plausible() && blocks <= self.longest_blocks && block + blocks <= self.blocks).then_some(header)
    }

    /// Key of the item that was read last.
    pub(super) fn key(&self) -> &[u8] {
        let header = Header::read(&self.body);
        let bytes = header.map_or(0, |header| usize::from(header.key_bytes));
        self.body.get(HEADER_BYTES..HEADER_BYTES + bytes).unwrap_or(&[])
    }

    /// Its value.
    pub(super) fn value(&self) -> &[u8] {
        self.body.get(item::value_offset(self.key().len())..).unwrap_or(&[])
    }

    /// What is in the place of the key of an item that is not whole.
    pub(super) fn key_of_torn(&self, block: u64) -> Option<Vec<u8>> {
        if !(root::ROOT_BLOCKS..self.blocks).contains(&block) {
            return None;
        }
        let key_bytes = self.memory.load(block * BLOCK_WORDS + item::LENGTHS) as u16;
        let bytes = usize::from(key_bytes);
        let fits =
            block * BLOCK_BYTES as u64 + (HEADER_BYTES + item::pad(bytes)) as u64 <= self.blocks * BLOCK_BYTES as u64;
        if bytes == 0 || bytes > sidestep_core::limits::MAX_KEY_BYTES || !fits {
            return None;
        }
        let mut key = vec![0; item::pad(bytes)];
        self.memory.read(block * BLOCK_WORDS + HEADER_BYTES as u64 / 8, &mut key);
        key.truncate(bytes);
        Some(key)
    }

    pub(super) fn table_id(&self) -> u64 {
        self.table_id
    }
}
