//! Hazards of stores like this one that no other test has by name. `docs/PROOFS.md` has the table of all of them.
//!
//! `SIDESTEP_SEED=N` sets the random choices.

mod damaged;

use std::collections::BTreeSet;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use sidestep_client::{Client, Error, Options, Path, PathMode};
use sidestep_core::handshake::{self, Challenge, Hello, Message, Proof, Refusal, Stats, Welcome};
use sidestep_core::hash::KeyHash;
use sidestep_core::layout::item::{self, ComposeHeader, LinkState};
use sidestep_server::config::Timeouts;
use sidestep_server::{Config, Server};
use sidestep_tests::process::EndlessClient;

fn config() -> Config {
    Config {
        listen: "127.0.0.1:0".into(),
        memory_bytes: Some(64 << 20),
        segment_bytes: Some(1 << 20),
        workers: 2,
        ..Config::default()
    }
}

fn connect(server: &Server, path: Path) -> Client {
    Client::connect(server.local_addr().to_string(), Options::default().path(PathMode::Require(path)))
        .expect("the path can be had")
}

fn counter(server: &Server, name: &str) -> u64 {
    let stats = server.stats();
    stats.counters.iter().find(|(other, _)| other == name).map(|(_, count)| *count).expect("a counter")
}

/// Waits for what must come to pass, however slow the machine is.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "it never came to pass that {what}");
        std::thread::yield_now();
    }
}

/// Pairs of keys of which one begins with the other, in one window and with one fingerprint: some go on with
/// anything, some with NULs alone, so that their words are the same.
fn prefixes(table_id: u64) -> Vec<(Vec<u8>, Vec<u8>)> {
    let alike = |a: &[u8], b: &[u8]| {
        let (a, b) = (KeyHash::of(a, table_id), KeyHash::of(b, table_id));
        a.home() == b.home() && a.fingerprint() == b.fingerprint()
    };
    let longer = (0u64..).map(|i| format!("p{i}").into_bytes()).find(|key| alike(b"p", key));
    let with_nul = (0u64..).map(|i| format!("n{i}").into_bytes()).find_map(|key| {
        let longer = [&key[..], b"\0"].concat();
        (key.len() % 8 != 0 && alike(&key, &longer)).then_some((key, longer))
    });
    vec![(b"p".to_vec(), longer.expect("there are many")), with_nul.expect("there are many")]
}

#[test]
fn a_key_that_begins_with_another_and_collides_with_it() {
    for path in [Path::Tcp, Path::Shm] {
        let server = Server::start(config()).expect("a server");
        let client = connect(&server, path);
        for (short, long) in prefixes(client.server_info().expect("its info").table_id) {
            for (present, absent) in [(&short, &long), (&long, &short)] {
                client.put(present, "value").expect("a put");
                assert_eq!(client.get(absent).expect("a get"), None);
                assert!(matches!(client.put_if(absent, "", 1), Err(Error::VersionMismatch { found: 0 })));
                assert!(!client.delete(absent).expect("a delete"));
                assert_eq!(client.get(present).expect("a get").as_deref(), Some(&b"value"[..]));
                assert!(client.delete(present).expect("a delete"));
            }
        }
    }
}

fn mutated(bytes: &[u8], changes: &[(usize, u8)]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for (at, to) in changes {
        let at = at % bytes.len();
        bytes[at] = *to;
    }
    bytes
}

fn decode<M: Message>(bytes: &[u8]) {
    let _ = handshake::decode::<M>(M::KIND as u16, bytes);
}

fn decode_all(bytes: &[u8]) {
    decode::<Hello>(bytes);
    decode::<Challenge>(bytes);
    decode::<Proof>(bytes);
    decode::<Welcome>(bytes);
    decode::<Refusal>(bytes);
    let _ = handshake::decode_body::<Stats>(bytes);
    let _ = item::validate(bytes, 42);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Random bytes, and good ones of which some are changed: an error or a value, and no more.
    #[test]
    fn decoders_bear_any_bytes(
        random in proptest::collection::vec(any::<u8>(), 0..300),
        changes in proptest::collection::vec((any::<usize>(), any::<u8>()), 0..8),
        cut in any::<usize>(),
    ) {
        decode_all(&random);
        let mut item = Vec::new();
        let header = ComposeHeader { state: LinkState::Current, version: 7, expires_ms: 0 };
        item::compose(&mut item, b"a key", &[3; 100], header, 42);
        let stats = Stats { counters: vec![("name".into(), 5), ("other".into(), u64::MAX)], facts: vec![("a".into(), "b".into())] };
        let refusal = handshake::encode(&Refusal { reason: "because".into() }).expect("it is short");
        let stats = handshake::encode_body(&stats).expect("it is short");
        for good in [item, refusal, stats] {
            let bytes = mutated(&good, &changes);
            decode_all(&bytes);
            decode_all(&bytes[cut % bytes.len()..]);
            decode_all(&bytes[..cut % bytes.len()]);
        }
    }
}

/// In the middle of whatever they do, long values too; what they held is there for others afterwards.
#[test]
fn clients_killed_at_random_moments_leave_nothing() {
    let seed = std::env::var("SIDESTEP_SEED").map_or(1, |text| text.parse().expect("a number"));
    println!("SIDESTEP_SEED={seed}");
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let timeouts = Timeouts { session: Duration::from_millis(400), ..Timeouts::default() };
    let segment_bytes = Some(16 << 20);
    let server = Server::start(Config { timeouts, segment_bytes, ..config() }).expect("a server");
    for round in 0..24u32 {
        let more = if round % 2 == 0 { &["--long-values"][..] } else { &[] };
        let client = EndlessClient::start(&server.local_addr().to_string(), "tcp,shm-cached,tcp", round, more);
        std::thread::sleep(Duration::from_micros(random.random_range(0..30_000)));
        client.kill();
    }
    // Deferred frees are done by whoever comes next.
    let client = connect(&server, Path::Tcp);
    eventually("every extent is a key's", || {
        client.get("last").expect("a get");
        counter(&server, "extents") == counter(&server, "keys") && counter(&server, "extents_held") == 0
    });
    eventually("only this client has a session", || counter(&server, "sessions") == 1);
    assert_eq!(counter(&server, "connections"), 1);
}

/// A worker that has nothing more to do keeps no memory to itself that it has freed.
#[test]
fn what_an_idle_worker_has_freed_serves_the_others() {
    let server = Server::start(config()).expect("a server");
    // Connections are dealt to the workers in turn.
    let clients = [connect(&server, Path::Tcp), connect(&server, Path::Tcp)];
    let value = vec![1; 1_000_000];
    for (i, client) in clients.iter().enumerate() {
        for key in 0..40 {
            client.put(format!("{i} {key}"), &value).unwrap_or_else(|error| panic!("client {i}, key {key}: {error}"));
        }
        for key in 0..40 {
            assert!(client.delete(format!("{i} {key}")).expect("a delete"));
        }
    }
}

/// Refusals take nothing: a version that is another, a table that is full.
#[test]
fn refused_writes_leave_nothing() {
    let server = Server::start(Config { memory_bytes: Some(8 << 20), ..config() }).expect("a server");
    let client = connect(&server, Path::Tcp);
    let long = vec![1; 100_000];
    client.put("key", &long).expect("a put");
    for _ in 0..300 {
        assert!(matches!(client.put_if("key", &long, 0), Err(Error::VersionMismatch { .. })));
        assert!(matches!(client.put_if("other", b"short", 77), Err(Error::VersionMismatch { found: 0 })));
    }
    let mut full = 0;
    for i in 0..300u32 {
        match client.put(i.to_le_bytes(), &long) {
            Ok(_) => {}
            Err(Error::Full(_)) => full += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(full > 100, "{full}");
    eventually("every extent is a key's", || {
        client.get("key").expect("a get");
        counter(&server, "extents") == counter(&server, "keys")
    });
    assert_eq!(client.get("key").expect("a get").map(|value| value.len()), Some(long.len()), "what was there stays");
}

/// Sessions that lose their server at once knock at its door a few times each, more and more seldom.
#[test]
fn many_clients_that_lose_their_server_do_not_storm() {
    const SESSIONS: u64 = 60;
    let server = Server::start(config()).expect("a server");
    let address = server.local_addr();
    let options = Options::default().path(PathMode::Require(Path::Tcp)).reconnect_timeout(Duration::from_millis(1500));
    let client = Client::connect(address.to_string(), options).expect("a server");
    let mut sessions: Vec<_> = (0..SESSIONS).map(|_| client.session().expect("a session")).collect();
    server.stop();
    let listener = TcpListener::bind(address).expect("the port is free again");
    let (knocks, over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for stream in listener.incoming() {
                drop(stream);
                if over.load(Ordering::SeqCst) {
                    break;
                }
                knocks.fetch_add(1, Ordering::SeqCst);
            }
        });
        std::thread::scope(|waiting| {
            for session in &mut sessions {
                waiting.spawn(|| assert!(matches!(session.get("key"), Err(Error::Unreachable { .. }))));
            }
        });
        over.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(address));
    });
    let knocks = knocks.into_inner();
    // 5 ms, doubled each time: 9 or 10 attempts in 1.5 s, and two for the connection that was lost.
    assert!((SESSIONS..=SESSIONS * 14).contains(&knocks), "{knocks} connections of {SESSIONS} sessions");
}

/// Every test and every mutant that the table of hazards names is there.
#[test]
fn the_table_of_hazards_names_what_exists() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let text = std::fs::read_to_string(format!("{root}/docs/PROOFS.md")).expect("the page");
    let table = text.split("\n## ").find(|section| section.starts_with("Hazards")).expect("the section");
    let names: BTreeSet<&str> = table.split('`').skip(1).step_by(2).collect();
    let (mut tests, mut mutants) = (0, 0);
    for name in names {
        if let Some((file, test)) = name.split_once(".rs::") {
            let source =
                std::fs::read_to_string(format!("{root}/{file}.rs")).unwrap_or_else(|e| panic!("{file}.rs: {e}"));
            let function = test.rsplit("::").next().unwrap_or(test);
            assert!(source.contains(&format!("fn {function}(")), "no {name}");
            tests += 1;
        } else if let Some(mutant) = name.strip_suffix(".patch") {
            let patch = format!("{root}/tests/mutants/{mutant}.patch");
            assert!(std::path::Path::new(&patch).exists(), "no {patch}");
            mutants += 1;
        }
    }
    assert!(tests > 30 && mutants > 30, "{tests} tests, {mutants} mutants");
}
