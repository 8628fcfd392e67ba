//! A table's life: some of every kind of write, with all its stores, and what each key may say at any of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use sidestep_core::hash::KeyHash;
use sidestep_server::store::{Store, StoreOptions};

use super::words::Words;

/// Bytes of the table.
pub(super) const MEMORY_BYTES: u64 = 512 << 10;
pub(super) const TABLE_ID: u64 = 0xbad_c0de;

pub(super) fn options() -> StoreOptions {
    StoreOptions {
        segment_bytes: Some(256 << 10),
        table_id: Some(TABLE_ID),
        reuse_at_once: true,
        ..StoreOptions::default()
    }
}

/// A write: after the store of number `end` the key is this.
#[derive(Clone, Debug)]
struct Write {
    key: Vec<u8>,
    /// None: removed.
    value: Option<Vec<u8>>,
    begin: usize,
    end: usize,
}

/// All of it.
#[derive(Debug)]
pub(super) struct History {
    stores: Vec<(u64, u64)>,
    writes: Vec<Write>,
    /// Stores after which there is a table.
    made: usize,
}

impl History {
    /// Puts and deletes of short and long values, updates, and keys of one window until it splits and doubles.
    pub(super) fn new() -> Self {
        let memory = Arc::new(Words::recording(MEMORY_BYTES / 8));
        let store = Store::create(memory.clone(), &options()).expect("a table");
        let mut history = Self { stores: Vec::new(), writes: Vec::new(), made: memory.stores().len() };
        let value = |i: usize| vec![i as u8 + 1; [0, 8, 100, 700, 3000][i % 5]];
        let name = |i: usize| format!("key {i}").into_bytes();
        let mut write = |key: Vec<u8>, value: Option<Vec<u8>>| {
            let begin = memory.stores().len();
            match &value {
                Some(value) => drop(store.put(&key, value, None, 0).expect("room")),
                None => assert!(store.delete(&key, None).expect("no condition").is_some()),
            }
            history.writes.push(Write { key, value, begin, end: memory.stores().len() });
        };
        for i in 0..30 {
            write(name(i), Some(value(i)));
        }
        for i in (0..30).step_by(3) {
            write(name(i), Some(value(i + 31)));
        }
        for i in (0..30).step_by(7) {
            write(name(i), None);
        }
        write(b"long".to_vec(), Some(vec![0xab; 20_000]));
        let crowded =
            (0u64..).map(|i| format!("{i:x}").into_bytes()).filter(|key| KeyHash::of(key, TABLE_ID).home() == 9);
        for (i, key) in crowded.take(40).enumerate() {
            write(key, Some(value(i * 5 + i % 2)));
        }
        history.stores = memory.stores();
        history
    }

    /// Numbers of stores after which there is a table, to that of the last.
    pub(super) fn moments(&self) -> std::ops::RangeInclusive<usize> {
        self.made..=self.stores.len()
    }

    /// The words after so many stores.
    pub(super) fn image(&self, stores: usize) -> Vec<u64> {
        let mut words = vec![0; (MEMORY_BYTES / 8) as usize];
        self.stores[..stores].iter().for_each(|&(word, value)| words[word as usize] = value);
        words
    }

    /// For each key everything that it may be after so many stores, of a table that nothing was done to.
    pub(super) fn allowed(&self, stores: usize) -> BTreeMap<&[u8], Vec<Option<&[u8]>>> {
        let mut allowed: BTreeMap<&[u8], Vec<Option<&[u8]>>> = BTreeMap::new();
        for write in &self.writes {
            let states = allowed.entry(&write.key).or_insert_with(|| vec![None]);
            if write.end <= stores {
                *states = vec![write.value.as_deref()];
            } else if write.begin < stores {
                states.push(write.value.as_deref());
            }
        }
        allowed
    }

    /// For each key everything that was ever written to it.
    pub(super) fn written(&self) -> BTreeMap<&[u8], Vec<Option<&[u8]>>> {
        let mut written: BTreeMap<&[u8], Vec<Option<&[u8]>>> = BTreeMap::new();
        for write in &self.writes {
            written.entry(&write.key).or_insert_with(|| vec![None]).push(write.value.as_deref());
        }
        written
    }
}
