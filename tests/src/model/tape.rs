//! Memory that keeps a tape of all that its server does, and can take the order of its stores away.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sidestep_core::layout::directory::DirectoryWord;
use sidestep_core::layout::item::{Link, LinkState};
use sidestep_core::layout::root;
use sidestep_core::limits::BLOCK_WORDS;
use sidestep_core::memory::{Memory, MemoryMut};

use super::Defence;
use super::turns::Turns;

/// One step of a tape.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Event {
    /// One word.
    Store {
        /// Which.
        word: u64,
        /// What it becomes.
        value: u64,
    },
    /// Words that become these in any order; in a kill any of them may have.
    Write {
        /// The first.
        word: u64,
        /// What they become.
        values: Arc<[u64]>,
        /// The server was killed in the middle.
        torn: bool,
    },
    /// A write of a client begins; its number in the history.
    Begin(usize),
    /// It is acknowledged.
    End(usize),
}

/// A thread that is none of the writers.
const NOBODY: usize = 2;

thread_local! {
    /// Which writer this thread is.
    static WRITER: Cell<usize> = const { Cell::new(0) };
}

/// Says which writer this thread is, for [`Turns`] and for what is delayed.
pub(crate) fn become_writer(writer: usize) {
    WRITER.set(writer);
}

/// A store that is held back where a defence is taken away.
#[derive(Clone, Copy, Debug)]
struct Delayed {
    word: u64,
    value: u64,
    /// Until this thread's next access, instead of its next store: past an unlock.
    until_access: bool,
}

#[derive(Debug, Default)]
struct State {
    events: Vec<Event>,
    /// By writer.
    delayed: [Option<Delayed>; 3],
    /// Link state of the body that each writer wrote last.
    composed: [Option<LinkState>; 3],
}

/// The memory.
#[derive(Debug)]
pub(crate) struct Tape {
    cells: Box<[AtomicU64]>,
    state: Mutex<State>,
    without: Option<Defence>,
    turns: Option<Arc<Turns>>,
    first_ceiling: u64,
}

impl Tape {
    /// Memory with these words, a defence taken away or none.
    pub(crate) fn new(words: &[u64], without: Option<Defence>, turns: Option<Arc<Turns>>) -> Arc<Self> {
        let cells = words.iter().map(|&word| AtomicU64::new(word)).collect();
        Arc::new(Self {
            cells,
            state: Mutex::default(),
            without,
            turns,
            first_ceiling: words[root::VERSION_CEILING_WORD as usize],
        })
    }

    /// The turns, for a thread that takes part in them.
    fn turns(&self) -> Option<&Turns> {
        self.turns.as_deref().filter(|_| WRITER.get() != NOBODY)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All words as they are.
    pub(crate) fn words_now(&self) -> Vec<u64> {
        self.cells.iter().map(|cell| cell.load(Ordering::Relaxed)).collect()
    }

    /// Runs a recovery on memory on which writers will take turns.
    pub(crate) fn without_turns<T>(&self, recover: impl FnOnce() -> T) -> T {
        become_writer(NOBODY);
        let recovered = recover();
        become_writer(0);
        self.take_events();
        recovered
    }

    /// Runs a recovery that finds the ceiling which this tape began with, and so gives its floors to all subtables.
    /// Nothing of that is on the tape.
    pub(crate) fn forgetting_floors<T>(&self, recover: impl FnOnce() -> T) -> T {
        let events = self.take_events();
        let ceiling = &self.cells[root::VERSION_CEILING_WORD as usize];
        let now = ceiling.swap(self.first_ceiling, Ordering::Relaxed);
        let recovered = recover();
        ceiling.store(now, Ordering::Relaxed);
        self.state().events = events;
        recovered
    }

    /// Subtables of the current directory.
    pub(crate) fn subtables(&self) -> usize {
        let load = |word: u64| self.cells[word as usize].load(Ordering::Relaxed);
        let current = DirectoryWord(load(root::CURRENT_DIRECTORY_WORD));
        let first = current.address() * BLOCK_WORDS;
        (first..first + (1 << current.depth())).map(load).collect::<BTreeSet<u64>>().len()
    }

    /// Everything since the last call.
    pub(crate) fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut self.state().events)
    }

    /// Puts a mark on the tape, after whatever is still held back.
    pub(crate) fn mark(&self, event: Event) {
        self.flush();
        self.record(event);
    }

    fn record(&self, event: Event) {
        if let Some(turns) = self.turns() {
            turns.record(&event);
        }
        self.state().events.push(event);
    }

    /// Before any access: other writers' turns, then what was held back until here.
    fn access(&self, word: u64, writes: bool) {
        let me = WRITER.get();
        let late = self.state().delayed[me].filter(|delayed| delayed.until_access);
        if let Some(turns) = self.turns() {
            if late.is_some() {
                turns.access(me, None);
            }
            if let Some(delayed) = late {
                self.state().delayed[me] = None;
                self.put(delayed.word, delayed.value);
            }
            turns.access(me, Some((word, writes)));
        } else if let Some(delayed) = late {
            self.state().delayed[me] = None;
            self.put(delayed.word, delayed.value);
        }
    }

    fn set(&self, word: u64, value: u64) {
        let before = self.cells[word as usize].swap(value, Ordering::Relaxed);
        if let Some(turns) = self.turns() {
            turns.changed(word, before, value);
        }
    }

    fn put(&self, word: u64, value: u64) {
        self.set(word, value);
        self.record(Event::Store { word, value });
    }

    fn flush(&self) {
        let delayed = self.state().delayed[WRITER.get()].take();
        if let Some(delayed) = delayed {
            self.put(delayed.word, delayed.value);
        }
    }

    /// Whether this store is one that the missing defence would have kept in its place.
    fn holds_back(&self, word: u64, value: u64) -> Option<Delayed> {
        let is_link = self.is_link(word);
        let link = Link(value).state();
        let next_store = Some(Delayed { word, value, until_access: false });
        let next_access = Some(Delayed { word, value, until_access: true });
        match self.without? {
            Defence::ForwardBeforeCurrent if is_link && link == LinkState::Forward => next_store,
            Defence::DeadBeforeEmpty if is_link && link == LinkState::Dead => next_store,
            Defence::InsertSlotBeforeCurrent
                if !is_link && self.state().composed[WRITER.get()] == Some(LinkState::Dead) =>
            {
                next_store
            }
            Defence::SiblingLock if is_intent(word) && value == 0 => next_access,
            Defence::DirectoryLockOfDoubling if word == root::CURRENT_DIRECTORY_WORD => next_access,
            Defence::DirectoryLockOfEntries if self.is_entry(word) => next_access,
            _ => None,
        }
    }

    /// The first word of an item.
    fn is_link(&self, word: u64) -> bool {
        let load = |word: u64| self.cells[word as usize].load(Ordering::Relaxed);
        word.is_multiple_of(8) && load(word + 1) != 0 && Link(load(word)).is_about(load(word + 1))
    }

    /// A word of the current directory.
    fn is_entry(&self, word: u64) -> bool {
        let current = self.cells[root::CURRENT_DIRECTORY_WORD as usize].load(Ordering::Relaxed);
        let current = DirectoryWord(current);
        let first = current.address() * BLOCK_WORDS;
        (first..first + (1 << current.depth())).contains(&word)
    }
}

fn is_intent(word: u64) -> bool {
    (root::INTENTS_WORD..root::INTENTS_WORD + root::INTENTS).contains(&word)
}

impl Memory for Tape {
    fn words(&self) -> u64 {
        self.cells.len() as u64
    }

    fn load(&self, word: u64) -> u64 {
        self.access(word, false);
        let value = self.cells[word as usize].load(Ordering::Relaxed);
        if let Some(turns) = self.turns() {
            turns.observe(WRITER.get(), value);
        }
        value
    }

    fn read(&self, word: u64, into: &mut [u8]) {
        for (i, bytes) in into.chunks_exact_mut(8).enumerate() {
            bytes.copy_from_slice(&self.load(word + i as u64).to_le_bytes());
        }
    }
}

impl MemoryMut for Tape {
    fn store(&self, word: u64, value: u64) {
        self.access(word, true);
        if let Some(delayed) = self.holds_back(word, value) {
            self.flush();
            self.state().delayed[WRITER.get()] = Some(delayed);
            return;
        }
        self.put(word, value);
        self.flush();
        self.state().composed[WRITER.get()] = None;
    }

    fn fetch_max(&self, word: u64, value: u64) -> u64 {
        self.access(word, true);
        let before = self.cells[word as usize].load(Ordering::Relaxed);
        let dropped = self.without == Some(Defence::PersistedCeiling) && word == root::VERSION_CEILING_WORD;
        if value > before && !dropped {
            self.put(word, value);
        }
        before
    }

    fn write(&self, word: u64, from: &[u8]) {
        (0..from.len().div_ceil(8) as u64).for_each(|i| self.access(word + i, true));
        let mut values: Vec<u64> = from
            .chunks(8)
            .map(|bytes| {
                let mut word = [0; 8];
                word[..bytes.len()].copy_from_slice(bytes);
                u64::from_le_bytes(word)
            })
            .collect();
        let is_item = values.len() < 512;
        if is_item {
            let link = Link(values[0]).state();
            if self.without == Some(Defence::InsertBornDead) && link == LinkState::Dead {
                values[0] = Link::bound(LinkState::Current, values[0]).0;
            }
            self.state().composed[WRITER.get()] = Some(link);
        }
        for (i, &value) in values.iter().enumerate() {
            self.set(word + i as u64, value);
        }
        self.record(Event::Write { word, values: values.into(), torn: false });
    }

    fn fence(&self) {}

    fn allocate(&self, _word: u64, _bytes: u64) -> io::Result<()> {
        Ok(())
    }

    fn yield_turn(&self) -> bool {
        self.turns().is_some_and(|turns| turns.blocked(WRITER.get()))
    }
}
