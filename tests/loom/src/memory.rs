//! A table's memory of which loom sees the words that matter.
//!
//! A table has tens of thousands of words, loom can follow some dozens. So most words are plain, and only the
//! ranges named in [`TableMemory::share`] are loom's. That is no simplification of the model, for it is
//! checked: a plain word that one side writes while another side touches it ends the test.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use loom::sync::atomic::fence;
use loom::thread::{self, ThreadId};
use sidestep_core::memory::{Memory, MemoryMut};
use sidestep_fabric::region::HeapRegion;

/// What is taken away from the words' orderings, to see that it is missed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weakness {
    /// Nothing: the words as they ship.
    #[default]
    None,
    /// `store` is relaxed.
    RelaxedStores,
    /// `load` is relaxed.
    RelaxedLoads,
    /// `fence` does nothing.
    NoFence,
    /// `read` has no fence after its copy.
    UnfencedReads,
}

/// Somebody other than the writer read this plain word.
const READ: u8 = 1;
/// The writer wrote this plain word.
const WRITTEN: u8 = 2;

/// Plain words with loom's in between, for one writer and any readers.
#[derive(Debug)]
pub struct TableMemory {
    writer: OnceLock<ThreadId>,
    weakness: Weakness,
    plain: Vec<AtomicU64>,
    touched: Vec<AtomicU8>,
    shared: OnceLock<Shared>,
}

/// The ranges, and their words one after another.
#[derive(Debug)]
struct Shared {
    ranges: Vec<Range<u64>>,
    region: HeapRegion,
    frozen: HashMap<u64, u64>,
}

impl Shared {
    /// Where in the region a word is.
    fn index(&self, word: u64) -> Option<u64> {
        let mut before = 0;
        for range in &self.ranges {
            if range.contains(&word) {
                return Some(before + word - range.start);
            }
            before += range.end - range.start;
        }
        None
    }
}

impl TableMemory {
    /// Zeroed words, all plain.
    pub fn new(words: u64, weakness: Weakness) -> Self {
        Self {
            writer: OnceLock::new(),
            weakness,
            plain: std::iter::repeat_with(|| AtomicU64::new(0)).take(words as usize).collect(),
            touched: std::iter::repeat_with(|| AtomicU8::new(0)).take(words as usize).collect(),
            shared: OnceLock::new(),
        }
    }

    /// Makes these words loom's, with the values that they have. The ranges are apart. Once, before readers start.
    ///
    /// Whoever is not the writer sees the `frozen` words for ever as they are now, next to shared ones. A model
    /// may use that only for words that, as they are, tell a reader nothing that it needs.
    pub fn share(&self, ranges: Vec<Range<u64>>, frozen: &[Range<u64>]) {
        let now = |word: u64| (word, self.plain[word as usize].load(Ordering::Relaxed));
        let frozen = frozen.iter().cloned().flatten().map(now).collect();
        let values: Vec<_> =
            ranges.iter().cloned().flatten().map(|word| self.plain[word as usize].load(Ordering::Relaxed)).collect();
        let shared = Shared { ranges, region: HeapRegion::new(values), frozen };
        assert!(self.shared.set(shared).is_ok(), "memory is shared once");
    }

    /// This thread is the writer, as long as the memory is shared.
    pub fn claim(&self) {
        if self.shared.get().is_some() {
            let id = thread::current().id();
            assert!(*self.writer.get_or_init(|| id) == id, "a memory has one writer");
        }
    }

    fn is_writers(&self) -> bool {
        self.writer.get().is_some_and(|writer| *writer == thread::current().id())
    }

    /// Where a word is in loom's memory; None if it is plain.
    fn shared(&self, word: u64) -> Option<(&HeapRegion, u64)> {
        let shared = self.shared.get()?;
        shared.index(word).map(|at| (&shared.region, at))
    }

    /// Where words are that are shared all of them.
    fn shared_all(&self, word: u64, count: u64) -> Option<(&HeapRegion, u64)> {
        let (region, first) = self.shared(word)?;
        let last = self.shared(word + count.saturating_sub(1))?.1;
        (last + 1 == first + count).then_some((region, first))
    }

    fn plain_load(&self, word: u64) -> u64 {
        if let Some(shared) = self.shared.get()
            && !self.is_writers()
        {
            if let Some(value) = shared.frozen.get(&word) {
                return *value;
            }
            let before = self.touched[word as usize].fetch_or(READ, Ordering::Relaxed);
            assert!(before & WRITTEN == 0, "word {word:#x} was written and is read: share it");
        }
        self.plain[word as usize].load(Ordering::Relaxed)
    }

    fn plain_store(&self, word: u64, value: u64) {
        if self.shared.get().is_some() {
            assert!(self.is_writers(), "word {word:#x} is written by a thread that is not the writer");
            let before = self.touched[word as usize].fetch_or(WRITTEN, Ordering::Relaxed);
            assert!(before & READ == 0, "word {word:#x} was read and is written: share it");
        }
        self.plain[word as usize].store(value, Ordering::Relaxed);
    }
}

impl Memory for TableMemory {
    fn words(&self) -> u64 {
        self.plain.len() as u64
    }

    fn load(&self, word: u64) -> u64 {
        match self.shared(word) {
            Some((region, at)) if self.weakness == Weakness::RelaxedLoads => region.atomic(at).load(Ordering::Relaxed),
            Some((region, at)) => region.load(at),
            None => self.plain_load(word),
        }
    }

    fn read(&self, word: u64, into: &mut [u8]) {
        let fenced = self.weakness != Weakness::UnfencedReads;
        if fenced && let Some((region, at)) = self.shared_all(word, into.len() as u64 / 8) {
            return region.read(at, into);
        }
        for (word, bytes) in (word..).zip(into.chunks_exact_mut(8)) {
            let value = match self.shared(word) {
                Some((region, at)) => region.atomic(at).load(Ordering::Relaxed),
                None => self.plain_load(word),
            };
            bytes.copy_from_slice(&value.to_le_bytes());
        }
        if fenced {
            fence(Ordering::Acquire);
        }
    }
}

impl MemoryMut for TableMemory {
    fn store(&self, word: u64, value: u64) {
        match self.shared(word) {
            Some((region, at)) if self.weakness == Weakness::RelaxedStores => {
                region.atomic(at).store(value, Ordering::Relaxed);
            }
            Some((region, at)) => region.store(at, value),
            None => self.plain_store(word, value),
        }
    }

    fn fetch_max(&self, word: u64, value: u64) -> u64 {
        match self.shared(word) {
            Some((region, at)) => region.fetch_max(at, value),
            None => {
                let before = self.plain[word as usize].load(Ordering::Relaxed);
                self.plain_store(word, before.max(value));
                before
            }
        }
    }

    // Word by word, for `region` adds no fence to a write: some may be plain.
    fn write(&self, word: u64, from: &[u8]) {
        for (word, bytes) in (word..).zip(from.chunks(8)) {
            match self.shared(word) {
                Some((region, at)) => region.write(at, bytes),
                None => {
                    let mut whole = [0; 8];
                    whole[..bytes.len()].copy_from_slice(bytes);
                    self.plain_store(word, u64::from_le_bytes(whole));
                }
            }
        }
    }

    fn fence(&self) {
        // Before anything is shared there is nobody to order stores for.
        if let Some(shared) = self.shared.get()
            && self.weakness != Weakness::NoFence
        {
            shared.region.fence();
        }
    }

    fn allocate(&self, _word: u64, _bytes: u64) -> io::Result<()> {
        Ok(())
    }
}
