//! The `rdma` path on real verbs, between processes. Needs a device: `scripts/guest`.

mod access;
mod bench;
mod churn;
mod leaks;
mod pull;
mod pull_faults;
mod raw;
mod restart;
mod stopped;
mod tls;
mod uses;
mod wire;

use sidestep_client::{Client, Error, Options, Path, PathMode, RegisteredBuffer, Session};
use sidestep_tests::process::ServerProcess;

/// Small, in many segments.
const MEMORY: [&str; 4] = ["--memory", "64MiB", "--segment", "4MiB"];

fn options() -> Options {
    Options::default().path(PathMode::Require(Path::Rdma))
}

fn session(server: &ServerProcess, options: Options) -> Session {
    Client::connect(server.address(), options).expect("the path can be had").session().expect("a session")
}

fn start(args: &[&str]) -> ServerProcess {
    ServerProcess::start("127.0.0.1:0", &[&MEMORY[..], args].concat())
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
