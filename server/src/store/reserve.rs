//! Values that are received straight into their item.

use std::sync::Arc;

use sidestep_core::layout::item::{self, ComposeHeader, Header, Link, LinkState};
use sidestep_core::limits::BLOCK_BYTES;
use sidestep_core::location::Location;
use sidestep_core::memory::MemoryMut;
use xxhash_rust::xxh3::Xxh3;

use super::write::Body;
use super::{Store, WriteError};

/// Bytes of a value that are copied out at a time to be hashed.
const HASH_CHUNK: usize = 64 << 10;
/// How far above the floor an insert's version is guessed, so that other inserts do not spoil the guess.
const VERSION_MARGIN: u64 = 1 << 16;

/// An extent that nobody else knows, with its key and room for its value. Dropping it frees the extent.
#[derive(Debug)]
pub struct Reservation<M: MemoryMut + Send + Sync + 'static> {
    store: Arc<Store<M>>,
    key: Vec<u8>,
    address: u64,
    value_bytes: u32,
    published: bool,
}

impl<M: MemoryMut + Send + Sync + 'static> Store<M> {
    /// Takes the space for an item. The value is written to [`Reservation::offset`], then it is published.
    pub fn reserve(self: &Arc<Self>, key: &[u8], value_bytes: u32) -> Result<Reservation<M>, WriteError> {
        self.check_sizes(key, value_bytes as usize)?;
        let address = self.take_extent(item::blocks(key.len(), value_bytes as usize))?;
        self.memory.fence();
        Ok(Reservation { store: self.clone(), key: key.to_vec(), address, value_bytes, published: false })
    }
}

impl<M: MemoryMut + Send + Sync + 'static> Reservation<M> {
    /// Byte offset of the value in the space; a multiple of 8.
    pub fn offset(&self) -> u64 {
        self.address * BLOCK_BYTES as u64 + item::value_offset(self.key.len()) as u64
    }

    /// Length of the value.
    pub fn value_bytes(&self) -> u32 {
        self.value_bytes
    }

    /// Makes the value the key's. Hashes it before the subtable's lock is taken, with the version that it will
    /// most likely get; hashes it again under the lock if another write came between.
    pub fn publish(mut self, expect: Option<u64>, expires_ms: u64) -> Result<u64, WriteError> {
        let store = self.store.clone();
        let key = std::mem::take(&mut self.key);
        let blocks = item::blocks(key.len(), self.value_bytes as usize);
        let mut body = InPlace::new(&store, &key, self.address, self.value_bytes);
        let hash = store.hash(&key);
        let (state, version) = {
            let locked = store.lock_subtable(hash);
            match store.find(&locked, &key, hash) {
                Ok(old) => (LinkState::Pending, old.header.version + 1),
                Err(_) => (LinkState::Dead, *locked.floor + VERSION_MARGIN),
            }
        };
        body.guess(ComposeHeader { state, version, expires_ms });
        self.published = true;
        store.publish(&key, Location::new(self.address, blocks), blocks, expect, expires_ms, &mut body)
    }
}

impl<M: MemoryMut + Send + Sync + 'static> Drop for Reservation<M> {
    fn drop(&mut self) {
        if !self.published {
            let blocks = item::blocks(self.key.len(), self.value_bytes as usize);
            self.store.give_extent(self.address, blocks);
        }
    }
}

/// An item whose value is in its extent already.
struct InPlace<'s, M> {
    store: &'s Store<M>,
    key: &'s [u8],
    word: u64,
    value_bytes: u32,
    /// Version and checksum that were computed ahead.
    guessed: Option<(u64, u64)>,
}

impl<'s, M: MemoryMut> InPlace<'s, M> {
    fn new(store: &'s Store<M>, key: &'s [u8], address: u64, value_bytes: u32) -> Self {
        Self { store, key, word: address * 8, value_bytes, guessed: None }
    }

    fn guess(&mut self, header: ComposeHeader) {
        self.clear_tail();
        let checksum = self.checksum(header.version, header.expires_ms);
        self.guessed = Some((header.version, checksum));
    }

    /// Key, padding and the zeros from the value's end to the end of the last block.
    fn clear_tail(&self) {
        let memory = &self.store.memory;
        memory.write(self.word + item::HEADER_BYTES as u64 / 8, self.key);
        let exact = item::exact_bytes(self.key.len(), self.value_bytes as usize);
        let last_word = self.word + (exact as u64) / 8;
        let used = exact % 8;
        if used > 0 {
            let kept = memory.load(last_word) & ((1 << (8 * used)) - 1);
            memory.store(last_word, kept);
        }
        let first_free = self.word + (exact as u64).div_ceil(8);
        let end = self.word + item::blocks(self.key.len(), self.value_bytes as usize) * 8;
        (first_free..end).for_each(|word| memory.store(word, 0));
    }

    fn header(&self, version: u64, expires_ms: u64, checksum: u64, link: Link) -> Header {
        let key_bytes = self.key.len() as u16;
        Header { link, checksum, version, key_bytes, flags: 0, value_bytes: self.value_bytes, expires_ms }
    }

    /// The checksum, from a copy of the value that is made a chunk at a time.
    fn checksum(&self, version: u64, expires_ms: u64) -> u64 {
        let mut hasher = Xxh3::with_seed(self.store.table_id);
        for word in &self.header(version, expires_ms, 0, Link(0)).to_words()[2..] {
            hasher.update(&word.to_le_bytes());
        }
        hasher.update(self.key);
        hasher.update(&[0; 8][..item::pad(self.key.len()) - self.key.len()]);
        let first = self.word + item::value_offset(self.key.len()) as u64 / 8;
        let value_bytes = self.value_bytes as usize;
        let mut chunk = vec![0; HASH_CHUNK.min(item::pad(value_bytes))];
        let mut done = 0;
        while done < value_bytes {
            let bytes = HASH_CHUNK.min(value_bytes - done);
            let into = &mut chunk[..item::pad(bytes)];
            self.store.memory.read(first + done as u64 / 8, into);
            hasher.update(&into[..bytes]);
            done += bytes;
        }
        hasher.digest()
    }
}

impl<M: MemoryMut> Body for InPlace<'_, M> {
    fn write(&mut self, header: ComposeHeader) -> u64 {
        let checksum = match self.guessed {
            Some((version, checksum)) if version == header.version => checksum,
            _ => {
                self.store.counters.large_rehashed.add_one();
                self.checksum(header.version, header.expires_ms)
            }
        };
        let link = Link::bound(header.state, checksum);
        let words = self.header(header.version, header.expires_ms, checksum, link).to_words();
        for (i, word) in words.into_iter().enumerate().rev() {
            self.store.memory.store(self.word + i as u64, word);
        }
        checksum
    }

    fn insert_version(&self, floor: u64) -> u64 {
        match self.guessed {
            Some((version, _)) if version > floor => version,
            _ => floor + 1,
        }
    }
}
