//! Updates, inserts and deletes, each under its subtable's lock, each store in its order.

use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sidestep_core::hash::KeyHash;
use sidestep_core::layout::bucket::{self, SlotWord, WINDOW_SLOTS};
use sidestep_core::layout::item::{self, ComposeHeader, Header, Link, LinkState};
use sidestep_core::layout::root;
use sidestep_core::limits::MAX_KEY_BYTES;
use sidestep_core::location::Location;
use sidestep_core::memory::MemoryMut;

use super::plausible::LAST_VERSION;
use super::{Locked, Store, WriteError};

/// Values longer than this are written into their extent before the lock is taken.
const COMPOSE_LIMIT: usize = 4096;
/// The ceiling moves by this much, so that it is stored once in a long while.
const CEILING_STEP: u64 = 1 << 32;

thread_local! {
    static COMPOSED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What is in a key's window under the lock.
pub(super) struct Place {
    /// Word of the slot that names the key's item.
    pub(super) slot: u64,
    pub(super) location: Location,
    pub(super) header: Header,
}

/// What is to be a key's item.
struct New<'k> {
    key: &'k [u8],
    hash: KeyHash,
    location: Location,
    expires_ms: u64,
}

/// How a new item gets into its extent once its version is known. Returns the checksum.
pub(super) trait Body {
    /// Writes (what is not written yet of) the item with this link state and version.
    fn write(&mut self, header: ComposeHeader) -> u64;
    /// Version for an insert above this floor.
    fn insert_version(&self, floor: u64) -> u64 {
        floor + 1
    }
    /// The value, for a journal. Once.
    fn value(&mut self) -> Cow<'_, [u8]>;
}

impl<M: MemoryMut + Send + Sync + 'static> Store<M> {
    /// Writes a value. `expect`: only over this version, 0 = only if absent. `expires_ms`: 0 = never.
    /// Returns the version written. Two copies of a value up to 4 KiB, one of a longer one.
    pub fn put(
        self: &Arc<Self>,
        key: &[u8],
        value: &[u8],
        expect: Option<u64>,
        expires_ms: u64,
    ) -> Result<u64, WriteError> {
        if value.len() > COMPOSE_LIMIT {
            let value_bytes = u32::try_from(value.len()).unwrap_or(u32::MAX);
            let reservation = self.reserve(key, value_bytes, expires_ms)?;
            self.memory.write(reservation.offset() / 8, value);
            return reservation.publish(expect);
        }
        self.check_sizes(key, value.len())?;
        let blocks = item::blocks(key.len(), value.len());
        let address = self.take_extent(blocks)?;
        self.put_composed(key, value, Location::new(address, blocks), expect, expires_ms, None)
    }

    /// Writes a value into an extent that is taken. `version`: that of the item, whose key is absent; none = the next one.
    pub(super) fn put_composed(
        &self,
        key: &[u8],
        value: &[u8],
        location: Location,
        expect: Option<u64>,
        expires_ms: u64,
        version: Option<u64>,
    ) -> Result<u64, WriteError> {
        let blocks = item::blocks(key.len(), value.len());
        COMPOSED.with_borrow_mut(|composed| {
            let mut body = Composed { store: self, composed, key, value, word: location.word(), version };
            self.publish(key, location, blocks, expect, expires_ms, &mut body)
        })
    }

    /// Removes a key. `expect`: only this version. Returns the removed version; none = it was absent.
    pub fn delete(&self, key: &[u8], expect: Option<u64>) -> Result<Option<u64>, WriteError> {
        self.check_sizes(key, 0)?;
        let hash = self.hash(key);
        let mut locked = self.lock_subtable(hash);
        let found = self.find(&locked, key, hash).ok();
        let live = found.as_ref().filter(|place| !self.is_expired(place.header.expires_ms));
        let version = live.map_or(0, |place| place.header.version);
        self.check_version(expect, version)?;
        let is_live = live.is_some();
        if let Some(place) = found {
            self.remove(&mut locked, &place);
            self.counters.deletes.add_one();
        }
        Ok(is_live.then_some(version))
    }

    /// Takes an item out of its locked subtable, and tells the journal.
    pub(super) fn remove(&self, locked: &mut Locked<'_>, place: &Place) {
        self.journal_removal(place);
        self.take_out(locked, place);
    }

    /// Takes an item out of its locked subtable.
    pub(super) fn take_out(&self, locked: &mut Locked<'_>, place: &Place) {
        self.unlink(locked, place);
        self.retire(place.location.address(), place.header.blocks());
    }

    /// The same, but its extent is for the caller to free.
    pub(super) fn unlink(&self, locked: &mut Locked<'_>, place: &Place) {
        let depth = locked.entry.depth();
        self.memory.store(place.location.word(), Link::bound(LinkState::Dead, place.header.checksum).0);
        self.memory.store(place.slot, SlotWord::empty(depth).0);
        *locked.floor = (*locked.floor).max(place.header.version);
        self.keys.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn check_sizes(&self, key: &[u8], value_bytes: usize) -> Result<(), WriteError> {
        if key.is_empty() {
            return Err(WriteError::BadKey(0));
        }
        if key.len() > MAX_KEY_BYTES {
            return Err(WriteError::TooLarge(format!(
                "expected a key of at most {MAX_KEY_BYTES} bytes, found {}",
                key.len()
            )));
        }
        if value_bytes > self.max_value_bytes as usize {
            return Err(WriteError::TooLarge(format!(
                "expected a value of at most {} bytes, found {value_bytes}",
                self.max_value_bytes
            )));
        }
        Ok(())
    }

    fn check_version(&self, expect: Option<u64>, found: u64) -> Result<(), WriteError> {
        match expect {
            Some(expected) if expected != found => {
                self.counters.version_mismatches.add_one();
                Err(WriteError::VersionMismatch { found })
            }
            _ => Ok(()),
        }
    }

    /// The key's item, or else the first empty slot of its window, or else nothing.
    pub(super) fn find(&self, locked: &Locked<'_>, key: &[u8], hash: KeyHash) -> Result<Place, Option<u64>> {
        let first = bucket::window_word(locked.entry.address(), hash);
        let window = self.window(first);
        let mut empty = None;
        for (i, &word) in window.iter().enumerate().take(WINDOW_SLOTS) {
            let word = SlotWord(word);
            let slot = first + i as u64;
            if word.is_empty() {
                empty = empty.or(Some(slot));
            } else if word.fingerprint() == hash.fingerprint()
                && let Some(header) = self.header_if_key(word.location(), key)
            {
                return Ok(Place { slot, location: word.location(), header });
            }
        }
        Err(empty)
    }

    /// Puts an item, whose extent is taken, into the table. On an error the extent is given back.
    pub(super) fn publish(
        &self,
        key: &[u8],
        location: Location,
        blocks: u64,
        expect: Option<u64>,
        expires_ms: u64,
        body: &mut dyn Body,
    ) -> Result<u64, WriteError> {
        let result = self.publish_locked(key, location, expect, expires_ms, body);
        if result.is_err() {
            self.give_extent(location.address(), blocks);
        }
        result
    }

    fn publish_locked(
        &self,
        key: &[u8],
        location: Location,
        expect: Option<u64>,
        expires_ms: u64,
        body: &mut dyn Body,
    ) -> Result<u64, WriteError> {
        let hash = self.hash(key);
        let new = New { key, hash, location, expires_ms };
        let mut locked = self.lock_subtable(hash);
        loop {
            match self.find(&locked, key, hash) {
                Ok(old) => {
                    let live = if self.is_expired(old.header.expires_ms) { 0 } else { old.header.version };
                    self.check_version(expect, live)?;
                    check_version_left(self.version_after(old.header.version))?;
                    return Ok(self.update(&locked, &old, &new, body));
                }
                Err(Some(slot)) => {
                    self.check_version(expect, 0)?;
                    check_version_left(body.insert_version(*locked.floor))?;
                    return Ok(self.insert(&mut locked, slot, &new, body));
                }
                Err(None) => {
                    self.check_version(expect, 0)?;
                    match self.split(&mut locked, hash) {
                        Ok(()) => {
                            drop(locked);
                            locked = self.lock_subtable(hash);
                        }
                        Err(WriteError::Full(_)) if self.evicts() => {
                            self.evict_in_window(&mut locked, hash);
                        }
                        Err(error) => {
                            self.counters.refused_full.add_one();
                            return Err(error);
                        }
                    }
                }
            }
        }
    }

    /// Before anybody can see the item: what is written because of it is in the journal behind it. Nothing refuses it any
    /// more.
    fn journal_put(&self, new: &New<'_>, version: u64, body: &mut dyn Body) {
        if let Some(journal) = self.journal.get() {
            journal.put(new.key, body.value(), version, new.expires_ms);
        }
    }

    /// The version that an update gives: the next one, unless that may have been given in a life of which a log knows
    /// nothing any more.
    pub(super) fn version_after(&self, old: u64) -> u64 {
        old.max(self.version_floor) + 1
    }

    fn update(&self, locked: &Locked<'_>, old: &Place, new: &New<'_>, body: &mut dyn Body) -> u64 {
        let New { hash, location, expires_ms, .. } = *new;
        let version = self.version_after(old.header.version);
        self.raise_ceiling(version);
        let checksum = body.write(ComposeHeader { state: LinkState::Pending, version, expires_ms });
        self.journal_put(new, version, body);
        self.memory.store(old.location.word(), Link::forward(old.header.checksum, location).0);
        self.memory.store(location.word(), Link::bound(LinkState::Current, checksum).0);
        self.memory.store(old.slot, SlotWord::new(locked.entry.depth(), hash.fingerprint(), location).0);
        self.retire(old.location.address(), old.header.blocks());
        self.note_expiry(locked.entry.address(), expires_ms);
        self.touch(old.slot);
        self.counters.updates.add_one();
        version
    }

    fn insert(&self, locked: &mut Locked<'_>, slot: u64, new: &New<'_>, body: &mut dyn Body) -> u64 {
        let New { hash, location, expires_ms, .. } = *new;
        let version = body.insert_version(*locked.floor);
        self.raise_ceiling(version);
        // Lower only where a log gives an item its version back.
        *locked.floor = (*locked.floor).max(version);
        let checksum = body.write(ComposeHeader { state: LinkState::Dead, version, expires_ms });
        self.journal_put(new, version, body);
        self.memory.store(slot, SlotWord::new(locked.entry.depth(), hash.fingerprint(), location).0);
        self.memory.store(location.word(), Link::bound(LinkState::Current, checksum).0);
        self.note_expiry(locked.entry.address(), expires_ms);
        self.touch(slot);
        self.keys.fetch_add(1, Ordering::Relaxed);
        self.counters.inserts.add_one();
        version
    }

    /// No item gets a version above the ceiling: it is raised first, and never lowered by a late store.
    fn raise_ceiling(&self, version: u64) {
        if version > self.memory.load(root::VERSION_CEILING_WORD) {
            self.memory.fetch_max(root::VERSION_CEILING_WORD, (version + CEILING_STEP).min(LAST_VERSION));
        }
    }
}

/// Versions never begin again from 0: an item that is there would seem absent.
fn check_version_left(version: u64) -> Result<(), WriteError> {
    if version > LAST_VERSION { Err(WriteError::NoVersion(LAST_VERSION)) } else { Ok(()) }
}

/// A short item, composed in ordinary memory and stored in one go.
struct Composed<'s, M> {
    store: &'s Store<M>,
    composed: &'s mut Vec<u8>,
    key: &'s [u8],
    value: &'s [u8],
    word: u64,
    /// Given, where an item comes back from a log.
    version: Option<u64>,
}

impl<M: MemoryMut> Body for Composed<'_, M> {
    fn write(&mut self, header: ComposeHeader) -> u64 {
        let checksum = item::compose(self.composed, self.key, self.value, header, self.store.table_id);
        let whole = self.composed.len().next_multiple_of(sidestep_core::limits::BLOCK_BYTES);
        self.composed.resize(whole, 0);
        self.store.memory.fence();
        self.store.memory.write(self.word, self.composed);
        checksum
    }

    fn insert_version(&self, floor: u64) -> u64 {
        self.version.unwrap_or(floor + 1)
    }

    fn value(&mut self) -> Cow<'_, [u8]> {
        self.value.into()
    }
}
