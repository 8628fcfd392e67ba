//! What no process test reaches: writes that a kill left open, and ends that have come.

use sidestep_core::layout::bucket::{self, SUBTABLE_SLOTS, SlotWord};
use sidestep_core::layout::item::{CHECKSUM, ComposeHeader, Link, LinkState, compose};
use sidestep_core::layout::root;
use sidestep_core::limits::BLOCK_WORDS;
use sidestep_core::location::Location;

use super::*;
use crate::store::tests::{SMALL, Words, options, small};
use crate::store::{Got, StoreOptions, check};

const NOW_MS: u64 = 1_800_000_000_000;

type Table = Arc<Store<Arc<Words>>>;

/// Everything of a table that can be kept, in a new one.
fn repaired(memory: &Arc<Words>) -> (Table, SalvageReport) {
    let salvage = Salvage::of(memory, std::slice::from_ref(&(0..SMALL)), NOW_MS).unwrap();
    let options = StoreOptions { version_floor: salvage.version_floor(), ..options() };
    let store = Store::create(Words::new(SMALL), &options).unwrap();
    let report = salvage.put_into(memory, &store).unwrap();
    assert!(check(store.memory()).is_sound());
    (store, report)
}

fn get(store: &Table, key: &[u8]) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    match store.get(key, &crossbeam_epoch::pin(), usize::MAX, &mut value) {
        Got::Copied { .. } => Some(value),
        _ => None,
    }
}

/// First word of a key's item, which is the only one whose key is this.
fn item_of(memory: &Words, key: &[u8; 8]) -> u64 {
    let blocks = root::ROOT_BLOCKS..SMALL / 64;
    let mut items = blocks.map(|block| block * BLOCK_WORDS).filter(|word| memory.load(word + 5).to_le_bytes() == *key);
    let item = items.next().unwrap();
    assert_eq!(items.next(), None);
    item
}

/// An item at the end of the space, as an update leaves it before its link is CURRENT.
fn put_pending(memory: &Words, table_id: u64, key: &[u8], value: &[u8], version: u64) -> Location {
    put_pending_at(SMALL / 64 - 4, memory, table_id, key, value, version)
}

fn put_pending_at(block: u64, memory: &Words, table_id: u64, key: &[u8], value: &[u8], version: u64) -> Location {
    let mut bytes = Vec::new();
    compose(&mut bytes, key, value, ComposeHeader { state: LinkState::Pending, version, expires_ms: 0 }, table_id);
    let location = Location::new(block, bytes.len().div_ceil(64) as u64);
    memory.write(location.word(), &bytes);
    location
}

#[test]
fn an_update_that_a_kill_left_open_is_finished() {
    let store = small(SMALL);
    let version = store.put(b"updated!", b"old", None, 0).unwrap();
    let memory = store.memory().clone();
    let old = item_of(&memory, b"updated!");
    let location = put_pending(&memory, store.table_id(), b"updated!", b"new", version + 1);
    // Before the old item leads to it, the update has not begun.
    assert_eq!(get(&repaired(&memory).0, b"updated!").as_deref(), Some(&b"old"[..]));
    memory.store(old, Link::forward(memory.load(old + CHECKSUM), location).0);
    let (after, report) = repaired(&memory);
    assert_eq!(get(&after, b"updated!").as_deref(), Some(&b"new"[..]));
    assert!(report.losses.is_empty() && report.keys_without_slot == 0, "{report:?}");
}

/// A damaged slot may lead to what was once another key's: a value that was replaced, and the one after it, of whose link
/// nothing can be told.
#[test]
fn a_slot_that_is_not_the_key_s_brings_nothing_of_it_back() {
    let store = small(SMALL);
    store.put(b"a key...", b"1", None, 0).unwrap();
    let (memory, key) = (store.memory().clone(), b"removed.");
    let new = put_pending(&memory, store.table_id(), key, b"2", 2);
    let old = put_pending_at(SMALL / 64 - 8, &memory, store.table_id(), key, b"1", 1);
    memory.store(old.word(), Link::forward(memory.load(old.word() + CHECKSUM), new).0);
    memory.store(new.word(), Link::bound(LinkState::Current, !memory.load(new.word() + CHECKSUM)).0);
    let hash = store.hash(key);
    let entry = store.route(hash);
    let slot_leads = |offset: u64| {
        let slot = (bucket::window_word(0, hash) + offset) % SUBTABLE_SLOTS as u64;
        let slot = entry.address() * BLOCK_WORDS + slot;
        let before = memory.load(slot);
        memory.store(slot, SlotWord::new(entry.depth(), hash.fingerprint(), old).0);
        let (after, report) = repaired(&memory);
        memory.store(slot, before);
        (get(&after, key), report.losses)
    };
    assert_eq!(slot_leads(0), (Some(b"2".to_vec()), vec![]), "its own slot is believed");
    let loss = Loss { reason: LossReason::Misplaced, key: None };
    assert_eq!(slot_leads(SUBTABLE_SLOTS as u64 / 2), (None, vec![loss]));
    // Nor is it said that the key was lost, where it was removed long ago.
    memory.store(new.word(), Link::bound(LinkState::Dead, memory.load(new.word() + CHECKSUM)).0);
    let loss = Loss { reason: LossReason::Removed, key: None };
    assert_eq!(slot_leads(SUBTABLE_SLOTS as u64 / 2), (None, vec![loss]));
}

/// The rest of the file is looked through all the same, and the new table has the file's size.
#[test]
fn a_root_that_says_too_little_memory_costs_nothing() {
    let store = small(SMALL);
    let mut keys = 0u64;
    while store.put(&keys.to_le_bytes(), &[7; 1000], None, 0).is_ok() {
        keys += 1;
    }
    store.memory().store(root::MEMORY_BYTES_WORD, SMALL / 4);
    let (after, report) = repaired(store.memory());
    assert_eq!((after.keys(), report.losses.len(), report.index_problems), (keys, 0, 0));
}

#[test]
fn what_has_expired_does_not_come_back_and_what_has_not_keeps_its_end() {
    let store = small(SMALL);
    store.raise_clock_floor(NOW_MS);
    store.put(b"forever!", b"1", None, 0).unwrap();
    store.put(b"ends now", b"1", None, NOW_MS + 1).unwrap();
    store.put(b"later...", b"1", None, NOW_MS * 2).unwrap();
    store.raise_clock_floor(NOW_MS + 1);
    let (after, report) = repaired(store.memory());
    assert_eq!((report.keys, report.expired), (2, 1));
    assert_eq!(after.clock_floor_ms(), NOW_MS + 1);
    after.raise_clock_floor(NOW_MS * 2);
    assert_eq!((get(&after, b"forever!").is_some(), get(&after, b"later...")), (true, None));
}

/// A damaged clock must not take everything with it that has an end.
#[test]
fn a_clock_of_another_age_is_not_believed() {
    let store = small(SMALL);
    store.put(b"later...", b"1", None, NOW_MS * 2).unwrap();
    store.raise_clock_floor(1 << 60);
    let (after, report) = repaired(store.memory());
    assert!(report.keys == 1 && report.expired == 0 && after.clock_floor_ms() < NOW_MS);
}

/// New versions are above those of items that are gone, whichever of the root's words is wrong.
#[test]
fn versions_are_above_all_that_is_known() {
    let store = small(SMALL);
    let version = store.put(b"a key...", b"1", None, 0).unwrap();
    let memory = store.memory();
    for (ceiling, is_wrong) in [(memory.load(root::VERSION_CEILING_WORD), false), (0, true), (u64::MAX, true)] {
        memory.store(root::VERSION_CEILING_WORD, ceiling);
        let (after, report) = repaired(memory);
        assert_eq!(report.ceiling_is_wrong, is_wrong);
        let known = if ceiling == u64::MAX { version } else { ceiling.max(version) };
        assert_eq!(report.version_floor, known + VERSION_JUMP);
        assert!(after.put(b"a key...", b"2", None, 0).unwrap() > report.version_floor);
        assert!(after.put(b"another.", b"1", None, 0).unwrap() > report.version_floor);
    }
}

#[test]
fn a_table_of_which_nothing_is_whole_is_left_alone() {
    let store = small(SMALL);
    assert_eq!(repaired(store.memory()).1.keys, 0, "an empty one is whole");
    store.put(b"a key...", b"1", None, 0).unwrap();
    store.memory().store(root::TABLE_ID_WORD, 5);
    assert!(matches!(
        Salvage::of(store.memory(), std::slice::from_ref(&(0..SMALL)), NOW_MS),
        Err(StoreError::Nothing { slots: 1 })
    ));
}
