//! Splitting a subtable, and doubling the directory for it.
//!
//! The numbered steps are those of `docs/PROTOCOL.md`. The subtable's lock is held from the first to the last,
//! the sibling's from its making on: were it free before the intent is cleared, an insert into it could be
//! undone by a recovery that replays the intent.

use std::sync::atomic::Ordering;

use sidestep_core::hash::KeyHash;
use sidestep_core::layout::bucket::{SUBTABLE_SLOTS, SlotWord};
use sidestep_core::layout::directory::DirectoryWord;
use sidestep_core::layout::item;
use sidestep_core::layout::root::{self, IntentWord};
use sidestep_core::limits::{BLOCK_WORDS, MAX_DEPTH};
use sidestep_core::location::Location;
use sidestep_core::memory::MemoryMut;

use super::{Locked, Store, WriteError};

/// Levels that the directory may be deeper than an even spread of subtables needs.
const DEPTH_MARGIN: u32 = 6;
/// Items whose headers are fetched ahead while a split hashes their keys.
const PREFETCH: usize = 16;

impl<M: MemoryMut + Send + Sync + 'static> Store<M> {
    /// Splits the locked subtable once. Its lock is still held afterwards; the key,
    /// whose hash is given, may belong to the sibling now.
    pub(super) fn split(&self, locked: &mut Locked<'_>, hash: KeyHash) -> Result<(), WriteError> {
        let old = locked.entry.address();
        let depth = locked.entry.depth();
        self.check_depth(depth)?;
        let sibling = self.take_subtable()?;
        // 1. Room for one more level.
        self.deepen(depth + 1)?;
        // 2. The sibling, locked, with the floor it inherits and the words that move.
        let mut sibling_floor = self.lock(self.locks.of(sibling));
        *sibling_floor = *locked.floor;
        self.inherit_expiry(old, sibling);
        self.inherit_references(old, sibling);
        let words: Vec<SlotWord> =
            (0..SUBTABLE_SLOTS as u64).map(|slot| SlotWord(self.memory.load(old * BLOCK_WORDS + slot))).collect();
        let moves = self.moving(&words, depth);
        let mut image = Vec::with_capacity(SUBTABLE_SLOTS * 8);
        for (word, &moves) in words.iter().zip(&moves) {
            let word = if moves { word.at_depth(depth + 1) } else { SlotWord::empty(depth + 1) };
            image.extend_from_slice(&word.0.to_le_bytes());
        }
        self.memory.fence();
        self.memory.write(sibling * BLOCK_WORDS, &image);
        // 3. From here on a recovery finishes the split.
        let intent = self.take_intent();
        self.memory.store(root::INTENTS_WORD + intent, IntentWord::new(depth + 1, old, sibling).0);
        // 4. The directory, the sibling's entries first.
        {
            let _directory = self.lock(&self.directory);
            let current = DirectoryWord(self.memory.load(root::CURRENT_DIRECTORY_WORD));
            self.publish_entries(old, sibling, depth, current, hash.directory_index(current.depth()));
        }
        // 5. The old subtable without what moved.
        for (slot, (word, &moves)) in words.iter().zip(&moves).enumerate() {
            let word = if moves { SlotWord::empty(depth + 1) } else { word.at_depth(depth + 1) };
            self.memory.store(old * BLOCK_WORDS + slot as u64, word.0);
        }
        // 6. Done.
        self.memory.store(root::INTENTS_WORD + intent, 0);
        self.give_intent(intent);
        drop(sibling_floor);
        self.subtables.fetch_add(1, Ordering::Relaxed);
        self.counters.splits.add_one();
        Ok(())
    }

    /// Refuses a depth that only keys made to collide would need.
    fn check_depth(&self, depth: u8) -> Result<(), WriteError> {
        let subtables = self.subtables.load(Ordering::Relaxed).max(1);
        let spread = subtables.ilog2() + DEPTH_MARGIN;
        let one_segment = (self.segment_bytes / 8).ilog2();
        let most = spread.min(one_segment).min(u32::from(MAX_DEPTH));
        if u32::from(depth) >= most {
            return Err(WriteError::Full(format!(
                "the key's window is full at directory depth {depth}, and {subtables} subtables allow no more than {most}: \
                 too many keys share a hash prefix"
            )));
        }
        Ok(())
    }

    /// Which words belong to the sibling. Fetches the cold headers ahead: 6 µs a subtable instead of 60.
    fn moving(&self, words: &[SlotWord], depth: u8) -> Vec<bool> {
        let prefetch = |word: Option<&SlotWord>| {
            if let Some(word) = word.filter(|word| !word.is_empty()) {
                self.memory.prefetch(word.location().word(), 2 * sidestep_core::limits::BLOCK_BYTES);
            }
        };
        words.iter().take(PREFETCH).for_each(|word| prefetch(Some(word)));
        let mut key = Vec::new();
        let mut moves = Vec::with_capacity(words.len());
        for (i, word) in words.iter().enumerate() {
            prefetch(words.get(i + PREFETCH));
            moves.push(!word.is_empty() && self.hash_at(word.location(), &mut key).moves_at(depth));
        }
        moves
    }

    /// The hash of an item's key.
    fn hash_at(&self, location: Location, key: &mut Vec<u8>) -> KeyHash {
        let lengths = self.memory.load(location.word() + item::LENGTHS);
        let key_bytes = usize::from(lengths as u16);
        key.resize(item::pad(key_bytes), 0);
        self.memory.read(location.word() + item::HEADER_BYTES as u64 / 8, key);
        self.hash(&key[..key_bytes])
    }

    /// Makes sure that the directory has `depth` levels.
    fn deepen(&self, depth: u8) -> Result<(), WriteError> {
        let _directory = self.lock(&self.directory);
        let current = DirectoryWord(self.memory.load(root::CURRENT_DIRECTORY_WORD));
        if current.depth() >= depth {
            return Ok(());
        }
        let directory = self.take_directory(depth)?;
        let from = current.address() * BLOCK_WORDS;
        let into = directory * BLOCK_WORDS;
        self.memory.fence();
        for index in 0..1u64 << current.depth() {
            let entry = self.memory.load(from + index);
            self.memory.store(into + 2 * index, entry);
            self.memory.store(into + 2 * index + 1, entry);
        }
        let word = DirectoryWord::new(depth, directory).0;
        self.memory.store(root::DIRECTORIES_WORD + u64::from(depth), word);
        self.memory.store(root::CURRENT_DIRECTORY_WORD, word);
        self.counters.doublings.add_one();
        Ok(())
    }

    /// Points the upper half of a subtable's entries at its sibling, then stamps the lower half. `index` is any
    /// of its entries. Under the directory lock, or in recovery; repeatable.
    pub(super) fn publish_entries(&self, old: u64, sibling: u64, depth: u8, current: DirectoryWord, index: u64) {
        let first = current.address() * BLOCK_WORDS;
        let span = 1u64 << (current.depth() - depth);
        let start = index / span * span;
        for entry in start + span / 2..start + span {
            self.memory.store(first + entry, DirectoryWord::new(depth + 1, sibling).0);
        }
        for entry in start..start + span / 2 {
            self.memory.store(first + entry, DirectoryWord::new(depth + 1, old).0);
        }
    }

    /// A free intent word. There are more of them than a server has writers at a split; waits otherwise.
    fn take_intent(&self) -> u64 {
        loop {
            let mut free = self.intents.lock();
            if *free != 0 {
                let intent = free.trailing_zeros();
                *free &= *free - 1;
                return u64::from(intent);
            }
            drop(free);
            std::thread::yield_now();
        }
    }

    fn give_intent(&self, intent: u64) {
        *self.intents.lock() |= 1 << intent;
    }
}

const _: () = assert!(root::INTENTS == 64, "intents are kept as the bits of one word");
