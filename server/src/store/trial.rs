//! A recovery on trial: what it would write goes into a map beside the memory.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use parking_lot::RwLock;
use sidestep_core::memory::{Memory, MemoryMut};

use super::{RecoveryReport, Store, StoreError, StoreOptions};

/// Whether [`Store::recover`] would take the table up, and what it would report. Changes nothing.
pub fn would_recover<M: Memory + Send + Sync + 'static>(
    memory: Arc<M>,
    options: &StoreOptions,
) -> Result<RecoveryReport, StoreError> {
    Ok(Store::recover(Trial { memory, written: RwLock::default() }, options)?.1)
}

/// Words that stay as they are, under those that were written since.
struct Trial<M> {
    memory: Arc<M>,
    /// Few: a recovery writes what a kill left open.
    written: RwLock<BTreeMap<u64, u64>>,
}

impl<M: Memory> Memory for Trial<M> {
    fn words(&self) -> u64 {
        self.memory.words()
    }
    fn load(&self, word: u64) -> u64 {
        self.written.read().get(&word).copied().unwrap_or_else(|| self.memory.load(word))
    }
    fn read(&self, word: u64, into: &mut [u8]) {
        self.memory.read(word, into);
        let end = word + into.len() as u64 / 8;
        for (&at, value) in self.written.read().range(word..end) {
            let from = (at - word) as usize * 8;
            into[from..from + 8].copy_from_slice(&value.to_le_bytes());
        }
    }
    fn prefetch(&self, word: u64, bytes: usize) {
        self.memory.prefetch(word, bytes);
    }
}

impl<M: Memory> MemoryMut for Trial<M> {
    fn store(&self, word: u64, value: u64) {
        self.written.write().insert(word, value);
    }
    fn fetch_max(&self, word: u64, value: u64) -> u64 {
        let mut written = self.written.write();
        let found = written.entry(word).or_insert_with(|| self.memory.load(word));
        let before = *found;
        *found = before.max(value);
        before
    }
    fn write(&self, word: u64, from: &[u8]) {
        for (at, bytes) in (word..).zip(from.chunks(8)) {
            let mut value = [0; 8];
            value[..bytes.len()].copy_from_slice(bytes);
            self.store(at, u64::from_le_bytes(value));
        }
    }
    fn fence(&self) {}
    fn allocate(&self, _word: u64, _bytes: u64) -> io::Result<()> {
        Ok(())
    }
}
