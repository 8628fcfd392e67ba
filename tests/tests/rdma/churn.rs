//! Readers by `rdma` beside writers who leave nothing where it was.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use sidestep_client::{Client, Error, Options, Path, PathMode, Session, Stats, Value};
use sidestep_tests::process::ServerProcess;

use super::options;

/// Keys that are always there, rewritten without end.
const STEADY: u64 = 200;
/// Rounds of one reader over a part of the keys.
const ROUNDS: u64 = 120;
/// Of a thousand lookups so many may go to the server: each had eight rounds spoiled by writers.
const ASKS_PER_THOUSAND: u64 = 5;

/// A value that says what it is in every word: key, how often it was written, and how long it must be.
fn telling(key: u64, round: u64) -> Vec<u8> {
    let words = 1 + (key.wrapping_mul(0x9e37_79b9) ^ round.wrapping_mul(0x85eb_ca6b)) % 90;
    [key, round].iter().cycle().take(2 * words as usize).flat_map(|word| word.to_le_bytes()).collect()
}

/// Which writing of the key it is of.
fn round_of(key: u64, value: &Value) -> u64 {
    let round = u64::from_le_bytes(value[8..16].try_into().unwrap());
    assert!(value[..] == telling(key, round)[..], "bytes that nobody wrote: key {key}, round {round}");
    assert_eq!(value.path(), Path::Rdma);
    round
}

fn by_tcp(server: &ServerProcess) -> Session {
    let options = Options::default().path(PathMode::Require(Path::Tcp));
    Client::connect(server.address(), options).unwrap().session().unwrap()
}

/// Reads steady keys until the rounds are over; what was seen once is not followed by what was there before.
fn read_steady(session: &mut Session, from: u64, seen_rounds: &mut [u64]) {
    for i in 0..ROUNDS {
        let key = (from + i * 7) % STEADY;
        let round = round_of(key, &session.get(key.to_le_bytes()).unwrap().expect("a key that is always there"));
        assert!(round >= seen_rounds[key as usize], "key {key} went back to {round}");
        seen_rounds[key as usize] = round;
    }
    let keys: Vec<u64> = (0..64).map(|i| (from + i * 3) % STEADY).collect();
    let names: Vec<[u8; 8]> = keys.iter().map(|key| key.to_le_bytes()).collect();
    for (key, value) in keys.iter().zip(session.multi_get(&names).unwrap()) {
        let round = round_of(*key, &value.expect("a key that is always there"));
        assert!(round >= seen_rounds[*key as usize], "key {key} went back to {round}");
        seen_rounds[*key as usize] = round;
    }
}

/// Readers with and without location cache until `is_over`; each reads a few rounds at least. Returns their counters.
fn readers(server: &ServerProcess, is_over: &AtomicBool, beside: impl Fn(&mut Session) + Sync) -> Stats {
    let clients = [0, 1024].map(|cache| Client::connect(server.address(), options().location_cache(cache)).unwrap());
    thread::scope(|scope| {
        for client in &clients {
            let beside = &beside;
            scope.spawn(move || {
                let (mut session, mut seen) = (client.session().unwrap(), vec![0; STEADY as usize]);
                let mut turn = 0;
                while turn < 3 || !is_over.load(Ordering::SeqCst) {
                    read_steady(&mut session, turn, &mut seen);
                    beside(&mut session);
                    turn += 1;
                }
            });
        }
    });
    beside(&mut clients[0].session().unwrap());
    let mut sum = clients[0].stats().unwrap();
    let other = clients[1].stats().unwrap();
    sum.client.iter_mut().zip(&other.client).for_each(|(sum, (_, count))| sum.1 += count);
    sum
}

fn asked_seldom(stats: &Stats) {
    let client = |name| stats.client(name).expect("a counter");
    let lookups = client("rdma_get_found") + client("rdma_get_absent");
    let asked = client("rdma_asks_server");
    println!(
        "{lookups} lookups: {asked} asked the server; torn {}, stale directory {}, hops {}, pending {}, cached hits {}, \
         dropped {}; the server: {} splits, {} doublings",
        client("rdma_retries_torn"),
        client("rdma_retries_stale_directory"),
        client("rdma_forward_hops"),
        client("rdma_retries_pending"),
        client("location_cache_hits"),
        client("location_cache_dropped"),
        stats.server("splits").unwrap(),
        stats.server("directory_doublings").unwrap(),
    );
    assert!(lookups > 0 && asked * 1000 <= lookups * ASKS_PER_THOUSAND, "{asked} of {lookups}");
    assert_eq!(client("rdma_errors"), 0);
}

/// Rewriting in little memory: what is freed is another key's a moment later.
#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn every_value_is_right_while_extents_are_reused() {
    let server = ServerProcess::start("127.0.0.1:0", &["--memory", "4MiB", "--segment", "1MiB", "--workers", "1"]);
    let mut writer = by_tcp(&server);
    assert!(put_all(&mut writer, 0..STEADY, 1).is_empty());
    let is_over = AtomicBool::new(false);
    let stats = thread::scope(|scope| {
        let reading = scope.spawn(|| readers(&server, &is_over, |_| ()));
        // The table's memory several times over.
        for round in 2..80 {
            assert!(put_all(&mut writer, 0..STEADY, round).is_empty());
        }
        is_over.store(true, Ordering::SeqCst);
        reading.join().unwrap()
    });
    asked_seldom(&stats);
    assert!(stats.client("location_cache_dropped").unwrap() + stats.client("rdma_forward_hops").unwrap() > 0);
}

/// Keys that stay once they are there, and keys that come and go.
const STAYING: u64 = 1 << 32;
const PASSING: u64 = 1 << 33;
/// Keys that are put at once.
const BATCH: u64 = 16;

/// Puts these keys; which of them were refused because the memory is full.
fn put_all(writer: &mut Session, keys: impl Iterator<Item = u64>, round: u64) -> Vec<u64> {
    let keys: Vec<u64> = keys.collect();
    let pairs: Vec<([u8; 8], Vec<u8>)> = keys.iter().map(|&key| (key.to_le_bytes(), telling(key, round))).collect();
    let written = writer.multi_put(&pairs).unwrap();
    let refused = keys.iter().zip(written).filter_map(|(&key, written)| match written {
        Ok(_) => None,
        Err(Error::Full(_)) => Some(key),
        Err(error) => panic!("{error}"),
    });
    refused.collect()
}

/// Inserts until the table is full, which splits its subtables from beginning to end; then some go, and it is filled
/// again.
#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn every_key_is_found_while_subtables_split_and_memory_runs_out() {
    let server = ServerProcess::start("127.0.0.1:0", &["--memory", "2MiB", "--segment", "256KiB", "--workers", "1"]);
    let mut writer = by_tcp(&server);
    assert!(put_all(&mut writer, 0..STEADY, 1).is_empty());
    let (is_over, staying) = (AtomicBool::new(false), AtomicU64::new(0));
    let beside = |session: &mut Session| {
        // What was acknowledged before is there; what never was is absent.
        let until = staying.load(Ordering::SeqCst);
        for i in 0..until.min(20) {
            let key = STAYING + i * (until / 20).max(1);
            let value = session.get(key.to_le_bytes()).unwrap().unwrap_or_else(|| panic!("{key:#x} is missing"));
            assert_eq!(round_of(key, &value), 1);
        }
        assert!(session.get(format!("absent {until}")).unwrap().is_none());
    };
    let stats = thread::scope(|scope| {
        let reading = scope.spawn(|| readers(&server, &is_over, beside));
        let both = |first: u64| (first..first + BATCH).flat_map(|i| [STAYING + i, PASSING + i]);
        let mut filled = 0;
        while put_all(&mut writer, both(filled), 1).is_empty() {
            filled += BATCH;
            staying.store(filled, Ordering::SeqCst);
        }
        assert!(filled > 300, "{filled} keys of each kind fit");
        for key in (0..filled).map(|i| PASSING + i) {
            assert!(writer.delete(key.to_le_bytes()).unwrap());
        }
        assert!(put_all(&mut writer, 0..STEADY, 2).is_empty(), "there is room again");
        let again = (PASSING..).step_by(BATCH as usize);
        let fit = again.take_while(|&key| put_all(&mut writer, key..key + BATCH, 2).is_empty()).count() as u64;
        assert!(fit * BATCH > filled / 2, "{} keys fit again", fit * BATCH);
        is_over.store(true, Ordering::SeqCst);
        reading.join().unwrap()
    });
    asked_seldom(&stats);
    assert!(stats.server("splits").unwrap() > 3, "{:?}", stats.server);
    let mut reader = Client::connect(server.address(), options()).unwrap().session().unwrap();
    for key in (0..staying.into_inner()).map(|i| STAYING + i) {
        round_of(key, &reader.get(key.to_le_bytes()).unwrap().unwrap_or_else(|| panic!("{key:#x} is lost")));
    }
}
