//! The server's operations, the readers between its stores, and the checks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use sidestep_core::layout::directory::DirectoryWord;
use sidestep_core::lookup::{CachedLocation, Geometry, Trace};
use sidestep_core::memory::Memory;
use sidestep_fabric::sim::{SimMemory, until_killed};
use sidestep_server::store::{Store, StoreOptions, WriteError, check};

use crate::linearizability::Operation;

use super::history::{History, State};
use super::memory::WordByWord;
use super::reader::{End, Reader};
use super::record::Record;
use super::setup::{Mix, evicted, fill, fill_up, keys, memory_bytes, options};

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
    /// Whether the table is full from the beginning, and keys are evicted.
    pub evictions: bool,
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
    /// Times one of the keys was evicted.
    pub evictions: u64,
    /// What the readers met on their ways.
    pub trace: Trace,
}

/// Keys that nobody looks at are put so many at a time.
const FILLED: usize = 8;

struct Slot {
    reader: Option<Reader>,
    key: usize,
    start: u64,
    oldest: usize,
    /// It samples nothing before this time: a READ may take as long as it likes.
    pause: u64,
}

struct World {
    memory: WordByWord,
    random: Xoshiro256PlusPlus,
    geometry: Geometry,
    mix: Mix,
    /// Key of the operation under way.
    hot: usize,
    now: u64,
    history: History,
    record: Record,
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
        for _ in 0..self.random.random_range(0..6) {
            let slot = self.random.random_range(0..self.slots.len());
            if self.slots[slot].pause <= self.now {
                self.step(slot);
            }
        }
        // Whole lookups, one after the other, of the key that is being written: what the first one sees the next one must.
        if self.random.random_range(0..16) == 0 {
            for _ in 0..self.random.random_range(1..4) {
                let key = if self.random.random_range(0..8) == 0 { self.any_key() } else { self.hot };
                self.alone(key);
            }
        }
    }

    fn any_key(&mut self) -> usize {
        self.mix.keys[self.random.random_range(0..self.mix.keys.len())]
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
        Slot { reader: Some(reader), key, start: self.now, oldest, pause: 0 }
    }

    fn step(&mut self, index: usize) {
        if self.slots[index].reader.is_none() {
            let key = if self.random.random() { self.any_key() } else { self.hot };
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
            return;
        }
        let often = if reader.has_just_posted() { 4 } else { 32 };
        if self.random.random_range(0..often) == 0 {
            let longest = [20, 100, 400][self.random.random_range(0..3)];
            slot.pause = self.now + self.random.random_range(0..longest);
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
                let named = self.history.names(key, found.version, &value);
                self.fail(named);
                self.record.read(key, start, self.now, Some((found.version, &value)));
                Some(value)
            }
            End::Absent => {
                self.record.read(key, start, self.now, None);
                None
            }
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
            let reader = slot.reader.as_mut()?;
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

    fn begin_write(&mut self, key: usize, value: State, number: usize, expect: Option<u64>) {
        self.now += 1;
        self.record.begin(key, self.now, value.as_ref().map(|_| number as u64), expect);
        self.history.begin(key, value);
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
    run_recorded(plan).map(|(outcome, _)| outcome)
}

/// [`run`], with everything that was written and read; evictions are not in it.
pub fn run_recorded(plan: Plan) -> Result<(Outcome, Vec<Operation>), String> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(plan.seed);
    let memory = WordByWord::new(SimMemory::new(memory_bytes(plan.evictions) / 8, plan.seed));
    let options = options(plan.evictions);
    let mut store = Store::create(memory.clone(), &options).map_err(|error| error.to_string())?;
    let mix = Mix::new(&mut random);
    let mut filled = if plan.evictions { fill_up(&store, &mix, &mut random)? } else { 0 };
    let world: Shared = Arc::new(Mutex::new(World {
        memory: memory.clone(),
        random: Xoshiro256PlusPlus::seed_from_u64(plan.seed.wrapping_add(1)),
        geometry: Geometry {
            table_id: store.table_id(),
            memory_bytes: store.memory_bytes(),
            max_value_bytes: store.max_value_bytes(),
        },
        mix,
        hot: 0,
        now: 1,
        history: History::default(),
        record: Record::default(),
        slots: (0..plan.readers).map(|_| Slot { reader: None, key: 0, start: 0, oldest: 0, pause: 0 }).collect(),
        entries: vec![Vec::new(); keys().len()],
        locations: vec![Vec::new(); keys().len()],
        outcome: Outcome::default(),
        failure: None,
    }));
    let between = world.clone();
    memory.0.on_store(move |_| lock(&between).between());
    let mut key = lock(&world).any_key();
    for number in 0..plan.operations {
        if plan.kills && random.random_range(0..8) == 0 {
            match random.random_range(0..4) {
                0 => memory.kill_in_split(random.random_range(0..600)),
                1 => memory.0.kill_at(memory.0.stores() + random.random_range(0..600)),
                _ => memory.0.kill_at(memory.0.stores() + random.random_range(0..60)),
            }
        }
        // Often the same key again, so that a write follows on what a kill or another write has just left.
        if random.random_range(0..3) != 0 {
            key = lock(&world).any_key();
        }
        lock(&world).hot = key;
        if plan.evictions {
            (0..keys().len()).for_each(|key| lock(&world).history.may_evict(key));
        }
        let killed = until_killed(|| {
            if plan.evictions && random.random() {
                let length = lock(&world).a_length(&mut random);
                return (0..FILLED).try_for_each(|_| {
                    filled += 1;
                    fill(&store, filled, length)
                });
            }
            operation(&store, &world, key, number, &mut random)
        });
        let unsettled = match killed {
            Ok(result) => {
                result?;
                0..0
            }
            Err(_) => {
                drop(store);
                store = recover(&memory, &options, &world, &mut random)?;
                key..key + 1
            }
        };
        for key in if plan.evictions { 0..keys().len() } else { unsettled } {
            lock(&world).settle(key)?;
        }
        if let Some(failure) = lock(&world).failure.take() {
            return Err(failure);
        }
    }
    memory.0.clear_hooks();
    memory.0.revive();
    let outcome = finish(&memory, &world, &store)?;
    Ok((outcome, lock(&world).record.take()))
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
    let present = lock(world).history.version_of(key) != 0;
    if present && random.random_range(0..4) == 0 {
        lock(world).begin_write(key, None, number, None);
        store.delete(bytes, None).map_err(|error| error.to_string())?;
        let mut world = lock(world);
        world.now += 1;
        let now = world.now;
        world.record.done(now, 0);
        world.history.end(key, now);
        world.history.absent(key);
        return Ok(());
    }
    let (length, version) = {
        let mut world = lock(world);
        (world.a_length(random), world.history.version_of(key))
    };
    let mut value = (number as u64).to_le_bytes().to_vec();
    value.resize(length, number as u8);
    // 0 means absent; what is expected is right or wrong for certain.
    let expect = match random.random_range(0..10) {
        0 => Some(version + 1),
        1 if version > 0 => Some(0),
        2..5 => Some(version),
        _ => None,
    };
    lock(world).begin_write(key, Some(value.clone()), number, expect);
    let evicted_before = evicted(store);
    let written = store.put(bytes, &value, expect, 0);
    // The key itself may have been evicted for its write: then it was absent.
    let was_at = |found: u64| found == version || (found == 0 && evicted(store) > evicted_before);
    let mut world = lock(world);
    world.now += 1;
    let now = world.now;
    match written {
        Ok(_) if expect.is_some_and(|expected| !was_at(expected)) => {
            Err(format!("key {key}: version {version} was replaced though {expect:?} was expected"))
        }
        Ok(version) => {
            world.record.done(now, version);
            world.history.end(key, now);
            world.history.version(key, version)
        }
        Err(WriteError::VersionMismatch { found }) if was_at(found) && expect != Some(found) => {
            world.record.mismatch(now, expect.unwrap_or_default(), found);
            world.history.undo(key)?;
            if found != version {
                world.history.end(key, now);
            }
            Ok(())
        }
        Err(WriteError::Full(_)) => {
            world.record.nothing();
            world.history.undo(key)
        }
        Err(error) => Err(format!("key {key} at version {version}, expecting {expect:?}: {error}")),
    }
}

/// Restarts on the same memory, itself killed now and then.
fn recover(
    memory: &WordByWord,
    options: &StoreOptions,
    world: &Shared,
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
    world.now += 1;
    let now = world.now;
    world.record.killed(now);
    Ok(store)
}

impl World {
    /// One of the lengths that values have.
    fn a_length(&self, random: &mut Xoshiro256PlusPlus) -> usize {
        self.mix.lengths[random.random_range(0..self.mix.lengths.len())]
    }

    /// What became of a key, by what the table has: of a write that was killed, and of evictions.
    fn settle(&mut self, key: usize) -> Result<(), String> {
        let found = self.found(key);
        self.now += 1;
        let now = self.now;
        self.record.read(key, now, now, found.as_ref().map(|(value, version)| (*version, &value[..])));
        let was_present = self.history.version_of(key) != 0;
        // What a write to the key itself did, if it was killed, is not known here.
        self.outcome.evictions += u64::from(was_present && found.is_none() && key != self.hot);
        let (state, version) = found.map_or((None, 0), |(value, version)| (Some(value), version));
        self.history.settle(key, &state, version, now)
    }

    /// What the table says of a key while the server stands still, without a word to the history: that is settled with it.
    fn found(&mut self, key: usize) -> Option<(Vec<u8>, u64)> {
        let memory = self.memory.clone();
        let mut reader = Reader::start(&keys()[key], self.geometry, None, None, &mut self.random);
        loop {
            match reader.advance(&memory, &mut self.random) {
                None => {}
                Some(End::Found { value, found }) => return Some((value, found.version)),
                Some(End::Absent) => return None,
                Some(End::Ask) => {
                    self.fail(Err(format!("key {key}: a reader beside a server at rest had to ask it")));
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
