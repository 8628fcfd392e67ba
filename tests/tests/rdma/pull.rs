//! Large values that the server reads out of its clients' memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use sidestep_client::{Error, Options, Path, PathMode, PutOptions, Session};
use sidestep_core::message::{LentValue, REQUEST_BYTES, Status};
use sidestep_fabric::rdma::MESSAGE_BYTES;
use sidestep_tests::process::ServerProcess;

use super::leaks::eventually;
use super::raw::{Lender, lend_over_the_socket};
use super::wire::{across, netem};
use super::{options, session, start};

pub(super) fn by(path: Path) -> Options {
    Options::default().path(PathMode::Require(path))
}

pub(super) fn value(bytes: usize, salt: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * 31 + i / 4093 + salt) as u8).collect()
}

pub(super) fn of_server(session: &mut Session, name: &str) -> u64 {
    session.stats().unwrap().server(name).unwrap_or_else(|| panic!("no counter {name}"))
}

/// Values that are being read, or were not read to their end. Of one worker, which answers this itself.
pub(super) fn not_whole(session: &mut Session) -> u64 {
    let stats = session.stats().unwrap();
    stats.server("pulls_begun").unwrap().saturating_sub(stats.server("pulled_puts").unwrap())
}

/// Extents that are not items of keys: none, but while a write is under way.
pub(super) fn unaccounted(session: &mut Session) -> u64 {
    let stats = session.stats().unwrap();
    stats.server("extents").unwrap() - stats.server("keys").unwrap()
}

/// From below one message to 16 MiB; what does not fit one is read, all of it, and every path finds it.
#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn large_values_are_read_from_the_client_and_found_on_every_path() {
    let server = ServerProcess::start("127.0.0.1:0", &["--memory", "512MiB"]);
    let mut readers = [Path::Tcp, Path::Shm, Path::Rdma, Path::RdmaRpc].map(|path| session(&server, by(path)));
    let piece = 256 << 10;
    for path in [Path::Rdma, Path::RdmaRpc] {
        let mut writer = session(&server, by(path));
        let key = format!("key {path}");
        let most = MESSAGE_BYTES - REQUEST_BYTES - key.len();
        let mut last_version = None;
        let sizes =
            [0, 1, most, most + 1, 10_000, 32_768, 40_001, piece - 1, piece, piece + 1, 5 * piece + 3, 16 << 20];
        for (salt, bytes) in sizes.into_iter().enumerate() {
            let value = value(bytes, salt);
            let before = ["pulled_puts", "pulled_bytes"].map(|name| of_server(&mut readers[0], name));
            let version = writer.put(&key, &value).unwrap();
            assert!(last_version.is_none_or(|last| version == last + 1), "{bytes} bytes were written twice");
            last_version = Some(version);
            let after = ["pulled_puts", "pulled_bytes"].map(|name| of_server(&mut readers[0], name));
            let pulled = if bytes > most { (1, bytes as u64) } else { (0, 0) };
            assert_eq!((after[0] - before[0], after[1] - before[1]), pulled, "{bytes} bytes on {path}");
            for reader in &mut readers {
                let found = reader.get(&key).unwrap().expect("the key is there");
                assert_eq!(found.version(), version);
                assert!(found[..] == value[..], "{bytes} bytes by {path} are others on {}", found.path());
            }
        }
        assert_eq!(writer.stats().unwrap().client("values_not_lent"), Some(0));
    }
    assert_eq!(of_server(&mut readers[0], "pulls_begun"), of_server(&mut readers[0], "pulled_puts"));
    assert_eq!(unaccounted(&mut readers[0]), 0);
}

#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn conditions_and_expiry_hold_for_values_that_are_read() {
    let server = start(&[]);
    let mut session = session(&server, options());
    let (old, new) = (value(100_000, 1), value(200_001, 2));
    let version = session.put_if("key", &old, 0).unwrap();
    for wrong in [0, version + 1] {
        let Err(Error::VersionMismatch { found }) = session.put_if("key", &new, wrong) else {
            panic!("version {wrong} is not there");
        };
        assert_eq!(found, version);
    }
    assert!(session.get("key").unwrap().as_deref() == Some(&old[..]));
    assert_eq!(session.put_if("key", &new, version).unwrap(), version + 1);
    assert!(session.get("key").unwrap().as_deref() == Some(&new[..]));
    let brief = PutOptions { expect: None, ttl: Some(Duration::from_millis(1)) };
    session.put_with("brief", &new, brief).unwrap();
    eventually("it expires", &true, || session.get("brief").unwrap().is_none());
}

/// Many sessions, each with small and large values in flight at once, in the order in which they were submitted.
#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn many_values_are_read_at_once() {
    const SESSIONS: usize = 6;
    const ROUNDS: usize = 5;
    let server = ServerProcess::start("127.0.0.1:0", &["--memory", "256MiB", "--workers", "2"]);
    let sizes = [100, 9000, 300_000, 20, 1_000_000, 50_000];
    thread::scope(|scope| {
        for number in 0..SESSIONS {
            let path = if number % 2 == 0 { Path::Rdma } else { Path::RdmaRpc };
            let mut session = session(&server, by(path));
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let salt = number * 100 + round;
                    for (i, bytes) in sizes.into_iter().enumerate() {
                        // The later of two with one key counts.
                        let (key, ttl) = (format!("{number}/{i}"), PutOptions::default());
                        session.submit_put(&key, value(bytes + 7, salt + 1), ttl).unwrap();
                        session.submit_put(&key, value(bytes, salt), ttl).unwrap();
                    }
                    while session.in_flight() > 0 {
                        session.poll(|done| assert!(done.answer.is_ok(), "{:?}", done.answer));
                    }
                    for (i, bytes) in sizes.into_iter().enumerate() {
                        let found = session.get(format!("{number}/{i}")).unwrap().expect("the key is there");
                        assert!(found[..] == value(bytes, salt)[..], "{bytes} bytes of session {number}");
                    }
                }
            });
        }
    });
    let mut session = session(&server, by(Path::Tcp));
    let large = sizes.iter().filter(|&&bytes| bytes > MESSAGE_BYTES).count();
    assert_eq!(of_server(&mut session, "pulled_puts"), (SESSIONS * ROUNDS * 2 * large) as u64);
    eventually("all extents are items", &0, || unaccounted(&mut session));
}

/// One worker: while it has a value of one session on a slow wire, others have their answers.
#[test]
#[ignore = "needs the two devices of scripts/guest"]
fn other_sessions_go_on_while_a_value_is_read() {
    let server = ServerProcess::start("127.0.0.1:0", &["--memory", "256MiB", "--device", "rxe0", "--workers", "1"]);
    let mut far = session(&server, across().path(PathMode::Require(Path::RdmaRpc)));
    let mut near = session(&server, by(Path::RdmaRpc));
    far.put("warm", value(20_000, 0)).unwrap();
    let large = value(16 << 20, 5);
    // Eight rounds of READs, the request of each this much late.
    let slow = netem(&["delay", "20ms"]);
    let is_done = AtomicBool::new(false);
    let answers = thread::scope(|scope| {
        scope.spawn(|| {
            far.put("large", &large).unwrap();
            is_done.store(true, Ordering::SeqCst);
        });
        while of_server(&mut near, "pulls_begun") < 2 {
            thread::yield_now();
        }
        let mut answers = 0u64;
        while !is_done.load(Ordering::SeqCst) {
            near.put("small", answers.to_le_bytes()).unwrap();
            assert_eq!(near.get("small").unwrap().as_deref(), Some(&answers.to_le_bytes()[..]));
            answers += 1;
        }
        answers
    });
    drop(slow);
    println!("{answers} rounds of another session while 16 MiB were read");
    assert!(answers >= 10, "only {answers}: the worker waits for the value");
    assert!(near.get("large").unwrap().as_deref() == Some(&large[..]));
}

/// Refused with a reply, and the connection goes on.
#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn what_may_not_be_lent_is_refused_by_name() {
    let server = start(&[]);
    let mut lender = Lender::connect(server.address(), 7, 0);
    let (_buffer, lent) = lender.lend(&value(100_000, 4));
    lender.send(1, b"key", &LentValue { value_bytes: u32::MAX.into(), ..lent });
    let (status, _, text) = lender.hear().expect("a reply");
    assert!(status == Status::TooLarge && text.contains("expected a value of at most"), "{status:?} {text}");
    lender.send(2, b"key", &lent);
    let (status, version, _) = lender.hear().expect("a reply");
    assert_eq!(status, Status::Ok);
    // Of no bytes there is nothing to read.
    lender.send(3, b"empty", &LentValue { value_bytes: 0.into(), address: 0.into(), rkey: 0.into() });
    assert_eq!(lender.hear().expect("a reply").0, Status::Ok);
    let mut watcher = session(&server, by(Path::Tcp));
    let found = watcher.get("key").unwrap().expect("it was written");
    assert!((found.version(), &found[..]) == (version, &value(100_000, 4)[..]));
    assert!(watcher.get("empty").unwrap().is_some_and(|value| value.is_empty()));
    let (status, _, text) = lend_over_the_socket(server.address(), &lent);
    assert!(status == Status::Unavailable && text.contains("message channel"), "{status:?} {text}");
    assert_eq!(unaccounted(&mut watcher), 0);
}

/// The same sequence number on one connection, on the next one, and on the next one while the first is not done.
#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn a_repeat_is_answered_as_the_first_was_and_applied_once() {
    let server = start(&[]);
    let mut watcher = session(&server, by(Path::Tcp));
    let mut first = Lender::connect(server.address(), 7, 0);
    let whole = value(300_000, 1);
    let (_buffer, lent) = first.lend(&whole);
    let mut versions = Vec::new();
    for _ in 0..2 {
        first.send(1, b"key", &lent);
        let (status, version, _) = first.hear().expect("a reply");
        assert_eq!(status, Status::Ok);
        versions.push(version);
    }
    let boot_id = first.boot_id;
    let mut second = Lender::connect(server.address(), 7, boot_id);
    let (_other_buffer, other) = second.lend(&value(10_000, 2));
    second.send(1, b"key", &other);
    versions.push(second.hear().expect("a reply").1);
    assert!(versions.iter().all(|version| *version == versions[0]), "{versions:?}");
    assert_eq!(of_server(&mut watcher, "pulled_puts"), 1, "a repeat is not read again");
    assert_eq!(of_server(&mut watcher, "rdma_rpc_repeated_writes"), 2);
    assert!(watcher.get("key").unwrap().as_deref() == Some(&whole[..]));
    // Of two connections with one write only one has its way, whichever comes first.
    let (mut before, mut last) = (versions[0], second);
    for sequence in 2..12 {
        let value = value(2 << 20, sequence as usize);
        let mut one = last;
        let (_one_buffer, from_one) = one.lend(&value);
        one.send(sequence, b"key", &from_one);
        let mut other = Lender::connect(server.address(), 7, boot_id);
        let (_other_buffer, from_other) = other.lend(&value);
        other.send(sequence, b"key", &from_other);
        let (status, version, text) = other.hear().expect("a reply");
        assert_eq!((status, version), (Status::Ok, before + 1), "write {sequence}: {text}");
        if let Some((status, version, _)) = one.hear() {
            assert_eq!((status, version), (Status::Ok, before + 1), "write {sequence}");
        }
        let found = watcher.get("key").unwrap().expect("it is there");
        assert!(found.version() == before + 1 && found[..] == value[..], "write {sequence} was done twice");
        before += 1;
        last = other;
    }
    drop(last);
    eventually("all extents are items", &0, || unaccounted(&mut watcher));
}

#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn a_table_that_is_full_refuses_what_it_would_have_read() {
    let server = start(&[]);
    let mut session = session(&server, options());
    let mut written = 0usize;
    let text = loop {
        match session.put(written.to_le_bytes(), value(1_500_000, written)) {
            Ok(_) => written += 1,
            Err(Error::Full(text)) => break text,
            Err(error) => panic!("{error}"),
        }
        assert!(written < 1000, "a table of 64 MiB is never full");
    };
    println!("{written} values, then: {text}");
    assert!(written > 10);
    let check = |session: &mut Session, i: usize| {
        assert!(session.get(i.to_le_bytes()).unwrap().as_deref() == Some(&value(1_500_000, i)[..]), "value {i}");
    };
    (0..written).for_each(|i| check(&mut session, i));
    assert_eq!(of_server(&mut session, "pulls_begun"), written as u64, "what has no room is not read");
    // Over one that is there, too: its old value stays.
    assert!(matches!(session.put(0usize.to_le_bytes(), value(1_500_000, 77)), Err(Error::Full(_))));
    check(&mut session, 0);
    assert!(session.delete(1usize.to_le_bytes()).unwrap());
    session.put("another", value(1_500_000, 5)).unwrap();
    eventually("all extents are items", &0, || unaccounted(&mut session));
}

/// A server that may pin too little has segments that no READ can fill: it says so, and values are sent.
#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn where_values_cannot_be_read_they_are_sent() {
    let server = ServerProcess::start_pinning(10 << 20, "127.0.0.1:0", &["--memory", "64MiB", "--segment", "4MiB"]);
    let mut session = session(&server, by(Path::RdmaRpc));
    for i in 0..12usize {
        session.put(i.to_le_bytes(), value(1_500_000, i)).unwrap();
    }
    for i in 0..12usize {
        assert!(session.get(i.to_le_bytes()).unwrap().as_deref() == Some(&value(1_500_000, i)[..]), "value {i}");
    }
    let stats = session.stats().unwrap();
    assert_eq!(stats.client("values_not_lent"), Some(1), "it is tried once");
    assert_eq!(session.path(), Path::RdmaRpc, "and goes on by messages");
    assert_eq!(stats.server("keys"), Some(12));
    let put = ["tcp_put_ok", "rdma_rpc_put_ok"].map(|name| stats.client(name).unwrap());
    assert!(put[0] + put[1] == 12 && put[1] > 6, "{put:?}");
}
