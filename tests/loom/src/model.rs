//! What the models share: a small table, readers that know what they may see, and the exploration itself.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_epoch::Guard;
use loom::model::Builder;
use sidestep_core::hash::KeyHash;
use sidestep_core::layout::bucket::{self, WINDOW_SLOTS};
use sidestep_core::layout::directory::DirectoryWord;
use sidestep_core::layout::root;
use sidestep_core::limits::BLOCK_WORDS;
use sidestep_core::lookup::local::{LocalReader, Outcome};
use sidestep_core::lookup::{CachedLocation, Geometry};
use sidestep_core::memory::Memory;

use crate::memory::{TableMemory, Weakness};
use crate::store::{Got, Store, StoreOptions};

/// The smallest table.
const TABLE_BYTES: u64 = 256 << 10;
/// Seed of the hashes, fixed so that every execution is the same but for what loom decides.
const TABLE_ID: u64 = 0x51de_57e9;

/// Runs a model in every execution that loom finds with at most `preemptions` involuntary switches between
/// threads (or `LOOM_MAX_PREEMPTIONS`), and says how many those were.
pub fn explore(name: &str, preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let executions = Arc::new(AtomicU64::new(0));
    let mut builder = Builder::new();
    builder.max_branches = 100_000;
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    let counted = executions.clone();
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        model();
    });
    let bound = builder.preemption_bound.unwrap_or_default();
    println!("{name}: {} executions, at most {bound} preemptions", executions.load(Ordering::Relaxed));
}

/// Words that a model shares.
#[derive(Debug, Default)]
pub struct Ranges {
    shared: Vec<Range<u64>>,
    frozen: Vec<Range<u64>>,
}

impl Ranges {
    /// Adds `count` words from `word` on; they may overlap with others.
    pub fn add(&mut self, word: u64, count: u64) {
        self.shared.push(word..word + count);
    }

    /// Sorted, and apart.
    fn merged(mut shared: Vec<Range<u64>>) -> Vec<Range<u64>> {
        shared.sort_by_key(|range| range.start);
        let mut merged: Vec<Range<u64>> = Vec::new();
        for range in shared {
            match merged.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => merged.push(range),
            }
        }
        merged
    }
}

/// The real store over loom's words. Once it is shared, one thread writes.
#[derive(Clone, Debug)]
pub struct Table {
    store: Arc<Store<Arc<TableMemory>>>,
}

impl Table {
    /// An empty table whose extents are reused at once, without a thought for the server's own readers.
    pub fn new(weakness: Weakness) -> Self {
        Self::with(weakness, true)
    }

    /// An empty table whose extents are reused when the server's own readers have left them.
    pub fn with_epochs(weakness: Weakness) -> Self {
        Self::with(weakness, false)
    }

    fn with(weakness: Weakness, reuse_at_once: bool) -> Self {
        let memory = Arc::new(TableMemory::new(TABLE_BYTES / 8, weakness));
        let options = StoreOptions {
            segment_bytes: Some(TABLE_BYTES),
            table_id: Some(TABLE_ID),
            reuse_at_once,
            ..StoreOptions::default()
        };
        Self { store: Store::create(memory, &options).expect("a table of the smallest size") }
    }

    /// Writes a value.
    pub fn put(&self, key: &[u8], value: u64) {
        self.store.memory().claim();
        self.store.put(key, &value_bytes(value), None, 0).expect("a put");
    }

    /// Removes a key that is there.
    pub fn delete(&self, key: &[u8]) {
        self.store.memory().claim();
        self.store.delete(key, None).expect("a delete").expect("a key to delete");
    }

    /// The key's hash in such a table.
    pub fn hash(key: &[u8]) -> KeyHash {
        KeyHash::of(key, TABLE_ID)
    }

    /// The current directory word.
    pub fn directory(&self) -> DirectoryWord {
        DirectoryWord(self.store.memory().load(root::CURRENT_DIRECTORY_WORD))
    }

    /// The key's directory entry as it is now.
    pub fn entry(&self, key: &[u8]) -> DirectoryWord {
        let directory = self.directory();
        let index = Self::hash(key).directory_index(directory.depth());
        DirectoryWord(self.store.memory().load(directory.address() * BLOCK_WORDS + index))
    }

    /// Where the key is now.
    pub fn location(&self, key: &[u8]) -> CachedLocation {
        match LocalReader::new(self.store.memory().clone(), self.geometry()).get(key) {
            Outcome::Found { found, .. } => found.location,
            other => panic!("expected a key that is there, found {other:?}"),
        }
    }

    /// Makes the root's directory word, the directory and the key's window loom's.
    pub fn window_of(&self, key: &[u8], ranges: &mut Ranges) {
        self.slots_of(key, WINDOW_SLOTS as u64, ranges);
    }

    /// The same with no more than the first slots of the window: the others stay as they are, for readers. (Of
    /// 16 words that change, in any order, a READ has 2^16 outcomes.) They tell a reader less than it might know:
    /// their depth is never greater than that of the entry that leads to them, and they name other keys.
    pub fn slots_of(&self, key: &[u8], slots: u64, ranges: &mut Ranges) {
        let directory = self.directory();
        ranges.add(root::CURRENT_DIRECTORY_WORD, 1);
        ranges.add(directory.address() * BLOCK_WORDS, 1 << directory.depth());
        let window = bucket::window_word(self.entry(key).address(), Self::hash(key));
        ranges.add(window, slots);
        ranges.frozen.push(window + slots..window + WINDOW_SLOTS as u64);
    }

    /// Makes the places of the next items, of which each takes one block, loom's.
    pub fn items_from(&self, first: CachedLocation, count: u64, ranges: &mut Ranges) {
        ranges.add(first.address * BLOCK_WORDS, count * BLOCK_WORDS);
    }

    /// From here on these words are loom's, and readers may start.
    pub fn share(&self, ranges: Ranges) {
        self.store.memory().share(Ranges::merged(ranges.shared), &ranges.frozen);
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            table_id: self.store.table_id(),
            memory_bytes: self.store.memory_bytes(),
            max_value_bytes: self.store.max_value_bytes(),
        }
    }

    /// A client of one key that takes on these states, one after the other.
    pub fn reader(&self, key: &[u8], states: &'static [State]) -> Reader {
        let reader = LocalReader::new(self.store.memory().clone(), self.geometry());
        Reader { key: key.into(), order: Order::new(states), may_ask: false, reader }
    }

    /// What a reader of the server itself sees, who checks no checksum; an error for mixed bytes.
    pub fn get_pinned(&self, key: &[u8], guard: &Guard) -> Result<State, Mixed> {
        let mut value = Vec::new();
        match self.store.get(key, guard, usize::MAX, &mut value) {
            Got::Absent => Ok(None),
            Got::Copied { .. } => value_of(&value).map(Some),
            Got::Held(_) => panic!("a hold below the copy limit"),
        }
    }
}

/// A key's state: its value, or none.
pub type State = Option<u64>;

/// Of two words, so that one from here and one from there do not pass for a value.
fn value_bytes(value: u64) -> [u8; 16] {
    std::array::from_fn(|i| value.to_le_bytes()[i % 8])
}

/// Bytes that are no value.
#[derive(Clone, Copy, Debug)]
pub struct Mixed;

fn value_of(bytes: &[u8]) -> Result<u64, Mixed> {
    match bytes.split_first_chunk() {
        Some((first, rest)) if first == rest => Ok(u64::from_le_bytes(*first)),
        _ => Err(Mixed),
    }
}

/// The states that a key takes on, and how far one observer knows it to have come.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    states: &'static [State],
    at: usize,
}

impl Order {
    /// Of a key that takes on these states.
    pub fn new(states: &'static [State]) -> Self {
        Self { states, at: 0 }
    }

    /// How far the key has come, for all that is known.
    pub fn at(&self) -> usize {
        self.at
    }

    /// The key is known to have come this far.
    pub fn not_before(&mut self, at: usize) {
        self.at = self.at.max(at);
    }

    /// The key was seen in this state. False if that lies in the past.
    pub fn saw(&mut self, state: State) -> bool {
        let ahead = self.states[self.at..].iter().position(|known| *known == state);
        self.at += ahead.unwrap_or(0);
        ahead.is_some()
    }
}

/// A client's reader, as it ships, of one key.
#[derive(Debug)]
pub struct Reader {
    key: Box<[u8]>,
    /// What it has seen.
    pub order: Order,
    /// Asking the server is no failure: for models that look for what is worse.
    pub may_ask: bool,
    reader: LocalReader<Arc<TableMemory>>,
}

impl Reader {
    /// A GET with nothing remembered.
    pub fn get(&mut self) {
        self.get_with(None, None);
    }

    /// A GET that starts from a directory entry or a location, however old.
    pub fn get_with(&mut self, entry: Option<DirectoryWord>, location: Option<CachedLocation>) {
        let hash = self.reader.hash(&self.key);
        let state = match self.reader.get_with(&self.key, hash, entry, location) {
            Outcome::Found { value, .. } => Some(value_of(value).expect("a value that was written")),
            Outcome::Absent => None,
            Outcome::Ask if self.may_ask => return,
            Outcome::Ask => panic!("had to ask the server"),
        };
        let before = self.order.at();
        assert!(self.order.saw(state), "saw {state:?} after state {before}");
    }
}
