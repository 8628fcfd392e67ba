//! Two writers: one stands still between two stores of a split, the other writes meanwhile.
//!
//! The first is stopped before a chosen store; the second, a thread of its own, runs until it is done or waits for
//! a lock. Then the first goes on, or the server is killed there and then. No acknowledged write may be lost.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;
use sidestep_core::hash::KeyHash;
use sidestep_core::lookup::Geometry;
use sidestep_core::memory::MemoryMut;
use sidestep_fabric::sim::{Killed, SimMemory, until_killed};
use sidestep_server::store::{Store, StoreOptions, WriteError, check};

use super::memory::WordByWord;
use super::reader::{End, Reader};
use super::setup::{TABLE_ID, memory_bytes, options};

/// A second writer that is not done by now waits for a lock.
const BLOCKED_AFTER: Duration = Duration::from_millis(20);

/// Two inserts that meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meeting {
    /// The first splits and doubles the directory, the second splits another subtable.
    DoublingAndSplit,
    /// The same the other way round.
    SplitAndDoubling,
    /// The second inserts into the sibling that the first's split makes; the server is killed where the first stands.
    SplitAndSiblingKilled,
}

/// Keys of one window by the first three bits of their hashes.
struct Keys {
    /// 8 of 000, 8 of 001, one of 010, 16 of 1xx: the subtables of 00 and of 1 have a full window.
    settled: Vec<&'static [u8]>,
    /// Of 000: splits the subtable of 00, for which the directory is doubled.
    doubles: &'static [u8],
    /// Of 001: goes to the sibling of that split.
    sibling: &'static [u8],
    /// Of 100: splits the subtable of 1.
    splits: &'static [u8],
}

fn some_keys() -> Keys {
    let of = |prefix: u64, count: usize| -> Vec<&'static [u8]> {
        (0u64..)
            .map(|i| format!("w{i:x}").into_bytes())
            .filter(|key| {
                let hash = KeyHash::of(key, TABLE_ID);
                hash.home() == 9 && hash.directory_index(3) == prefix
            })
            .take(count)
            .map(|key| &*key.leak())
            .collect()
    };
    let (low, high, other) = (of(0, 9), of(1, 9), of(4, 5));
    let mut settled: Vec<&'static [u8]> = [&low[..8], &high[..8], &of(2, 1), &other[..4]].concat();
    (5..8).for_each(|prefix| settled.extend(of(prefix, 4)));
    Keys { settled, doubles: low[8], sibling: high[8], splits: other[4] }
}

type Written = Result<Result<u64, WriteError>, Killed>;
type Second = Arc<Mutex<Option<JoinHandle<Written>>>>;

/// Runs a meeting with the first writer standing before each of its stores that `choose` takes, given the store's
/// number and how many there are. Returns the points tried; an error says which one showed what.
pub fn meet(meeting: Meeting, choose: impl Fn(u64, u64) -> bool) -> Result<u64, String> {
    let keys = some_keys();
    let stores = stand_at(&keys, meeting, u64::MAX)?;
    let mut tried = 0;
    for point in (0..stores).filter(|&point| choose(point, stores)) {
        stand_at(&keys, meeting, point)
            .map_err(|failure| format!("SIDESTEP_SIM_POINT={point}: {meeting:?}: {failure}"))?;
        tried += 1;
    }
    Ok(tried)
}

/// One meeting. Returns how many stores the first writer did.
fn stand_at(keys: &Keys, meeting: Meeting, point: u64) -> Result<u64, String> {
    let (first, second) = match meeting {
        Meeting::DoublingAndSplit => (keys.doubles, keys.splits),
        Meeting::SplitAndDoubling => (keys.splits, keys.doubles),
        Meeting::SplitAndSiblingKilled => (keys.doubles, keys.sibling),
    };
    let kill = meeting == Meeting::SplitAndSiblingKilled;
    let memory = WordByWord::new(SimMemory::new(memory_bytes(false) / 8, point));
    let options = options(false);
    let store = Store::create(memory.clone(), &options).map_err(|error| error.to_string())?;
    for key in &keys.settled {
        store.put(key, key, None, 0).map_err(|error| error.to_string())?;
    }
    let handle = Second::default();
    let start = memory.0.stores();
    let at = start.saturating_add(point);
    let hook = (memory.clone(), store.clone(), handle.clone());
    memory.0.on_store(move |number| {
        if number == at {
            let (memory, store, handle) = &hook;
            *handle.lock().unwrap_or_else(PoisonError::into_inner) = Some(run_second(store, second));
            if kill {
                memory.0.kill_at(memory.0.stores());
                memory.0.store(0, 0);
            }
        }
    });
    let first_written = until_killed(|| store.put(first, first, None, 0));
    let stores = memory.0.stores() - start;
    memory.0.clear_hooks();
    let second_handle = handle.lock().unwrap_or_else(PoisonError::into_inner).take();
    let second_written = match second_handle.map(JoinHandle::join) {
        Some(Ok(written)) => Some(written),
        Some(Err(_)) => return Err("the second writer panicked".to_owned()),
        None => None,
    };
    if memory.0.is_killed() {
        drop(store);
        memory.0.revive();
        Store::recover(memory.clone(), &options).map_err(|error| error.to_string())?;
    }
    let mut must = keys.settled.clone();
    for (key, written) in [(first, Some(first_written)), (second, second_written)] {
        match written {
            Some(Ok(Ok(_))) => must.push(key),
            Some(Ok(Err(error))) => return Err(format!("{key:?} was refused: {error}")),
            Some(Err(Killed)) | None => {}
        }
    }
    must.iter().try_for_each(|key| find(&memory, key))?;
    let report = check(&memory);
    if report.is_sound() { Ok(stores) } else { Err(format!("check: {:?}", report.problems)) }
}

/// Starts the second writer and waits until it is done or blocked.
fn run_second(store: &Arc<Store<WordByWord>>, key: &'static [u8]) -> JoinHandle<Written> {
    let (done, wait) = channel();
    let store = store.clone();
    let handle = std::thread::spawn(move || {
        let written = until_killed(|| store.put(key, key, None, 0));
        // The first writer may have stopped waiting.
        let _ = done.send(());
        written
    });
    let _ = wait.recv_timeout(BLOCKED_AFTER);
    handle
}

/// A reader without any memory of the table must find the key, its value being the key too.
fn find(memory: &WordByWord, key: &'static [u8]) -> Result<(), String> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(0);
    let geometry = Geometry {
        table_id: TABLE_ID,
        memory_bytes: memory_bytes(false),
        max_value_bytes: StoreOptions::default().max_value_bytes,
    };
    let mut reader = Reader::start(key, geometry, None, None, &mut random);
    loop {
        match reader.advance(memory, &mut random) {
            None => {}
            Some(End::Found { value, .. }) if value == key => return Ok(()),
            Some(end) => {
                return Err(format!("key {}: an acknowledged write is lost: {end:?}", String::from_utf8_lossy(key)));
            }
        }
    }
}
