//! One suite that every path passes unchanged, plain and over TLS. A new path is one line at the end.

#[path = "conformance/setup.rs"]
mod setup;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use sidestep_client::{Error, Path};
use sidestep_core::hash::KeyHash;

use self::setup::{Setup, Way, plain, tls};

fn put_get_delete(way: Way) {
    let setup = Setup::new(way, 16 << 20);
    let mut session = setup.session();
    assert_eq!(setup.get(&mut session, b"key"), None);
    let first = session.put(b"key", b"one").unwrap();
    assert_eq!(setup.get(&mut session, b"key").as_deref(), Some(&b"one"[..]));
    let second = session.put(b"key", b"two").unwrap();
    assert!(second > first);
    assert_eq!(session.get(b"key").unwrap().unwrap().version(), second);
    assert!(session.delete(b"key").unwrap());
    assert!(!session.delete(b"key").unwrap());
    assert_eq!(setup.get(&mut session, b"key"), None);
    assert!(session.put(b"key", b"three").unwrap() > second);
    // Writes go through the server's CPU on every path, by messages where there is a queue pair.
    let by = if matches!(way.path, Path::Rdma | Path::RdmaRpc) { "rdma_rpc" } else { "tcp" };
    let stats = session.stats().unwrap();
    assert_eq!(stats.client(&format!("{by}_put_ok")), Some(3));
    assert_eq!(stats.server(&format!("{by}_put_ok")), Some(3));
}

fn compare_and_put(way: Way) {
    let setup = Setup::new(way, 16 << 20);
    let mut session = setup.session();
    let version = session.put_if(b"key", b"1", 0).unwrap();
    let error = session.put_if(b"key", b"2", 0).unwrap_err();
    assert!(matches!(error, Error::VersionMismatch { found } if found == version), "{error}");
    let next = session.put_if(b"key", b"2", version).unwrap();
    assert!(matches!(session.delete_if(b"key", version), Err(Error::VersionMismatch { found }) if found == next));
    assert!(session.delete_if(b"key", next).unwrap());
    assert!(matches!(session.put_if(b"key", b"3", next), Err(Error::VersionMismatch { found: 0 })));
}

fn keys_and_values_of_every_size(way: Way) {
    let setup = Setup::new(way, 64 << 20);
    let mut session = setup.session();
    let largest = setup.client.server_info().unwrap().max_value_bytes as usize;
    let values = [0, 1, 7, 8, 9, 63, 64, 65, 1000, 4096, 4097, 8192, 16_384, 70_000, 300_000, largest];
    for (i, &bytes) in values.iter().enumerate() {
        let value: Vec<u8> = (0..bytes).map(|j| (i + j) as u8).collect();
        for key_bytes in [1, 8, 255, 4096] {
            let key = vec![i as u8; key_bytes];
            session.put(&key, &value).unwrap();
            assert!(
                setup.get(&mut session, &key).as_ref() == Some(&value),
                "{bytes} bytes behind a key of {key_bytes}"
            );
            session.delete(&key).unwrap();
        }
    }
    assert!(matches!(session.put(b"", b""), Err(Error::BadRequest(_) | Error::TooLarge(_) | Error::Options(_))));
    assert!(matches!(session.put(vec![0; 4097], b""), Err(Error::TooLarge(_))));
    assert!(matches!(session.put(b"key", vec![0; largest + 1]), Err(Error::TooLarge(_))));
    session.put(b"key", b"goes on").unwrap();
    assert_eq!(setup.get(&mut session, b"key").as_deref(), Some(&b"goes on"[..]));
}

fn keys_that_look_alike(way: Way) {
    let setup = Setup::new(way, 16 << 20);
    let mut session = setup.session();
    let keys: [&[u8]; 8] = [b"ab", b"abc", b"abc\0", b"abc\0\0", b"\0", b"\0\0", b"abcdefgh", b"abcdefgh\0"];
    for (i, key) in keys.iter().enumerate() {
        session.put(key, [i as u8]).unwrap();
    }
    for (i, key) in keys.iter().enumerate() {
        assert_eq!(setup.get(&mut session, key), Some(vec![i as u8]));
    }
    assert_eq!(setup.get(&mut session, b"a"), None);
    assert_eq!(setup.get(&mut session, b"abcd"), None);
}

fn fingerprint_collisions(way: Way) {
    let setup = Setup::new(way, 16 << 20);
    let mut session = setup.session();
    let table_id = setup.client.server_info().unwrap().table_id;
    let like = KeyHash::of(b"0", table_id);
    let same: Vec<String> = (0u64..)
        .map(|i| i.to_string())
        .filter(|key| {
            let hash = KeyHash::of(key.as_bytes(), table_id);
            hash.home() == like.home() && hash.fingerprint() == like.fingerprint()
        })
        .take(5)
        .collect();
    let (absent, present) = same.split_last().unwrap();
    for key in present {
        session.put(key, key).unwrap();
    }
    for key in present {
        assert_eq!(setup.get(&mut session, key.as_bytes()).as_deref(), Some(key.as_bytes()));
    }
    assert_eq!(setup.get(&mut session, absent.as_bytes()), None);
}

fn batches(way: Way) {
    let setup = Setup::new(way, 16 << 20);
    let mut session = setup.session();
    let pairs: Vec<(String, Vec<u8>)> = (0..500).map(|i| (format!("key {i}"), vec![i as u8; i])).collect();
    for written in session.multi_put(&pairs).unwrap() {
        written.unwrap();
    }
    let keys: Vec<String> = (0..600).rev().map(|i| format!("key {i}")).collect();
    let values = session.multi_get(&keys).unwrap();
    assert_eq!(values.len(), keys.len());
    for (key, value) in keys.iter().zip(values) {
        let expected = pairs.iter().find(|pair| pair.0 == *key).map(|pair| &pair.1);
        assert_eq!(value.as_ref().map(|value| &value[..]), expected.map(|value| &value[..]), "{key}");
        assert!(value.is_none_or(|value| value.path() == way.path));
    }
    assert!(session.multi_get::<&[u8]>(&[]).unwrap().is_empty());
}

/// Splits, doublings, new segments and a full table under readers who look for what was acknowledged.
fn growth_to_full_under_readers(way: Way) {
    let setup = Setup::new(way, 8 << 20);
    let acknowledged = AtomicU64::new(0);
    let full = AtomicBool::new(false);
    let key = |i: u64| format!("{i:016}");
    thread::scope(|scope| {
        for reader in 0..2u64 {
            let (setup, acknowledged, full) = (&setup, &acknowledged, &full);
            scope.spawn(move || {
                let mut session = setup.session();
                let mut random = reader + 1;
                while !full.load(Ordering::Relaxed) {
                    let known = acknowledged.load(Ordering::Acquire);
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    if known > 0 {
                        let i = random % known;
                        let value = setup.get(&mut session, key(i).as_bytes());
                        assert_eq!(value, Some(i.to_le_bytes().repeat(8)), "key {i} of {known}");
                    }
                    assert_eq!(setup.get(&mut session, format!("absent {random}").as_bytes()), None);
                }
            });
        }
        let mut session = setup.session();
        let error = loop {
            let i = acknowledged.load(Ordering::Relaxed);
            match session.put(key(i), i.to_le_bytes().repeat(8)) {
                Ok(_) => acknowledged.store(i + 1, Ordering::Release),
                Err(error) => break error,
            }
        };
        full.store(true, Ordering::Relaxed);
        assert!(matches!(error, Error::Full(_)), "{error}");
    });
    let count = acknowledged.load(Ordering::Relaxed);
    assert!(count > 20_000, "only {count} keys fit");
    let mut session = setup.session();
    for i in 0..count {
        assert_eq!(setup.get(&mut session, key(i).as_bytes()), Some(i.to_le_bytes().repeat(8)));
    }
    for i in 0..count / 10 {
        assert!(session.delete(key(i)).unwrap());
    }
    session.put("room again", "yes").unwrap();
}

/// Every increment is a compare-and-put: none may be lost or count twice.
fn counters_add_up(way: Way) {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 300;
    let setup = Setup::with_cache(way, 16 << 20, 1024);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let mut session = setup.session();
                for _ in 0..ROUNDS {
                    loop {
                        let old = session.get("counter").unwrap();
                        let (count, version) =
                            old.map_or((0, 0), |old| (u64::from_le_bytes(old[..8].try_into().unwrap()), old.version()));
                        match session.put_if("counter", (count + 1).to_le_bytes(), version) {
                            Ok(_) => break,
                            Err(Error::VersionMismatch { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            });
        }
    });
    let total = setup.get(&mut setup.session(), b"counter").unwrap();
    assert_eq!(total, (THREADS * ROUNDS).to_le_bytes());
}

/// One key rewritten in a loop with values of changing size, readers with and without a location cache:
/// whole values, and never an older one than before.
fn rewriting_under_readers(way: Way) {
    for cache in [0, 64] {
        let setup = Setup::with_cache(way, 16 << 20, cache);
        let done = AtomicBool::new(false);
        setup.session().put("key", value_of(0)).unwrap();
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut session = setup.session();
                    let mut last = 0;
                    while !done.load(Ordering::Relaxed) {
                        let value = setup.get(&mut session, b"key").expect("the key is never absent");
                        let number = u64::from_le_bytes(value[..8].try_into().unwrap());
                        assert!(value == value_of(number), "a torn value");
                        assert!(number >= last, "{number} after {last}");
                        last = number;
                    }
                });
            }
            let mut session = setup.session();
            for number in 1..3000 {
                session.put("key", value_of(number)).unwrap();
            }
            done.store(true, Ordering::Relaxed);
        });
    }
}

fn value_of(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(1 + number as usize % 300)
}

#[derive(Clone, Debug)]
enum Action {
    Put(u8, usize),
    PutIf(u8, usize, bool),
    Delete(u8),
    Get(u8),
    MultiGet(Vec<u8>),
}

fn action() -> impl Strategy<Value = Action> {
    let size = prop_oneof![4 => 0usize..300, 1 => 0usize..40_000];
    prop_oneof![
        5 => (any::<u8>(), size.clone()).prop_map(|(key, size)| Action::Put(key, size)),
        2 => (any::<u8>(), size, any::<bool>()).prop_map(|(key, size, right)| Action::PutIf(key, size, right)),
        2 => any::<u8>().prop_map(Action::Delete),
        4 => any::<u8>().prop_map(Action::Get),
        1 => proptest::collection::vec(any::<u8>(), 0..100).prop_map(Action::MultiGet),
    ]
}

/// Random operations beside a plain map with versions, in a table so small that some writes find it full.
fn behaves_like_a_map(way: Way) {
    let mut runner = TestRunner::new(ProptestConfig { cases: 24, ..ProptestConfig::default() });
    let ran = runner.run(&proptest::collection::vec(action(), 1..400), |actions| {
        let setup = Setup::with_cache(way, 4 << 20, 32);
        let mut session = setup.session();
        let mut model: BTreeMap<u8, (u64, Vec<u8>)> = BTreeMap::new();
        for (i, action) in actions.into_iter().enumerate() {
            let name = |key: u8| vec![key; 1 + key as usize / 8];
            match action {
                Action::Put(key, size) => match session.put(name(key), vec![i as u8; size]) {
                    Ok(version) => {
                        let old = model.insert(key, (version, vec![i as u8; size]));
                        prop_assert!(old.is_none_or(|old| old.0 < version));
                    }
                    Err(error) => prop_assert!(matches!(error, Error::Full(_)), "{}", error),
                },
                Action::PutIf(key, size, right) => {
                    let found = model.get(&key).map_or(0, |old| old.0);
                    let expect = if right { found } else { found + 1 };
                    match session.put_if(name(key), vec![i as u8; size], expect) {
                        Ok(version) => {
                            prop_assert!(right && version > found);
                            model.insert(key, (version, vec![i as u8; size]));
                        }
                        Err(Error::VersionMismatch { found: told }) => prop_assert!(!right && told == found),
                        Err(error) => prop_assert!(matches!(error, Error::Full(_)), "{}", error),
                    }
                }
                Action::Delete(key) => {
                    prop_assert_eq!(session.delete(name(key)).unwrap(), model.remove(&key).is_some());
                }
                Action::Get(key) => {
                    let found = session.get(name(key)).unwrap().map(|value| (value.version(), value.into_vec()));
                    prop_assert_eq!(found.as_ref(), model.get(&key));
                }
                Action::MultiGet(keys) => {
                    let names: Vec<Vec<u8>> = keys.iter().map(|&key| name(key)).collect();
                    let found = session.multi_get(&names).unwrap();
                    for (key, found) in keys.iter().zip(found) {
                        let found = found.map(|value| (value.version(), value.into_vec()));
                        prop_assert_eq!(found.as_ref(), model.get(key));
                    }
                }
            }
        }
        setup.server.stop();
        Ok(())
    });
    ran.unwrap_or_else(|error| panic!("{error}"));
}

macro_rules! conformance {
    ($($(#[$attribute:meta])* $name:ident: $way:expr;)*) => {$(
        mod $name {
            use super::*;

            $(#[$attribute])*
            #[test]
            fn put_get_delete() { super::put_get_delete($way) }
            $(#[$attribute])*
            #[test]
            fn compare_and_put() { super::compare_and_put($way) }
            $(#[$attribute])*
            #[test]
            fn keys_and_values_of_every_size() { super::keys_and_values_of_every_size($way) }
            $(#[$attribute])*
            #[test]
            fn keys_that_look_alike() { super::keys_that_look_alike($way) }
            $(#[$attribute])*
            #[test]
            fn fingerprint_collisions() { super::fingerprint_collisions($way) }
            $(#[$attribute])*
            #[test]
            fn batches() { super::batches($way) }
            $(#[$attribute])*
            #[test]
            fn growth_to_full_under_readers() { super::growth_to_full_under_readers($way) }
            $(#[$attribute])*
            #[test]
            fn counters_add_up() { super::counters_add_up($way) }
            $(#[$attribute])*
            #[test]
            fn rewriting_under_readers() { super::rewriting_under_readers($way) }
            $(#[$attribute])*
            #[test]
            fn behaves_like_a_map() { super::behaves_like_a_map($way) }
        }
    )*};
}

conformance! {
    tcp: plain(Path::Tcp);
    shm: plain(Path::Shm);
    #[ignore = "needs an RDMA device: scripts/guest"]
    rdma: plain(Path::Rdma);
    #[ignore = "needs an RDMA device: scripts/guest"]
    rdma_rpc: plain(Path::RdmaRpc);
    tcp_over_tls: tls(Path::Tcp);
    shm_over_tls: tls(Path::Shm);
    #[ignore = "needs an RDMA device: scripts/guest"]
    rdma_over_tls: tls(Path::Rdma);
    #[ignore = "needs an RDMA device: scripts/guest"]
    rdma_rpc_over_tls: tls(Path::RdmaRpc);
}
