//! Memory of a table that remembers its stores.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use sidestep_core::memory::{Memory, MemoryMut};

/// Words, and every store that was made since [`Self::recording`].
#[derive(Debug)]
pub(super) struct Words {
    words: Box<[AtomicU64]>,
    stores: Option<Mutex<Vec<(u64, u64)>>>,
}

impl Words {
    /// Zeros that remember.
    pub(super) fn recording(words: u64) -> Self {
        Self { stores: Some(Mutex::default()), ..Self::of(&vec![0; words as usize]) }
    }

    /// These words, that remember nothing.
    pub(super) fn of(words: &[u64]) -> Self {
        Self { words: words.iter().map(|word| AtomicU64::new(*word)).collect(), stores: None }
    }

    /// Word and value of each store so far, in their order.
    pub(super) fn stores(&self) -> Vec<(u64, u64)> {
        let stores = self.stores.as_ref().map(|stores| stores.lock().unwrap_or_else(PoisonError::into_inner).clone());
        stores.unwrap_or_default()
    }

    fn note(&self, word: u64, value: u64) {
        if let Some(stores) = &self.stores {
            stores.lock().unwrap_or_else(PoisonError::into_inner).push((word, value));
        }
    }
}

impl Memory for Words {
    fn words(&self) -> u64 {
        self.words.len() as u64
    }
    fn load(&self, word: u64) -> u64 {
        self.words[word as usize].load(Ordering::Acquire)
    }
    fn read(&self, word: u64, into: &mut [u8]) {
        for (i, bytes) in into.chunks_exact_mut(8).enumerate() {
            bytes.copy_from_slice(&self.load(word + i as u64).to_le_bytes());
        }
    }
}

impl MemoryMut for Words {
    fn store(&self, word: u64, value: u64) {
        self.note(word, value);
        self.words[word as usize].store(value, Ordering::Release);
    }
    fn fetch_max(&self, word: u64, value: u64) -> u64 {
        let before = self.words[word as usize].fetch_max(value, Ordering::AcqRel);
        if value > before {
            self.note(word, value);
        }
        before
    }
    fn write(&self, word: u64, from: &[u8]) {
        for (i, bytes) in from.chunks(8).enumerate() {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            self.store(word + i as u64, u64::from_le_bytes(whole));
        }
    }
    fn fence(&self) {}
    fn allocate(&self, _word: u64, _bytes: u64) -> io::Result<()> {
        Ok(())
    }
}
