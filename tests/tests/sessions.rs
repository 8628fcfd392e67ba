//! Ten thousand sessions at once, on a server as it comes; idle ones.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sidestep_client::{Client, Options, Path, PathMode, Session};
use sidestep_tests::process::ServerProcess;

const SESSIONS: usize = 10_000;
/// Descriptors of either process, beside one for each session.
const OTHERS: u64 = 500;
/// Memory of the server that a session may take, its share of what all share included.
const BYTES_EACH: u64 = 4 << 10;

/// Memory of a process that is in use, without what it shares.
fn private_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let kib = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("its memory");
    kib.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

#[test]
fn ten_thousand_sessions() {
    let limit = getrlimit(Resource::Nofile);
    let enough = limit.maximum.is_none_or(|most| most >= SESSIONS as u64 + OTHERS);
    assert!(enough, "expected a hard limit of {} open files (ulimit -Hn), found {limit:?}", SESSIONS as u64 + OTHERS);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).expect("within the hard limit");

    let server = ServerProcess::start("127.0.0.1:0", &["--memory", "256MiB"]);
    let client = Client::connect(server.address(), Options::default().path(PathMode::Require(Path::Tcp))).unwrap();
    let stat = |name: &str| client.stats().unwrap().server(name).unwrap_or(0);
    let (before, open_before, sessions_before) = (private_bytes(server.id()), stat("connections"), stat("sessions"));
    let mut sessions: Vec<Session> = (0..SESSIONS).map(|_| client.session().unwrap()).collect();
    for round in 0..2_u64 {
        for (i, session) in sessions.iter_mut().enumerate() {
            session.put((i as u64).to_le_bytes(), round.to_le_bytes()).unwrap();
        }
        for (i, session) in sessions.iter_mut().rev().enumerate() {
            let value = session.get((i as u64).to_le_bytes()).unwrap().expect("each has written one");
            assert_eq!(&value[..], &round.to_le_bytes()[..]);
        }
    }
    assert!(stat("connections") - open_before >= SESSIONS as u64 - 1, "{} connections", stat("connections"));
    assert!(stat("sessions") - sessions_before >= SESSIONS as u64 - 1, "{} sessions", stat("sessions"));
    assert_eq!(stat("connections_refused"), 0);
    let each = private_bytes(server.id()).saturating_sub(before) / SESSIONS as u64;
    println!("{SESSIONS} sessions over TCP: {each} B of the server's memory each");
    assert!(each <= BYTES_EACH, "{each} B each");
    drop(sessions);
    let since = std::time::Instant::now();
    while stat("connections") > open_before {
        assert!(since.elapsed().as_secs() < 60, "{} connections are left", stat("connections"));
    }
}

/// Every path here that has no queue pair. The writes go by a session that was closed in between, so that each has to be
/// done once and by another connection.
#[test]
fn an_idle_session_comes_back_by_itself() {
    for path in [Path::Tcp, Path::Shm] {
        let server = ServerProcess::start("127.0.0.1:0", &["--idle-timeout-ms", "100"]);
        let client = Client::connect(server.address(), Options::default().path(PathMode::Require(path))).unwrap();
        let mut session = client.session().unwrap();
        session.put("key", "first").unwrap();
        let until_closed = || {
            let since = std::time::Instant::now();
            let asking = Client::connect(server.address(), Options::default()).unwrap();
            while asking.stats().unwrap().server("connections") != Some(1) {
                assert!(since.elapsed().as_secs() < 60, "all but the one that asks were to be closed");
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        };
        until_closed();
        assert_eq!(&session.get("key").unwrap().expect("it was put")[..], b"first", "{path}");
        until_closed();
        session.put("key", "second").unwrap();
        assert_eq!(&session.get("key").unwrap().expect("it was put")[..], b"second", "{path}");
        let stats = session.stats().unwrap();
        assert!(stats.client("reconnects").unwrap() >= 2, "{path}: {stats:?}");
        assert_eq!(stats.client("reconnects"), stats.client("sessions_resumed"), "{path}: {stats:?}");
        assert_eq!(stats.server("tcp_put_ok"), Some(2), "{path}: {stats:?}");
    }
}
