//! The machine goes down while the log is written: in a commit, where a segment begins, in a compaction, where the version
//! ceiling rises. Each with each mode of syncing, and with what was not synced dropped, torn, or in another order. The
//! table that is made from what the disk has then is one that there was: nothing that was synced is lost.
//!
//! A failure is repeated with `SIDESTEP_SEED` as printed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use sidestep_fabric::region::Region;

use super::tape::{Event, FATES, Tape, crash};
use super::*;
use crate::store::{Got, Journal, StoreOptions};

const MEMORY_BYTES: u64 = 32 << 20;
const MODES: [SyncMode; 3] = [SyncMode::Off, SyncMode::Interval(Duration::from_millis(1)), SyncMode::Always];
/// Moments of each run at which the machine goes down, for each fate.
const MOMENTS: usize = 10;
/// Writes during a compaction at most: they are all kept.
const WRITES_MEANWHILE: usize = 300;
/// A bound, not a pace.
const PATIENCE: Duration = Duration::from_secs(60);

/// Values by key, with their versions.
type State = BTreeMap<Vec<u8>, (Arc<[u8]>, u64)>;

/// What was written, in order.
struct Write {
    key: Vec<u8>,
    /// None: deleted.
    value: Option<(Arc<[u8]>, u64)>,
    /// It is acknowledged, or would be if it waited for the disk, when all records before this one are synced.
    gate: u64,
    /// How much was on the tape when it was written.
    at: usize,
}

/// A log that is written, and its tape.
struct Run {
    sync: SyncMode,
    random: Xoshiro256PlusPlus,
    folder: tempfile::TempDir,
    tape: Arc<Tape>,
    store: Arc<Store<Region>>,
    log: Log,
    writes: Vec<Write>,
}

impl Run {
    fn new(sync: SyncMode, random: &mut Xoshiro256PlusPlus) -> Self {
        let random = Xoshiro256PlusPlus::seed_from_u64(random.random());
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let tape = Tape::of(folder.path());
        let stored = Stored::open(&LogConfig { path: folder.path().to_owned(), sync }).unwrap();
        let store = table(0);
        let log = stored.go_on(&store, false).unwrap();
        let (queue, acknowledging) = (log.queue.clone(), tape.clone());
        log.queue.on_progress(move || acknowledging.push(Event::Durable(queue.durable())));
        Self { sync, random, folder, tape, store, log, writes: Vec::new() }
    }

    /// Some writes to the same keys, and now and then the end of one. They wait for room in the log, as clients' do.
    fn write(&mut self, count: usize) {
        for _ in 0..count {
            self.until("room in the log", |run| !run.log.queue.is_full());
            let number = self.writes.len();
            let key = format!("key {}", self.random.random_range(0..12)).into_bytes();
            let at = self.tape.len();
            let value = if self.random.random_bool(0.1) {
                self.store.delete(&key, None).unwrap();
                None
            } else {
                // Without a sync a batch is 4 MiB.
                let most = if self.sync == SyncMode::Off { 600_000 } else { [100, 5000, 60_000][number % 3] };
                let value = format!("{number} ").into_bytes().repeat(self.random.random_range(1..most / 4));
                let version = self.store.put(&key, &value, None, 0).unwrap();
                Some((value.into(), version))
            };
            let gate = self.log.queue.tail();
            self.writes.push(Write { key, value, gate, at });
            // Of several clients each waits for its own.
            if self.sync == SyncMode::Always && self.random.random_bool(0.7) {
                self.until("a sync", |run| run.log.queue.durable() >= gate);
            }
        }
    }

    fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let since = Instant::now();
        while !holds(self) {
            assert!(since.elapsed() < PATIENCE, "not in time: {what}");
            std::thread::yield_now();
        }
    }

    fn begin_segment(&self) {
        let (answer, begun) = crossbeam_channel::bounded(1);
        self.log.queue.order(queue::Order::Rotate(answer));
        begun.recv_timeout(PATIENCE).unwrap();
    }

    fn compactions(&self) -> u64 {
        self.log.queue.counters.compactions.load(Ordering::Relaxed)
    }

    /// Everything that the table was, from before the first write on.
    fn states(&self) -> Vec<State> {
        let mut states = vec![State::new()];
        for write in &self.writes {
            let mut state = states[states.len() - 1].clone();
            match &write.value {
                Some(value) => drop(state.insert(write.key.clone(), value.clone())),
                None => drop(state.remove(&write.key)),
            }
            states.push(state);
        }
        states
    }

    /// The machine goes down at moments of this part of the tape. Returns how often each of these came back: all that was
    /// written until then, and less.
    fn crash(mut self, part: Range<usize>) -> (u32, u32) {
        let (events, states) = (self.tape.events(), self.states());
        let turning = |event: &Event| !matches!(event, Event::Write(..) | Event::SetLen(..));
        let turning: Vec<usize> = part.clone().filter(|&at| turning(&events[at])).collect();
        let (mut all, mut less) = (0, 0);
        for fate in FATES {
            for _ in 0..MOMENTS {
                // Most events are writes. At the others it turns out what was done in time.
                let at = match turning.choose(&mut self.random) {
                    Some(at) if self.random.random() => at + self.random.random_range(0..2),
                    _ => self.random.random_range(part.clone()),
                };
                let files = crash(&mut self.random, &events[..at], fate);
                let durable = events[..at].iter().rev().find_map(|event| match event {
                    Event::Durable(record) => Some(*record),
                    _ => None,
                });
                // Compared with the gate, as a reply is that waits.
                let least = self.writes.partition_point(|write| durable.is_some_and(|record| write.gate <= record));
                // The end of a key that is absent leaves no record: it is synced before it is done.
                let most = self.writes.partition_point(|write| write.at <= at).max(least);
                let (found, ceiling) = rebuilt(self.folder.path(), &files, self.sync);
                let is = (least..=most).rev().find(|&writes| states[writes] == found);
                let what = format!("{}, {fate:?}, {at} of {part:?}", self.sync);
                assert!(
                    is.is_some(),
                    "{what}: {least} writes were synced of {most}; {}",
                    differences(&states[least], &found)
                );
                let given = self.writes[..most].iter().filter_map(|write| Some(write.value.as_ref()?.1)).max();
                assert!(given.is_none_or(|given| given <= ceiling), "{what}: {given:?} above {ceiling}");
                all += u32::from(is == Some(most));
                less += u32::from(is != Some(most));
            }
        }
        Tape::end(self.folder.path());
        println!("{}: {all} times all that was written, {less} times less", self.sync);
        (all, less)
    }
}

fn differences(expected: &State, found: &State) -> String {
    let show = |state: &State| -> Vec<String> {
        let one = |(key, (value, version)): (&Vec<u8>, &(Arc<[u8]>, u64))| {
            format!("{} {version} {}…", key.escape_ascii(), value[..value.len().min(5)].escape_ascii())
        };
        state.iter().map(one).collect()
    };
    format!("expected {:?} or later, found {:?}", show(expected), show(found))
}

fn table(version_floor: u64) -> Arc<Store<Region>> {
    let options = StoreOptions { version_floor, ..StoreOptions::default() };
    Store::create(Region::memfd(MEMORY_BYTES).unwrap(), &options).unwrap()
}

/// The table that a server makes of these files, and the ceiling of versions.
fn rebuilt(original: &Path, files: &BTreeMap<String, Vec<u8>>, sync: SyncMode) -> (State, u64) {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    std::fs::copy(original.join("sidestep-log"), folder.path().join("sidestep-log")).unwrap();
    for (name, bytes) in files {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    let opened = Stored::open(&LogConfig { path: folder.path().to_owned(), sync });
    let mut stored = opened.unwrap_or_else(|error| panic!("{error}: {}", writer::source(&error)));
    let store = table(stored.ceiling());
    stored.rebuild(&store).unwrap();
    let mut state = State::new();
    for number in 0..12 {
        let (key, mut value) = (format!("key {number}").into_bytes(), Vec::new());
        if let Got::Copied { version, .. } = store.get(&key, &crossbeam_epoch::pin(), usize::MAX, &mut value) {
            state.insert(key, (value.into(), version));
        }
    }
    assert_eq!(store.keys(), state.len() as u64);
    (state, stored.ceiling())
}

/// Does something with a log in each mode, and lets the machine go down meanwhile.
fn in_each_mode(run: impl Fn(&mut Run) -> Range<usize>) {
    let seed = std::env::var("SIDESTEP_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("SIDESTEP_SEED={seed}");
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut less = 0;
    for sync in MODES {
        let mut at = Run::new(sync, &mut random);
        let part = run(&mut at);
        less += at.crash(part).1;
    }
    assert!(less > 0, "nothing was ever lost: the machine did not go down while it was written");
}

#[test]
fn in_a_commit() {
    in_each_mode(|run| {
        let begin = run.tape.len();
        run.write(40);
        run.begin_segment();
        // What comes now is not synced with `off`.
        run.write(3);
        begin..run.tape.len()
    });
}

#[test]
fn where_a_segment_begins() {
    in_each_mode(|run| {
        run.write(12);
        let begin = run.tape.len();
        run.begin_segment();
        run.write(4);
        run.begin_segment();
        begin..run.tape.len()
    });
}

#[test]
fn in_a_compaction() {
    in_each_mode(|run| {
        run.write(30);
        run.begin_segment();
        run.write(6);
        let (begin, done) = (run.tape.len(), run.compactions());
        run.log.bell.ring();
        for _ in 0..WRITES_MEANWHILE {
            if run.compactions() > done {
                break;
            }
            run.write(1);
        }
        run.until("a compaction", |run| run.compactions() > done);
        // The old segments are gone, or may be.
        run.write(3);
        run.begin_segment();
        begin..run.tape.len()
    });
}

/// Versions that come near the ceiling: each as far above the one before as half the distance that the log keeps.
#[test]
fn where_the_ceiling_rises() {
    in_each_mode(|run| {
        run.write(4);
        let begin = run.tape.len();
        for step in 1..=12 {
            let (key, value, version) = (b"key 0".to_vec(), format!("{step}").into_bytes(), step << 38);
            let at = run.tape.len();
            run.log.queue.put(&key, value.as_slice().into(), version, 0);
            let gate = run.log.queue.tail();
            run.writes.push(Write { key, value: Some((value.as_slice().into(), version)), gate, at });
            match run.sync {
                SyncMode::Off => run.begin_segment(),
                _ => run.until("a sync", |run| run.log.queue.durable() >= gate),
            }
        }
        begin..run.tape.len()
    });
}
