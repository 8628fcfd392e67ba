//! A new table in zeroed memory.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use sidestep_core::layout::bucket::{SUBTABLE_SLOTS, SlotWord};
use sidestep_core::layout::directory::DirectoryWord;
use sidestep_core::layout::{item, root};
use sidestep_core::limits::{BLOCK_BYTES, BLOCK_WORDS, MAX_KEY_BYTES};
use sidestep_core::memory::MemoryMut;

use super::ahead::Ahead;
use super::counters::Counters;
use super::evict::Clock;
use super::locks::Locks;
use super::plausible::LAST_VERSION;
use super::space::{Growth, Space};
use super::sweep::Sweeper;
use super::{Store, StoreError, StoreOptions};

/// Smallest segment: root, one slab of subtables, a directory and some items.
const MIN_SEGMENT_BYTES: u64 = 256 << 10;
const MAX_SEGMENT_BYTES: u64 = 1 << 30;
const DEFAULT_MIN_SEGMENT_BYTES: u64 = 64 << 20;
const MAX_MEMORY_BYTES: u64 = 1 << 40;

pub(super) fn random_word() -> Result<u64, StoreError> {
    getrandom::u64().map_err(|error| StoreError::Random(error.to_string()))
}

/// Segment size for a memory size: memory / 64 rounded down to a power of two, within its bounds.
fn segment_bytes(memory_bytes: u64, options: &StoreOptions) -> Result<u64, StoreError> {
    let largest = if memory_bytes == 0 { 0 } else { 1 << memory_bytes.ilog2() };
    let default = (largest / 64).clamp(DEFAULT_MIN_SEGMENT_BYTES, MAX_SEGMENT_BYTES).min(largest);
    let segment_bytes = options.segment_bytes.unwrap_or(default);
    let error = |expected| Err(StoreError::Size { memory_bytes, segment_bytes, expected });
    if memory_bytes > MAX_MEMORY_BYTES {
        return error("at most 1 TiB of memory");
    }
    if !segment_bytes.is_power_of_two() || !(MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES).contains(&segment_bytes) {
        return error("segments of a power of two from 256 KiB to 1 GiB");
    }
    if memory_bytes < segment_bytes || memory_bytes / segment_bytes > root::MAX_SEGMENTS {
        return error("1 to 1024 segments");
    }
    Ok(segment_bytes)
}

/// What a segment can hold: the longest item must fit one, beside the root in the smallest table.
pub(super) fn max_value_bytes(segment_bytes: u64, wanted: u32) -> u32 {
    let longest = segment_bytes - root::ROOT_BYTES;
    let most = longest - item::value_offset(MAX_KEY_BYTES) as u64 - 1024;
    wanted.min(u32::try_from(most).unwrap_or(u32::MAX))
}

impl<M: MemoryMut + Send + Sync + 'static> Store<M> {
    /// A new table. The memory must be zero; a remainder beyond whole segments is not used.
    ///
    /// The magic is written last: a table that was not finished is not one.
    pub fn create(memory: M, options: &StoreOptions) -> Result<Arc<Self>, StoreError> {
        let bytes = memory.words() * 8;
        let segment_bytes = segment_bytes(bytes, options)?;
        let memory_bytes = bytes / segment_bytes * segment_bytes;
        let table_id = options.table_id.map_or_else(random_word, Ok)?;
        let floor = options.version_floor;
        if floor > LAST_VERSION {
            return Err(StoreError::Words(format!(
                "versions begin above {floor:#x}, expected at most {LAST_VERSION:#x}"
            )));
        }
        memory.store(root::VERSION_FLOOR_WORD, floor);
        memory.store(root::VERSION_CEILING_WORD, floor);
        let store = Self::assemble(memory, table_id, random_word()?, memory_bytes, segment_bytes, options, floor);
        store.take_root()?;
        let memory = &store.memory;
        memory.store(root::FORMAT_WORD, root::FORMAT_VERSION);
        memory.store(root::TABLE_ID_WORD, store.table_id);
        memory.store(root::BOOT_ID_WORD, store.boot_id);
        memory.store(root::SEGMENT_BYTES_WORD, segment_bytes);
        memory.store(root::MEMORY_BYTES_WORD, memory_bytes);
        let full = |error: super::WriteError| StoreError::Damaged(error.to_string());
        let subtable = store.take_subtable().map_err(full)?;
        store.memory.write(subtable * BLOCK_WORDS, &[0; SUBTABLE_SLOTS * 8]);
        debug_assert_eq!(SlotWord::empty(0).0, 0);
        let directory = store.take_directory(0).map_err(full)?;
        store.memory.store(directory * BLOCK_WORDS, DirectoryWord::new(0, subtable).0);
        let word = DirectoryWord::new(0, directory).0;
        store.memory.store(root::DIRECTORIES_WORD, word);
        store.memory.store(root::CURRENT_DIRECTORY_WORD, word);
        store.memory.store(root::MAGIC_WORD, root::MAGIC);
        Ok(Arc::new(store))
    }

    pub(super) fn assemble(
        memory: M,
        table_id: u64,
        boot_id: u64,
        memory_bytes: u64,
        segment_bytes: u64,
        options: &StoreOptions,
        floor: u64,
    ) -> Self {
        let blocks = memory_bytes / BLOCK_BYTES as u64;
        let segment_blocks = segment_bytes / BLOCK_BYTES as u64;
        let version_floor = memory.load(root::VERSION_FLOOR_WORD);
        Self {
            memory,
            table_id,
            boot_id,
            memory_bytes,
            segment_bytes,
            max_value_bytes: max_value_bytes(segment_bytes, options.max_value_bytes),
            version_floor,
            reuse_at_once: options.reuse_at_once,
            journal: OnceLock::new(),
            locks: Locks::new(blocks, floor),
            directory: Mutex::new(()),
            intents: Mutex::new(u64::MAX),
            growth: Mutex::new(Growth::new(blocks, segment_blocks)),
            usable_blocks: AtomicU64::new(0),
            ahead: Ahead::default(),
            sweeper: Sweeper::default(),
            clock: Clock::new(options.eviction),
            space: Arc::new(Mutex::new(Space::new(segment_blocks))),
            retired: Arc::default(),
            subtables: AtomicU64::new(1),
            keys: AtomicU64::new(0),
            counters: Counters::default(),
        }
    }

    /// Takes the first step of segment 0 into use and the root out of it.
    fn take_root(&self) -> Result<(), StoreError> {
        let bytes = self.segment_bytes;
        let grown = self.grow(&mut self.growth.lock()).map_err(|source| StoreError::Allocate { bytes, source })?;
        if !grown || !self.space.lock().extents.take_for_ever_at(0, root::ROOT_BLOCKS) {
            return Err(StoreError::Damaged("no room for the first segment".into()));
        }
        Ok(())
    }
}
