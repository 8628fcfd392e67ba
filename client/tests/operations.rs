//! Every operation, on every path that works here.

mod support;

use std::time::Duration;

use sidestep_client::{Answer, Client, Error, Options, Path, PathMode, PutOptions, Session};
use sidestep_core::limits::{DEFAULT_MAX_VALUE_BYTES, MAX_KEY_BYTES, MAX_WRITES_IN_FLIGHT};
use support::{address, connect, eventually, start};

/// Runs a test on each path, with and without a location cache, against one server each.
fn on_every_path(test: impl Fn(&mut Session, Path)) {
    for (path, cache) in [(Path::Tcp, 0), (Path::Shm, 0), (Path::Shm, 1024)] {
        let server = start();
        let options = Options::default().path(PathMode::Require(path)).location_cache(cache);
        let client = Client::connect(address(&server), options).unwrap();
        test(&mut client.session().unwrap(), path);
        server.stop();
    }
}

#[test]
fn what_is_written_is_read() {
    on_every_path(|session, path| {
        assert_eq!(session.get("key").unwrap(), None);
        let first = session.put("key", "one").unwrap();
        let value = session.get("key").unwrap().unwrap();
        assert_eq!((&value[..], value.version(), value.path()), (&b"one"[..], first, path));
        let second = session.put("key", "two").unwrap();
        assert!(second > first);
        let mut buffer = b"old".to_vec();
        let meta = session.get_into("key", &mut buffer).unwrap().unwrap();
        assert_eq!((&buffer[..], meta.version, meta.value_bytes), (&b"two"[..], second, 3));
        assert!(session.delete("key").unwrap());
        assert!(!session.delete("key").unwrap());
        assert_eq!(session.get_into("key", &mut buffer).unwrap(), None);
        assert!(buffer.is_empty());
        assert!(session.put("key", "three").unwrap() > second, "versions go on after a delete");
    });
}

#[test]
fn conditions_name_the_version_found() {
    on_every_path(|session, _| {
        assert!(matches!(session.put_if("k", "v", 7), Err(Error::VersionMismatch { found: 0 })));
        let version = session.put_if("k", "v", 0).unwrap();
        assert!(matches!(session.put_if("k", "w", 0), Err(Error::VersionMismatch { found }) if found == version));
        let next = session.put_if("k", "w", version).unwrap();
        assert!(matches!(session.delete_if("k", version), Err(Error::VersionMismatch { found }) if found == next));
        assert!(session.delete_if("k", next).unwrap());
        assert_eq!(session.get("k").unwrap(), None);
    });
}

#[test]
fn lengths_at_their_limits() {
    on_every_path(|session, _| {
        let longest_key = vec![b'k'; MAX_KEY_BYTES];
        let largest: Vec<u8> = (0..DEFAULT_MAX_VALUE_BYTES).map(|i| (i % 251) as u8).collect();
        for key in [&b"\0"[..], b"a", b"ab", b"a\0", b"\xff\xfe", &longest_key] {
            for value in [&b""[..], b"x", &[0; 63], &[1; 64], &[2; 5000], &largest[..200_000]] {
                session.put(key, value).unwrap();
                assert_eq!(&session.get(key).unwrap().unwrap()[..], value);
            }
        }
        session.put("large", &largest).unwrap();
        assert!(session.get("large").unwrap().unwrap()[..] == largest[..]);
        assert!(matches!(session.get(""), Err(Error::BadRequest(_))));
        assert!(matches!(session.get(vec![0; MAX_KEY_BYTES + 1]), Err(Error::TooLarge(_))));
        let too_large = vec![0; DEFAULT_MAX_VALUE_BYTES as usize + 1];
        assert!(matches!(session.put("k", too_large), Err(Error::TooLarge(_))));
        assert_eq!(session.get("a").unwrap().unwrap().len(), 200_000, "the session goes on");
    });
}

#[test]
fn batches_keep_their_order() {
    on_every_path(|session, path| {
        let pairs: Vec<(String, Vec<u8>)> =
            (0..5000).map(|i| (format!("key{i}"), vec![i as u8; i as usize % 700])).collect();
        let versions = session.multi_put(&pairs).unwrap();
        assert!(versions.iter().all(|version| version.as_ref().is_ok_and(|version| *version > 0)));
        let keys: Vec<String> = (0..10_000).map(|i| format!("key{i}")).collect();
        let values = session.multi_get(&keys).unwrap();
        assert_eq!(values.len(), keys.len());
        for (i, value) in values.iter().enumerate() {
            match pairs.get(i) {
                Some((_, expected)) => {
                    let value = value.as_ref().unwrap();
                    assert_eq!((&value[..], value.path()), (&expected[..], path));
                }
                None => assert!(value.is_none(), "key{i}"),
            }
        }
        let mut seen = vec![0; keys.len()];
        session.multi_get_with(&keys, |i, _| seen[i] += 1).unwrap();
        assert!(seen.iter().all(|times| *times == 1));
        assert!(session.multi_get::<&str>(&[]).unwrap().is_empty());
        assert!(session.multi_put::<&str, &str>(&[]).unwrap().is_empty());
        assert!(session.multi_get(&["a", ""]).is_err());
    });
}

#[test]
fn large_batches_do_not_lock_up() {
    on_every_path(|session, _| {
        // Far more than the sockets' buffers in both directions at once.
        let value = vec![7; 1 << 20];
        let pairs: Vec<(String, &[u8])> = (0..60).map(|i| (format!("k{i}"), &value[..])).collect();
        session.multi_put(&pairs).unwrap().into_iter().for_each(|version| assert!(version.is_ok()));
        let keys: Vec<&str> = pairs.iter().map(|(key, _)| key.as_str()).collect();
        let mut bytes = 0;
        session.multi_get_with(&keys, |_, found| bytes += found.unwrap().0.len()).unwrap();
        assert_eq!(bytes, 60 << 20);
    });
}

#[test]
fn submitted_requests_end_once() {
    on_every_path(|session, path| {
        let mut open = std::collections::HashMap::new();
        for i in 0..MAX_WRITES_IN_FLIGHT {
            open.insert(session.submit_put(format!("k{i}"), "v", PutOptions::default()).unwrap(), i);
        }
        assert!(matches!(session.submit_delete("k", None), Err(Error::TooManyInFlight { .. })));
        let drain = |session: &mut Session, open: &mut std::collections::HashMap<_, usize>| {
            while session.in_flight() > 0 {
                session.poll(|done| {
                    open.remove(&done.ticket).expect("a ticket that was given");
                    assert!(matches!(done.answer, Ok(Answer::Written { .. } | Answer::Removed { .. })));
                });
            }
            assert!(open.is_empty());
        };
        drain(session, &mut open);
        let mut gets = std::collections::HashMap::new();
        for i in 0..300 {
            gets.insert(session.submit_get(format!("k{i}")).unwrap(), i);
        }
        // A blocking call in between takes nothing away from them.
        assert!(session.get("k0").unwrap().is_some());
        session.ping().unwrap();
        while session.in_flight() > 0 {
            session.poll(|done| {
                let i = gets.remove(&done.ticket).expect("a ticket that was given");
                match done.answer.unwrap() {
                    Answer::Value(value, meta) => {
                        assert!(i < MAX_WRITES_IN_FLIGHT && value == b"v" && meta.path == path);
                    }
                    other => assert!(i >= MAX_WRITES_IN_FLIGHT && other == Answer::Absent, "{i}: {other:?}"),
                }
            });
        }
        assert!(gets.is_empty());
        assert_eq!(session.poll(|_| unreachable!()), 0, "nothing in flight, nothing to wait for");
        assert_eq!(session.try_poll(|_| unreachable!()), 0);
        open.insert(session.submit_delete("k1", None).unwrap(), 1);
        drain(session, &mut open);
    });
}

#[test]
fn values_expire() {
    on_every_path(|session, _| {
        let ttl = Some(Duration::from_secs(3600));
        session.put_with("later", "v", PutOptions { expect: None, ttl }).unwrap();
        assert!(session.get("later").unwrap().is_some());
        session.put_with("soon", "v", PutOptions { expect: None, ttl: Some(Duration::from_millis(30)) }).unwrap();
        eventually("the value expires", || session.get("soon").unwrap().is_none());
        assert_eq!(session.multi_get(&["soon", "later"]).unwrap().iter().flatten().count(), 1);
        // Unasked.
        eventually("its space comes back", || {
            let stats = session.stats().unwrap();
            stats.server.iter().any(|(name, count)| name == "expired_removed" && *count >= 1)
        });
        session.put("soon", "again").unwrap();
        assert!(session.get("soon").unwrap().is_some());
    });
}

#[test]
fn a_client_serves_many_threads() {
    let server = start();
    let client = connect(&server, PathMode::Auto);
    client.put("counter", 0u64.to_le_bytes()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let client = client.clone();
            scope.spawn(move || {
                for i in 0..50 {
                    client.put(format!("{thread}/{i}"), "v").unwrap();
                    // Compare-and-put until it succeeds.
                    loop {
                        let value = client.get("counter").unwrap().unwrap();
                        let count = u64::from_le_bytes(value[..].try_into().unwrap()) + 1;
                        match client.put_if("counter", count.to_le_bytes(), value.version()) {
                            Ok(_) => break,
                            Err(Error::VersionMismatch { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            });
        }
    });
    assert_eq!(client.get("counter").unwrap().unwrap()[..], 200u64.to_le_bytes());
    let stats = client.stats().unwrap();
    assert!(stats.client("tcp_put_ok").unwrap() >= 401);
    assert!(stats.client("shm_get_found").unwrap() >= 200);
    assert!(!stats.server.is_empty());
}

#[test]
fn shm_reads_take_nothing_from_the_server() {
    let server = start();
    let client = connect(&server, PathMode::Require(Path::Shm));
    let mut session = client.session().unwrap();
    session.put("k", "v").unwrap();
    let sent = |session: &mut Session| session.stats().unwrap().client("bytes_sent").unwrap();
    let before = sent(&mut session);
    for _ in 0..1000 {
        assert!(session.get("k").unwrap().is_some());
        assert!(session.get("absent").unwrap().is_none());
    }
    assert_eq!(sent(&mut session) - before, 40, "the request for statistics alone");
}

#[test]
fn the_location_cache_serves_and_notices_updates() {
    let server = start();
    let options = Options::default().path(PathMode::Require(Path::Shm)).location_cache(64);
    let client = Client::connect(address(&server), options).unwrap();
    let (mut reader, mut writer) = (client.session().unwrap(), client.session().unwrap());
    for i in 0..100u32 {
        let version = writer.put("k", i.to_le_bytes()).unwrap();
        for _ in 0..3 {
            let value = reader.get("k").unwrap().unwrap();
            assert_eq!((&value[..], value.version()), (&i.to_le_bytes()[..], version));
        }
    }
    writer.delete("k").unwrap();
    assert_eq!(reader.get("k").unwrap(), None);
    let stats = reader.stats().unwrap();
    assert!(stats.client("location_cache_hits").unwrap() >= 200);
}
