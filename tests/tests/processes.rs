//! Real server processes, real signals, clients on both paths.

use std::io::{Read, Write};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use sidestep_client::{Client, Error, Options, Path, PathMode};
use sidestep_tests::process::{ServerProcess, program, tmpfs_folder};

const SMALL: [&str; 2] = ["--memory", "64MiB"];

fn client(address: &str, path: Path) -> Client {
    Client::connect(address, Options::default().path(PathMode::Require(path))).expect("the path can be had")
}

fn arguments<'a>(more: &[&'a str]) -> Vec<&'a str> {
    SMALL.into_iter().chain(more.iter().copied()).collect()
}

#[test]
fn what_one_path_writes_the_other_reads() {
    let server = ServerProcess::start("127.0.0.1:0", &SMALL);
    assert!(server.line().contains("tcp") && server.line().contains("shm"), "{}", server.line());
    assert!(server.line().contains("rdma not available: "), "{}", server.line());
    let (shm, tcp) = (client(server.address(), Path::Shm), client(server.address(), Path::Tcp));
    let version = shm.put("key", "value").unwrap();
    let by_tcp = tcp.get("key").unwrap().unwrap();
    assert_eq!((&by_tcp[..], by_tcp.version(), by_tcp.path()), (&b"value"[..], version, Path::Tcp));
    tcp.put("key", "other").unwrap();
    let by_shm = shm.get("key").unwrap().unwrap();
    assert_eq!((&by_shm[..], by_shm.path()), (&b"other"[..], Path::Shm));
}

#[test]
fn a_killed_server_comes_back_with_every_acknowledged_write() {
    let folder = tmpfs_folder();
    let data = folder.path().to_str().unwrap();
    let mut server = ServerProcess::start("127.0.0.1:0", &arguments(&["--data", data]));
    let acknowledged = AtomicU64::new(0);
    let address = server.address().to_owned();
    thread::scope(|scope| {
        scope.spawn(|| {
            let client = client(&address, Path::Tcp);
            for i in 0u64.. {
                if client.put(i.to_le_bytes(), i.to_be_bytes()).is_err() {
                    break;
                }
                acknowledged.store(i + 1, Ordering::SeqCst);
            }
        });
        while acknowledged.load(Ordering::SeqCst) < 3000 {
            thread::yield_now();
        }
        server.kill();
    });
    let count = acknowledged.load(Ordering::SeqCst);
    let checked = Command::new(program("sidestep-server")).args(["check", data]).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
    let server = ServerProcess::start("127.0.0.1:0", &arguments(&["--data", data]));
    for path in [Path::Tcp, Path::Shm] {
        let client = client(server.address(), path);
        for i in 0..count {
            let value = client.get(i.to_le_bytes()).unwrap();
            assert_eq!(value.as_deref(), Some(&i.to_be_bytes()[..]), "acknowledged key {i} of {count} by {path}");
        }
    }
}

#[test]
fn sigterm_and_sigint_end_it_with_0_and_lose_nothing() {
    for signal in [Signal::TERM, Signal::INT] {
        let folder = tmpfs_folder();
        let data = folder.path().to_str().unwrap();
        let mut server = ServerProcess::start("127.0.0.1:0", &arguments(&["--data", data]));
        let acknowledged = AtomicU64::new(0);
        let address = server.address().to_owned();
        let status = thread::scope(|scope| {
            scope.spawn(|| {
                let client = client(&address, Path::Tcp);
                let mut session = client.session().unwrap();
                for i in 0u64.. {
                    if session.put(i.to_le_bytes(), i.to_be_bytes()).is_err() {
                        break;
                    }
                    acknowledged.store(i + 1, Ordering::SeqCst);
                }
            });
            while acknowledged.load(Ordering::SeqCst) < 1000 {
                thread::yield_now();
            }
            server.signal(signal);
            server.wait()
        });
        assert_eq!(status.code(), Some(0), "{signal:?}");
        let server = ServerProcess::start("127.0.0.1:0", &arguments(&["--data", data]));
        let client = client(server.address(), Path::Tcp);
        for i in 0..acknowledged.load(Ordering::SeqCst) {
            assert!(client.get(i.to_le_bytes()).unwrap().is_some(), "acknowledged key {i} is lost");
        }
    }
}

/// The point of it all: hits and misses beside a stopped server, and none of its time.
#[test]
fn shm_readers_go_on_beside_a_stopped_server() {
    let server = ServerProcess::start("127.0.0.1:0", &SMALL);
    let client = client(server.address(), Path::Shm);
    let mut session = client.session().unwrap();
    for i in 0..1000u64 {
        session.put(i.to_le_bytes(), i.to_be_bytes()).unwrap();
    }
    server.signal(Signal::STOP);
    let before = server.idle_ticks();
    for i in 0..100_000u64 {
        let value = session.get((i % 2000).to_le_bytes()).unwrap();
        assert_eq!(value.is_some(), i % 2000 < 1000);
    }
    assert_eq!(server.cpu_ticks(), before);
    server.signal(Signal::CONT);
    assert!(session.put("goes", "on").is_ok());
}

#[test]
fn shm_reads_take_no_server_time() {
    let server = ServerProcess::start("127.0.0.1:0", &SMALL);
    let client = client(server.address(), Path::Shm);
    let mut session = client.session().unwrap();
    session.put("key", "value").unwrap();
    let before = server.idle_ticks();
    for _ in 0..300_000 {
        assert!(session.get("key").unwrap().is_some());
        assert!(session.get("no such key").unwrap().is_none());
    }
    assert_eq!(server.cpu_ticks(), before, "clock ticks of the server process");
}

/// Metrics cost nothing while nobody asks, and a question is answered.
#[test]
fn an_observed_server_that_is_idle_takes_no_time() {
    let server = ServerProcess::start("127.0.0.1:0", &arguments(&["--metrics", "127.0.0.1:0"]));
    let metrics = server.line().trim().rsplit_once("http://").expect("an address").1.trim_end_matches("/metrics");
    let client = client(server.address(), Path::Shm);
    let mut session = client.session().unwrap();
    session.put("key", "value").unwrap();
    let before = server.idle_ticks();
    for _ in 0..300_000 {
        assert!(session.get("key").unwrap().is_some());
    }
    assert_eq!(server.cpu_ticks(), before, "clock ticks of the server process");
    let mut stream = std::net::TcpStream::connect(metrics).unwrap();
    stream.write_all(b"GET /ready HTTP/1.1\r\n\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 200 OK\r\n") && reply.ends_with("ready\n"), "{reply}");
}

/// A memfd dies with its server: an old reader must not go on with it beside a new server's writes.
#[test]
fn a_reader_of_a_dead_memfd_table_notices() {
    let mut server = ServerProcess::start("127.0.0.1:0", &SMALL);
    let address = server.address().to_owned();
    let client = client(&address, Path::Shm);
    let mut session = client.session().unwrap();
    session.put("key", "old").unwrap();
    assert!(session.get("key").unwrap().is_some());
    server.kill();
    let _server = ServerProcess::start(&address, &SMALL);
    let writer = self::client(&address, Path::Tcp);
    writer.put("key", "new").unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        match session.get("key") {
            Ok(value) => {
                assert_eq!(value.as_deref(), Some(&b"new"[..]), "a value of a table that is dead");
                break;
            }
            Err(Error::Unreachable { .. } | Error::PathUnavailable { .. } | Error::Refused { .. }) => {
                assert!(Instant::now() < deadline, "the reader never came back");
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_second_server_is_refused() {
    let folder = tmpfs_folder();
    let data = folder.path().to_str().unwrap();
    let server = ServerProcess::start("127.0.0.1:0", &arguments(&["--data", data]));
    let (code, text) = ServerProcess::refused(&arguments(&["--listen", "127.0.0.1:0", "--data", data]));
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains(data) && text.contains("in use") && text.trim_end().lines().count() == 1, "{text}");
    let (code, text) = ServerProcess::refused(&arguments(&["--listen", server.address()]));
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains(server.address()) && text.trim_end().lines().count() == 1, "{text}");
    let (code, text) = ServerProcess::refused(&["check", data]);
    assert_eq!(code, Some(3), "{text}");
    assert!(client(server.address(), Path::Tcp).put("still", "works").is_ok());
}

#[test]
fn a_thousand_clients_at_once() {
    const CLIENTS: usize = 1000;
    let server = ServerProcess::start("127.0.0.1:0", &SMALL);
    let client = client(server.address(), Path::Tcp);
    let mut sessions: Vec<_> = (0..CLIENTS).map(|_| client.session().unwrap()).collect();
    let wrong = AtomicBool::new(false);
    thread::scope(|scope| {
        for (part, sessions) in sessions.chunks_mut(CLIENTS / 4).enumerate() {
            let wrong = &wrong;
            scope.spawn(move || {
                for (i, session) in sessions.iter_mut().enumerate() {
                    let key = format!("{part} {i}");
                    session.put(&key, &key).unwrap();
                    let value = session.get(&key).unwrap();
                    wrong.fetch_or(value.as_deref() != Some(key.as_bytes()), Ordering::Relaxed);
                }
            });
        }
    });
    assert!(!wrong.load(Ordering::Relaxed));
}
