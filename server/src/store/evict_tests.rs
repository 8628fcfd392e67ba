use std::sync::Arc;
use std::time::Duration;

use sidestep_core::memory::Memory;

use super::super::tests::{SMALL, Words, options};
use super::super::{StoreOptions, WriteError, check};
use super::*;

type Small = Arc<Store<Arc<Words>>>;

fn evicting(bytes: u64) -> Small {
    let options = StoreOptions { eviction: Eviction::Clock, ..options() };
    Store::create(Words::new(bytes), &options).unwrap()
}

fn stat(store: &Small, name: &str) -> u64 {
    store.stats().into_iter().find(|stat| stat.0 == name).unwrap().1
}

fn put(store: &Small, key: u64, bytes: usize) -> Result<u64, WriteError> {
    store.put(&key.to_le_bytes(), &vec![key as u8; bytes], None, 0)
}

fn get(store: &Small, key: u64) -> bool {
    let mut value = Vec::new();
    let got = store.get(&key.to_le_bytes(), &crossbeam_epoch::pin(), 1 << 20, &mut value);
    assert!(value.iter().all(|&byte| byte == key as u8), "key {key}");
    !matches!(got, super::super::Got::Absent)
}

/// Every extent that is in use is one that a slot names, and the table holds together.
fn is_sound(store: &Small) {
    let since = std::time::Instant::now();
    while stat(store, "extents") != store.keys() {
        assert!(since.elapsed() < Duration::from_secs(20), "{:?}", store.stats());
        crossbeam_epoch::pin().flush();
    }
    let report = check(store.memory().as_ref());
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

#[test]
fn a_full_store_takes_writes_for_ever() {
    let store = evicting(4 * SMALL);
    for key in 0..100_000 {
        put(&store, key, 100).unwrap_or_else(|error| panic!("key {key}: {error}"));
        assert!(get(&store, key), "what was just written is there");
    }
    assert!(stat(&store, "evicted") > 50_000, "{:?}", store.stats());
    assert!(store.keys() > 10_000, "no more is evicted than has to be: {}", store.keys());
    assert_eq!(stat(&store, "writes_refused_full"), 0);
    is_sound(&store);
}

#[test]
fn without_the_clock_a_full_store_refuses() {
    let store = Store::create(Words::new(SMALL), &options()).unwrap();
    let refused = (0..100_000).find_map(|key| put(&store, key, 100).err());
    assert!(matches!(refused, Some(WriteError::Full(_))), "{refused:?}");
    assert_eq!(stat(&store, "evicted"), 0);
}

/// Writes ten times what fits, beside `used`, which is called for 500 keys again and again. Returns how many of these
/// are there at the end.
fn survivors(used: impl Fn(&Small, u64)) -> u64 {
    // Over many slabs: when memory is full for the first time everything was just used, and any slab may be emptied.
    let hot = |place: u64| place % 500 * 16;
    let store = evicting(4 * SMALL);
    for key in 0..8000 {
        put(&store, key, 100).unwrap();
    }
    for key in 8000..100_000 {
        put(&store, key, 100).unwrap();
        if key % 4 == 0 {
            used(&store, hot(key / 4));
        }
    }
    is_sound(&store);
    (0..500).filter(|&place| get(&store, hot(place))).count() as u64
}

#[test]
fn what_is_used_stays() {
    // What is lost of them is what slabs that are emptied for subtables hold: some 60 to 115.
    let read = survivors(|store, key| _ = get(store, key));
    assert!(read > 300, "{read} of 500 that were read all the time");
    let told = survivors(|store, key| store.touch_hash(store.hash(&key.to_le_bytes())));
    assert!(told > 300, "{told} of 500 that a client said it read");
    let unused = survivors(|_, _| ());
    assert!(unused < 100, "{unused} of 500 that nobody used");
}

#[test]
fn every_size_gets_its_turn() {
    let store = evicting(8 * SMALL);
    let mut key = 0;
    for (bytes, times) in [(100, 50_000), (1000, 9000), (20_000, 600), (60, 60_000), (100_000, 100), (3000, 4000)] {
        for _ in 0..times {
            key += 1;
            put(&store, key, bytes).unwrap_or_else(|error| panic!("{bytes} bytes, key {key}: {error}"));
        }
        let latest = (key - times / 10..=key).filter(|&key| get(&store, key)).count() as u64;
        assert!(latest * 10 > times / 10 * 8, "{bytes} bytes: {latest} of the last {} are there", times / 10);
        is_sound(&store);
    }
}

/// Items that are longer than all that is there have their room from neighbours in a row. Seen to fail without that: what
/// came second was refused for ever.
#[test]
fn what_is_longer_than_all_that_is_there_finds_room() {
    let store = evicting(8 * SMALL);
    let mut key = 0;
    for (bytes, times) in [(9000, 2000), (12_000, 1500), (40_000, 400), (45_000, 400), (100_000, 100), (220_000, 60)] {
        for _ in 0..times {
            key += 1;
            put(&store, key, bytes).unwrap_or_else(|error| panic!("{bytes} bytes, key {key}: {error}"));
        }
        let latest = (key - times / 10..=key).filter(|&key| get(&store, key)).count() as u64;
        assert!(latest * 10 > times / 10 * 8, "{bytes} bytes: {latest} of the last {} are there", times / 10);
        assert_eq!(stat(&store, "writes_refused_full"), 0);
        is_sound(&store);
    }
}

/// Shorter ones that nobody uses do not keep their room for ever, though there is one that the next could replace.
#[test]
fn what_is_long_does_not_take_turns_with_itself_alone() {
    let store = evicting(8 * SMALL);
    let (cold, long) = (400, 1_000_000..1_000_400);
    for key in 0..cold {
        put(&store, key, 12_000).unwrap();
    }
    for key in long.clone() {
        put(&store, key, 60_000).unwrap();
    }
    let (cold, long) =
        ((0..cold).filter(|&key| get(&store, key)).count(), long.filter(|&key| get(&store, key)).count());
    assert!(cold < 100 && long > 80, "{cold} of the cold ones are left beside {long}");
    is_sound(&store);
}

/// Items of a subtable that somebody has locked stay where they are, and what is free beside them is used again.
#[test]
fn a_slab_that_did_not_become_empty_is_opened_again() {
    let store = evicting(4 * SMALL);
    for key in 0..8000 {
        put(&store, key, 100).unwrap();
    }
    let locked = store.try_lock_subtable(store.hash(&7_u64.to_le_bytes())).unwrap();
    let closed = |hand: &mut Hand| {
        assert!(store.empty_row(hand, Row::Slabs, (SLAB_BLOCKS, SLAB_BLOCKS)));
        store.space.lock().extents.closed_slabs()
    };
    let mut hand = store.lock(&store.clock.hand);
    let (first, second) = (closed(&mut hand), closed(&mut hand));
    assert!(!first.is_empty() && !second.is_empty());
    assert!(first.is_disjoint(&second), "{first:?} are still closed beside {second:?}");
    drop((hand, locked));
    is_sound(&store);
}

#[test]
fn a_version_is_not_given_twice_after_an_eviction() {
    let store = evicting(SMALL);
    let before = (0..5).map(|_| put(&store, 7, 100).unwrap()).max().unwrap();
    let mut key = 1000;
    while get(&store, 7) && key < 100_000 {
        // Its own look counts as a use: the hand has to come by more than once.
        for _ in 0..5000 {
            key += 1;
            put(&store, key, 100).unwrap();
        }
    }
    assert!(!get(&store, 7));
    assert!(put(&store, 7, 100).unwrap() > before);
}

#[test]
fn writers_evict_beside_each_other() {
    let store = evicting(4 * SMALL);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let store = &store;
            scope.spawn(move || {
                for i in 0..20_000_u64 {
                    let key = thread << 32 | i * 256 | i % 200;
                    let bytes = if i % 16 == 0 { 2000 } else { 80 };
                    put(store, key, bytes).unwrap_or_else(|error| panic!("{error}"));
                    get(store, thread << 32 | (i / 2) * 256 | i / 2 % 200);
                }
            });
        }
    });
    assert!(stat(&store, "evicted") > 10_000);
    is_sound(&store);
}

#[test]
fn a_use_is_marked_where_the_hand_looks() {
    let store = evicting(4 * SMALL);
    for key in 0..5000 {
        put(&store, key, 100).unwrap();
    }
    let marked = |store: &Small| {
        let mut count = 0;
        let mut hash = Some(KeyHash(0));
        while let Some(at) = hash {
            let entry = store.route(at);
            for slot in 0..SUBTABLE_SLOTS as u64 {
                let bits = &store.locks.beside(entry.address()).referenced[(slot / 64) as usize];
                let used = !SlotWord(store.memory.load(entry.address() * BLOCK_WORDS + slot)).is_empty();
                count +=
                    u64::from(used && bits.fetch_and(!(1 << (slot % 64)), Ordering::Relaxed) >> (slot % 64) & 1 == 1);
            }
            hash = at.after_prefix(entry.depth());
        }
        count
    };
    assert_eq!(marked(&store), 5000, "writes");
    assert_eq!(marked(&store), 0);
    (0..300).for_each(|key| assert!(get(&store, key)));
    assert_eq!(marked(&store), 300, "reads");
    (0..300).for_each(|key: u64| store.touch_hash(store.hash(&key.to_le_bytes())));
    assert!((300..310).contains(&marked(&store)), "what clients say");
}
