//! Connections, replies and servers that are lost.

mod support;

use std::time::{Duration, Instant};

use sidestep_client::{Answer, Client, Error, Options, Path, PathMode, PutOptions};
use sidestep_server::{Config, Server};
use support::proxy::Proxy;
use support::{address, config, connect, eventually, start, start_again, start_in};

/// A client on `tcp` through the proxy.
fn through(proxy: &Proxy, request_timeout: Duration) -> Client {
    let options = Options::default().path(PathMode::Require(Path::Tcp)).request_timeout(request_timeout);
    Client::connect(proxy.address(), options).unwrap()
}

#[test]
fn a_lost_reply_is_repeated_and_the_write_applied_once() {
    let server = start();
    let proxy = Proxy::start(address(&server));
    let client = through(&proxy, Duration::from_secs(20));
    let mut session = client.session().unwrap();
    let first = session.put("k", "one").unwrap();
    proxy.lose_replies(true);
    let breaker = proxy.clone();
    let cut = std::thread::spawn(move || {
        eventually("a reply is lost", || breaker.lost() > 0);
        breaker.lose_replies(false);
        breaker.cut();
    });
    assert_eq!(session.put("k", "two").unwrap(), first + 1);
    cut.join().unwrap();
    assert_eq!(session.get("k").unwrap().unwrap().version(), first + 1, "not applied a second time");
    let stats = session.stats().unwrap();
    assert_eq!((stats.client("reconnects"), stats.client("sessions_resumed")), (Some(1), Some(1)));
    assert_eq!(stats.client("requests_replayed"), Some(1));
}

#[test]
fn pipelined_writes_survive_cuts() {
    let server = start();
    let proxy = Proxy::start(address(&server));
    let client = through(&proxy, Duration::from_secs(20));
    let mut session = client.session().unwrap();
    proxy.cut_after(1500);
    // Each key is written once per round: its version counts how often a write was applied.
    let keys: Vec<String> = (0..200).map(|i| format!("k{i}")).collect();
    let mut first = Vec::new();
    for round in 0..3u64 {
        let pairs: Vec<(&str, [u8; 1])> = keys.iter().map(|key| (key.as_str(), [round as u8])).collect();
        let versions: Vec<u64> = session.multi_put(&pairs).unwrap().into_iter().map(|v| v.unwrap()).collect();
        if round == 0 {
            first = versions;
        } else {
            assert!(versions.iter().zip(&first).all(|(version, first)| *version == first + round));
        }
    }
    proxy.cut_after(0);
    assert!(session.multi_get(&keys).unwrap().iter().flatten().all(|value| value[..] == [2]));
    let stats = session.stats().unwrap();
    let (reconnects, replayed) = (stats.client("reconnects").unwrap(), stats.client("requests_replayed").unwrap());
    assert!(reconnects > 10 && replayed > 100, "{reconnects} reconnects, {replayed} requests repeated");
}

#[test]
fn a_write_lost_with_its_server_has_an_unknown_outcome() {
    let (first, second) = (start(), start());
    let proxy = Proxy::start(address(&first));
    let client = through(&proxy, Duration::from_secs(20));
    let mut session = client.session().unwrap();
    session.put("k", "one").unwrap();
    proxy.lose_replies(true);
    let (breaker, target) = (proxy.clone(), address(&second));
    let cut = std::thread::spawn(move || {
        eventually("a reply is lost", || breaker.lost() > 0);
        breaker.aim(target);
        breaker.lose_replies(false);
        breaker.cut();
    });
    assert!(matches!(session.put("k", "two"), Err(Error::OutcomeUnknown(_))));
    cut.join().unwrap();
    assert_eq!(session.get("k").unwrap(), None, "the second server was never asked to write");
    session.put("k", "three").unwrap();
    assert_eq!(&session.get("k").unwrap().unwrap()[..], b"three");
    assert_eq!(session.stats().unwrap().client("outcomes_unknown"), Some(1));
}

#[test]
fn a_silent_server_costs_the_request_timeout() {
    let server = start();
    let proxy = Proxy::start(address(&server));
    let client = through(&proxy, Duration::from_millis(300));
    let mut session = client.session().unwrap();
    proxy.lose_replies(true);
    let started = Instant::now();
    assert!(matches!(session.put("k", "v"), Err(Error::OutcomeUnknown(_))));
    assert!(started.elapsed() < Duration::from_secs(10));
    proxy.lose_replies(false);
    session.put("k", "w").unwrap();
    proxy.lose_replies(true);
    assert!(matches!(session.get("k"), Err(Error::TimedOut { .. })));
    proxy.lose_replies(false);
    assert_eq!(&session.get("k").unwrap().unwrap()[..], b"w");
}

#[test]
fn submitted_requests_end_when_the_server_does() {
    let server = start();
    let options = Options::default().path(PathMode::Require(Path::Tcp)).reconnect_timeout(Duration::ZERO);
    let client = Client::connect(address(&server), options).unwrap();
    let mut session = client.session().unwrap();
    server.stop();
    let tickets = [
        session.submit_get("k").unwrap(),
        session.submit_put("k", "v", PutOptions::default()).unwrap(),
        session.submit_get("l").unwrap(),
    ];
    let mut ended = Vec::new();
    while session.in_flight() > 0 {
        session.poll(|done| {
            assert!(matches!(done.answer, Err(Error::Unreachable { .. } | Error::OutcomeUnknown(_))));
            ended.push(done.ticket);
        });
    }
    ended.sort();
    assert_eq!(ended, tickets);
    assert!(matches!(session.get("k"), Err(Error::Unreachable { .. })));
    let pairs: Vec<(String, &str)> = (0..5000).map(|i| (i.to_string(), "v")).collect();
    assert!(session.multi_put(&pairs).unwrap().iter().all(Result::is_err));
}

#[test]
fn a_dead_memfd_table_is_not_read_once_another_server_took_writes() {
    let server = start();
    let address = address(&server);
    let client = connect(&server, PathMode::Auto);
    let mut session = client.session().unwrap();
    session.put("k", "old").unwrap();
    assert_eq!(session.get("k").unwrap().unwrap().path(), Path::Shm);
    server.stop();
    let server = start_again(&address, config());
    let writer = connect(&server, PathMode::Auto);
    writer.put("k", "new").unwrap();
    let value = session.get("k").unwrap().unwrap();
    assert_eq!((&value[..], value.path()), (&b"new"[..], Path::Shm));
    assert_eq!(session.multi_get(&["k"]).unwrap()[0].as_ref().unwrap()[..], *b"new");
    assert_eq!(session.server_info().boot_id, writer.server_info().unwrap().boot_id);
}

#[test]
fn a_memfd_table_without_its_server_is_unreachable() {
    let server = start();
    let options = Options::default().path(PathMode::Require(Path::Shm)).reconnect_timeout(Duration::ZERO);
    let client = Client::connect(address(&server), options).unwrap();
    let mut session = client.session().unwrap();
    session.put("k", "v").unwrap();
    let address = address(&server);
    server.stop();
    eventually("the end is seen", || matches!(session.get("k"), Err(Error::Unreachable { .. })));
    assert!(matches!(session.multi_get(&["k"]), Err(Error::Unreachable { .. })));
    let _server = start_again(&address, config());
    assert_eq!(session.get("k").unwrap(), None);
    session.put("k", "w").unwrap();
    assert_eq!(session.get("k").unwrap().unwrap().path(), Path::Shm);
}

#[test]
fn readers_of_a_file_go_on_without_its_server() {
    let folder = tempfile::tempdir().unwrap();
    let server = start_in(folder.path());
    let address = address(&server);
    let client = connect(&server, PathMode::Require(Path::Shm));
    let mut session = client.session().unwrap();
    let version = session.put("k", "one").unwrap();
    server.stop();
    for _ in 0..1000 {
        let value = session.get("k").unwrap().unwrap();
        assert_eq!((&value[..], value.version(), value.path()), (&b"one"[..], version, Path::Shm));
    }
    let config = Config { data: Some(folder.path().to_owned()), ..config() };
    let server = start_again(&address, config);
    let writer = connect(&server, PathMode::Auto);
    assert!(writer.put("k", "two").unwrap() > version);
    assert_eq!(&session.get("k").unwrap().unwrap()[..], b"two");
    session.put("k", "three").unwrap();
    assert_eq!(&writer.get("k").unwrap().unwrap()[..], b"three");
    assert_eq!(session.path(), Path::Shm);
}

#[test]
fn paths_that_cannot_be_had() {
    let server = start();
    let error = Client::connect(address(&server), Options::default().path(PathMode::Require(Path::Rdma))).unwrap_err();
    assert!(matches!(&error, Error::PathUnavailable { path: Path::Rdma, reason } if !reason.is_empty()), "{error}");
    let client = connect(&server, PathMode::Prefer(Path::Rdma));
    let mut session = client.session().unwrap();
    session.put("k", "v").unwrap();
    assert_eq!(session.get("k").unwrap().unwrap().path(), Path::Tcp);
    assert_eq!(session.stats().unwrap().client("path_fallbacks"), Some(1));
    let info = session.server_info();
    assert_eq!(info.pid, std::process::id());
    assert!(info.paths.iter().any(|(path, state)| *path == Path::Rdma && state.is_err()));
}

#[test]
fn wrong_tokens_are_refused() {
    let tokens = Some(sidestep_server::access::Tokens::bare("right"));
    let server = Server::start(Config { tokens, ..config() }).unwrap();
    let attempt = |token: &str| Client::connect(address(&server), Options::default().token(token));
    attempt("right").unwrap().put("k", "v").unwrap();
    assert!(matches!(attempt("wrong"), Err(Error::Refused { .. })));
    assert!(matches!(attempt(""), Err(Error::Refused { .. })));
    let open = start();
    let error = Client::connect(address(&open), Options::default().token("any")).unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "a server without the token is not the one meant: {error}");
}

#[test]
fn nobody_there() {
    let started = Instant::now();
    let error = Client::connect("127.0.0.1:1", Options::default()).unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert!(started.elapsed() < Duration::from_secs(10));
    assert!(Client::connect("no such host.invalid:1", Options::default()).is_err());
}

#[test]
fn spinning_sessions_answer_too() {
    let server = start();
    let options = Options::default().path(PathMode::Require(Path::Tcp)).spin(true);
    let mut session = Client::connect(address(&server), options).unwrap().session().unwrap();
    session.put("k", "v").unwrap();
    session.submit_get("k").unwrap();
    let mut found = 0;
    while session.in_flight() > 0 {
        session.try_poll(|done| found += usize::from(matches!(done.answer, Ok(Answer::Value(..)))));
    }
    assert_eq!(found, 1);
}
