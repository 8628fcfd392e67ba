//! The server's own GET: lock-free, under an epoch pin.
//!
//! Under a pin no extent that was reachable when the pin began is reused, so a reader in this process
//! needs no checksum, no second look and no bound on rounds: what `core::lookup` has to prove from the bytes
//! it was given, the pin guarantees here.

use std::sync::Arc;

use crossbeam_epoch::Guard;
use parking_lot::Mutex;
use sidestep_core::hash::KeyHash;
use sidestep_core::layout::bucket::{self, SlotWord, WINDOW_SLOTS};
use sidestep_core::layout::item::{self, Header, LinkState};
use sidestep_core::limits::BLOCK_WORDS;
use sidestep_core::location::Location;
use sidestep_core::memory::MemoryMut;

use super::Store;
use super::space::Space;

/// How a GET ended.
#[derive(Debug)]
pub enum Got {
    /// No such key.
    Absent,
    /// The value was appended.
    Copied {
        /// Its version.
        version: u64,
        /// Its length.
        value_bytes: u32,
    },
    /// The value is too long to copy and stays where it is for as long as the hold lives.
    Held(Hold),
}

/// Keeps one item's extent from being reused, and nothing else: no epoch, no lock.
#[derive(Debug)]
pub struct Hold {
    space: Arc<Mutex<Space>>,
    address: u64,
    version: u64,
    offset: u64,
    value_bytes: u32,
}

impl Hold {
    /// Version of the item.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Byte offset of the value in the space.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Length of the value.
    pub fn value_bytes(&self) -> u32 {
        self.value_bytes
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.space.lock().extents.release(self.address);
    }
}

/// An item that was found.
pub(super) struct Item {
    pub(super) location: Location,
    pub(super) header: Header,
    /// Word of the slot that led to it.
    pub(super) slot: u64,
}

impl<M: MemoryMut + Send + Sync + 'static> Store<M> {
    /// Looks a key up without a lock. Appends the value to `reply` if it has at most `copy_limit`
    /// bytes (one copy), else takes a hold on it.
    ///
    /// `guard` must have been pinned before; one pin may serve many calls.
    pub fn get(&self, key: &[u8], guard: &Guard, copy_limit: usize, reply: &mut Vec<u8>) -> Got {
        let _ = guard;
        let Some(item) = self.find_unlocked(key, self.hash(key)) else { return Got::Absent };
        if self.is_expired(item.header.expires_ms) {
            return Got::Absent;
        }
        self.touch(item.slot);
        let Header { version, value_bytes, .. } = item.header;
        self.copy_or_hold(item.location, key.len(), version, value_bytes, copy_limit, reply)
    }

    /// An item's value, appended or held. Under the pin under which the item was found.
    pub(super) fn copy_or_hold(
        &self,
        location: Location,
        key_bytes: usize,
        version: u64,
        value_bytes: u32,
        copy_limit: usize,
        reply: &mut Vec<u8>,
    ) -> Got {
        let value_word = location.word() + item::value_offset(key_bytes) as u64 / 8;
        if value_bytes as usize <= copy_limit {
            let start = reply.len();
            reply.resize(start + item::pad(value_bytes as usize), 0);
            self.memory.read(value_word, &mut reply[start..]);
            reply.truncate(start + value_bytes as usize);
            return Got::Copied { version, value_bytes };
        }
        let address = location.address();
        self.space.lock().extents.hold(address);
        Got::Held(Hold { space: self.space.clone(), address, version, offset: value_word * 8, value_bytes })
    }

    /// Starts fetching a key's window into the CPU's cache. Call for all keys of a batch before the first [`Store::get`].
    pub fn prefetch_window(&self, key: &[u8]) {
        self.prefetch_window_of(self.hash(key));
    }

    /// The same for a key with this hash.
    pub fn prefetch_window_of(&self, hash: KeyHash) {
        self.memory.prefetch(bucket::window_word(self.route(hash).address(), hash), WINDOW_SLOTS * 8);
    }

    /// Starts fetching the items that a key's window names. After [`Store::prefetch_window`] of the whole batch.
    pub fn prefetch_item(&self, key: &[u8]) {
        let hash = self.hash(key);
        let entry = self.route(hash);
        let window = self.window(bucket::window_word(entry.address(), hash));
        let mut candidates = bucket::scan(&window, entry.depth(), hash.fingerprint()).candidates;
        while candidates != 0 {
            let location = SlotWord(window[candidates.trailing_zeros() as usize]).location();
            self.memory.prefetch(location.word(), location.first_read_bytes().min(1024));
            candidates &= candidates - 1;
        }
    }

    fn find_unlocked(&self, key: &[u8], hash: KeyHash) -> Option<Item> {
        'again: loop {
            let entry = self.route(hash);
            let first = bucket::window_word(entry.address(), hash);
            let window = self.window(first);
            let scan = bucket::scan(&window, entry.depth(), hash.fingerprint());
            if scan.deeper {
                // A split is publishing: the directory has the deeper entry already.
                std::hint::spin_loop();
                continue;
            }
            let mut candidates = scan.candidates;
            while candidates != 0 {
                let index = candidates.trailing_zeros();
                let location = SlotWord(window[index as usize]).location();
                candidates &= candidates - 1;
                let Some(header) = self.header_if_key(location, key) else { continue };
                let item = Item { location, header, slot: first + u64::from(index) };
                match item.header.link.state() {
                    LinkState::Current => return Some(item),
                    LinkState::Dead => return None,
                    LinkState::Forward => return self.follow(item),
                    LinkState::Pending => continue 'again,
                }
            }
            return None;
        }
    }

    /// The newest item of a chain that is linearized. It ends: only a writer makes it longer.
    pub(super) fn follow(&self, mut item: Item) -> Option<Item> {
        while item.header.link.state() == LinkState::Forward {
            let location = item.header.link.successor();
            let header = self.header(location);
            match header.link.state() {
                LinkState::Current | LinkState::Forward => item = Item { location, header, ..item },
                LinkState::Pending => return Some(item),
                LinkState::Dead => return None,
            }
        }
        Some(item)
    }

    pub(super) fn window(&self, word: u64) -> [u64; WINDOW_SLOTS] {
        let mut bytes = [0; WINDOW_SLOTS * 8];
        self.memory.read(word, &mut bytes);
        bucket::window_from_bytes(&bytes)
    }

    pub(super) fn header(&self, location: Location) -> Header {
        let word = location.address() * BLOCK_WORDS;
        Header::from_words(std::array::from_fn(|i| self.memory.load(word + i as u64)))
    }

    /// The header of an item, if it is of this key.
    pub(super) fn header_if_key(&self, location: Location, key: &[u8]) -> Option<Header> {
        let header = self.header(location);
        if usize::from(header.key_bytes) != key.len() {
            return None;
        }
        let first = location.word() + item::HEADER_BYTES as u64 / 8;
        let same = key.chunks(8).enumerate().all(|(i, chunk)| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.memory.load(first + i as u64) == u64::from_le_bytes(word)
        });
        same.then_some(header)
    }
}
