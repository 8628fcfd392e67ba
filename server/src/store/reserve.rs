//! Values that are received straight into their item.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sidestep_core::layout::item::{self, ComposeHeader, Header, Link};
use sidestep_core::limits::{BLOCK_BYTES, BLOCK_WORDS};
use sidestep_core::location::Location;
use sidestep_core::memory::MemoryMut;
use xxhash_rust::xxh3::Xxh3;

use super::write::Body;
use super::{Store, WriteError};

/// Bytes of a value that are copied out at a time to be hashed: from cache to cache.
const HASH_CHUNK: usize = 16 << 10;
/// How far above the floor an insert's version is guessed, so that other inserts do not spoil the guess.
const VERSION_MARGIN: u64 = 1 << 16;

/// An extent that nobody else knows, with its key and room for its value. Dropping it frees the extent, unless someone
/// holds a share of it still ([`Reservation::extent`]).
///
/// The value is hashed while it arrives. The version comes before it, so the one that the item will most likely
/// get is guessed; another write to the key in the meantime makes it wrong, and the value is hashed again.
pub struct Reservation<M: MemoryMut + Send + Sync + 'static> {
    store: Arc<Store<M>>,
    key: Vec<u8>,
    address: u64,
    value_bytes: u32,
    expires_ms: u64,
    hashed: Hashed,
    /// The value once more, if there is a journal.
    copy: Vec<u8>,
    extent: Arc<Extent<M>>,
}

/// Space that is not published. Dropping it frees it.
struct Extent<M: MemoryMut + Send + Sync + 'static> {
    store: Arc<Store<M>>,
    address: u64,
    blocks: u64,
    published: AtomicBool,
}

impl<M: MemoryMut + Send + Sync + 'static> Drop for Extent<M> {
    fn drop(&mut self) {
        if !*self.published.get_mut() {
            self.store.give_extent(self.address, self.blocks);
        }
    }
}

/// The checksum so far.
struct Hashed {
    version: u64,
    hasher: Xxh3,
    /// Bytes of the value that are in it.
    value_bytes: usize,
}

impl<M: MemoryMut + Send + Sync + 'static> Store<M> {
    /// Takes the space for an item. The value is written to [`Reservation::offset`], in one go or piece by piece
    /// with [`Reservation::arrived`] after each, then it is published. `expires_ms`: 0 = never.
    pub fn reserve(
        self: &Arc<Self>,
        key: &[u8],
        value_bytes: u32,
        expires_ms: u64,
    ) -> Result<Reservation<M>, WriteError> {
        self.check_sizes(key, value_bytes as usize)?;
        let blocks = item::blocks(key.len(), value_bytes as usize);
        let address = self.take_extent(blocks)?;
        let extent = Arc::new(Extent { store: self.clone(), address, blocks, published: AtomicBool::new(false) });
        self.memory.fence();
        let hashed = Hashed { version: self.likely_version(key, 0), hasher: Xxh3::new(), value_bytes: 0 };
        let (store, key) = (self.clone(), key.to_vec());
        let mut reservation =
            Reservation { store, key, address, value_bytes, expires_ms, hashed, copy: Vec::new(), extent };
        reservation.begin_hash(reservation.hashed.version);
        Ok(reservation)
    }

    /// The version that a write to the key would get now; `guessed` if it could be that one.
    fn likely_version(&self, key: &[u8], guessed: u64) -> u64 {
        let hash = self.hash(key);
        let locked = self.lock_subtable(hash);
        match self.find(&locked, key, hash) {
            Ok(old) => self.version_after(old.header.version),
            Err(_) if guessed > *locked.floor => guessed,
            Err(_) => *locked.floor + VERSION_MARGIN,
        }
    }
}

impl<M: MemoryMut + Send + Sync + 'static> Reservation<M> {
    /// Byte offset of the value in the space; a multiple of 8.
    pub fn offset(&self) -> u64 {
        self.address * BLOCK_BYTES as u64 + item::value_offset(self.key.len()) as u64
    }

    /// A share of the extent: it has no other use while one is held. For a device that writes to it, and may go on after
    /// the reservation is dropped; one that is about to be published has no share left.
    pub fn extent(&self) -> Arc<dyn Send + Sync> {
        self.extent.clone()
    }

    /// Length of the value.
    pub fn value_bytes(&self) -> u32 {
        self.value_bytes
    }

    /// The first `value_bytes` bytes of the value are in their place: hashes those that are not hashed yet,
    /// while they are in the CPU's cache.
    pub fn arrived(&mut self, value_bytes: usize) {
        let whole = value_bytes >= self.value_bytes as usize;
        let end = if whole { self.value_bytes as usize } else { value_bytes / 8 * 8 };
        let first = self.offset() / 8;
        let mut chunk = [0; HASH_CHUNK];
        while self.hashed.value_bytes < end {
            let done = self.hashed.value_bytes;
            let bytes = HASH_CHUNK.min(end - done);
            self.store.memory.read(first + done as u64 / 8, &mut chunk[..item::pad(bytes)]);
            self.hashed.hasher.update(&chunk[..bytes]);
            self.hashed.value_bytes += bytes;
        }
    }

    /// Makes the value, which is whole, the key's. What is left to hash is hashed before the subtable's lock is
    /// taken, and only if another write comes between, all of it under the lock.
    pub fn publish(mut self, expect: Option<u64>) -> Result<u64, WriteError> {
        let (store, key, expires_ms) = (self.store.clone(), self.key.clone(), self.expires_ms);
        let blocks = item::blocks(key.len(), self.value_bytes as usize);
        self.finish();
        if store.journal.get().is_some() {
            self.copy_value();
        }
        let version = store.likely_version(&key, self.hashed.version);
        if version != self.hashed.version {
            self.hash_again(version);
        }
        // From here on it is freed by whoever takes the item away, or by the store if it is not written.
        self.extent.published.store(true, Ordering::Relaxed);
        let location = Location::new(self.address, blocks);
        store.publish(&key, location, blocks, expect, expires_ms, &mut self)
    }

    /// Key, padding and the zeros from the value's end to the end of the last block; the rest of the checksum.
    fn finish(&mut self) {
        let memory = &self.store.memory;
        let word = self.address * BLOCK_WORDS;
        memory.write(word + item::HEADER_BYTES as u64 / 8, &self.key);
        let exact = item::exact_bytes(self.key.len(), self.value_bytes as usize);
        let last_word = word + (exact as u64) / 8;
        let used = exact % 8;
        if used > 0 {
            let kept = memory.load(last_word) & ((1 << (8 * used)) - 1);
            memory.store(last_word, kept);
        }
        let first_free = word + (exact as u64).div_ceil(8);
        let end = word + item::blocks(self.key.len(), self.value_bytes as usize) * BLOCK_WORDS;
        (first_free..end).for_each(|word| memory.store(word, 0));
        self.arrived(self.value_bytes as usize);
    }

    /// For the journal, before the subtable is locked.
    fn copy_value(&mut self) {
        let value_bytes = self.value_bytes as usize;
        self.copy.resize(item::pad(value_bytes), 0);
        self.store.memory.read(self.offset() / 8, &mut self.copy);
        self.copy.truncate(value_bytes);
    }

    fn header(&self, version: u64, checksum: u64, link: Link) -> Header {
        let (key_bytes, value_bytes, expires_ms) = (self.key.len() as u16, self.value_bytes, self.expires_ms);
        Header { link, checksum, version, key_bytes, flags: 0, value_bytes, expires_ms }
    }

    /// Everything that the checksum covers before the value.
    fn begin_hash(&mut self, version: u64) {
        let mut hasher = Xxh3::with_seed(self.store.table_id);
        for word in &self.header(version, 0, Link(0)).to_words()[2..] {
            hasher.update(&word.to_le_bytes());
        }
        hasher.update(&self.key);
        hasher.update(&[0; 8][..item::pad(self.key.len()) - self.key.len()]);
        self.hashed = Hashed { version, hasher, value_bytes: 0 };
    }

    fn hash_again(&mut self, version: u64) {
        self.store.counters.large_rehashed.add_one();
        self.begin_hash(version);
        self.arrived(self.value_bytes as usize);
    }
}

impl<M: MemoryMut + Send + Sync + 'static> Body for Reservation<M> {
    fn write(&mut self, header: ComposeHeader) -> u64 {
        if self.hashed.version != header.version {
            self.hash_again(header.version);
        }
        let checksum = self.hashed.hasher.digest();
        let words = self.header(header.version, checksum, Link::bound(header.state, checksum)).to_words();
        for (i, word) in words.into_iter().enumerate().rev() {
            self.store.memory.store(self.address * BLOCK_WORDS + i as u64, word);
        }
        checksum
    }

    fn insert_version(&self, floor: u64) -> u64 {
        if self.hashed.version > floor { self.hashed.version } else { floor + 1 }
    }

    fn value(&mut self) -> Cow<'_, [u8]> {
        std::mem::take(&mut self.copy).into()
    }
}

impl<M: MemoryMut + Send + Sync + 'static> fmt::Debug for Reservation<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("address", &self.address)
            .field("value_bytes", &self.value_bytes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::super::tests::{SMALL, Words, get, read, small};
    use super::*;

    const KEY: &[u8] = b"a key";

    fn value(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|i| (i * 7 + i / 251) as u8).collect()
    }

    fn hashed_again(store: &Store<Arc<Words>>) -> u64 {
        store.stats().into_iter().find(|stat| stat.0 == "large_values_hashed_again").unwrap().1
    }

    /// Lets a value arrive in pieces of `step` bytes, with `meanwhile` before the last one.
    fn receive(store: &Arc<Store<Arc<Words>>>, bytes: usize, step: usize, meanwhile: impl FnOnce()) -> u64 {
        let value = value(bytes);
        let mut reservation = store.reserve(KEY, bytes as u32, 0).unwrap();
        let mut meanwhile = Some(meanwhile);
        for end in (step..bytes).step_by(step).chain([bytes]) {
            if end == bytes {
                meanwhile.take().into_iter().for_each(|meanwhile| meanwhile());
            }
            // As a socket does it: in place, at any byte.
            let whole = end.next_multiple_of(8);
            let mut padded = value[..end].to_vec();
            padded.resize(whole, 0xee);
            store.memory().write(reservation.offset() / 8, &padded);
            reservation.arrived(end);
        }
        reservation.publish(None).unwrap()
    }

    #[test]
    fn a_value_that_arrives_in_pieces_is_whole() {
        let store = small(SMALL);
        for (bytes, step) in [(100_000, 1000), (100_003, 4097), (50_001, 13), (40_000, 40_000), (16_384, 16_383)] {
            let version = receive(&store, bytes, step, || ());
            assert_eq!(read(&store, KEY), Some((version, value(bytes))), "{bytes} bytes in steps of {step}");
            assert_eq!(get(&store, KEY), Some((version, value(bytes))));
        }
        assert_eq!(hashed_again(&store), 0);
        assert!(check(store.memory()).is_sound());
    }

    #[test]
    fn other_writes_to_the_key_in_the_meantime_are_built_upon() {
        let store = small(SMALL);
        let first = store.put(KEY, b"old", None, 0).unwrap();
        let version = receive(&store, 50_001, 999, || {
            store.put(KEY, b"newer", None, 0).unwrap();
        });
        assert_eq!(version, first + 2);
        assert_eq!(read(&store, KEY), Some((version, value(50_001))));
        let after_delete = receive(&store, 50_001, 999, || {
            store.delete(KEY, None).unwrap();
        });
        assert!(after_delete > version);
        assert_eq!(read(&store, KEY), Some((after_delete, value(50_001))));
        assert!(hashed_again(&store) >= 1);
        store.delete(KEY, None).unwrap();
        let before = hashed_again(&store);
        let insert = receive(&store, 50_001, 999, || {
            store.put(b"another key of the subtable", b"", None, 0).unwrap();
        });
        assert_eq!((read(&store, KEY), hashed_again(&store)), (Some((insert, value(50_001))), before));
        assert!(check(store.memory()).is_sound());
    }
}
