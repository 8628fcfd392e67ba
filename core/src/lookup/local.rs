//! Driving the machine over memory that this process can read.
//!
//! The items are copied out first and the copies are checked; nothing is borrowed from the memory.

use super::{CachedLocation, Found, Geometry, ItemRead, Lookup, Step, Trace};
use crate::hash::KeyHash;
use crate::layout::bucket::{self, WINDOW_SLOTS};
use crate::layout::directory::DirectoryWord;
use crate::layout::item;
use crate::layout::root::CURRENT_DIRECTORY_WORD;
use crate::memory::Memory;

/// How a lookup ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<'b> {
    /// The value, in the reader's buffer until its next lookup.
    Found {
        /// The value's bytes.
        value: &'b [u8],
        /// Version, expiry, location.
        found: Found,
    },
    /// The key is absent.
    Absent,
    /// Ask the server.
    Ask,
}

/// How many keys a batch keeps between two READ steps of one key. With 8, some 16 lines of windows and as many
/// of items are on their way at a time.
const DISTANCE: usize = 8;
/// Lookups under way at once.
const RING: usize = 4 * DISTANCE;

/// Reads keys out of a memory. One per thread: it owns the buffers that items are copied into.
#[derive(Debug)]
pub struct LocalReader<M> {
    memory: M,
    geometry: Geometry,
    buffers: Buffers,
    trace: Trace,
}

/// The item read last, and the one before it where the machine wants it kept.
#[derive(Debug, Default)]
struct Buffers {
    last: Vec<u8>,
    kept: Vec<u8>,
}

impl Buffers {
    #[inline]
    fn fill(&mut self, memory: &impl Memory, read: ItemRead, keep: bool) -> &[u8] {
        if keep {
            std::mem::swap(&mut self.last, &mut self.kept);
        }
        if self.last.len() < read.bytes {
            self.last.resize(read.bytes, 0);
        }
        let into = &mut self.last[..read.bytes];
        memory.read(read.word, into);
        into
    }

    #[inline]
    fn value(&self, found: &Found) -> &[u8] {
        let buffer = if found.kept { &self.kept } else { &self.last };
        &buffer[found.value_offset..found.value_offset + found.value_bytes]
    }
}

impl<M: Memory> LocalReader<M> {
    /// A reader of `memory`. The geometry's size must not pass the memory's; the smaller one is used.
    pub fn new(memory: M, geometry: Geometry) -> Self {
        let memory_bytes = geometry.memory_bytes.min(memory.words() * 8);
        Self {
            memory,
            geometry: Geometry { memory_bytes, ..geometry },
            buffers: Buffers::default(),
            trace: Trace::default(),
        }
    }

    /// The memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// What it knows of the table.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// What happened in all lookups so far.
    pub fn trace(&self) -> Trace {
        self.trace
    }

    /// Hash of a key in this table.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash::of(key, self.geometry.table_id)
    }

    /// Looks a key up. Two dependent cache misses where the directory is in cache: window and item.
    #[inline]
    pub fn get(&mut self, key: &[u8]) -> Outcome<'_> {
        let hash = self.hash(key);
        self.get_with(key, hash, None, None)
    }

    /// Looks a key up, starting from what a cache remembers (however old): a directory entry, a location.
    #[inline]
    pub fn get_with(
        &mut self,
        key: &[u8],
        hash: KeyHash,
        entry: Option<DirectoryWord>,
        location: Option<CachedLocation>,
    ) -> Outcome<'_> {
        let mut lookup = Lookup::new(key, hash, self.geometry);
        let step = match location {
            Some(location) => lookup.start_at(location, entry),
            None => lookup.start(entry),
        };
        let end = run(&mut lookup, step, &self.memory, &mut self.buffers);
        self.trace += lookup.trace();
        outcome(end, &self.buffers)
    }

    /// Looks many keys up. `each` is called once for every key, in order, with its index.
    ///
    /// The keys move through the READ steps a fixed distance apart: while one key's directory entry is read, the
    /// window of an earlier one, and the item of one before that, are on their way into the cache. So the cache
    /// misses of different keys overlap, and no more lines are asked for at a time than a core can wait for.
    pub fn multi_get<K: AsRef<[u8]>>(&mut self, keys: &[K], mut each: impl FnMut(usize, Outcome<'_>)) {
        let root = DirectoryWord(self.memory.load(CURRENT_DIRECTORY_WORD));
        let mut ring: [Option<(Lookup<'_>, Step)>; RING] = [const { None }; RING];
        for i in 0..keys.len() + 3 * DISTANCE {
            if let Some(done) = i.checked_sub(3 * DISTANCE)
                && let Some((lookup, step)) = &mut ring[done % RING]
            {
                let end = run(lookup, *step, &self.memory, &mut self.buffers);
                self.trace += lookup.trace();
                each(done, outcome(end, &self.buffers));
                ring[done % RING] = None;
            }
            if let Some(at) = i.checked_sub(2 * DISTANCE)
                && let Some((lookup, step)) = &mut ring[at % RING]
                && let Step::Window { word } = *step
            {
                *step = lookup.on_window(&window(&self.memory, word));
                prefetch(&self.memory, lookup, *step);
            }
            if let Some(at) = i.checked_sub(DISTANCE)
                && let Some((lookup, step)) = &mut ring[at % RING]
                && let Step::Entry { word } = *step
            {
                *step = lookup.on_entry(DirectoryWord(self.memory.load(word)));
                prefetch(&self.memory, lookup, *step);
            }
            if let Some(key) = keys.get(i) {
                let key = key.as_ref();
                let (lookup, step) =
                    ring[i % RING].insert((Lookup::new(key, self.hash(key), self.geometry), Step::Root));
                *step = lookup.on_root(root);
                prefetch(&self.memory, lookup, *step);
            }
        }
    }
}

/// Asks for the lines that a step is going to read.
#[inline]
fn prefetch(memory: &impl Memory, lookup: &Lookup<'_>, step: Step) {
    match step {
        Step::Entry { word } => memory.prefetch(word, 8),
        Step::Window { word } => memory.prefetch(word, WINDOW_SLOTS * 8),
        Step::Candidates => {
            // The first 4 KiB are enough to start the hardware's own prefetcher.
            lookup.candidates().for_each(|read| memory.prefetch(read.word, read.bytes.min(4096)));
        }
        _ => {}
    }
}

#[inline]
fn window(memory: &impl Memory, word: u64) -> [u64; WINDOW_SLOTS] {
    let mut bytes = [0; WINDOW_SLOTS * 8];
    memory.read(word, &mut bytes);
    bucket::window_from_bytes(&bytes)
}

#[inline]
fn outcome(end: Step, buffers: &Buffers) -> Outcome<'_> {
    match end {
        Step::Found(found) => Outcome::Found { value: buffers.value(&found), found },
        Step::Absent => Outcome::Absent,
        _ => Outcome::Ask,
    }
}

/// Drives a lookup from a step to its end.
#[inline]
fn run(lookup: &mut Lookup<'_>, mut step: Step, memory: &impl Memory, buffers: &mut Buffers) -> Step {
    loop {
        step = match step {
            Step::Root => lookup.on_root(DirectoryWord(memory.load(CURRENT_DIRECTORY_WORD))),
            Step::Entry { word } => lookup.on_entry(DirectoryWord(memory.load(word))),
            Step::Window { word } => lookup.on_window(&window(memory, word)),
            Step::Candidates | Step::Next => match lookup.candidates().next() {
                Some(read) => lookup.on_item(buffers.fill(memory, read, false)),
                None => return Step::Ask,
            },
            Step::Item { read, keep } => lookup.on_item(buffers.fill(memory, read, keep)),
            end @ (Step::Found(_) | Step::Absent | Step::Ask) => return end,
        }
    }
}

/// Bytes of the longest item that a reader can meet: what a driver with fixed buffers must provide.
pub fn longest_item_bytes(max_value_bytes: u32) -> usize {
    item::exact_bytes(crate::limits::MAX_KEY_BYTES, max_value_bytes as usize)
}
