//! A clock that was wrong once: the table's floor is ahead of the clock, for as long as the clock needs to catch up.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;
use sidestep_client::{Client, Options, Path as By, PathMode, PutOptions};
use sidestep_core::layout::root;
use sidestep_tests::process::ServerProcess;

use super::{SIZES, Written, check, start};

const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;

pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_millis() as u64
}

impl Written {
    /// As a server leaves it that looked at an item which expires while its clock was so far ahead.
    fn ahead_by(ms: u64) -> Self {
        let written = Self::new();
        let mut file = written.file();
        file.store(root::CLOCK_FLOOR_WORD, now_ms() + ms);
        written.save(&file);
        written
    }
}

fn by(server: &ServerProcess, path: By) -> Client {
    let options = Options::default().path(PathMode::Require(path)).reconnect_timeout(Duration::ZERO);
    Client::connect(server.address(), options).expect("it serves")
}

fn ahead_ms(client: &Client) -> u64 {
    client.stats().expect("statistics").server("clock_ahead_ms").expect("it is counted")
}

fn hour() -> PutOptions {
    PutOptions { expect: None, ttl: Some(Duration::from_millis(HOUR_MS)) }
}

#[test]
fn what_is_acknowledged_after_a_wrong_clock_is_there() {
    let written = Written::ahead_by(DAY_MS);
    for round in 0..2 {
        let mut server = start(written.folder(), &[]);
        let (tcp, shm) = (by(&server, By::Tcp), by(&server, By::Shm));
        let key = format!("written in round {round}");
        tcp.put_with(&key, "v", hour()).expect("a put");
        let large = vec![7; 300_000];
        tcp.put_with(format!("{key}, large"), &large, hour()).expect("a put");
        for earlier in 0..=round {
            for client in [&tcp, &shm] {
                let key = format!("written in round {earlier}");
                assert!(client.get(&key).expect("a get").is_some(), "{key}, looked for in round {round}");
                assert!(client.get(format!("{key}, large")).expect("a get").is_some_and(|found| *found == large[..]));
            }
        }
        let found = ahead_ms(&tcp);
        assert!((DAY_MS - HOUR_MS..=DAY_MS).contains(&found), "{found}");
        server.signal(Signal::TERM);
        assert!(server.wait().success());
    }
}

#[test]
fn the_clock_that_a_log_has_is_no_other() {
    let written = Written::ahead_by(DAY_MS);
    let log = written.folder().join("log");
    let log = ["--durable", log.to_str().expect("UTF-8")];
    let mut server = start(written.folder(), &log);
    by(&server, By::Tcp).put_with("key", "v", hour()).expect("a put");
    server.signal(Signal::TERM);
    assert!(server.wait().success());
    let server = ServerProcess::start("127.0.0.1:0", &[&SIZES[..], &log].concat());
    let client = by(&server, By::Tcp);
    client.put_with("another", "v", hour()).expect("a put");
    for key in ["key", "another"] {
        assert!(client.get(key).expect("a get").is_some(), "{key}");
    }
    assert!(ahead_ms(&client) > DAY_MS - HOUR_MS);
}

#[test]
fn a_clock_that_cannot_be_believed_is_a_problem() {
    let written = Written::ahead_by(365 * DAY_MS);
    assert_eq!(check(written.folder(), &[]).0, Some(0));
    let written = Written::ahead_by(367 * DAY_MS);
    let (code, text, _) = check(written.folder(), &[]);
    assert!(code == Some(1) && text.contains("more than a year ahead"), "{text}");
    assert_eq!(check(written.folder(), &["--repair"]).0, Some(1));
    assert_eq!(check(written.folder(), &[]).0, Some(0));
    assert_eq!(ahead_ms(&by(&start(written.folder(), &[]), By::Tcp)), 0);
}
