//! Taking a table up again after any end, a kill between two stores included.
//!
//! Exclusive and repeatable: a kill of the recovery is recovered from in the same way. Its steps come one after
//! the other; within the longest, the settling of the subtables, these are shared out among threads, since
//! no subtable's slots are another's business.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sidestep_core::layout::bucket::{SUBTABLE_BLOCKS, SUBTABLE_SLOTS, SlotWord};
use sidestep_core::layout::directory::DirectoryWord;
use sidestep_core::layout::root::{self, IntentWord, SegmentWord};
use sidestep_core::limits::{BLOCK_BYTES, BLOCK_WORDS, MAX_DEPTH};
use sidestep_core::memory::{Memory, MemoryMut};

use super::create::random_word;
use super::head::read_root;
use super::plausible::{root_problems, segments_problem};
use super::settle::Route;
use super::space::directory_blocks;
use super::time::system_ms;
use super::{Store, StoreError, StoreOptions};

/// What a recovery found and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Items kept.
    pub keys: u64,
    /// Subtables, those of old directories included.
    pub subtables: u64,
    /// Splits that were finished.
    pub splits_finished: u64,
    /// Updates that were finished.
    pub updates_finished: u64,
    /// Slots of inserts and deletes that had not come to an end.
    pub slots_emptied: u64,
}

/// Every directory that the root names, checked to lie in the space: `(depth, first block)`.
pub(super) fn directories(memory: &impl Memory, blocks: u64) -> Result<Vec<(u8, u64)>, StoreError> {
    let mut all = Vec::new();
    for depth in 0..=MAX_DEPTH {
        let word = DirectoryWord(memory.load(root::DIRECTORIES_WORD + u64::from(depth)));
        if word.0 == 0 {
            continue;
        }
        let end = word.address().saturating_add(directory_blocks(depth));
        if word.depth() != depth || word.address() < root::ROOT_BLOCKS || end > blocks {
            return Err(StoreError::Damaged(format!("directory word {depth} of the root is {word:?}")));
        }
        all.push((depth, word.address()));
    }
    let current = DirectoryWord(memory.load(root::CURRENT_DIRECTORY_WORD));
    if !all.contains(&(current.depth(), current.address())) {
        return Err(StoreError::Damaged(format!("the current directory, {current:?}, is not in the root's list")));
    }
    Ok(all)
}

/// Every subtable that some directory or intent names.
pub(super) fn subtables(
    memory: &impl Memory,
    blocks: u64,
    directories: &[(u8, u64)],
) -> Result<BTreeSet<u64>, StoreError> {
    let mut all = BTreeSet::new();
    let mut add = |address: u64, whose: &str| {
        let fits = address >= root::ROOT_BLOCKS && address.saturating_add(SUBTABLE_BLOCKS) <= blocks;
        if !fits || !address.is_multiple_of(SUBTABLE_BLOCKS) {
            return Err(StoreError::Damaged(format!("{whose} names a subtable at block {address:#x}")));
        }
        all.insert(address);
        Ok(())
    };
    for &(depth, directory) in directories {
        for index in 0..1u64 << depth {
            let entry = DirectoryWord(memory.load(directory * BLOCK_WORDS + index));
            if entry.depth() > MAX_DEPTH {
                return Err(StoreError::Damaged(format!("a directory entry is {entry:?}")));
            }
            add(entry.address(), "a directory")?;
        }
    }
    for intent in 0..root::INTENTS {
        let intent = IntentWord(memory.load(root::INTENTS_WORD + intent));
        if !intent.is_none() {
            add(intent.old(), "a split intent")?;
            add(intent.new_sibling(), "a split intent")?;
        }
    }
    Ok(all)
}

impl<M: MemoryMut + Send + Sync + 'static> Store<M> {
    /// Takes up the table in `memory`, to which nobody else may write. Cost: every item once from end to end, by
    /// [`StoreOptions::recovery_threads`] threads.
    pub fn recover(memory: M, options: &StoreOptions) -> Result<(Arc<Self>, RecoveryReport), StoreError> {
        let root = read_root(&memory)?;
        let blocks = root.memory_bytes / BLOCK_BYTES as u64;
        let directories = directories(&memory, blocks)?;
        let subtables = subtables(&memory, blocks, &directories)?;
        if let Some(problem) = root_problems(&memory, &root, system_ms()).into_iter().next() {
            return Err(StoreError::Words(problem));
        }
        let ceiling = memory.load(root::VERSION_CEILING_WORD);
        let boot_id = options.boot_id.map_or_else(random_word, Ok)?;
        let store =
            Self::assemble(memory, root.table_id, boot_id, root.memory_bytes, root.segment_bytes, options, ceiling);
        store.memory.store(root::BOOT_ID_WORD, boot_id);
        // The keys of another life open nothing. That the segments are in use stays said: there are things in them.
        for segment in 0..root::MAX_SEGMENTS {
            let word = root::SEGMENTS_WORD + 2 * segment + 1;
            if SegmentWord(store.memory.load(word)).rkey() != 0 {
                store.memory.store(word, SegmentWord::in_use(0).0);
            }
        }
        let mut report = RecoveryReport { subtables: subtables.len() as u64, ..RecoveryReport::default() };
        store.finish_splits(&mut report)?;
        let routes = store.routes(&subtables)?;
        let settled = store.settle(&routes, options.recovery_threads)?;
        for part in &settled {
            report.keys += part.items.len() as u64;
            report.updates_finished += part.updates_finished;
            report.slots_emptied += part.slots_emptied;
        }
        store.rebuild_space(&directories, &subtables, settled.iter().flat_map(|part| part.items.iter().copied()))?;
        store.keys.store(report.keys, Ordering::Relaxed);
        store.subtables.store(report.subtables, Ordering::Relaxed);
        Ok((Arc::new(store), report))
    }

    /// Steps 4 to 6 of every split that has an intent. It never needs to double: that came before the intent.
    fn finish_splits(&self, report: &mut RecoveryReport) -> Result<(), StoreError> {
        for word in root::INTENTS_WORD..root::INTENTS_WORD + root::INTENTS {
            let intent = IntentWord(self.memory.load(word));
            if intent.is_none() {
                continue;
            }
            let depth = intent.depth();
            let current = DirectoryWord(self.memory.load(root::CURRENT_DIRECTORY_WORD));
            if depth == 0 || depth > current.depth() {
                return Err(StoreError::Damaged(format!("split intent {intent:?} in a directory of {current:?}")));
            }
            let first = current.address() * BLOCK_WORDS;
            let index = (0..1u64 << current.depth())
                .find(|index| DirectoryWord(self.memory.load(first + index)).address() == intent.old())
                .ok_or_else(|| StoreError::Damaged(format!("no entry leads to the subtable of {intent:?}")))?;
            self.publish_entries(intent.old(), intent.new_sibling(), depth - 1, current, index);
            for slot in 0..SUBTABLE_SLOTS as u64 {
                // The sibling is as it was made: nothing was inserted into it while the intent stood.
                let moved = !SlotWord(self.memory.load(intent.new_sibling() * BLOCK_WORDS + slot)).is_empty();
                let at = intent.old() * BLOCK_WORDS + slot;
                let kept = SlotWord(self.memory.load(at)).at_depth(depth);
                self.memory.store(at, if moved { SlotWord::empty(depth).0 } else { kept.0 });
            }
            self.memory.store(word, 0);
            report.splits_finished += 1;
        }
        Ok(())
    }

    /// All subtables, each with the hashes that lead to it: those of one are one row of the same entry.
    fn routes(&self, subtables: &BTreeSet<u64>) -> Result<Vec<Route>, StoreError> {
        let current = DirectoryWord(self.memory.load(root::CURRENT_DIRECTORY_WORD));
        let entry = |index| DirectoryWord(self.memory.load(current.address() * BLOCK_WORDS + index));
        let mut left = subtables.clone();
        let mut routes = Vec::with_capacity(left.len());
        let mut index = 0;
        while index < 1u64 << current.depth() {
            let first = entry(index);
            let span = 1u64 << current.depth().saturating_sub(first.depth());
            let is_row = index.is_multiple_of(span) && (index..index + span).all(|index| entry(index) == first);
            if first.depth() > current.depth() || !is_row || !left.remove(&first.address()) {
                return Err(StoreError::Damaged(format!("{span} entries of {current:?} from {index} on: {first:?}")));
            }
            routes.push(Route { entry: first, prefix: index / span });
            index += span;
        }
        match left.first() {
            None => Ok(routes),
            Some(lost) => Err(StoreError::Damaged(format!("the directory leads no more to the subtable at {lost:#x}"))),
        }
    }

    /// What no slot names is free.
    fn rebuild_space(
        &self,
        directories: &[(u8, u64)],
        subtables: &BTreeSet<u64>,
        items: impl Iterator<Item = (u64, u64)> + Clone,
    ) -> Result<(), StoreError> {
        let ends = directories.iter().map(|&(depth, address)| address + directory_blocks(depth));
        let ends = ends.chain(subtables.iter().map(|address| address + SUBTABLE_BLOCKS));
        let ends = ends.chain(items.clone().map(|(address, blocks)| address + super::classes::extent_blocks(blocks)));
        let used = ends.max().unwrap_or(0).max(root::ROOT_BLOCKS);
        if let Some(problem) = segments_problem(&self.memory, &read_root(&self.memory)?, used) {
            return Err(StoreError::Words(problem));
        }
        let mut growth = self.growth.lock();
        while growth.usable_blocks() < used {
            let bytes = self.segment_bytes;
            if !self.grow(&mut growth).map_err(|source| StoreError::Allocate { bytes, source })? {
                return Err(StoreError::Damaged(format!("something ends at block {used:#x}, past the space")));
            }
        }
        let mut space = self.space.lock();
        let overlap = |what: &str, address: u64| StoreError::Damaged(format!("{what} at block {address:#x} overlaps"));
        if !space.extents.take_for_ever_at(0, root::ROOT_BLOCKS) {
            return Err(overlap("the root", 0));
        }
        for &(depth, address) in directories {
            if !space.extents.take_for_ever_at(address, directory_blocks(depth)) {
                return Err(overlap("a directory", address));
            }
        }
        for &address in subtables {
            if !space.extents.take_for_ever_at(address, SUBTABLE_BLOCKS) {
                return Err(overlap("a subtable", address));
            }
        }
        for (address, blocks) in items {
            if !space.extents.take_at(address, blocks) {
                return Err(overlap("an item", address));
            }
        }
        Ok(())
    }
}
