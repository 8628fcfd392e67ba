//! Memory as it is taken into use: a segment at a time in the segment table, its pages in steps.

use std::cell::Cell;
use std::io;
use std::sync::atomic::Ordering;

use crossbeam_epoch::Guard;
use sidestep_core::layout::bucket::{SUBTABLE_BLOCKS, SUBTABLE_BYTES};
use sidestep_core::layout::directory::DirectoryWord;
use sidestep_core::layout::root::{self, SegmentWord};
use sidestep_core::limits::{BLOCK_BYTES, BLOCK_WORDS};
use sidestep_core::memory::MemoryMut;

use super::classes::SLAB_BLOCKS;
use super::extents::Extents;
use super::need::Need;
use super::{Store, WriteError};

thread_local! {
    /// Whether this thread has retired something and not handed it over.
    static RETIRED: Cell<bool> = const { Cell::new(false) };
}

/// Pages are allocated this many blocks at a time, 16 MiB, or a segment where that is smaller.
pub(crate) const STEP_BLOCKS: u64 = (16 << 20) / BLOCK_BYTES as u64;

/// Of all memory, what is kept for the next table that is made from a log; no less than 16 slabs, as those of each size
/// class may end half empty, and no more than a part.
const KEPT_PARTS: u64 = 64;
const LEAST_KEPT_BLOCKS: u64 = 16 * SLAB_BLOCKS;
const MOST_KEPT_PARTS: u64 = 16;

/// How far the space is in use. Its lock is taken before that of the extents, never after.
#[derive(Debug)]
pub(crate) struct Growth {
    frontier: u64,
    blocks: u64,
    segment_blocks: u64,
}

impl Growth {
    pub(crate) fn new(blocks: u64, segment_blocks: u64) -> Self {
        Self { frontier: 0, blocks, segment_blocks }
    }

    pub(crate) fn usable_blocks(&self) -> u64 {
        self.frontier
    }

    /// Takes the next step into use: pages first, then the segment table, then it may be written to.
    /// None at the end of the space. Some milliseconds for 16 MiB; where segments are exposed, the first step of one
    /// allocates and pins all of it.
    pub(crate) fn grow(&mut self, memory: &impl MemoryMut) -> io::Result<Option<(u64, u64)>> {
        let (start, length) = (self.frontier, STEP_BLOCKS.min(self.segment_blocks));
        if start + length > self.blocks {
            return Ok(None);
        }
        memory.allocate(start * BLOCK_WORDS, length * BLOCK_BYTES as u64)?;
        if start.is_multiple_of(self.segment_blocks) {
            let word = root::SEGMENTS_WORD + 2 * (start / self.segment_blocks);
            let (address, rkey) = memory.expose(start * BLOCK_WORDS, self.segment_blocks * BLOCK_BYTES as u64);
            if rkey != 0 {
                // Before the word that says that it holds.
                memory.store(word, address);
            }
            memory.store(word + 1, SegmentWord::in_use(rkey).0);
        }
        self.frontier = start + length;
        Ok(Some((start, length)))
    }
}

/// Extents, and the subtables that were taken together and are not used yet.
#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) extents: Extents,
    next_subtable: u64,
    end_of_subtables: u64,
    /// Room for a directory: its first block and its length.
    directory: Option<(u64, u64)>,
}

impl Space {
    pub(crate) fn new(segment_blocks: u64) -> Self {
        Self { extents: Extents::new(segment_blocks), next_subtable: 0, end_of_subtables: 0, directory: None }
    }

    /// Sees to it that there is a page for a subtable.
    fn stock_subtables(&mut self) -> Option<()> {
        if self.next_subtable == self.end_of_subtables {
            let (start, blocks) = match self.extents.take_for_ever(SLAB_BLOCKS, SLAB_BLOCKS) {
                Some(start) => (start, SLAB_BLOCKS),
                None => (self.extents.take_for_ever(SUBTABLE_BLOCKS, SUBTABLE_BLOCKS)?, SUBTABLE_BLOCKS),
            };
            (self.next_subtable, self.end_of_subtables) = (start, start + blocks);
        }
        Some(())
    }

    fn take_subtable(&mut self) -> Option<u64> {
        self.stock_subtables()?;
        self.next_subtable += SUBTABLE_BLOCKS;
        Some(self.next_subtable - SUBTABLE_BLOCKS)
    }

    /// Sees to it that there is room for a directory of so many blocks.
    fn stock_directory(&mut self, blocks: u64) -> Option<()> {
        if self.directory.is_none_or(|(_, length)| length < blocks) {
            let start = self.extents.take_for_ever(blocks, SUBTABLE_BLOCKS)?;
            if let Some((start, length)) = self.directory.replace((start, blocks)) {
                self.extents.add(start, length);
            }
        }
        Some(())
    }

    fn take_directory(&mut self, blocks: u64) -> Option<u64> {
        self.stock_directory(blocks)?;
        let (start, length) = self.directory.take()?;
        self.extents.add(start + blocks, length - blocks);
        Some(start)
    }
}

impl<M: MemoryMut + Send + Sync + 'static> Store<M> {
    /// Takes the next step into use; false at the end of the space.
    pub(crate) fn grow(&self, growth: &mut Growth) -> io::Result<bool> {
        match growth.grow(&self.memory) {
            Ok(Some((start, length))) => {
                self.usable_blocks.store(growth.usable_blocks(), Ordering::Relaxed);
                self.space.lock().extents.add(start, length);
                Ok(true)
            }
            Ok(None) => Ok(false),
            Err(error) => {
                self.counters.growth_failures.add_one();
                Err(error)
            }
        }
    }

    /// What `take` gets from the space as it is. Has memory prepared if little is left.
    fn take_now<T>(&self, take: impl FnOnce(&mut Space) -> Option<T>) -> Option<T> {
        let (taken, free_blocks) = {
            let mut space = self.space.lock();
            (take(&mut space), space.extents.free_blocks())
        };
        if free_blocks < self.short_blocks() {
            self.ahead.wake_if_armed();
        }
        taken
    }

    /// Runs `take` until it has something, growing the space, and waiting for deferred frees before giving up. Where none
    /// are to come it gives up at once: the worker that waits here has other clients, whose reads would wait with it.
    fn take_with<T>(&self, need: Need, mut take: impl FnMut(&mut Space) -> Option<T>) -> Result<T, WriteError> {
        if let Some(taken) = self.take_now(&mut take) {
            return Ok(taken);
        }
        let usable_blocks = self.usable_blocks.load(Ordering::Relaxed);
        let mut last_error = None;
        for patience in 0..need.rounds(self.clock.is_on()) {
            // Seen before the attempts: what was freed until then, they find.
            let may_come = self.clock.is_on() || self.retired.load(Ordering::Acquire) > 0;
            match self.take_growing(&mut take) {
                Ok(Some(taken)) => {
                    if self.usable_blocks.load(Ordering::Relaxed) != usable_blocks {
                        self.counters.growth_waits.add_one();
                    }
                    return Ok(taken);
                }
                Ok(None) => {}
                Err(error) => last_error = Some(error),
            }
            {
                let mut space = self.space.lock();
                if space.extents.give_empty_slabs()
                    && let Some(taken) = take(&mut space)
                {
                    return Ok(taken);
                }
            }
            // Again only after readers have had time to leave what was evicted before.
            if self.clock.is_on() && patience.is_multiple_of(ROUNDS_TO_EVICT) && need.may_evict() {
                self.evict(need);
            }
            if !may_come {
                break;
            }
            self.counters.reclaim_waits.add_one();
            reclaim(patience % RECLAIM_ROUNDS);
        }
        let detail = last_error.map_or_else(
            || match self.kept_blocks() * BLOCK_BYTES as u64 {
                0 => format!("all {} bytes are in use", self.memory_bytes),
                kept => {
                    format!("all {} bytes are in use, but {kept} kept to be made again from the log", self.memory_bytes)
                }
            },
            |error| format!("the storage behind the table refuses to grow: {error}"),
        );
        Err(WriteError::Full(format!("no room for {} bytes: {detail}", need.blocks() * BLOCK_BYTES as u64)))
    }

    /// Grows the space until `take` has something; none at its end.
    fn take_growing<T>(&self, take: &mut impl FnMut(&mut Space) -> Option<T>) -> io::Result<Option<T>> {
        loop {
            let mut growth = self.growth.lock();
            // Someone else may have grown it while this thread waited for the lock.
            if let Some(taken) = take(&mut self.space.lock()) {
                return Ok(Some(taken));
            }
            if !self.grow(&mut growth)? {
                return Ok(None);
            }
            // Growth goes on where it had failed.
            self.ahead.wake();
        }
    }

    /// An extent for an item of `blocks` blocks.
    pub(crate) fn take_extent(&self, blocks: u64) -> Result<u64, WriteError> {
        self.relieve();
        let kept = self.kept_blocks();
        let taken = self.take_with(Need::Item(blocks), |space| space.extents.take_leaving(blocks, kept));
        if taken.is_err() {
            self.counters.refused_full.add_one();
        }
        taken
    }

    /// What items leave free where writes go to a log. A table that is made from it has another hash seed, so other splits, and
    /// slabs that are filled in another order: with this it has room for what was full. It is made without a journal.
    fn kept_blocks(&self) -> u64 {
        let is_kept = self.journal.get().is_some() && !self.clock.is_on();
        let blocks = self.memory_bytes / BLOCK_BYTES as u64;
        if is_kept { (blocks / KEPT_PARTS).max(LEAST_KEPT_BLOCKS).min(blocks / MOST_KEPT_PARTS) } else { 0 }
    }

    /// Frees an extent that was never published: no reader can be on it.
    pub(crate) fn give_extent(&self, address: u64, blocks: u64) {
        self.space.lock().extents.give(address, blocks);
    }

    /// Frees an extent when the server's own readers have left it. Remote readers need no such care.
    pub(crate) fn retire(&self, address: u64, blocks: u64) {
        if self.reuse_at_once {
            return self.give_extent(address, blocks);
        }
        let (space, retired) = (self.space.clone(), self.retired.clone());
        retired.fetch_add(1, Ordering::Relaxed);
        crossbeam_epoch::pin().defer(move || {
            space.lock().extents.give(address, blocks);
            retired.fetch_sub(1, Ordering::Release);
        });
        RETIRED.set(true);
    }

    /// Makes what this thread has retired free for others to reuse, once readers have left it. A thread that goes
    /// to sleep would keep some of it to itself for as long as it sleeps. Cheap where nothing was retired.
    pub(crate) fn hand_over_retired(&self, guard: &Guard) {
        if RETIRED.take() {
            guard.flush();
        }
    }

    /// Memory for a subtable. Never given back, so a stale directory always leads to one.
    pub(crate) fn take_subtable(&self) -> Result<u64, WriteError> {
        self.take_with(Need::Pages(SUBTABLE_BLOCKS), Space::take_subtable)
    }

    /// Memory for a directory of this depth. Never given back.
    pub(crate) fn take_directory(&self, depth: u8) -> Result<u64, WriteError> {
        let blocks = directory_blocks(depth);
        self.take_with(Need::Pages(blocks), |space| space.take_directory(blocks))
    }

    /// Makes room by eviction for what the split of a subtable of this depth takes. The caller has no lock.
    pub(super) fn stock_for_split(&self, depth: u8) -> Result<(), WriteError> {
        self.take_with(Need::Stock(SLAB_BLOCKS), Space::stock_subtables)?;
        let current = DirectoryWord(self.memory.load(root::CURRENT_DIRECTORY_WORD));
        if current.depth() > depth {
            return Ok(());
        }
        let blocks = directory_blocks(depth + 1);
        self.take_with(Need::Stock(blocks), |space| space.stock_directory(blocks))
    }
}

/// Blocks that a directory of this depth takes: whole pages.
pub(crate) fn directory_blocks(depth: u8) -> u64 {
    (8u64 << depth).next_multiple_of(SUBTABLE_BYTES as u64) / BLOCK_BYTES as u64
}

/// Attempts to have deferred frees done before a write is refused.
pub(super) const RECLAIM_ROUNDS: u32 = 64;
/// Attempts from one eviction to the next.
const ROUNDS_TO_EVICT: u32 = 8;

/// Pushes the epoch on. A worker that is inside a wake-up holds it back for that long: yield to it.
fn reclaim(patience: u32) {
    for _ in 0..4 {
        crossbeam_epoch::pin().flush();
    }
    if patience > 8 {
        std::thread::sleep(std::time::Duration::from_micros(50));
    } else {
        std::thread::yield_now();
    }
}
