//! A reader: a bare lookup machine whose READs are sampled word by word, in any order.

use rand::Rng;
use rand::seq::SliceRandom;
use rand_xoshiro::Xoshiro256PlusPlus;
use sidestep_core::hash::KeyHash;
use sidestep_core::layout::bucket::WINDOW_SLOTS;
use sidestep_core::layout::directory::DirectoryWord;
use sidestep_core::layout::root::CURRENT_DIRECTORY_WORD;
use sidestep_core::lookup::{CachedLocation, Found, Geometry, ItemRead, Lookup, Step, Trace};
use sidestep_core::memory::Memory;

/// Words of one READ; those not sampled yet are in `left`.
#[derive(Debug)]
struct Read {
    word: u64,
    values: Vec<u64>,
    left: Vec<usize>,
}

impl Read {
    fn new(word: u64, words: usize, random: &mut Xoshiro256PlusPlus) -> Self {
        let mut left: Vec<usize> = (0..words).collect();
        left.shuffle(random);
        Self { word, values: vec![0; words], left }
    }

    fn item(read: ItemRead, random: &mut Xoshiro256PlusPlus) -> Self {
        Self::new(read.word, read.bytes / 8, random)
    }

    fn sample(&mut self, memory: &impl Memory) {
        if let Some(index) = self.left.pop() {
            self.values[index] = memory.load(self.word + index as u64);
        }
    }

    fn bytes(&self) -> Vec<u8> {
        self.values.iter().flat_map(|word| word.to_le_bytes()).collect()
    }
}

/// How a lookup ended.
#[derive(Debug)]
pub(crate) enum End {
    Found { value: Vec<u8>, found: Found },
    Absent,
    Ask,
}

/// One lookup under way.
#[derive(Debug)]
pub(crate) struct Reader {
    lookup: Lookup<'static>,
    step: Step,
    /// The READs posted and not delivered: one, or those of all candidates.
    reads: Vec<Read>,
    last: Vec<u8>,
    kept: Vec<u8>,
}

impl Reader {
    pub(crate) fn start(
        key: &'static [u8],
        geometry: Geometry,
        entry: Option<DirectoryWord>,
        location: Option<CachedLocation>,
        random: &mut Xoshiro256PlusPlus,
    ) -> Self {
        let mut lookup = Lookup::new(key, KeyHash::of(key, geometry.table_id), geometry);
        let step = match location {
            Some(location) => lookup.start_at(location, entry),
            None => lookup.start(entry),
        };
        let mut reader = Self { lookup, step, reads: Vec::new(), last: Vec::new(), kept: Vec::new() };
        reader.post(random);
        reader
    }

    pub(crate) fn trace(&self) -> Trace {
        self.lookup.trace()
    }

    pub(crate) fn entry(&self) -> DirectoryWord {
        self.lookup.entry()
    }

    /// No word of its READs was sampled yet.
    pub(crate) fn has_just_posted(&self) -> bool {
        self.reads.iter().all(|read| read.left.len() == read.values.len())
    }

    /// Samples one word; when a READ is whole the machine goes on. Returns the end when there is one.
    pub(crate) fn advance(&mut self, memory: &impl Memory, random: &mut Xoshiro256PlusPlus) -> Option<End> {
        let open: Vec<usize> = (0..self.reads.len()).filter(|&i| !self.reads[i].left.is_empty()).collect();
        if !open.is_empty() {
            self.reads[open[random.random_range(0..open.len())]].sample(memory);
            if open.len() > 1 || self.reads.iter().any(|read| !read.left.is_empty()) {
                return None;
            }
        }
        self.deliver();
        match self.step {
            Step::Found(found) => {
                let buffer = if found.kept { &self.kept } else { &self.last };
                let value = buffer[found.value_offset..found.value_offset + found.value_bytes].to_vec();
                Some(End::Found { value, found })
            }
            Step::Absent => Some(End::Absent),
            Step::Ask => Some(End::Ask),
            _ => {
                self.post(random);
                None
            }
        }
    }

    fn post(&mut self, random: &mut Xoshiro256PlusPlus) {
        match self.step {
            Step::Root => self.reads = vec![Read::new(CURRENT_DIRECTORY_WORD, 1, random)],
            Step::Entry { word } => self.reads = vec![Read::new(word, 1, random)],
            Step::Window { word } => self.reads = vec![Read::new(word, WINDOW_SLOTS, random)],
            Step::Candidates => {
                self.reads = self.lookup.candidates().map(|read| Read::item(read, random)).collect();
            }
            // The candidates that are left, a long item's body having come between.
            Step::Next if self.reads.is_empty() => {
                self.reads = self.lookup.candidates().map(|read| Read::item(read, random)).collect();
            }
            Step::Next => {}
            Step::Item { read, keep } => {
                if keep {
                    std::mem::swap(&mut self.last, &mut self.kept);
                }
                self.reads = vec![Read::item(read, random)];
            }
            Step::Found(_) | Step::Absent | Step::Ask => {}
        }
    }

    fn deliver(&mut self) {
        let reads = std::mem::take(&mut self.reads);
        let first = reads.first().map_or(0, |read| read.values.first().copied().unwrap_or(0));
        match self.step {
            Step::Root => self.step = self.lookup.on_root(DirectoryWord(first)),
            Step::Entry { .. } => self.step = self.lookup.on_entry(DirectoryWord(first)),
            Step::Window { .. } => {
                let mut window = [0; WINDOW_SLOTS];
                window.copy_from_slice(&reads[0].values);
                self.step = self.lookup.on_window(&window);
            }
            Step::Candidates | Step::Next | Step::Item { .. } => {
                for read in reads {
                    self.last = read.bytes();
                    self.step = self.lookup.on_item(&self.last);
                    if self.step != Step::Next {
                        break;
                    }
                }
            }
            Step::Found(_) | Step::Absent | Step::Ask => {}
        }
    }
}
