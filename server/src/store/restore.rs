//! A table from a log: items that come back with the versions that they had, and all items for a log that begins.

use std::sync::Arc;

use sidestep_core::hash::KeyHash;
use sidestep_core::layout::bucket::{SUBTABLE_SLOTS, SlotWord};
use sidestep_core::layout::item::{self, HEADER_BYTES, Header};
use sidestep_core::layout::root;
use sidestep_core::limits::BLOCK_WORDS;
use sidestep_core::location::Location;
use sidestep_core::memory::MemoryMut;

use super::scan::range;
use super::write::Place;
use super::{Journal, Store, WriteError};

/// Where [`Store::journal_all`] goes on: a hash, and a slot of its subtable.
#[derive(Clone, Copy, Debug, Default)]
pub struct JournalFrom {
    hash: u64,
    slot: u64,
}

impl<M: MemoryMut + Send + Sync + 'static> Store<M> {
    /// From now on this is told of every write. Once, before anybody writes who is to be told of.
    pub fn set_journal(&self, journal: Arc<dyn Journal>) {
        // A second one would be a mistake of the caller's, and changes nothing.
        let _ = self.journal.set(journal);
    }

    /// No item ever had a version above this.
    pub fn version_ceiling(&self) -> u64 {
        self.memory.load(root::VERSION_CEILING_WORD)
    }

    /// Gives a key the value, the version and the expiry that a log has of it, in place of whatever it has; nothing, if
    /// that has expired. The table has been made with a [`version floor`](super::StoreOptions::version_floor) that is no
    /// lower.
    pub fn restore(
        self: &Arc<Self>,
        key: &[u8],
        value: &[u8],
        version: u64,
        expires_ms: u64,
    ) -> Result<(), WriteError> {
        self.check_sizes(key, value.len())?;
        self.restore_absence(key);
        if self.is_expired(expires_ms) {
            return Ok(());
        }
        let blocks = item::blocks(key.len(), value.len());
        let address = self.take_extent(blocks)?;
        self.put_composed(key, value, Location::new(address, blocks), None, expires_ms, Some(version))?;
        Ok(())
    }

    /// A log has the key's end. Its space is free at once: nobody reads a table that is being made.
    pub fn restore_absence(&self, key: &[u8]) {
        let hash = self.hash(key);
        let mut locked = self.lock_subtable(hash);
        if let Ok(place) = self.find(&locked, key, hash) {
            self.unlink(&mut locked, &place);
            self.give_extent(place.location.address(), place.header.blocks());
        }
    }

    /// Tells the journal of items from a place on, until `limit_bytes` of them are passed. Returns where to go on, none at
    /// the end of the table. Whatever is written meanwhile is told of by its writer, before or after, under the same lock:
    /// what is told last is how it is.
    pub fn journal_all(&self, from: JournalFrom, limit_bytes: usize) -> Option<JournalFrom> {
        let journal = self.journal.get()?;
        let (mut at, mut bytes, mut key) = (from, 0, Vec::new());
        while bytes < limit_bytes {
            let locked = self.lock_subtable(KeyHash(at.hash));
            let first = locked.entry.address() * BLOCK_WORDS;
            // A split meanwhile leaves items in their slots, here or in the sibling, which comes later.
            while at.slot < SUBTABLE_SLOTS as u64 && bytes < limit_bytes {
                let word = SlotWord(self.memory.load(first + at.slot));
                at.slot += 1;
                if word.is_empty() {
                    continue;
                }
                let location = word.location();
                let header = self.header(location);
                if self.is_expired(header.expires_ms) {
                    continue;
                }
                self.key_of(location, &header, &mut key);
                let value = self.value_of(location, &header);
                bytes += key.len() + value.len();
                journal.put(&key, value.into(), header.version, header.expires_ms);
            }
            if at.slot == SUBTABLE_SLOTS as u64 {
                at = JournalFrom { hash: range(at.hash, locked.entry.depth()).1?, slot: 0 };
            }
        }
        Some(at)
    }

    /// Tells the journal that an item is about to be taken out.
    pub(super) fn journal_removal(&self, place: &Place) {
        if let Some(journal) = self.journal.get() {
            let mut key = Vec::new();
            self.key_of(place.location, &place.header, &mut key);
            journal.delete(&key, place.header.version);
        }
    }

    pub(super) fn key_of(&self, location: Location, header: &Header, key: &mut Vec<u8>) {
        let key_bytes = usize::from(header.key_bytes);
        key.resize(item::pad(key_bytes), 0);
        self.memory.read(location.word() + HEADER_BYTES as u64 / 8, key);
        key.truncate(key_bytes);
    }

    fn value_of(&self, location: Location, header: &Header) -> Vec<u8> {
        let value_bytes = header.value_bytes as usize;
        let mut value = vec![0; item::pad(value_bytes)];
        let first = location.word() + item::value_offset(usize::from(header.key_bytes)) as u64 / 8;
        self.memory.read(first, &mut value);
        value.truncate(value_bytes);
        value
    }
}
