//! The same words on the heap: for loom, whose atomics fit no mapping.

use std::io;

use sidestep_core::memory::{Memory, MemoryMut};

use super::atomic::AtomicU64;
use super::words::Words;

/// Words that are made of the same code as those of a mapping, in ordinary memory. Under loom only.
#[derive(Debug)]
pub struct HeapRegion {
    // Before the memory that it points into.
    words: Words,
    memory: Vec<AtomicU64>,
}

impl HeapRegion {
    /// Words of these values.
    pub fn new(values: impl IntoIterator<Item = u64>) -> Self {
        let memory: Vec<_> = values.into_iter().map(AtomicU64::new).collect();
        // SAFETY: aligned; the vector is never changed and lives as long as the region, and its words are atomic.
        let words = unsafe { Words::new(memory.as_ptr().cast_mut().cast(), memory.len() as u64) };
        Self { words, memory }
    }

    /// One word, for tests that weaken an access to see that it matters.
    pub fn atomic(&self, word: u64) -> &AtomicU64 {
        &self.memory[word as usize]
    }
}

impl Memory for HeapRegion {
    fn words(&self) -> u64 {
        self.words.words()
    }
    fn load(&self, word: u64) -> u64 {
        self.words.load(word)
    }
    fn read(&self, word: u64, into: &mut [u8]) {
        self.words.read(word, into);
    }
}

impl MemoryMut for HeapRegion {
    fn store(&self, word: u64, value: u64) {
        self.words.store(word, value);
    }
    fn fetch_max(&self, word: u64, value: u64) -> u64 {
        self.words.fetch_max(word, value)
    }
    fn write(&self, word: u64, from: &[u8]) {
        self.words.write(word, from);
    }
    fn fence(&self) {
        self.words.fence();
    }
    fn allocate(&self, _word: u64, _bytes: u64) -> io::Result<()> {
        Ok(())
    }
}
