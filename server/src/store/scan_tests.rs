//! Scans beside writers and splits, against what was written before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::tests::{Words, small};
use super::*;

type Table = Arc<Store<Arc<Words>>>;

/// All of a table: key, value, version, expiry. `between` runs after each page.
fn scan_all(store: &Table, limit_bytes: usize, mut between: impl FnMut()) -> Vec<(Vec<u8>, Vec<u8>, u64, u64)> {
    let (mut all, mut next) = (Vec::new(), Some(0));
    let mut last = Vec::new();
    while let Some(hash) = next {
        let guard = crossbeam_epoch::pin();
        next = store.scan(ScanFrom { hash, after: &last.clone() }, limit_bytes, &guard, &mut |met| {
            let mut value = Vec::new();
            let got = store.take_met(met, usize::MAX, &mut value);
            assert!(matches!(got, Got::Copied { version, .. } if version == met.version));
            last = met.key.to_vec();
            all.push((last.clone(), value, met.version, met.expires_ms));
            met.value_bytes as usize + met.key.len()
        });
        drop(guard);
        between();
    }
    all
}

#[test]
fn every_key_is_met_once_whatever_the_size_of_a_page() {
    let store = small(4 << 20);
    let mut expected = BTreeMap::new();
    for i in 0..4000u32 {
        let (key, value) = (i.to_le_bytes().to_vec(), format!("value {i}").into_bytes());
        store.put(&key, &value, None, 0).unwrap();
        let version = store.put(&key, &value, None, u64::MAX).unwrap();
        expected.insert(key, (value, version, u64::MAX));
    }
    for limit_bytes in [0, 1, 100, 5000, usize::MAX] {
        let found = scan_all(&store, limit_bytes, || {});
        assert_eq!(found.len(), 4000, "none twice, pages of {limit_bytes}");
        let found: BTreeMap<_, _> =
            found.into_iter().map(|(k, v, version, expires)| (k, (v, version, expires))).collect();
        assert_eq!(found, expected);
    }
}

/// Splits move half of a subtable away between two pages, and the directory doubles.
#[test]
fn splits_between_pages_lose_and_repeat_nothing() {
    let store = small(16 << 20);
    let old: BTreeSet<Vec<u8>> = (0..600u32).map(|i| i.to_le_bytes().to_vec()).collect();
    for key in &old {
        store.put(key, b"old", None, 0).unwrap();
    }
    let subtables = store.subtables.load(Ordering::Relaxed);
    let mut new = 0u32;
    let found = scan_all(&store, 1, || {
        // So many that it is split often, and that the scan can catch up.
        for _ in 0..if new < 8000 { 20 } else { 0 } {
            new += 1;
            store.put(format!("new {new}").as_bytes(), b"new", None, 0).unwrap();
        }
    });
    assert!(store.subtables.load(Ordering::Relaxed) > subtables + 20, "it was split meanwhile");
    let keys: Vec<_> = found.iter().filter(|item| item.1 == b"old").map(|item| item.0.clone()).collect();
    assert_eq!(keys.len(), old.len(), "once each");
    assert_eq!(keys.into_iter().collect::<BTreeSet<_>>(), old);
    let all: BTreeSet<_> = found.iter().map(|item| &item.0).collect();
    assert_eq!(all.len(), found.len(), "new ones at most once");
}

/// Updates, inserts and deletes on another thread while pages are read.
#[test]
fn writers_on_another_thread_disturb_nothing() {
    let store = small(16 << 20);
    for i in 0..500u32 {
        store.put(&i.to_le_bytes(), b"0", None, 0).unwrap();
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=40u32 {
                for i in 0..500u32 {
                    store.put(&i.to_le_bytes(), &round.to_le_bytes(), None, 0).unwrap();
                    let passing = format!("passing {i}");
                    store.put(passing.as_bytes(), b"", None, 0).unwrap();
                    if i % 3 != 0 || round == 40 {
                        store.delete(passing.as_bytes(), None).unwrap();
                    }
                }
            }
            is_over.store(true, Ordering::Release);
        });
        let mut scans = 0;
        let mut versions = BTreeMap::new();
        while !is_over.load(Ordering::Acquire) || scans == 0 {
            let found = scan_all(&store, 3000, || {});
            let stay: BTreeMap<_, _> = found.iter().filter(|item| item.0.len() == 4).map(|i| (&i.0, i.2)).collect();
            assert_eq!(stay.len(), 500);
            let all: BTreeSet<_> = found.iter().map(|item| &item.0).collect();
            assert_eq!(all.len(), found.len(), "none twice");
            for (key, version) in stay {
                let before = versions.insert(key.clone(), version).unwrap_or(0);
                assert!(version >= before, "a later scan finds no older version");
            }
            scans += 1;
        }
    });
}

#[test]
fn expired_keys_are_not_met_and_long_values_are_held() {
    let store = small(4 << 20);
    store.put(b"expired", b"value", None, 1).unwrap();
    store.put(b"long", &[7; 5000], None, 0).unwrap();
    let guard = crossbeam_epoch::pin();
    let mut met = 0;
    let next = store.scan(ScanFrom { hash: 0, after: b"" }, 1, &guard, &mut |item| {
        let got = store.take_met(item, 4999, &mut Vec::new());
        assert!(matches!(got, Got::Held(hold) if hold.value_bytes() == 5000));
        met += 1;
        1
    });
    assert_eq!((met, next), (1, None));
}

#[test]
fn a_flush_removes_everything_and_versions_go_on() {
    let store = small(8 << 20);
    let versions: Vec<u64> = (0..3000u32).map(|i| store.put(&i.to_le_bytes(), b"value", None, 0).unwrap()).collect();
    let (mut next, mut removed, mut steps) = (Some(0), 0, 0);
    while let Some(from) = next {
        let (then, gone) = store.flush(from);
        assert!(then.is_none_or(|then| then > from && then.trailing_zeros() >= 30));
        (next, removed, steps) = (then, removed + gone, steps + 1);
    }
    assert!(steps > 1);
    assert_eq!((removed, store.keys()), (3000, 0));
    assert!(scan_all(&store, usize::MAX, || {}).is_empty());
    let report = super::super::check(store.memory());
    assert!(report.is_sound(), "{:?}", report.problems);
    for (i, version) in (0..3000u32).zip(versions) {
        assert!(store.put(&i.to_le_bytes(), b"value", None, 0).unwrap() > version);
    }
}

#[test]
fn ranges_of_subtables_tile_the_hashes() {
    assert_eq!(range(u64::MAX, 0), (0, None));
    for depth in 1..=34 {
        let (mut from, mut count) = (Some(0), 0u64);
        while let Some(hash) = from.filter(|_| count < 1000) {
            let (start, end) = range(hash, depth);
            assert_eq!(start, hash);
            from = end;
            count += 1;
        }
        assert_eq!(count, (1u64 << depth).min(1000));
        assert_eq!(range(u64::MAX, depth).1, None);
    }
}
