//! The server's operations, the readers between its stores, and the checks.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use sidestep_core::hash::KeyHash;
use sidestep_core::layout::directory::DirectoryWord;
use sidestep_core::lookup::{CachedLocation, Geometry, Trace};
use sidestep_core::memory::Memory;
use sidestep_fabric::sim::{SimMemory, until_killed};
use sidestep_server::store::{Store, StoreOptions, WriteError, check};

use super::history::{History, State};
use super::memory::WordByWord;
use super::reader::{End, Reader};

const MEMORY_BYTES: u64 = 1 << 20;
const SEGMENT_BYTES: u64 = 256 << 10;
const TABLE_ID: u64 = 0x51de_57e9;

/// What a run does.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Decides everything.
    pub seed: u64,
    /// Operations of the server.
    pub operations: usize,
    /// Readers at a time.
    pub readers: usize,
    /// Whether the server is killed now and then.
    pub kills: bool,
}

/// What a run saw.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Lookups that ended.
    pub reads: u64,
    /// Lookups that found a value.
    pub hits: u64,
    /// Times the server was killed.
    pub kills: u64,
    /// Splits that were done or finished.
    pub splits: u64,
    /// What the readers met on their ways.
    pub trace: Trace,
}

/// Keys that crowd into two windows, some of them with the same fingerprint.
pub fn keys() -> &'static [Vec<u8>] {
    static KEYS: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    KEYS.get_or_init(|| {
        let mut keys = Vec::new();
        let mut wanted = |count: usize, good: &dyn Fn(KeyHash) -> bool| {
            (0u64..)
                .map(|i| format!("{i:x}").into_bytes())
                .filter(|key| good(KeyHash::of(key, TABLE_ID)))
                .take(count)
                .for_each(|key| {
                    if !keys.contains(&key) {
                        keys.push(key);
                    }
                });
        };
        wanted(24, &|hash| hash.home() == 9);
        wanted(4, &|hash| hash.home() == 10);
        wanted(4, &|hash| hash.home() == 9 && hash.fingerprint() == 77);
        keys
    })
}

struct Slot {
    reader: Option<Reader>,
    key: usize,
    start: u64,
    oldest: usize,
}

struct World {
    memory: WordByWord,
    random: Xoshiro256PlusPlus,
    geometry: Geometry,
    now: u64,
    history: History,
    slots: Vec<Slot>,
    /// Everything a cache may ever have remembered, by key.
    entries: Vec<Vec<DirectoryWord>>,
    locations: Vec<Vec<CachedLocation>>,
    outcome: Outcome,
    failure: Option<String>,
}

impl World {
    /// Between two stores: some readers sample some words.
    fn between(&mut self) {
        self.now += 1;
        for _ in 0..self.random.random_range(0..4) {
            let slot = self.random.random_range(0..self.slots.len());
            self.step(slot);
        }
        if self.random.random_range(0..400) == 0 {
            let key = self.random.random_range(0..keys().len());
            self.alone(key);
        }
    }

    fn begin(&mut self, key: usize) -> Slot {
        let pick = |bag: usize, random: &mut Xoshiro256PlusPlus| (bag > 0).then(|| random.random_range(0..bag));
        let entry = if self.random.random() { pick(self.entries[key].len(), &mut self.random) } else { None };
        let entry = entry.map(|i| self.entries[key][i]);
        let location = if self.random.random() { pick(self.locations[key].len(), &mut self.random) } else { None };
        let location = location.map(|i| self.locations[key][i]);
        let reader = Reader::start(&keys()[key], self.geometry, entry, location, &mut self.random);
        let oldest = self.history.oldest_allowed(key);
        self.now += 1;
        Slot { reader: Some(reader), key, start: self.now, oldest }
    }

    fn step(&mut self, index: usize) {
        if self.slots[index].reader.is_none() {
            let key = self.random.random_range(0..keys().len());
            self.slots[index] = self.begin(key);
        }
        let memory = self.memory.clone();
        let slot = &mut self.slots[index];
        let Some(reader) = slot.reader.as_mut() else { return };
        if let Some(end) = reader.advance(&memory, &mut self.random) {
            let (key, start, oldest) = (slot.key, slot.start, slot.oldest);
            if let Some(reader) = slot.reader.take() {
                self.end(&reader, key, start, oldest, end);
            }
        }
    }

    fn end(&mut self, reader: &Reader, key: usize, start: u64, oldest: usize, end: End) {
        self.now += 1;
        self.outcome.reads += 1;
        self.outcome.trace += reader.trace();
        if reader.entry().address() != 0 && !self.entries[key].contains(&reader.entry()) {
            self.entries[key].push(reader.entry());
        }
        let state = match end {
            End::Found { value, found } => {
                self.outcome.hits += 1;
                if !self.locations[key].contains(&found.location) {
                    self.locations[key].push(found.location);
                }
                Some(value)
            }
            End::Absent => None,
            End::Ask => return,
        };
        let checked = self.history.read(key, start, oldest, &state);
        self.fail(checked);
    }

    /// The server stands still: a reader must come to its end without asking it.
    fn alone(&mut self, key: usize) -> State {
        let mut slot = self.begin(key);
        let memory = self.memory.clone();
        loop {
            let Some(reader) = slot.reader.as_mut() else { return None };
            let Some(end) = reader.advance(&memory, &mut self.random) else { continue };
            let state = match &end {
                End::Found { value, .. } => Some(value.clone()),
                End::Absent => None,
                End::Ask => {
                    self.fail(Err(format!("key {key}: a reader beside a stopped server had to ask it")));
                    None
                }
            };
            if let Some(reader) = slot.reader.take() {
                self.end(&reader, key, slot.start, slot.oldest, end);
            }
            return state;
        }
    }

    fn fail(&mut self, checked: Result<(), String>) {
        if let Err(failure) = checked {
            self.failure.get_or_insert(failure);
        }
    }
}

type Shared = Arc<Mutex<World>>;

fn lock(world: &Shared) -> MutexGuard<'_, World> {
    world.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a plan. An error says what was violated.
pub fn run(plan: Plan) -> Result<Outcome, String> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(plan.seed);
    let memory = WordByWord(Arc::new(SimMemory::new(MEMORY_BYTES / 8, plan.seed)));
    let options = StoreOptions {
        segment_bytes: Some(SEGMENT_BYTES),
        table_id: Some(TABLE_ID),
        reuse_at_once: true,
        ..StoreOptions::default()
    };
    let mut store = Store::create(memory.clone(), &options).map_err(|error| error.to_string())?;
    let world: Shared = Arc::new(Mutex::new(World {
        memory: memory.clone(),
        random: Xoshiro256PlusPlus::seed_from_u64(plan.seed.wrapping_add(1)),
        geometry: Geometry {
            table_id: store.table_id(),
            memory_bytes: store.memory_bytes(),
            max_value_bytes: store.max_value_bytes(),
        },
        now: 1,
        history: History::default(),
        slots: (0..plan.readers).map(|_| Slot { reader: None, key: 0, start: 0, oldest: 0 }).collect(),
        entries: vec![Vec::new(); keys().len()],
        locations: vec![Vec::new(); keys().len()],
        outcome: Outcome::default(),
        failure: None,
    }));
    let between = world.clone();
    memory.0.on_store(move |_| lock(&between).between());
    for number in 0..plan.operations {
        if plan.kills && random.random_range(0..8) == 0 {
            memory.0.kill_at(memory.0.stores() + random.random_range(0..60));
        }
        let key = random.random_range(0..keys().len());
        let killed = until_killed(|| operation(&store, &world, key, number, &mut random));
        match killed {
            Ok(result) => result?,
            Err(_) => {
                drop(store);
                store = recover(&memory, &options, &world, key, &mut random)?;
            }
        }
        if let Some(failure) = lock(&world).failure.take() {
            return Err(failure);
        }
    }
    memory.0.clear_hooks();
    memory.0.revive();
    finish(&memory, &world, &store)
}

/// One operation of the server, in the history from its begin to its acknowledgement.
fn operation(
    store: &Arc<Store<WordByWord>>,
    world: &Shared,
    key: usize,
    number: usize,
    random: &mut Xoshiro256PlusPlus,
) -> Result<(), String> {
    let bytes = &keys()[key];
    let present = lock(world).history.is_present(key);
    if present && random.random_range(0..4) == 0 {
        lock(world).history.begin(key, None);
        store.delete(bytes, None).map_err(|error| error.to_string())?;
        let mut world = lock(world);
        world.now += 1;
        let now = world.now;
        world.history.end(key, now);
        return Ok(());
    }
    let length = [8, 30, 100, 250][random.random_range(0..4)];
    let mut value = (number as u64).to_le_bytes().to_vec();
    value.resize(length, number as u8);
    lock(world).history.begin(key, Some(value.clone()));
    let wrong = random.random_range(0..10) == 0;
    let written = store.put(bytes, &value, wrong.then_some(u64::MAX), 0);
    let mut world = lock(world);
    world.now += 1;
    let now = world.now;
    match written {
        Ok(version) => {
            world.history.end(key, now);
            world.history.version(key, version)
        }
        Err(WriteError::Full(_) | WriteError::VersionMismatch { .. }) => world.history.undo(key),
        Err(error) => Err(error.to_string()),
    }
}

/// Restarts on the same memory, itself killed now and then, and settles the write that was under way.
fn recover(
    memory: &WordByWord,
    options: &StoreOptions,
    world: &Shared,
    key: usize,
    random: &mut Xoshiro256PlusPlus,
) -> Result<Arc<Store<WordByWord>>, String> {
    lock(world).outcome.kills += 1;
    let store = loop {
        memory.0.revive();
        if random.random_range(0..3) == 0 {
            memory.0.kill_at(memory.0.stores() + random.random_range(0..600));
        }
        match until_killed(|| Store::recover(memory.clone(), options)) {
            Ok(recovered) => {
                let (store, report) = recovered.map_err(|error| error.to_string())?;
                lock(world).outcome.splits += report.splits_finished;
                break store;
            }
            Err(_) => lock(world).outcome.kills += 1,
        }
    };
    memory.0.revive();
    let mut world = lock(world);
    let found = world.alone_after_recovery(key);
    world.now += 1;
    let now = world.now;
    world.history.settle(key, &found, now)?;
    Ok(store)
}

impl World {
    /// What a recovered table says of a key, without a word to the history: that is settled with it.
    fn alone_after_recovery(&mut self, key: usize) -> State {
        let memory = self.memory.clone();
        let mut reader = Reader::start(&keys()[key], self.geometry, None, None, &mut self.random);
        loop {
            match reader.advance(&memory, &mut self.random) {
                None => {}
                Some(End::Found { value, .. }) => return Some(value),
                Some(End::Absent) => return None,
                Some(End::Ask) => {
                    self.fail(Err(format!("key {key}: a reader had to ask after a recovery")));
                    return None;
                }
            }
        }
    }
}

/// Every key is what was written last, and the table is sound.
fn finish(memory: &WordByWord, world: &Shared, store: &Arc<Store<WordByWord>>) -> Result<Outcome, String> {
    let mut world = lock(world);
    for key in 0..keys().len() {
        let found = world.alone(key);
        if found != world.history.newest(key) {
            return Err(format!("key {key}: at the end another value than the last one written"));
        }
    }
    if let Some(failure) = world.failure.take() {
        return Err(failure);
    }
    let report = check(memory);
    if !report.is_sound() {
        return Err(format!("check: {:?}", report.problems));
    }
    let splits = store.stats().into_iter().find(|(name, _)| name == "splits").map_or(0, |(_, value)| value);
    world.outcome.splits += splits;
    let _ = memory.words();
    Ok(world.outcome)
}
