//! The `rdma` path on real verbs, between processes. Needs a device: `scripts/guest`.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use sidestep_client::{Client, Error, Options, Path, PathMode, RegisteredBuffer, Session};
use sidestep_tests::process::ServerProcess;

fn options() -> Options {
    Options::default().path(PathMode::Require(Path::Rdma))
}

fn session(server: &ServerProcess, options: Options) -> Session {
    Client::connect(server.address(), options).expect("the path can be had").session().expect("a session")
}

fn start(args: &[&str]) -> ServerProcess {
    ServerProcess::start("127.0.0.1:0", &[&["--memory", "64MiB", "--segment", "4MiB"], args].concat())
}

fn value_of(i: u64) -> Vec<u8> {
    i.to_le_bytes().repeat(1 + i as usize % 40)
}

fn fill(session: &mut Session, keys: u64) {
    let pairs: Vec<(Vec<u8>, Vec<u8>)> = (0..keys).map(|i| (i.to_le_bytes().to_vec(), value_of(i))).collect();
    for written in session.multi_put(&pairs).unwrap() {
        written.unwrap();
    }
}

fn read_all(session: &mut Session, keys: u64) {
    for i in 0..keys {
        let value = session.get(i.to_le_bytes()).unwrap().expect("the key is there");
        assert_eq!((&value[..], value.path()), (&value_of(i)[..], Path::Rdma));
        assert!(session.get(format!("absent {i}")).unwrap().is_none());
    }
}

#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn a_value_stays_where_the_nic_wrote_it() {
    let server = start(&[]);
    let mut session = session(&server, options());
    session.put("a", [1; 1000]).unwrap();
    session.put("b", [2; 1000]).unwrap();
    let a = session.get("a").unwrap().unwrap();
    let at_a = a.as_ptr();
    let b = session.get("b").unwrap().unwrap();
    assert_ne!(at_a, b.as_ptr(), "a held buffer is not read into");
    assert!(a.iter().all(|&byte| byte == 1) && b.iter().all(|&byte| byte == 2));
    drop(a);
    let again = session.get("b").unwrap().unwrap();
    assert_eq!(again.as_ptr(), at_a, "the buffer that came back is the one that is read into, and nothing was copied");
    // A copy would lie elsewhere, and would outlive the session as well.
    drop(session);
    assert!(b.iter().all(|&byte| byte == 2));
}

#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn a_stopped_server_goes_on_being_read() {
    const KEYS: u64 = 500;
    let server = start(&[]);
    let mut plain = session(&server, options());
    let mut caching = session(&server, options().location_cache(1024));
    fill(&mut plain, KEYS);
    read_all(&mut caching, KEYS);
    server.signal(Signal::STOP);
    read_all(&mut plain, KEYS);
    read_all(&mut caching, KEYS);
    let keys: Vec<[u8; 8]> = (0..KEYS).map(u64::to_le_bytes).collect();
    let values = plain.multi_get(&keys).unwrap();
    assert!(values.iter().zip(0..).all(|(value, i)| value.as_deref() == Some(&value_of(i)[..])));
    server.signal(Signal::CONT);
    plain.put("after", "all").unwrap();
    assert_eq!(caching.get("after").unwrap().as_deref(), Some(&b"all"[..]));
}

#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn reads_take_no_cpu_of_the_server() {
    const KEYS: u64 = 500;
    let server = start(&[]);
    let mut session = session(&server, options());
    fill(&mut session, KEYS);
    // The server still prepares memory for more writes: until a round of reads has seen it do nothing.
    let mut rounds = 0;
    loop {
        let before = server.cpu_ticks();
        read_all(&mut session, KEYS);
        rounds += 1;
        if server.cpu_ticks() == before {
            break;
        }
        assert!(rounds < 50, "the server never comes to rest");
    }
    let before = server.cpu_ticks();
    for _ in 0..10 {
        read_all(&mut session, KEYS);
    }
    assert_eq!(server.cpu_ticks() - before, 0);
    let stats = session.stats().unwrap();
    assert_eq!(stats.server("get_ok").unwrap_or(0) + stats.server("get_not_found").unwrap_or(0), 0);
    assert_eq!(stats.client("rdma_get_found"), Some((rounds + 10) * KEYS));
    assert_eq!(stats.client("rdma_asks_server"), Some(0));
}

#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn a_restarted_server_is_read_by_rdma_again() {
    for durable in [false, true] {
        let folder = sidestep_tests::process::tmpfs_folder();
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
        let _server = ServerProcess::start(&listen, &[&["--memory", "64MiB", "--segment", "4MiB"], args].concat());
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

#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn segments_are_met_as_the_table_grows() {
    let server = start(&[]);
    let mut writer = session(&server, options());
    let mut reader = session(&server, options());
    for round in 0..40u64 {
        let value = vec![round as u8; 700_000];
        writer.put(round.to_le_bytes(), &value).unwrap();
        assert!(reader.get(round.to_le_bytes()).unwrap().as_deref() == Some(&value[..]), "round {round}");
    }
    assert_eq!(reader.stats().unwrap().client("rdma_asks_server"), Some(0));
}

#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn many_held_values_are_copied_when_buffers_run_short() {
    let server = start(&[]);
    let mut session = session(&server, options().buffer_pool_bytes(1 << 20));
    fill(&mut session, 40);
    session.put("large", vec![7; 100_000]).unwrap();
    let held: Vec<_> = (0..200).map(|_| session.get("large").unwrap().unwrap()).collect();
    assert!(held.iter().all(|value| value.len() == 100_000 && value.iter().all(|&byte| byte == 7)));
    read_all(&mut session, 40);
}

#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn a_registered_buffer_is_read_into_without_a_copy() {
    const LARGEST: usize = 3 << 20;
    let server = start(&[]);
    for cache in [0, 64] {
        let mut session = session(&server, options().location_cache(cache));
        let mut buffer = RegisteredBuffer::with_capacity(LARGEST);
        assert_eq!(session.get_registered("absent", &mut buffer).unwrap(), None);
        assert!(buffer.is_empty());
        let mut at = None;
        for round in 0..2 {
            for (key, bytes) in [("k", 100), ("a longer key", 5000), ("k", 1_500_000), ("whole", LARGEST), ("k", 41)] {
                let value: Vec<u8> = (0..bytes).map(|i| (i + round) as u8).collect();
                session.put(key, &value).unwrap();
                // The second time the location is cached.
                for _ in 0..2 {
                    let meta = session.get_registered(key, &mut buffer).unwrap().expect("the key is there");
                    assert_eq!((meta.value_bytes, meta.path), (bytes, Path::Rdma));
                    assert!(buffer[..] == value[..], "{bytes} bytes");
                    assert!(buffer.as_ptr().addr().is_multiple_of(4096), "{bytes} bytes do not begin a page");
                    assert_eq!(*at.get_or_insert(buffer.as_ptr()), buffer.as_ptr(), "{bytes} bytes were copied");
                }
            }
        }
        let value = vec![5; LARGEST + 100];
        session.put("longer than it", &value).unwrap();
        session.get_registered("longer than it", &mut buffer).unwrap().unwrap();
        assert!(buffer[..] == value[..]);
    }
}

fn link(state: &str) {
    let done = std::process::Command::new("ip").args(["link", "set", "rdma0", state]).status().expect("iproute2");
    assert!(done.success());
}

/// The link is up again, whatever became of the test.
struct LinkUp;

impl Drop for LinkUp {
    fn drop(&mut self) {
        link("up");
    }
}

#[test]
#[ignore = "needs the two devices of scripts/guest"]
fn a_dead_link_is_left_for_tcp_and_come_back_to() {
    const PATIENCE: Duration = Duration::from_secs(60);
    let server = start(&["--device", "rxe0"]);
    let across = || Options::default().device("rxe1").path_pause(Duration::from_secs(1));
    let mut preferring = session(&server, across().path(PathMode::Prefer(Path::Rdma)));
    let mut requiring = session(&server, across().path(PathMode::Require(Path::Rdma)));
    preferring.put("key", "value").unwrap();
    for session in [&mut preferring, &mut requiring] {
        assert_eq!(session.get("key").unwrap().unwrap().path(), Path::Rdma);
    }
    link("down");
    let _up = LinkUp;
    let value = preferring.get("key").unwrap().unwrap();
    assert_eq!((&value[..], value.path()), (&b"value"[..], Path::Tcp));
    let error = requiring.get("key").unwrap_err();
    assert!(matches!(error, Error::PathUnavailable { path: Path::Rdma, .. }), "{error}");
    link("up");
    let since = Instant::now();
    for session in [&mut preferring, &mut requiring] {
        loop {
            match session.get("key") {
                Ok(Some(value)) if value.path() == Path::Rdma => break,
                Ok(Some(value)) => assert_eq!(&value[..], b"value"),
                Ok(None) => panic!("the key is there"),
                Err(error) => assert!(matches!(error, Error::PathUnavailable { .. }), "{error}"),
            }
            assert!(since.elapsed() < PATIENCE, "rdma does not come back");
        }
    }
    let stats = preferring.stats().unwrap();
    assert_eq!((stats.client("path_fallbacks"), stats.client("paths_regained")), (Some(1), Some(1)));
    assert!(stats.client("rdma_errors").is_some_and(|errors| errors >= 1));
}

#[test]
fn a_server_told_to_use_no_device_says_so() {
    let server = start(&["--device", "none"]);
    assert!(server.line().contains("rdma not available: switched off"), "{}", server.line());
    let Err(Error::PathUnavailable { path, reason }) = Client::connect(server.address(), options()) else {
        panic!("a path that is not there");
    };
    assert_eq!(path, Path::Rdma);
    assert!(reason.contains("does not offer it") && reason.contains("switched off"), "{reason}");
    let preferring = Options::default().path(PathMode::Prefer(Path::Rdma));
    let mut session = session(&server, preferring);
    session.put("key", "value").unwrap();
    assert_eq!(session.get("key").unwrap().unwrap().path(), Path::Tcp);
    let stats = session.stats().unwrap();
    assert_eq!(stats.client("path_fallbacks"), Some(1));
}

#[test]
fn a_device_that_is_not_there_is_an_error() {
    let (code, text) = ServerProcess::refused(&["--listen", "127.0.0.1:0", "--device", "nonesuch0/1"]);
    assert!(code.is_some_and(|code| code != 0));
    assert!(text.contains("nonesuch0/1"), "{text}");
}
