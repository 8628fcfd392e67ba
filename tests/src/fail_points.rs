//! Memory that kills or halts its process at a chosen store.
//!
//! A wrapper around the mapped region, so that the server that it is put under is the real one and the program
//! that is shipped contains none of it. Every word stored is a fail point, also each word of an item or of a
//! sibling subtable, which the region would copy in one go; [`Step`] names what kind of word it is.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::process::{Signal, getpid, kill_process};
use sidestep_core::layout::bucket::{SUBTABLE_BLOCKS, SUBTABLE_BYTES};
use sidestep_core::layout::directory::DirectoryWord;
use sidestep_core::layout::item::Link;
use sidestep_core::layout::root;
use sidestep_core::limits::{BLOCK_WORDS, MAX_DEPTH};
use sidestep_core::memory::{Memory, MemoryMut};
use sidestep_fabric::region::Region;
use sidestep_server::Backing;

macro_rules! steps {
    ($($variant:ident $name:literal $doc:literal,)*) => {
        /// What kind of word is about to be stored.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Step { $(#[doc = $doc] $variant,)* }

        impl fmt::Display for Step {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(match self { $(Self::$variant => $name,)* })
            }
        }

        impl FromStr for Step {
            type Err = String;
            fn from_str(name: &str) -> Result<Self, String> {
                match name {
                    $($name => Ok(Self::$variant),)*
                    _ => Err(format!("no step is named {name:?}")),
                }
            }
        }
    };
}

steps! {
    Item "item" "A word of an item that nothing leads to yet.",
    Link "link" "The link word of an item that is published, or about to be.",
    Slot "slot" "A word of a subtable.",
    Sibling "sibling" "A word of a sibling that nothing leads to yet.",
    Entry "entry" "A word of a directory that the root names.",
    Fresh "fresh" "A word stored on its own where nothing leads yet: of a new directory, of a long item's header.",
    Directory "directory" "A root word that names a directory, or the current one.",
    Intent "intent" "A split intent.",
    Ceiling "ceiling" "The version ceiling.",
    Segment "segment" "The segment table.",
    Pages "pages" "No word: pages are about to be allocated.",
    Root "root" "Another word of the root.",
}

/// What happens at stores.
#[derive(Clone, Debug, Default)]
enum Plan {
    #[default]
    Off,
    /// Steps are written down.
    Count(Vec<Step>),
    /// Before each store its step is told, and the storing thread waits to be let go.
    Halt { tell: fn(Step), waits: bool },
    /// The process is killed before or after the store of this number, of those of one step or of all.
    Kill { step: Option<Step>, left: u64, after: bool },
}

/// The plan of a process, shared by its memory and whoever commands it.
#[derive(Debug, Default)]
pub struct Points {
    /// False: stores take no lock and are not looked at.
    active: AtomicBool,
    plan: Mutex<Plan>,
    let_go: Condvar,
}

impl Points {
    fn lock(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, plan: Plan) -> Plan {
        let old = std::mem::replace(&mut *self.lock(), plan);
        self.active.store(!matches!(*self.lock(), Plan::Off), Ordering::SeqCst);
        self.let_go.notify_all();
        old
    }

    /// Obeys `count`, `report`, `halt`, `go`, `off`, or `kill N STEP` and `kill N STEP after`, with `any` for
    /// every step. Returns what to answer, if anything.
    pub fn command(&self, line: &str, tell: fn(Step)) -> Result<Option<String>, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["count"] => self.set(Plan::Count(Vec::new())),
            ["halt"] => self.set(Plan::Halt { tell, waits: false }),
            ["off"] => self.set(Plan::Off),
            ["report"] => {
                let Plan::Count(steps) = self.set(Plan::Off) else { return Err("nothing was counted".to_owned()) };
                let names: Vec<String> = steps.iter().map(Step::to_string).collect();
                return Ok(Some(format!("steps {}", names.join(" "))));
            }
            ["go"] => {
                if let Plan::Halt { waits, .. } = &mut *self.lock() {
                    *waits = false;
                }
                self.let_go.notify_all();
                return Ok(None);
            }
            ["kill", number, ref step @ ..] => {
                let left = number.parse().map_err(|_| format!("expected a number, found {number:?}"))?;
                let after = step.get(1).is_some_and(|word| *word == "after");
                let step = step.first().filter(|name| **name != "any").map(|name| name.parse()).transpose()?;
                self.set(Plan::Kill { step, left, after })
            }
            _ => return Err(format!("not a command: {line:?}")),
        };
        Ok(Some("armed".to_owned()))
    }

    /// Does a store, or is killed before or after it.
    fn at<R>(&self, step: impl FnOnce() -> Step, store: impl FnOnce() -> R) -> R {
        if !self.active.load(Ordering::SeqCst) {
            return store();
        }
        let step = step();
        let mut plan = self.lock();
        match &mut *plan {
            Plan::Off => {}
            Plan::Count(steps) => steps.push(step),
            Plan::Halt { tell, waits } => {
                *waits = true;
                tell(step);
                while matches!(&*plan, Plan::Halt { waits: true, .. }) {
                    plan = self.let_go.wait(plan).unwrap_or_else(PoisonError::into_inner);
                }
            }
            Plan::Kill { step: only, .. } if only.is_some_and(|only| only != step) => {}
            Plan::Kill { left, .. } if *left > 0 => *left -= 1,
            Plan::Kill { after, .. } => {
                // No other store comes to pass: they all wait for this lock.
                if *after {
                    store();
                }
                let _ = kill_process(getpid(), Signal::KILL);
                loop {
                    std::thread::park();
                }
            }
        }
        drop(plan);
        store()
    }
}

/// A region whose stores are fail points.
#[derive(Debug)]
pub struct FailPoints {
    region: Region,
    points: Arc<Points>,
}

impl FailPoints {
    /// Puts them around a region.
    pub fn new(region: Region, points: Arc<Points>) -> Self {
        Self { region, points }
    }

    /// What a word is, as far as the root and the directories tell.
    fn step(&self, word: u64) -> Step {
        match word {
            root::VERSION_CEILING_WORD => return Step::Ceiling,
            root::CURRENT_DIRECTORY_WORD => return Step::Directory,
            _ if (root::DIRECTORIES_WORD..root::INTENTS_WORD).contains(&word) => return Step::Directory,
            _ if (root::INTENTS_WORD..root::SEGMENTS_WORD).contains(&word) => return Step::Intent,
            _ if (root::SEGMENTS_WORD..root::SEGMENTS_WORD + 2 * root::MAX_SEGMENTS).contains(&word) => {
                return Step::Segment;
            }
            _ if word < root::ROOT_BYTES / 8 => return Step::Root,
            _ => {}
        }
        let page = word / BLOCK_WORDS / SUBTABLE_BLOCKS * SUBTABLE_BLOCKS;
        for depth in 0..=u64::from(MAX_DEPTH) {
            let directory = DirectoryWord(self.region.load(root::DIRECTORIES_WORD + depth));
            if directory.address() == 0 {
                continue;
            }
            let first = directory.address() * BLOCK_WORDS;
            if (first..first + (1 << depth)).contains(&word) {
                return Step::Entry;
            }
            let mut entries = (first..first + (1 << depth)).map(|entry| DirectoryWord(self.region.load(entry)));
            if entries.any(|entry| entry.address() == page) {
                return Step::Slot;
            }
        }
        // An item begins with its link, which is about the checksum after it.
        let checksum = if word.is_multiple_of(BLOCK_WORDS) { self.region.load(word + 1) } else { 0 };
        let is_link = checksum != 0 && Link(self.region.load(word)).is_about(checksum);
        if is_link { Step::Link } else { Step::Fresh }
    }
}

impl Memory for FailPoints {
    fn words(&self) -> u64 {
        self.region.words()
    }
    fn load(&self, word: u64) -> u64 {
        self.region.load(word)
    }
    fn read(&self, word: u64, into: &mut [u8]) {
        self.region.read(word, into);
    }
    fn prefetch(&self, word: u64, bytes: usize) {
        self.region.prefetch(word, bytes);
    }
}

impl MemoryMut for FailPoints {
    fn store(&self, word: u64, value: u64) {
        self.points.at(|| self.step(word), || self.region.store(word, value));
    }
    fn fetch_max(&self, word: u64, value: u64) -> u64 {
        self.points.at(|| self.step(word), || self.region.fetch_max(word, value))
    }
    fn write(&self, word: u64, from: &[u8]) {
        let step = if from.len() == SUBTABLE_BYTES { Step::Sibling } else { Step::Item };
        for (i, bytes) in from.chunks(8).enumerate() {
            let mut value = [0; 8];
            value[..bytes.len()].copy_from_slice(bytes);
            self.points.at(|| step, || self.region.store(word + i as u64, u64::from_le_bytes(value)));
        }
    }
    fn fence(&self) {
        self.region.fence();
    }
    fn allocate(&self, word: u64, bytes: u64) -> io::Result<()> {
        self.points.at(|| Step::Pages, || self.region.allocate(word, bytes))
    }
}

impl Backing for FailPoints {
    fn region(&self) -> &Region {
        &self.region
    }
}
