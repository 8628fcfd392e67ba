//! What a start does with a log that another server has left.

use std::path::Path;
use std::sync::Arc;

use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use sidestep_fabric::region::Region;

use super::segment::Facts;
use super::*;
use crate::store::{Eviction, StoreOptions};

const MEMORY_BYTES: u64 = 64 << 20;

fn open(folder: &Path) -> Stored {
    Stored::open(&LogConfig { path: folder.to_owned(), sync: SyncMode::Always }).unwrap()
}

fn new_store(memory_bytes: u64, options: &StoreOptions) -> Arc<Store<Region>> {
    Store::create(Region::memfd(memory_bytes).unwrap(), options).unwrap()
}

/// The empty table that a start makes for a log: its versions are above all of the log's.
fn store_for(stored: &Stored, memory_bytes: u64, options: StoreOptions) -> Arc<Store<Region>> {
    new_store(memory_bytes, &StoreOptions { version_floor: stored.ceiling(), ..options })
}

/// A batch whose sync has failed is in the kernel's cache, and the next start reads it as if it were on the disk. In the
/// second round the server had begun the segment that it was to be repeated in. Seen to fail without [`Stored::last`].
#[test]
fn what_only_the_cache_may_have_is_on_the_disk_before_it_is_served() {
    let new = || new_store(MEMORY_BYTES, &StoreOptions::default());
    for is_repeated in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let store = new();
        let (log, compactor) = open(folder.path()).begin(&store).unwrap();
        store.put(b"synced", b"1", None, 0).unwrap();
        while log.queue.durable() < 1 {
            std::thread::yield_now();
        }
        let first = folder.path().join("segment-0000000001.redb");
        let on_disk = std::fs::read(&first).unwrap();
        store.put(b"in the cache", b"1", None, 0).unwrap();
        // Not ended in order: nobody said that it is whole.
        drop((log, compactor));
        if is_repeated {
            let log_id = open(folder.path()).id();
            let facts = Facts { log_id, number: 2, base: 1, first: 1, ceiling: 0 };
            drop(Segment::create(&folder.path().join("segment-0000000002.redb"), facts, &Arc::default()).unwrap());
        }
        let stored = open(folder.path());
        assert_eq!((stored.clean, stored.next), (None, 2));
        drop(stored.begin(&new()).unwrap());
        // The machine goes down, and the cache with it.
        std::fs::write(&first, on_disk).unwrap();
        let mut stored = open(folder.path());
        let store = store_for(&stored, MEMORY_BYTES, StoreOptions::default());
        stored.rebuild(&store).unwrap();
        assert_eq!((stored.next, store.keys()), (2, 2), "repeated: {is_repeated}");
    }
}

/// A start may fail when the log has all of the table, and ends in order, and only its notes are not what they should be. A
/// server without the log may write the table then. Seen to fail where an end in order was enough.
#[test]
fn a_log_that_is_being_filled_is_filled_again_though_it_was_ended_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let store = new_store(MEMORY_BYTES, &StoreOptions::default());
    let stored = open(folder.path());
    stored.set_lives(&[store.boot_id()], true).unwrap();
    drop(stored.go_on(&store, true).unwrap());
    let mut stored = open(folder.path());
    assert_eq!((stored.clean, stored.is_to_be_filled().unwrap()), (Some(stored.next), true));
    let new = || new_store(MEMORY_BYTES, &StoreOptions::default());
    assert!(matches!(stored.rebuild(&new()), Err(LogError::Unfilled { .. })));
    // As the next server finds it: this one's journal was the first one's.
    let table = new();
    table.put(b"key", b"without the log", None, 0).unwrap();
    let log = stored.go_on(&table, true).unwrap();
    log.settle(store.boot_id()).unwrap();
    drop(log);
    let mut stored = open(folder.path());
    let after = store_for(&stored, MEMORY_BYTES, StoreOptions::default());
    stored.rebuild(&after).unwrap();
    assert_eq!(after.keys(), 1);
}

/// A delete of what a smaller table had to evict writes no record: there is nothing to delete. Seen to fail where the log is
/// compacted only after the start.
#[test]
fn what_is_evicted_by_a_start_does_not_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let big = new_store(MEMORY_BYTES, &StoreOptions::default());
    let log = open(folder.path()).go_on(&big, false).unwrap();
    let key = |i: u32| i.to_le_bytes();
    for i in 0..12_000 {
        big.put(&key(i), &[7; 1000], None, 0).unwrap();
    }
    drop(log);
    let mut stored = open(folder.path());
    let small = store_for(&stored, 8 << 20, StoreOptions { eviction: Eviction::Clock, ..StoreOptions::default() });
    stored.rebuild(&small).unwrap();
    let _log = stored.go_on(&small, false).unwrap();
    // What the disk has when the machine goes down now.
    let crashed = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(folder.path()).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), crashed.path().join(file.file_name())).unwrap();
    }
    let mut stored = open(crashed.path());
    let again = store_for(&stored, MEMORY_BYTES, StoreOptions::default());
    stored.rebuild(&again).unwrap();
    assert!(small.keys() < 11_000, "{}", small.keys());
    assert_eq!(again.keys(), small.keys());
}

/// A full table, of values of all lengths, is made again from its log under another hash seed: the log as it was written,
/// and compacted. Seen to fail with less memory kept, with threads that are batches apart, and with space that is freed late.
#[test]
fn what_was_full_fits_again() {
    for (round, longest) in [24, 200, 1000, 5000, 60_000].into_iter().enumerate() {
        let memory_bytes = [16 << 20, 64 << 20][round % 2];
        let folder = tempfile::tempdir().unwrap();
        let sync = SyncMode::Off;
        let open = || Stored::open(&LogConfig { path: folder.path().to_owned(), sync }).unwrap();
        let mut store = new_store(memory_bytes, &StoreOptions::default());
        let (mut log, mut compactor) = open().begin(&store).unwrap();
        let mut keys = 0u32;
        let mut random = Xoshiro256PlusPlus::seed_from_u64(round as u64);
        for life in 0..4 {
            let value = |random: &mut Xoshiro256PlusPlus| vec![7; random.random_range(longest / 4..=longest)];
            // Full, with some deletes and updates on the way.
            let mut refused = 0;
            while refused < 20 {
                keys += 1;
                match store.put(&keys.to_le_bytes(), &value(&mut random), None, 0) {
                    Ok(_) => {}
                    Err(_) => refused += 1,
                }
                if keys.is_multiple_of(5) {
                    let old = random.random_range(0..keys);
                    store.delete(&old.to_le_bytes(), None).unwrap();
                }
            }
            let before = store.keys();
            drop((log, compactor));
            let mut stored = open();
            store = store_for(&stored, memory_bytes, StoreOptions::default());
            stored.rebuild(&store).unwrap();
            assert_eq!(store.keys(), before, "values of up to {longest} B, life {life}");
            (log, compactor) = stored.begin(&store).unwrap();
            if life % 2 == 0 {
                compactor.compact().unwrap();
            }
        }
    }
}
