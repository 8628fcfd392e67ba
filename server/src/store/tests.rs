//! The store against a plain map, in small tables, so that splits, doublings, reuse and full memory happen.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use sidestep_core::layout::bucket::{SUBTABLE_SLOTS, SlotWord};
use sidestep_core::layout::item::{Link, LinkState};
use sidestep_core::location::Location;
use sidestep_core::lookup::Geometry;
use sidestep_core::lookup::local::{LocalReader, Outcome};
use sidestep_core::memory::Memory;

use super::*;

/// Words in ordinary memory, of which the first so many bytes can be had.
#[derive(Debug)]
pub(super) struct Words(Vec<AtomicU64>, AtomicU64);

impl Words {
    pub(super) fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self((0..bytes / 8).map(|_| AtomicU64::new(0)).collect(), AtomicU64::new(u64::MAX)))
    }

    /// From now on allocation beyond this fails, as on a disk that is full.
    pub(super) fn limit(&self, bytes: u64) {
        self.1.store(bytes, Ordering::Relaxed);
    }
}

impl Memory for Words {
    fn words(&self) -> u64 {
        self.0.len() as u64
    }
    fn load(&self, word: u64) -> u64 {
        self.0[word as usize].load(Ordering::Acquire)
    }
    fn read(&self, word: u64, into: &mut [u8]) {
        for (i, bytes) in into.chunks_exact_mut(8).enumerate() {
            bytes.copy_from_slice(&self.load(word + i as u64).to_le_bytes());
        }
    }
}

impl MemoryMut for Words {
    fn store(&self, word: u64, value: u64) {
        self.0[word as usize].store(value, Ordering::Release);
    }
    fn fetch_max(&self, word: u64, value: u64) -> u64 {
        self.0[word as usize].fetch_max(value, Ordering::AcqRel)
    }
    fn write(&self, word: u64, from: &[u8]) {
        for (i, chunk) in from.chunks(8).enumerate() {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            self.store(word + i as u64, u64::from_le_bytes(bytes));
        }
    }
    fn fence(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
    }
    fn allocate(&self, word: u64, bytes: u64) -> io::Result<()> {
        match word * 8 + bytes <= self.1.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err(io::ErrorKind::StorageFull.into()),
        }
    }
}

pub(super) const SMALL: u64 = 1 << 20;

pub(super) fn options() -> StoreOptions {
    StoreOptions { segment_bytes: Some(256 << 10), ..StoreOptions::default() }
}

pub(super) fn small(bytes: u64) -> Arc<Store<Arc<Words>>> {
    Store::create(Words::new(bytes), &options()).unwrap()
}

fn geometry<M: MemoryMut + Send + Sync + 'static>(store: &Store<M>) -> Geometry {
    Geometry {
        table_id: store.table_id(),
        memory_bytes: store.memory_bytes(),
        max_value_bytes: store.max_value_bytes(),
    }
}

/// A GET through the server's own lock-free path.
pub(super) fn get(store: &Store<Arc<Words>>, key: &[u8]) -> Option<(u64, Vec<u8>)> {
    let mut value = Vec::new();
    match store.get(key, &crossbeam_epoch::pin(), usize::MAX, &mut value) {
        Got::Absent => None,
        Got::Copied { version, .. } => Some((version, value)),
        Got::Held(_) => panic!("a hold below the copy limit"),
    }
}

/// A GET as a client reads it.
pub(super) fn read(store: &Store<Arc<Words>>, key: &[u8]) -> Option<(u64, Vec<u8>)> {
    let mut reader = LocalReader::new(store.memory().clone(), geometry(store));
    match reader.get(key) {
        Outcome::Found { value, found } => Some((found.version, value.to_vec())),
        Outcome::Absent => None,
        Outcome::Ask => panic!("a reader alone had to ask"),
    }
}

#[test]
fn put_get_delete() {
    let store = small(SMALL);
    assert_eq!(get(&store, b"a"), None);
    let first = store.put(b"a", b"1", None, 0).unwrap();
    assert_eq!(get(&store, b"a"), Some((first, b"1".to_vec())));
    assert_eq!(read(&store, b"a"), Some((first, b"1".to_vec())));
    let second = store.put(b"a", b"22", None, 0).unwrap();
    assert_eq!(second, first + 1);
    assert_eq!(read(&store, b"a"), Some((second, b"22".to_vec())));
    assert_eq!(store.delete(b"a", None), Ok(Some(second)));
    assert_eq!(store.delete(b"a", None), Ok(None));
    assert_eq!(read(&store, b"a"), None);
    assert!(store.put(b"a", b"3", None, 0).unwrap() > second, "a version is never used twice for a key");
}

#[test]
fn compare_and_put() {
    let store = small(SMALL);
    assert_eq!(store.put(b"k", b"", Some(5), 0), Err(WriteError::VersionMismatch { found: 0 }));
    let version = store.put(b"k", b"", Some(0), 0).unwrap();
    assert_eq!(store.put(b"k", b"x", Some(0), 0), Err(WriteError::VersionMismatch { found: version }));
    assert_eq!(store.put(b"k", b"x", Some(version), 0), Ok(version + 1));
    assert_eq!(store.delete(b"k", Some(version)), Err(WriteError::VersionMismatch { found: version + 1 }));
    assert_eq!(store.delete(b"k", Some(version + 1)), Ok(Some(version + 1)));
}

#[test]
fn limits() {
    let store = small(SMALL);
    assert_eq!(store.put(b"", b"", None, 0), Err(WriteError::BadKey(0)));
    assert!(matches!(store.put(&[0; 4097], b"", None, 0), Err(WriteError::TooLarge(_))));
    let most = vec![7; store.max_value_bytes() as usize];
    store.put(&[0; 4096], &most, None, 0).unwrap();
    assert_eq!(read(&store, &[0; 4096]).unwrap().1, most);
    let more = vec![7; store.max_value_bytes() as usize + 1];
    assert!(matches!(store.put(b"k", &more, None, 0), Err(WriteError::TooLarge(_))));
    assert!(matches!(small_error(100), StoreError::Size { .. }));
}

fn small_error(bytes: u64) -> StoreError {
    Store::create(Words::new(bytes), &StoreOptions::default()).unwrap_err()
}

/// A refused write has its worker's other clients wait, so it waits only if something is to come. Seen to fail where it
/// waited in any case.
#[test]
fn a_full_table_is_waited_for_only_if_something_is_to_be_free() {
    let store = Store::create(Words::new(4 << 20), &StoreOptions::default()).unwrap();
    let waits = || store.stats().into_iter().find(|(name, _)| name == "reclaim_waits").unwrap().1;
    let mut keys = 0u32;
    let mut put = || {
        keys += 1;
        store.put(&keys.to_le_bytes(), &[7; 1000], None, 0)
    };
    while put().is_ok() {}
    let before = waits();
    assert!((0..100).all(|_| put().is_err()));
    assert_eq!(waits(), before);
    // A reader that stays has what it may be reading kept.
    let reader = crossbeam_epoch::pin();
    assert!(store.delete(&1u32.to_le_bytes(), None).unwrap().is_some());
    assert!(put().is_err());
    assert_eq!(waits(), before + u64::from(super::space::RECLAIM_ROUNDS));
    drop(reader);
    // Readers of other tests may stay for a while.
    let since = std::time::Instant::now();
    while put().is_err() {
        assert!(since.elapsed().as_secs() < 60, "what was deleted is not free");
    }
}

#[test]
fn grows_until_full_and_goes_on_after() {
    let store = small(4 * SMALL);
    let key = |i: u64| format!("key {i}").into_bytes();
    let mut count = 0;
    let error = loop {
        match store.put(&key(count), &count.to_le_bytes(), None, 0) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, WriteError::Full(_)), "{error}");
    assert!(count > 20_000, "only {count} keys fit");
    assert!(check(store.memory()).is_sound());
    for i in 0..count {
        assert_eq!(read(&store, &key(i)).unwrap().1, i.to_le_bytes(), "key {i}");
    }
    for i in 0..count {
        store.delete(&key(i), None).unwrap();
    }
    for i in 0..count / 2 {
        store.put(&key(i), b"again", None, 0).unwrap();
    }
    let report = check(store.memory());
    assert!(report.is_sound(), "{report:?}");
    assert_eq!((report.keys, store.keys()), (count / 2, count / 2));
}

#[test]
fn one_key_rewritten_for_ever_in_a_table_that_holds_it_twice() {
    let store = small(SMALL);
    let value = vec![1; 200 << 10];
    for i in 0..500 {
        store.put(b"key", &value, None, 0).unwrap_or_else(|e| panic!("write {i}: {e}"));
    }
}

#[test]
fn a_hold_outlives_the_item() {
    let store = small(SMALL);
    store.put(b"key", &[5; 100_000], None, 0).unwrap();
    let Got::Held(hold) = store.get(b"key", &crossbeam_epoch::pin(), 1000, &mut Vec::new()) else {
        panic!("expected a hold")
    };
    store.delete(b"key", None).unwrap();
    for i in 0..200u32 {
        store.put(&i.to_le_bytes(), &[6; 50_000], None, 0).unwrap();
        store.delete(&i.to_le_bytes(), None).unwrap();
    }
    let mut bytes = vec![0; 100_000];
    store.memory().read(hold.offset() / 8, &mut bytes);
    assert!(bytes.iter().all(|&byte| byte == 5));
}

#[test]
fn a_dropped_reservation_leaves_nothing() {
    let store = small(SMALL);
    store.put(b"k", b"v", None, 0).unwrap();
    let before = store.stats();
    drop(store.reserve(b"k", 50_000, 0).unwrap());
    assert_eq!(store.stats(), before);
}

#[test]
fn crafted_keys_cannot_double_the_directory_without_end() {
    let store = small(4 * SMALL);
    // Keys that share 16 leading hash bits and a window: found by trying.
    let mut found = 0;
    let mut refused = None;
    for i in 0u64.. {
        let key = i.to_le_bytes();
        let hash = store.hash(&key);
        if hash.0 >> 48 == 0 && hash.home() == 3 {
            found += 1;
            if let Err(error) = store.put(&key, b"", None, 0) {
                refused = Some(error);
                break;
            }
        }
        if found > 100 || i > 200_000_000 {
            break;
        }
    }
    assert!(matches!(refused, Some(WriteError::Full(ref text)) if text.contains("hash prefix")), "{refused:?}");
    store.put(b"another key", b"value", None, 0).unwrap();
    assert!(check(store.memory()).is_sound());
}

#[test]
fn expiry() {
    let store = small(SMALL);
    store.put(b"gone", b"v", None, 1).unwrap();
    store.put(b"stays", b"v", None, u64::MAX).unwrap();
    assert_eq!(get(&store, b"gone"), None);
    assert!(get(&store, b"stays").is_some());
    store.put(b"gone", b"new", Some(0), 0).unwrap();
    assert_eq!(get(&store, b"gone").unwrap().1, b"new");
}

#[test]
fn recovery_keeps_everything_and_versions_go_on() {
    let store = small(4 * SMALL);
    for i in 0..10_000u64 {
        store.put(&i.to_le_bytes(), &i.to_be_bytes(), None, 0).unwrap();
    }
    store.put(b"big", &[9; 150_000], None, 0).unwrap();
    store.delete(&3u64.to_le_bytes(), None).unwrap();
    let last = store.put(&4u64.to_le_bytes(), b"new", None, 0).unwrap();
    let memory = store.memory().clone();
    let stats = store.stats();
    drop(store);
    let (store, report) = Store::recover(memory, &options()).unwrap();
    assert_eq!(report.keys, 10_000);
    assert_eq!(get(&store, &4u64.to_le_bytes()), Some((last, b"new".to_vec())));
    assert_eq!(get(&store, &3u64.to_le_bytes()), None);
    assert_eq!(get(&store, b"big").unwrap().1, [9; 150_000]);
    let extents = |stats: &[(String, u64)]| stats.iter().find(|s| s.0 == "extent_bytes").unwrap().1;
    crossbeam_epoch::pin().flush();
    assert!(extents(&store.stats()) <= extents(&stats));
    assert!(store.put(&3u64.to_le_bytes(), b"", None, 0).unwrap() > 1 << 32, "floors are the ceiling after a start");
    assert!(check(store.memory()).is_sound());
}

/// The words of a table in which writes and deletes stopped half-way: every third slot's item is replaced or dead.
fn unsettled(store: &Store<Arc<Words>>) -> Vec<u64> {
    let memory = store.memory();
    let current = DirectoryWord(memory.load(root::CURRENT_DIRECTORY_WORD));
    let entries = (0..1u64 << current.depth())
        .map(|index| DirectoryWord(memory.load(current.address() * BLOCK_WORDS + index)).address());
    let subtables: std::collections::BTreeSet<u64> = entries.collect();
    let slots =
        subtables.iter().flat_map(|subtable| (0..SUBTABLE_SLOTS as u64).map(move |i| subtable * BLOCK_WORDS + i));
    let named: Vec<SlotWord> = slots.map(|slot| SlotWord(memory.load(slot))).filter(|word| !word.is_empty()).collect();
    for (i, word) in named.iter().enumerate() {
        let header = store.header(word.location());
        match i % 3 {
            0 => memory.store(word.location().word(), Link::bound(LinkState::Dead, header.checksum).0),
            1 => {
                // An update that came as far as its FORWARD word.
                let blocks = header.blocks();
                let next = Location::new(store.take_extent(blocks).unwrap(), blocks);
                let mut item = vec![0; blocks as usize * 64];
                memory.read(word.location().word(), &mut item);
                memory.write(next.word(), &item);
                memory.store(next.word(), Link::bound(LinkState::Pending, header.checksum).0);
                memory.store(word.location().word(), Link::forward(header.checksum, next).0);
            }
            _ => {}
        }
    }
    (0..memory.words()).map(|word| memory.load(word)).collect()
}

#[test]
fn threads_recover_what_one_does() {
    let store = small(4 * SMALL);
    for i in 0..9_000u64 {
        store.put(&i.to_le_bytes(), &i.to_be_bytes(), None, 0).unwrap();
    }
    let words = unsettled(&store);
    let recover = |recovery_threads| {
        let memory = Words::new(4 * SMALL);
        (0..).zip(&words).for_each(|(word, &value)| memory.store(word, value));
        let (store, report) = Store::recover(memory, &StoreOptions { recovery_threads, ..options() }).unwrap();
        assert!(check(store.memory()).is_sound());
        let words: Vec<u64> = (0..store.memory().words())
            .filter(|&word| word != root::BOOT_ID_WORD)
            .map(|word| store.memory().load(word))
            .collect();
        (words, report, store.stats())
    };
    let one = recover(1);
    assert_eq!((one.1.keys, one.1.updates_finished, one.1.slots_emptied), (6_000, 3_000, 3_000));
    for threads in [2, 3, 7, 1000] {
        assert!(recover(threads) == one, "{threads} threads");
    }
}

#[derive(Clone, Debug)]
enum Action {
    Put { key: u8, bytes: usize, expect: bool },
    Delete { key: u8 },
    Get { key: u8 },
    Restart,
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        6 => (any::<u8>(), prop_oneof![0usize..200, 0usize..20_000], any::<bool>())
            .prop_map(|(key, bytes, expect)| Action::Put { key, bytes, expect }),
        2 => any::<u8>().prop_map(|key| Action::Delete { key }),
        4 => any::<u8>().prop_map(|key| Action::Get { key }),
        1 => Just(Action::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Small memory, so that some writes find it full: those change nothing.
    #[test]
    fn behaves_like_a_map(actions in proptest::collection::vec(action(), 1..600)) {
        let mut store = small(SMALL);
        let mut model: BTreeMap<Vec<u8>, (u64, Vec<u8>)> = BTreeMap::new();
        for (i, action) in actions.into_iter().enumerate() {
            match action {
                Action::Put { key, bytes, expect } => {
                    let key = vec![key; 1 + key as usize % 40];
                    let value = vec![i as u8; bytes];
                    let old = model.get(&key).map_or(0, |old| old.0);
                    match store.put(&key, &value, expect.then_some(old), 0) {
                        Ok(version) => {
                            prop_assert!(version > old);
                            model.insert(key, (version, value));
                        }
                        Err(WriteError::Full(_)) => {}
                        Err(error) => prop_assert!(false, "{}", error),
                    }
                }
                Action::Delete { key } => {
                    let key = vec![key; 1 + key as usize % 40];
                    prop_assert_eq!(store.delete(&key, None), Ok(model.remove(&key).map(|old| old.0)));
                }
                Action::Get { key } => {
                    let key = vec![key; 1 + key as usize % 40];
                    let expected = model.get(&key).cloned();
                    prop_assert_eq!(get(&store, &key), expected.clone());
                    prop_assert_eq!(read(&store, &key), expected);
                }
                Action::Restart => {
                    let memory = store.memory().clone();
                    drop(store);
                    store = Store::recover(memory, &options()).unwrap().0;
                }
            }
        }
        for (key, value) in &model {
            let found = read(&store, key);
            prop_assert_eq!(found.as_ref(), Some(value));
        }
        let report = check(store.memory());
        prop_assert!(report.is_sound(), "{:?}", report);
        prop_assert_eq!(report.keys as usize, model.len());
    }
}
