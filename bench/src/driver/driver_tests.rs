use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::*;
use crate::target::{Completion, Connection, EachCompletion, EachRead, Effort, Local, Reply, Route, TargetError};

const SHORT: Duration = Duration::from_millis(60);

fn plan(drive: Drive) -> Plan {
    Plan {
        drive,
        warm_up: Duration::ZERO,
        measure: SHORT,
        operations: None,
        rate: None,
        arrivals: Arrivals::Poisson,
        seed: 1,
        companion: None,
    }
}

fn small(name: &str) -> Workload {
    Workload { records: 500, ..Workload::preset(name).expect("a preset") }
}

fn drives() -> [Drive; 4] {
    [
        Drive::calls(1),
        Drive::calls(2),
        Drive { batch: 16, ..Drive::calls(1) },
        Drive { threads: 1, connections: 4, depth: 8, batch: 1 },
    ]
}

#[test]
fn every_workload_runs_in_every_way() {
    for name in ["a", "b", "c", "d", "f", "kv64", "kv1k"] {
        let workload = small(name);
        for drive in drives() {
            let local = Local::new(workload.records);
            load(&local, &workload, 0..workload.records, 2, &|_| ()).expect("loaded");
            // By count: on a busy machine a thread may get nothing of a short time. Enough that some reads are timed.
            let counted = Plan { operations: Some(20_000), measure: Duration::from_secs(60), ..plan(drive) };
            let run = run(&local, &workload, &counted).unwrap_or_else(|error| panic!("{name} {drive:?}: {error}"));
            assert!(run.tally.operations > 100, "{name} {drive:?}: {}", run.tally.operations);
            assert_eq!(run.tally.writes() > 0, workload.writes(), "{name} {drive:?}");
            // Half of F, by their name, whichever half of them ended last.
            let modified = run.tally.by_operation[crate::workload::Operation::ReadModifyWrite as usize];
            let share = modified as f64 / run.tally.operations as f64;
            assert!((share - workload.mix.read_modify_write).abs() < 0.05, "{name} {drive:?}: {share}");
            assert_eq!(run.tally.fallbacks, 0, "{name} {drive:?}");
            assert!(!run.tally.service.is_empty() && run.tally.rate > 0.0);
        }
    }
}

#[test]
fn a_share_of_operations_ends_the_run() {
    let workload = small("c");
    let local = Local::new(workload.records);
    load(&local, &workload, 0..workload.records, 1, &|_| ()).expect("loaded");
    let counted = Plan { operations: Some(1000), measure: Duration::from_secs(60), ..plan(Drive::calls(1)) };
    assert_eq!(run(&local, &workload, &counted).expect("ran").tally.operations, 1000);
    // Every thread does its share, whoever is done first.
    let shared = Plan { drive: Drive::calls(4), ..counted };
    assert_eq!(run(&local, &workload, &shared).expect("ran").tally.operations, 1000);
}

#[test]
fn drives_that_make_no_sense_are_refused() {
    let local = Local::new(1);
    for drive in [
        Drive { threads: 0, ..Drive::calls(1) },
        Drive { connections: 1, ..Drive::calls(2) },
        Drive { depth: MAX_DEPTH + 1, ..Drive::calls(1) },
        Drive { batch: 0, ..Drive::calls(1) },
        Drive { batch: 8, depth: 8, ..Drive::calls(1) },
    ] {
        assert!(matches!(run(&local, &small("c"), &plan(drive)), Err(BenchError::Usage(_))), "{drive:?}");
    }
}

#[test]
fn labels_say_what_differs() {
    assert_eq!(Drive::calls(1).label(), "");
    assert_eq!(Drive::calls(8).label(), "8 threads");
    assert_eq!(Drive { threads: 1, connections: 64, depth: 16, batch: 1 }.label(), "64 connections × 16");
    assert_eq!(Drive { batch: 64, ..Drive::calls(1) }.label(), "batches of 64");
    assert_eq!(Drive { depth: 200, ..Drive::calls(1) }.fitted(1 << 20).depth, 1);
}

/// What a store of these tests does wrong, on one read in a hundred.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    WrongByte,
    OtherRecord,
    OldVersion,
    Missing,
    Error,
    /// None, but another route than the one that was asked for serves, and it takes some effort.
    Detour,
}

type SharedMap = Arc<Mutex<HashMap<Vec<u8>, (Vec<u8>, u64)>>>;

/// A map with versions that misbehaves.
struct Faulty {
    map: SharedMap,
    fault: Fault,
}

struct FaultyConnection {
    map: SharedMap,
    fault: Fault,
    reads: u64,
    pending: Vec<(usize, Vec<u8>, Option<Vec<u8>>)>,
}

impl Target for Faulty {
    fn route(&self) -> Route {
        Route::Shm
    }

    fn name(&self) -> &str {
        "faulty"
    }
    fn about(&self) -> String {
        format!("{:?}", self.fault)
    }
    fn connect(&self, _depth: usize) -> Result<Box<dyn Connection>, TargetError> {
        Ok(Box::new(FaultyConnection { map: self.map.clone(), fault: self.fault, reads: 0, pending: Vec::new() }))
    }
    fn server_cpu(&self) -> Option<Duration> {
        None
    }
}

impl Connection for FaultyConnection {
    fn read(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<Option<Reply>, TargetError> {
        self.reads += 1;
        let map = self.map.lock().expect("not poisoned");
        let Some((found, mut version)) = map.get(key).cloned() else { return Ok(None) };
        *value = found;
        if self.reads.is_multiple_of(100) {
            match self.fault {
                Fault::WrongByte => value[50] ^= 1,
                Fault::OtherRecord => {
                    *value = map.iter().find(|(other, _)| *other != key).expect("another").1.0.clone()
                }
                Fault::OldVersion => version -= 1,
                Fault::Missing => return Ok(None),
                Fault::Error => return Err(TargetError::new("connection lost")),
                Fault::Detour => {}
            }
        }
        Ok(Some(Reply { version, route: Route::Tcp }))
    }

    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<Reply, TargetError> {
        let mut map = self.map.lock().expect("not poisoned");
        let version = map.get(key).map_or(10, |(_, version)| version + 1);
        map.insert(key.to_vec(), (value.to_vec(), version));
        Ok(Reply { version, route: Route::Tcp })
    }

    fn read_batch(&mut self, keys: &[&[u8]], each: EachRead<'_>) -> Result<(), TargetError> {
        let mut value = Vec::new();
        for (index, key) in keys.iter().enumerate() {
            let found = self.read(key, &mut value)?;
            each(index, found.map(|reply| (value.as_slice(), reply)));
        }
        Ok(())
    }

    fn submit_read(&mut self, tag: usize, key: &[u8]) -> Result<(), TargetError> {
        self.pending.push((tag, key.to_vec(), None));
        Ok(())
    }

    fn submit_write(&mut self, tag: usize, key: &[u8], value: &[u8]) -> Result<(), TargetError> {
        self.pending.push((tag, key.to_vec(), Some(value.to_vec())));
        Ok(())
    }

    fn complete(&mut self, wait: bool, each: EachCompletion<'_>) -> Result<(), TargetError> {
        let pending = if wait { std::mem::take(&mut self.pending) } else { Vec::new() };
        let mut value = Vec::new();
        for (tag, key, written) in pending {
            let outcome = match written {
                Some(written) => self.write(&key, &written).map(|reply| Some((&[][..], reply))),
                None => self.read(&key, &mut value).map(|found| found.map(|reply| (value.as_slice(), reply))),
            };
            each(Completion { tag, outcome });
        }
        Ok(())
    }

    fn effort(&mut self) -> Effort {
        Effort { retries: 2 * self.reads, reconnects: 1, bytes_sent: 3 * self.reads, bytes_received: 5 * self.reads }
    }
}

/// Reads served by another route than the store's, and what they took, in the measured part alone.
#[test]
fn detours_and_effort_are_counted() {
    let workload = Workload { records: 20, ..small("kv64") };
    for drive in drives() {
        let store = Faulty { map: Arc::default(), fault: Fault::Detour };
        load(&store, &workload, 0..workload.records, 1, &|_| ()).expect("loaded");
        let counted = Plan { warm_up: SHORT, measure: Duration::from_secs(60), operations: Some(5000), ..plan(drive) };
        let Tally { operations, fallbacks, effort, .. } = run(&store, &workload, &counted).expect("ran").tally;
        assert_eq!(fallbacks, operations, "{drive:?}");
        // Windows that were in flight when the measured part began or ended are counted on one side alone.
        let in_flight = 2 * (drive.connections * drive.depth * drive.batch) as u64;
        assert!((effort.retries / 2).abs_diff(operations) <= in_flight, "{drive:?}: {operations}, {effort:?}");
        let reads = effort.retries / 2;
        let expected = Effort { retries: 2 * reads, reconnects: 0, bytes_sent: 3 * reads, bytes_received: 5 * reads };
        assert_eq!(effort, expected, "{drive:?}");
    }
}

#[test]
fn a_store_that_lies_fails_the_run() {
    let workload = Workload { records: 20, ..small("kv64") };
    for fault in [Fault::WrongByte, Fault::OtherRecord, Fault::OldVersion, Fault::Missing, Fault::Error] {
        for drive in drives() {
            let faulty = Faulty { map: Arc::default(), fault };
            load(&faulty, &workload, 0..workload.records, 1, &|_| ()).expect("loaded");
            let long = Plan { measure: Duration::from_secs(20), ..plan(drive) };
            let error = run(&faulty, &workload, &long).expect_err("it lies");
            let as_expected = match fault {
                Fault::WrongByte | Fault::OtherRecord => matches!(error, BenchError::WrongValue { .. }),
                Fault::OldVersion => matches!(error, BenchError::Stale { .. }),
                Fault::Missing => matches!(error, BenchError::Missing { .. }),
                Fault::Error | Fault::Detour => matches!(error, BenchError::Operation { .. }),
            };
            assert!(as_expected, "{fault:?} {drive:?}: {error}");
        }
    }
}

/// Coordinated omission: a stall shows in the time from the intended start, in one operation's service time only.
#[test]
fn an_open_loop_counts_the_wait() {
    struct Stalling(Local, Duration);
    struct StallingConnection(Box<dyn Connection>, Duration, u32);
    impl Target for Stalling {
        fn route(&self) -> Route {
            Route::Local
        }

        fn name(&self) -> &str {
            "stalling"
        }
        fn about(&self) -> String {
            String::new()
        }
        fn connect(&self, depth: usize) -> Result<Box<dyn Connection>, TargetError> {
            Ok(Box::new(StallingConnection(self.0.connect(depth)?, self.1, 0)))
        }
        fn server_cpu(&self) -> Option<Duration> {
            None
        }
    }
    impl Connection for StallingConnection {
        fn read(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<Option<Reply>, TargetError> {
            self.2 += 1;
            if self.2 == 100 {
                thread::sleep(self.1);
            }
            self.0.read(key, value)
        }
        fn write(&mut self, key: &[u8], value: &[u8]) -> Result<Reply, TargetError> {
            self.0.write(key, value)
        }
        fn read_batch(&mut self, keys: &[&[u8]], each: EachRead<'_>) -> Result<(), TargetError> {
            self.0.read_batch(keys, each)
        }
        fn submit_read(&mut self, tag: usize, key: &[u8]) -> Result<(), TargetError> {
            self.0.submit_read(tag, key)
        }
        fn submit_write(&mut self, tag: usize, key: &[u8], value: &[u8]) -> Result<(), TargetError> {
            self.0.submit_write(tag, key, value)
        }
        fn complete(&mut self, wait: bool, each: EachCompletion<'_>) -> Result<(), TargetError> {
            self.0.complete(wait, each)
        }
    }

    let workload = small("kv64");
    let stall = Duration::from_millis(200);
    let target = Stalling(Local::new(workload.records), stall);
    load(&target, &workload, 0..workload.records, 1, &|_| ()).expect("loaded");
    let open = Plan { measure: Duration::from_secs(1), rate: Some(1000.0), ..plan(Drive::calls(1)) };
    let tally = run(&target, &workload, &open).expect("ran").tally;
    let half = stall.as_nanos() as u64 / 2;
    let above = |histogram: &hdrhistogram::Histogram<u64>| histogram.count_between(half, u64::MAX / 2);
    assert!(above(&tally.service.all()) < 5, "service: {}", above(&tally.service.all()));
    // About a hundred operations were intended in the first half of the stall.
    assert!(above(&tally.response.all()) > 60, "response: {}", above(&tally.response.all()));
    // Service is what is left of the response without the wait.
    let mean = |times: &Times| times.all().mean();
    let (service, wait, response) = (mean(&tally.service), mean(&tally.wait), mean(&tally.response));
    assert!((service + wait - response).abs() < 0.01 * response, "{service} + {wait} is not {response}");
    assert!((700..1300).contains(&tally.operations), "{}", tally.operations);
}
