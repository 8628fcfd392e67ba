//! What is read without the server's CPU is reported to a server that evicts, and nothing waits for that.

mod support;

use sidestep_client::{Answer, Client, Options, Path, PathMode, PutOptions, Session};
use sidestep_server::store::Eviction;
use sidestep_server::{Config, Server};
use support::{address, config, eventually, start, start_again};

const KEYS: u64 = 1000;
/// Most that a client gathers.
const FULL: u64 = 512;

fn evicting() -> Config {
    Config { eviction: Eviction::Clock, ..config() }
}

/// A session of a client of its own, whose counters are its own.
fn session(server: &Server) -> Session {
    let options = Options::default().path(PathMode::Require(Path::Shm));
    let mut session = Client::connect(address(server), options).unwrap().session().unwrap();
    let pairs: Vec<([u8; 8], [u8; 8])> = (0..KEYS).map(|i| (i.to_le_bytes(), i.to_be_bytes())).collect();
    assert!(session.multi_put(&pairs).unwrap().iter().all(Result::is_ok));
    session
}

fn read_all(session: &mut Session) {
    for i in 0..KEYS {
        assert_eq!(session.get(i.to_le_bytes()).unwrap().as_deref(), Some(&i.to_be_bytes()[..]));
    }
}

/// What a server has been told, asked by another client.
fn told(server: &Server) -> u64 {
    let client = Client::connect(address(server), Options::default().path(PathMode::Require(Path::Tcp))).unwrap();
    client.stats().unwrap().server("uses_reported").expect("a counter")
}

#[test]
fn who_only_reads_reports_by_itself() {
    let server = Server::start(evicting()).unwrap();
    let mut session = session(&server);
    let keys: Vec<[u8; 8]> = (0..KEYS).map(u64::to_le_bytes).collect();
    let mut into = Vec::new();
    for way in 0..4 {
        let before = told(&server);
        // In each way of reading, as often as fills more than one report.
        for _ in 0..3 * FULL * 32 / KEYS {
            match way {
                0 => read_all(&mut session),
                1 => keys.iter().for_each(|key| assert!(session.get_into(key, &mut into).unwrap().is_some())),
                2 => assert!(session.multi_get(&keys).unwrap().iter().all(Option::is_some)),
                _ => {
                    keys.iter().for_each(|key| _ = session.submit_get(key).unwrap());
                    let mut ended = 0;
                    session.poll(|_| ended += 1);
                    assert_eq!((ended, session.in_flight()), (KEYS, 0));
                }
            }
            assert_eq!(session.in_flight(), 0);
            assert_eq!(session.poll(|done| panic!("nobody asked for {done:?}")), 0);
        }
        eventually("it is told", || told(&server) > before);
    }
    let stats = session.stats().unwrap();
    let (reported, found) = (stats.client("uses_reported").unwrap(), stats.client("shm_get_found").unwrap());
    assert!(reported * 32 > found / 2 && reported * 32 < found * 2, "{reported} of {found}");
    assert_eq!(stats.server("uses_reported"), Some(reported));
    assert_eq!(stats.client("connections_lost"), Some(0));
    server.stop();
}

#[test]
fn requests_take_reports_along() {
    let server = Server::start(evicting()).unwrap();
    let mut session = session(&server);
    let mut version = 0;
    for round in 0..50u8 {
        read_all(&mut session);
        // What is read and written meanwhile has the right answers, whatever travels between.
        let pairs: Vec<([u8; 1], [u8; 1])> = (0..200).map(|i| ([i], [round])).collect();
        assert!(session.multi_put(&pairs).unwrap().iter().all(Result::is_ok));
        read_all(&mut session);
        let tickets =
            [session.submit_put("a", [round], PutOptions::default()).unwrap(), session.submit_get("b").unwrap()];
        let mut done = Vec::new();
        while session.in_flight() > 0 {
            session.poll(|completion| {
                if let Ok(Answer::Written { version: now }) = completion.answer {
                    assert!(now > version);
                    version = now;
                }
                done.push(completion.ticket);
            });
        }
        done.sort_unstable();
        assert!(done.len() == 2 && tickets.iter().all(|ticket| done.contains(ticket)));
        read_all(&mut session);
        assert_eq!(session.get([7]).unwrap().as_deref(), Some(&[round][..]));
    }
    let stats = session.stats().unwrap();
    // 150 000 keys were found, and some part of them has been told since with each of the requests.
    assert!(stats.server("tcp_touch_ok").unwrap() >= 100, "{stats:?}");
    assert_eq!(stats.server("uses_reported"), stats.client("uses_reported"));
    server.stop();
}

#[test]
fn who_does_not_evict_is_told_nothing() {
    let server = start();
    let mut session = session(&server);
    (0..3 * FULL * 32 / KEYS).for_each(|_| read_all(&mut session));
    let stats = session.stats().unwrap();
    assert_eq!((stats.client("uses_reported"), stats.server("tcp_touch_ok")), (Some(0), Some(0)));
    server.stop();
}

/// Reports do not go into a connection that has ended, and begin again with the next, if the server still wants them.
#[test]
fn a_lost_server_is_told_nothing_and_another_one_what_it_wants() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config { data: Some(folder.path().to_owned()), ..evicting() };
    let server = Server::start(config.clone()).unwrap();
    let at = address(&server);
    let mut session = session(&server);
    read_all(&mut session);
    server.stop();
    // It reads on in the file.
    (0..3 * FULL * 32 / KEYS).for_each(|_| read_all(&mut session));
    let server = start_again(&at, Config { eviction: Eviction::None, ..config.clone() });
    session.ping().unwrap();
    (0..3 * FULL * 32 / KEYS).for_each(|_| read_all(&mut session));
    assert_eq!(session.stats().unwrap().server("uses_reported"), Some(0));
    server.stop();
    let server = start_again(&at, config);
    session.ping().unwrap();
    (0..3 * FULL * 32 / KEYS).for_each(|_| read_all(&mut session));
    session.ping().unwrap();
    let told = told(&server);
    assert!(told >= FULL, "{told}");
    server.stop();
}
