//! What a start does with a log that another server has left.

use std::path::Path;
use std::sync::Arc;

use sidestep_fabric::region::Region;

use super::segment::Facts;
use super::*;
use crate::store::StoreOptions;

const MEMORY_BYTES: u64 = 64 << 20;

fn open(folder: &Path) -> Stored {
    Stored::open(&LogConfig { path: folder.to_owned(), sync: SyncMode::Always }).unwrap()
}

fn new_store(memory_bytes: u64, options: &StoreOptions) -> Arc<Store<Region>> {
    Store::create(Region::memfd(memory_bytes).unwrap(), options).unwrap()
}

/// A batch whose sync has failed is in the kernel's cache, and the next start reads it as if it were on the disk. In the
/// second round the server had begun the segment that it was to be repeated in. Seen to fail without [`Stored::last`].
#[test]
fn what_only_the_cache_may_have_is_on_the_disk_before_it_is_served() {
    let new = || new_store(MEMORY_BYTES, &StoreOptions::default());
    for is_repeated in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let store = new();
        let (log, _compactor) = open(folder.path()).begin(&store).unwrap();
        store.put(b"synced", b"1", None, 0).unwrap();
        while log.queue.durable() < 1 {
            std::thread::yield_now();
        }
        let first = folder.path().join("segment-0000000001.redb");
        let on_disk = std::fs::read(&first).unwrap();
        store.put(b"in the cache", b"1", None, 0).unwrap();
        // Not ended in order: nobody said that it is whole.
        drop(log);
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
        let (mut stored, store) = (open(folder.path()), new());
        stored.rebuild(&store).unwrap();
        assert_eq!((stored.next, store.keys()), (2, 2), "repeated: {is_repeated}");
    }
}
