//! The simulated memory, with every word of a write a store of its own.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use sidestep_core::layout::root;
use sidestep_core::memory::{Memory, MemoryMut};
use sidestep_fabric::sim::SimMemory;

/// [`SimMemory`] whose hook runs, and whose kill may come, before every word of a write.
#[derive(Clone, Debug)]
pub(crate) struct WordByWord(pub(crate) Arc<SimMemory>, Arc<AtomicU64>);

/// No kill is aimed at a split.
const UNAIMED: u64 = u64::MAX;

impl WordByWord {
    pub(crate) fn new(memory: SimMemory) -> Self {
        Self(Arc::new(memory), Arc::new(AtomicU64::new(UNAIMED)))
    }

    /// Kills the server this many stores after the next one of a split intent: random kills hardly meet a split.
    pub(crate) fn kill_in_split(&self, stores: u64) {
        self.1.store(stores, Ordering::Relaxed);
    }
}

impl Memory for WordByWord {
    fn words(&self) -> u64 {
        self.0.words()
    }
    fn load(&self, word: u64) -> u64 {
        self.0.load(word)
    }
    fn read(&self, word: u64, into: &mut [u8]) {
        for (i, bytes) in into.chunks_exact_mut(8).enumerate() {
            bytes.copy_from_slice(&self.0.load(word + i as u64).to_le_bytes());
        }
    }
}

impl MemoryMut for WordByWord {
    fn store(&self, word: u64, value: u64) {
        let is_intent = (root::INTENTS_WORD..root::INTENTS_WORD + root::INTENTS).contains(&word);
        if is_intent && value != 0 {
            let stores = self.1.swap(UNAIMED, Ordering::Relaxed);
            if stores != UNAIMED {
                self.0.kill_at(self.0.stores() + stores);
            }
        }
        self.0.store(word, value);
    }
    fn fetch_max(&self, word: u64, value: u64) -> u64 {
        self.0.fetch_max(word, value)
    }
    fn write(&self, word: u64, from: &[u8]) {
        let mut order: Vec<usize> = (0..from.len().div_ceil(8)).collect();
        let seed = self.0.stores() ^ word.rotate_left(32);
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        // Whole subtables are written in order: they are not published yet, and shuffling them finds nothing.
        if order.len() <= 128 && random.random() {
            order.shuffle(&mut random);
        }
        for index in order {
            let bytes = &from[index * 8..from.len().min(index * 8 + 8)];
            let mut value = [0; 8];
            value[..bytes.len()].copy_from_slice(bytes);
            self.0.store(word + index as u64, u64::from_le_bytes(value));
        }
    }
    fn fence(&self) {
        self.0.fence();
    }
    fn allocate(&self, word: u64, bytes: u64) -> io::Result<()> {
        self.0.allocate(word, bytes)
    }
}
