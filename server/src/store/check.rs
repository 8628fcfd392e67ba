//! `sidestep-server check`: every invariant of a stopped table.

use std::collections::BTreeMap;

use sidestep_core::hash::KeyHash;
use sidestep_core::layout::bucket::{self, SUBTABLE_SLOTS, SlotWord, WINDOW_SLOTS};
use sidestep_core::layout::directory::DirectoryWord;
use sidestep_core::layout::item::{self, Header, LinkState};
use sidestep_core::layout::root;
use sidestep_core::limits::{BLOCK_BYTES, BLOCK_WORDS};
use sidestep_core::location::Location;
use sidestep_core::memory::Memory;

use super::head::{Root, read_root};
use super::plausible::{root_problems, segments_problem};
use super::recover::{directories, subtables};
use super::space::directory_blocks;
use super::time::system_ms;

/// Problems are listed up to this many; the rest is counted.
const LISTED: usize = 20;

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// The table, as it names itself.
    pub table_id: u64,
    /// Items that are values of their keys.
    pub keys: u64,
    /// Bytes of their keys and values.
    pub payload_bytes: u64,
    /// Subtables, those of old directories included.
    pub subtables: u64,
    /// Global depth of the directory.
    pub directory_depth: u8,
    /// Splits that a recovery will finish.
    pub open_splits: u64,
    /// Slots that a recovery will settle.
    pub open_writes: u64,
    /// Violated invariants, the first ones in words.
    pub problems: Vec<String>,
    /// All of them.
    pub problem_count: u64,
}

impl CheckReport {
    /// Whether a recovery would leave every key in place, and none is damaged.
    pub fn is_sound(&self) -> bool {
        self.problem_count == 0
    }

    pub(crate) fn problem(&mut self, text: String) {
        self.problem_count += 1;
        if self.problems.len() < LISTED {
            self.problems.push(text);
        }
    }
}

/// Checks a table that nobody writes to. Reads every item whole.
pub fn check(memory: &impl Memory) -> CheckReport {
    let mut report = CheckReport::default();
    if let Err(error) = Checker::new(memory, &mut report).and_then(|mut checker| checker.run(&mut report)) {
        report.problem(error.to_string());
    }
    report
}

struct Checker<'m, M> {
    memory: &'m M,
    root: Root,
    blocks: u64,
    /// First block and length of all that is in use.
    used: BTreeMap<u64, u64>,
    ceiling: u64,
    bytes: Vec<u8>,
}

impl<'m, M: Memory> Checker<'m, M> {
    fn new(memory: &'m M, report: &mut CheckReport) -> Result<Self, super::StoreError> {
        let root = read_root(memory)?;
        report.table_id = root.table_id;
        let blocks = root.memory_bytes / BLOCK_BYTES as u64;
        let ceiling = memory.load(root::VERSION_CEILING_WORD);
        Ok(Self { memory, root, blocks, used: BTreeMap::new(), ceiling, bytes: Vec::new() })
    }

    fn run(&mut self, report: &mut CheckReport) -> Result<(), super::StoreError> {
        let directories = directories(self.memory, self.blocks)?;
        let subtables = subtables(self.memory, self.blocks, &directories)?;
        report.subtables = subtables.len() as u64;
        let problems = root_problems(self.memory, &self.root, system_ms());
        problems.into_iter().for_each(|problem| report.problem(problem));
        let current = DirectoryWord(self.memory.load(root::CURRENT_DIRECTORY_WORD));
        report.directory_depth = current.depth();
        self.take(0, root::ROOT_BLOCKS, "the root", report);
        for &(depth, address) in &directories {
            self.take(address, directory_blocks(depth), "a directory", report);
        }
        for &subtable in &subtables {
            self.take(subtable, bucket::SUBTABLE_BLOCKS, "a subtable", report);
        }
        report.open_splits =
            (0..root::INTENTS).filter(|intent| self.memory.load(root::INTENTS_WORD + intent) != 0).count() as u64;
        let (mut index, mut left) = (0, subtables);
        while index < 1u64 << current.depth() {
            let entry = DirectoryWord(self.memory.load(current.address() * BLOCK_WORDS + index));
            let span = 1u64 << (current.depth() - entry.depth().min(current.depth()));
            if report.open_splits == 0 {
                self.entry(entry, index, span, current, report);
            }
            self.subtable(entry, index / span, report);
            left.remove(&entry.address());
            index += span;
        }
        let end = self.used.last_key_value().map_or(0, |(address, blocks)| address + blocks);
        if let Some(problem) = segments_problem(self.memory, &self.root, end) {
            report.problem(problem);
        }
        if report.open_splits == 0 {
            let lost = |at| format!("the directory leads no more to the subtable at {at:#x}");
            left.into_iter().for_each(|at| report.problem(lost(at)));
        }
        Ok(())
    }

    /// All entries of one subtable are the same word, and begin where its prefix does.
    fn entry(&self, entry: DirectoryWord, index: u64, span: u64, current: DirectoryWord, report: &mut CheckReport) {
        let first = current.address() * BLOCK_WORDS + index;
        let same = (0..span).all(|i| self.memory.load(first + i) == entry.0);
        if !index.is_multiple_of(span) || !same {
            report.problem(format!("directory entries from {index} on: expected {span} of {entry:?}"));
        }
    }

    fn subtable(&mut self, entry: DirectoryWord, prefix: u64, report: &mut CheckReport) {
        for slot in 0..SUBTABLE_SLOTS as u64 {
            let word = SlotWord(self.memory.load(entry.address() * BLOCK_WORDS + slot));
            if word.depth() != entry.depth() && report.open_splits == 0 {
                let found = word.depth();
                report.problem(format!("slot {slot} of {entry:?}: expected the subtable's depth, found {found}"));
            }
            if !word.is_empty() {
                self.slot(entry, prefix, slot, word, report);
            }
        }
    }

    fn slot(&mut self, entry: DirectoryWord, prefix: u64, slot: u64, word: SlotWord, report: &mut CheckReport) {
        let location = word.location();
        let at = format!("slot {slot} of {entry:?}, {location:?}");
        let Some((header, key)) = self.item(location) else {
            return report.problem(format!("{at}: no valid item"));
        };
        match header.link.state() {
            LinkState::Current => {}
            LinkState::Forward => {
                report.open_writes += 1;
                let successor = header.link.successor();
                if self.item(successor).is_none() {
                    report.problem(format!("{at}: replaced by {successor:?}, no valid item"));
                }
                return;
            }
            LinkState::Dead => {
                report.open_writes += 1;
                return;
            }
            LinkState::Pending => return report.problem(format!("{at}: a pending item in a slot")),
        }
        report.keys += 1;
        report.payload_bytes += u64::from(header.key_bytes) + u64::from(header.value_bytes);
        if header.version > self.ceiling {
            report.problem(format!("{at}: version {} above the ceiling {}", header.version, self.ceiling));
        }
        let hash = KeyHash::of(&key, self.root.table_id);
        let first = hash.home() * bucket::BUCKET_SLOTS;
        let in_window = (first..first + WINDOW_SLOTS as u64).contains(&slot);
        if hash.directory_index(entry.depth()) != prefix && report.open_splits == 0 {
            report.problem(format!("{at}: the key belongs to another subtable"));
        }
        if !in_window || hash.fingerprint() != word.fingerprint() {
            report.problem(format!("{at}: the key belongs to another window or has another fingerprint"));
        }
        if report.open_splits == 0 {
            self.take(location.address(), header.blocks(), "an item", report);
        }
    }

    /// A whole item, checked, and its key.
    fn item(&mut self, location: Location) -> Option<(Header, Vec<u8>)> {
        if location.address() >= self.blocks {
            return None;
        }
        let header = Header::from_words(std::array::from_fn(|i| self.memory.load(location.word() + i as u64)));
        let fits = location.address() + header.blocks() <= self.blocks;
        if !header.is_plausible() || !fits || header.blocks().min(Location::LONG) != location.size() {
            return None;
        }
        self.bytes.resize(item::pad(header.exact_bytes()), 0);
        self.memory.read(location.word(), &mut self.bytes);
        let valid = item::validate(&self.bytes, self.root.table_id)?;
        Some((valid.header, valid.key.to_vec()))
    }

    fn take(&mut self, address: u64, blocks: u64, what: &str, report: &mut CheckReport) {
        let before = self.used.range(..address + blocks).next_back();
        if let Some((&other, &length)) = before.filter(|&(&other, &length)| other + length > address) {
            report.problem(format!("{what} at {address:#x}+{blocks} overlaps what is at {other:#x}+{length}"));
        }
        self.used.insert(address, blocks);
    }
}
