//! The table's one writer: index, extents, versions, recovery.
//!
//! Generic over [`MemoryMut`], so that mapped segments, the simulator and a model checker run the same
//! steps. The orders of stores that safety rests on are in `write.rs` and `split.rs`; `docs/PROTOCOL.md`
//! says why each is as it is.

mod ahead;
mod check;
mod classes;
mod counters;
mod create;
mod error;
mod evict;
mod extents;
mod head;
mod journal;
mod locks;
mod need;
mod plausible;
mod read;
mod recover;
mod reserve;
mod restore;
mod runs;
mod salvage;
mod scan;
mod settle;
mod space;
mod split;
mod sweep;
mod time;
mod trial;
mod write;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, MutexGuard};
use sidestep_core::hash::KeyHash;
use sidestep_core::layout::directory::DirectoryWord;
use sidestep_core::layout::root;
use sidestep_core::limits::{BLOCK_WORDS, DEFAULT_MAX_VALUE_BYTES};
use sidestep_core::memory::MemoryMut;

pub use check::{CheckReport, check};
pub use error::{StoreError, WriteError};
pub use evict::Eviction;
pub use journal::Journal;
pub use read::{Got, Hold};
pub use recover::RecoveryReport;
pub use reserve::Reservation;
pub use restore::JournalFrom;
pub use salvage::{Loss, LossReason, Salvage, SalvageReport};
pub use scan::{Met, ScanFrom};
pub use trial::would_recover;

pub(crate) use head::{HEAD_WORDS, Root};
pub(crate) use time::system_ms;

use ahead::Ahead;
use counters::Counters;
use evict::Clock;
use locks::{FloorGuard, Locks};
use space::{Growth, Space};
use sweep::Sweeper;

/// How a table is laid out and what it takes.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Bytes of a segment, a power of two; none = memory / 64, within 64 MiB and 1 GiB, at most the memory.
    /// Only read when a table is made.
    pub segment_bytes: Option<u64>,
    /// Largest value in bytes; clamped to what a segment holds.
    pub max_value_bytes: u32,
    /// For tests only: the id of a new table, so that its hashes are known beforehand. None = random.
    pub table_id: Option<u64>,
    /// For tests only: extents are reused without waiting for the server's own readers, of which there must
    /// then be none. Remote readers must bear it.
    pub reuse_at_once: bool,
    /// Threads that a recovery divides the subtables among. The simulator, which counts stores, wants one.
    pub recovery_threads: usize,
    /// What to do when memory is full.
    pub eviction: Eviction,
    /// Of a new table: no write gets a version at or below this.
    pub version_floor: u64,
    /// Of a table that is taken up: the id of this start, where it must be known beforehand. None = random.
    pub boot_id: Option<u64>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            segment_bytes: None,
            max_value_bytes: DEFAULT_MAX_VALUE_BYTES,
            table_id: None,
            reuse_at_once: false,
            recovery_threads: 1,
            eviction: Eviction::None,
            version_floor: 0,
            boot_id: None,
        }
    }
}

/// A table and everything its owner knows beside it.
#[derive(Debug)]
pub struct Store<M> {
    memory: M,
    table_id: u64,
    boot_id: u64,
    memory_bytes: u64,
    segment_bytes: u64,
    max_value_bytes: u32,
    /// As in the root; it does not change.
    version_floor: u64,
    reuse_at_once: bool,
    journal: OnceLock<Arc<dyn Journal>>,
    locks: Locks,
    /// The one table-wide lock: doubling, and publishing directory entries.
    directory: Mutex<()>,
    /// Free intent words of the root, as bits.
    intents: Mutex<u64>,
    growth: Mutex<Growth>,
    /// As in `growth`, for those who only want to know: its lock is held for as long as pages are made.
    usable_blocks: AtomicU64,
    ahead: Ahead,
    sweeper: Sweeper,
    clock: Clock,
    space: Arc<Mutex<Space>>,
    /// Extents that are free once the server's own readers have left them.
    retired: Arc<AtomicU64>,
    subtables: AtomicU64,
    keys: AtomicU64,
    counters: Counters,
}

/// A subtable that is locked, and certain to be the key's.
struct Locked<'s> {
    floor: FloorGuard<'s>,
    entry: DirectoryWord,
}

impl<M: MemoryMut + Send + Sync + 'static> Store<M> {
    /// The memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// The table, for ever.
    pub fn table_id(&self) -> u64 {
        self.table_id
    }

    /// This start of the server.
    pub fn boot_id(&self) -> u64 {
        self.boot_id
    }

    /// Bytes of the whole space.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// Bytes of a segment.
    pub fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    /// Largest value that is taken.
    pub fn max_value_bytes(&self) -> u32 {
        self.max_value_bytes
    }

    /// Keys in the table, expired ones that are not removed yet included.
    pub fn keys(&self) -> u64 {
        self.keys.load(Ordering::Relaxed)
    }

    /// Tells readers of this memory that its server is gone for good: at their next look they find another boot
    /// id. For a memfd; the table in a file is read on, by whatever start.
    pub fn retire_memory(&self) {
        self.memory.store(root::BOOT_ID_WORD, 0);
    }

    fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash::of(key, self.table_id)
    }

    /// The directory entry that a key has at this moment.
    fn route(&self, hash: KeyHash) -> DirectoryWord {
        let current = DirectoryWord(self.memory.load(root::CURRENT_DIRECTORY_WORD));
        let index = hash.directory_index(current.depth());
        DirectoryWord(self.memory.load(current.address() * BLOCK_WORDS + index))
    }

    /// Takes a lock that writers contend for. In simulated memory they take turns where others wait.
    fn lock<'l, T>(&self, mutex: &'l Mutex<T>) -> MutexGuard<'l, T> {
        loop {
            if let Some(guard) = mutex.try_lock() {
                return guard;
            }
            if !self.memory.yield_turn() {
                return mutex.lock();
            }
        }
    }

    /// Locks the key's subtable. The directory is read again under the lock: a split may have come between.
    fn lock_subtable(&self, hash: KeyHash) -> Locked<'_> {
        loop {
            let entry = self.route(hash);
            let floor = self.lock(self.locks.of(entry.address()));
            let again = self.route(hash);
            if again.address() == entry.address() {
                return Locked { floor, entry: again };
            }
        }
    }

    /// Counters by name, in a stable order.
    pub fn stats(&self) -> Vec<(String, u64)> {
        let current = DirectoryWord(self.memory.load(root::CURRENT_DIRECTORY_WORD));
        let usable_blocks = self.usable_blocks.load(Ordering::Relaxed);
        let (counts, free_blocks) = {
            let space = self.space.lock();
            (space.extents.counts(), space.extents.free_blocks())
        };
        let blocks = |blocks: u64| blocks * sidestep_core::limits::BLOCK_BYTES as u64;
        let mut stats: Vec<(String, u64)> = [
            ("keys", self.keys()),
            ("subtables", self.subtables.load(Ordering::Relaxed)),
            ("directory_depth", u64::from(current.depth())),
            ("memory_bytes", self.memory_bytes),
            ("memory_usable_bytes", blocks(usable_blocks)),
            ("memory_free_bytes", blocks(free_blocks)),
            ("segment_bytes", self.segment_bytes),
            ("segments", blocks(usable_blocks).div_ceil(self.segment_bytes)),
            ("extents", counts.extents),
            ("extent_bytes", blocks(counts.extent_blocks)),
            ("extents_held", counts.held),
            ("slabs", counts.slabs),
            ("version_ceiling", self.memory.load(root::VERSION_CEILING_WORD)),
            ("clock_ahead_ms", self.clock_ahead_ms()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        stats.extend(self.counters.list());
        stats
    }
}

#[cfg(test)]
mod tests;
