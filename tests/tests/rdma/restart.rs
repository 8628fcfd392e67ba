//! A server that is killed and started again: who read from it is back by itself, and keys of then open nothing now.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use sidestep_client::{Client, Error, Options, Path, PathMode, Session};
use sidestep_fabric::rdma::RdmaError;
use sidestep_tests::process::{ServerProcess, tmpfs_folder};

use super::raw::{Raw, status_of};
use super::{MEMORY, fill, options, read_all, start, value_of};

const KEYS: u64 = 100;

/// Reads what is there until the server of after the kill has answered by `rdma`: within how long since `listens`.
fn read_across(session: &mut Session, is_up: &AtomicBool, under_way: &AtomicUsize) -> Instant {
    let mut reads = 0u64;
    loop {
        match session.get((reads % KEYS).to_le_bytes()) {
            Ok(value) => assert_eq!(value.expect("the key is there")[..], value_of(reads % KEYS)[..]),
            Err(Error::Unreachable { .. } | Error::PathUnavailable { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        reads += 1;
        if reads == 10 {
            under_way.fetch_add(1, Ordering::SeqCst);
        }
        // Written by the new server, so that it is no answer of the old one's memory.
        if is_up.load(Ordering::SeqCst)
            && let Ok(Some(value)) = session.get("marker")
            && value.path() == Path::Rdma
        {
            return Instant::now();
        }
    }
}

/// In the middle of their reads. How soon they are back is printed; what is asserted is far more than the two seconds
/// that it should take, since a guest may be slow for reasons of its own.
#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn every_reader_is_back_after_a_kill() {
    const MOST: Duration = Duration::from_secs(20);
    let folder = tmpfs_folder();
    let data = ["--data", folder.path().to_str().unwrap()];
    let mut server = start(&data);
    let address = server.address().to_owned();
    let modes = [PathMode::Require(Path::Rdma), PathMode::Prefer(Path::Rdma)];
    let mut sessions: Vec<Session> = modes
        .iter()
        .flat_map(|&mode| [0, 256].map(|cache| Options::default().path(mode).location_cache(cache)))
        .map(|options| Client::connect(&address, options).unwrap().session().unwrap())
        .collect();
    fill(&mut sessions[0], KEYS);
    let (is_up, under_way) = (AtomicBool::new(false), AtomicUsize::new(0));
    let count = sessions.len();
    let (listens, back) = thread::scope(|scope| {
        let readers: Vec<_> =
            sessions.iter_mut().map(|session| scope.spawn(|| read_across(session, &is_up, &under_way))).collect();
        while under_way.load(Ordering::SeqCst) < count {
            thread::yield_now();
        }
        server.kill();
        server = ServerProcess::start(&address, &[&MEMORY[..], &data].concat());
        let listens = Instant::now();
        let tcp = Options::default().path(PathMode::Require(Path::Tcp));
        Client::connect(&address, tcp).unwrap().put("marker", "new").unwrap();
        is_up.store(true, Ordering::SeqCst);
        (listens, readers.into_iter().map(|reader| reader.join().unwrap()).collect::<Vec<_>>())
    });
    let times: Vec<Duration> = back.iter().map(|back| back.duration_since(listens)).collect();
    println!("back on rdma after the new server listens: {times:?}");
    assert!(times.iter().all(|&time| time < MOST), "{times:?}");
    for session in &mut sessions {
        read_all(session, KEYS);
    }
}

/// Whether the table outlives its server or not.
#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn a_restarted_server_is_read_by_rdma_again() {
    for durable in [false, true] {
        let folder = tmpfs_folder();
        let data = folder.path().to_str().unwrap().to_owned();
        let args: &[&str] = if durable { &["--data", &data] } else { &[] };
        let mut server = start(args);
        let address = server.address().to_owned();
        let client = Client::connect(&address, options().location_cache(1024)).unwrap();
        let mut sessions: Vec<Session> = (0..4).map(|_| client.session().unwrap()).collect();
        fill(&mut sessions[0], 100);
        sessions.iter_mut().for_each(|session| read_all(session, 100));
        server.kill();
        let listen = address.clone();
        let _server = ServerProcess::start(&listen, &[&MEMORY[..], args].concat());
        let since = Instant::now();
        for session in &mut sessions {
            if durable {
                read_all(session, 100);
            } else {
                assert!(session.get(0u64.to_le_bytes()).unwrap().is_none(), "an answer from a dead server's memory");
            }
            assert_eq!(session.path(), Path::Rdma);
        }
        assert!(since.elapsed() < Duration::from_secs(20), "it took {:?}", since.elapsed());
        sessions[0].put("new", "one").unwrap();
        assert_eq!(sessions[1].get("new").unwrap().as_deref(), Some(&b"one"[..]));
    }
}

/// The queue pair of then, and then its keys on a queue pair of now.
#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn keys_of_a_dead_server_open_nothing() {
    let mut server = start(&[]);
    let mut before = Raw::connect(server.address());
    let (address, rkey) = before.root();
    assert_eq!(&before.read(address, rkey, 64).unwrap()[..8], b"SIDESTEP");
    let listen = server.address().to_owned();
    server.kill();
    assert!(matches!(before.read(address, rkey, 64), Err(RdmaError::Completion { .. })), "its server is dead");
    let server = ServerProcess::start(&listen, &MEMORY);
    let mut bystander = Client::connect(server.address(), options()).unwrap().session().unwrap();
    fill(&mut bystander, KEYS);
    assert!(before.read(address, rkey, 64).is_err(), "a queue pair that failed");
    let mut stale = Raw::connect(server.address());
    let now = stale.root();
    if now != (address, rkey) {
        assert!(matches!(status_of(stale.read(address, rkey, 64)), 9 | 10), "the rkey of the server before");
        // No more requests on that one; a new one is let in.
        assert!(stale.read(now.0, now.1, 64).is_err());
    }
    assert_eq!(&Raw::connect(server.address()).read(now.0, now.1, 64).unwrap()[..8], b"SIDESTEP");
    read_all(&mut bystander, KEYS);
}

/// A client that names what it was not told: beyond the end, before the beginning, with a key of its own invention.
#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn what_was_not_offered_is_refused_and_others_go_on() {
    let server = start(&[]);
    let mut bystander = Client::connect(server.address(), options()).unwrap().session().unwrap();
    fill(&mut bystander, KEYS);
    let segment_bytes = 4 << 20;
    let (address, rkey) = Raw::connect(server.address()).root();
    for (address, rkey) in [
        (address + segment_bytes, rkey),
        (address + segment_bytes - 32, rkey),
        (address - 32, rkey),
        (address, rkey ^ 0x55),
        (address, !rkey),
        (0, rkey),
    ] {
        let mut raw = Raw::connect(server.address());
        let status = status_of(raw.read(address, rkey, 64));
        assert!(matches!(status, 9 | 10), "status {status} of {address:#x}, {rkey:#x}");
        read_all(&mut bystander, KEYS / 10);
    }
    assert_eq!(bystander.stats().unwrap().client("rdma_errors"), Some(0));
}
