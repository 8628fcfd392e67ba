//! Two writers that take turns: which of them goes on is a choice of the search.
//!
//! A writer yields before each access to a word that the other one accesses too and that one of them writes.
//! What such a word is, is learned from one run to the next. Accesses to other words commute with all that the other
//! writer does, and so do locks with the accesses beside them, so that no order is lost.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::resume_unwind;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::tape::Event;

/// Writers of a run.
pub(crate) const WRITERS: usize = 2;

/// Unwinds writers of a run that leads to nothing new.
pub(crate) struct Abandoned;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    /// Has the turn, or is on its way to its first.
    Running,
    /// Could go on.
    Ready,
    /// Waits for a lock: to be tried again when the other one has gone on.
    Blocked,
    /// It has.
    Retry,
    Done,
}

#[derive(Debug)]
struct State {
    turn: Option<usize>,
    at: [At; WRITERS],
    /// Tries a lock again, and has done nothing else since.
    retrying: [bool; WRITERS],
    /// They wait for each other.
    deadlock: bool,
    /// Choices to repeat, and what was chosen so far out of how many.
    prefix: Vec<u8>,
    chosen: Vec<(u8, u8)>,
    /// What each writer has loaded.
    observed: [u64; WRITERS],
    /// Of all that was stored, and of the marks.
    digest: u64,
    marks: u64,
    accessed: [HashMap<u64, bool>; WRITERS],
    abandoned: bool,
}

/// Who may go on.
#[derive(Debug)]
pub(crate) struct Turns {
    shared: HashSet<u64>,
    state: Mutex<State>,
    changed: Condvar,
    /// States in which a choice was met, of all runs; none: every run is followed to its end.
    seen: Option<Mutex<HashSet<u64>>>,
}

/// What a run was.
#[derive(Debug)]
pub(crate) struct Taken {
    /// Each choice and out of how many.
    pub(crate) chosen: Vec<(u8, u8)>,
    /// It came to a state that was met before.
    pub(crate) abandoned: bool,
    /// Words that both access and one writes.
    pub(crate) shared: HashSet<u64>,
    pub(crate) seen: Option<HashSet<u64>>,
}

fn mix(parts: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}

impl Turns {
    pub(crate) fn new(shared: HashSet<u64>, prefix: Vec<u8>, seen: Option<HashSet<u64>>) -> Self {
        let state = State {
            turn: None,
            at: [At::Running; WRITERS],
            retrying: [false; WRITERS],
            deadlock: false,
            prefix,
            chosen: Vec::new(),
            observed: [0; WRITERS],
            digest: 0,
            marks: 0,
            accessed: Default::default(),
            abandoned: false,
        };
        Self { shared, state: Mutex::new(state), changed: Condvar::new(), seen: seen.map(Mutex::new) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Before an access of a writer (none: something else that the other one may notice).
    pub(crate) fn access(&self, writer: usize, access: Option<(u64, bool)>) {
        let mut state = self.state();
        // How far a writer has come is part of the state.
        state.observed[writer] = mix((state.observed[writer], access));
        if let Some((word, writes)) = access {
            *state.accessed[writer].entry(word).or_default() |= writes;
            if !self.shared.contains(&word) {
                return;
            }
        }
        drop(state);
        self.pause(writer, At::Ready);
    }

    /// A writer has found a lock taken. True: it is to try again.
    pub(crate) fn blocked(&self, writer: usize) -> bool {
        self.pause(writer, At::Blocked);
        true
    }

    /// What a writer has loaded is all that it knows.
    pub(crate) fn observe(&self, writer: usize, value: u64) {
        let mut state = self.state();
        state.observed[writer] = mix((state.observed[writer], value));
    }

    /// A word changes.
    pub(crate) fn changed(&self, word: u64, before: u64, after: u64) {
        self.state().digest ^= mix((word, before)) ^ mix((word, after));
    }

    /// The order of begins and acknowledgements is that in which extents are taken and given back.
    pub(crate) fn record(&self, event: &Event) {
        if let Event::Begin(_) | Event::End(_) = event {
            let mut state = self.state();
            state.marks = mix((state.marks, event));
        }
    }

    /// The writer is done, or unwound.
    pub(crate) fn leave(&self, writer: usize) {
        let mut state = self.state();
        state.at[writer] = At::Done;
        self.hand_on(&mut state, writer);
    }

    fn pause(&self, writer: usize, at: At) {
        if std::thread::panicking() {
            return;
        }
        let mut state = self.state();
        let in_vain = at == At::Blocked && state.retrying[writer];
        state.retrying[writer] = false;
        if in_vain {
            // Nothing has changed: the order without this attempt is the same. Unless nobody else can go on.
            state.deadlock = state.at[1 - writer] == At::Blocked;
            state.abandoned = true;
            self.changed.notify_all();
        } else {
            state.at[writer] = at;
            self.hand_on(&mut state, writer);
        }
        while state.turn != Some(writer) && !state.abandoned {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.abandoned {
            drop(state);
            resume_unwind(Box::new(Abandoned));
        }
        state.retrying[writer] = state.at[writer] == At::Retry;
        state.at[writer] = At::Running;
    }

    /// Chooses who goes on, once everyone stands still.
    fn hand_on(&self, state: &mut State, from: usize) {
        if state.turn == Some(from) || state.turn.is_none() {
            state.turn = None;
        }
        // Something went on: whoever waits for a lock may try again.
        for (writer, at) in state.at.iter_mut().enumerate() {
            if writer != from && *at == At::Blocked {
                *at = At::Retry;
            }
        }
        if state.at.contains(&At::Running) {
            return;
        }
        let can = |at: At| at == At::Ready || at == At::Retry;
        let ready: Vec<usize> = (0..WRITERS).filter(|&writer| can(state.at[writer])).collect();
        if !ready.is_empty() {
            let choice = if ready.len() == 1 { Some(0) } else { self.choose(state, ready.len() as u8) };
            match choice {
                Some(choice) => state.turn = Some(ready[usize::from(choice)]),
                None => state.abandoned = true,
            }
        }
        self.changed.notify_all();
    }

    /// The next choice; none: this state was met before.
    fn choose(&self, state: &mut State, out_of: u8) -> Option<u8> {
        let i = state.chosen.len();
        let choice = match state.prefix.get(i) {
            Some(&choice) => choice,
            None => {
                let key = mix((state.digest, state.observed, state.at, state.marks));
                if let Some(seen) = &self.seen
                    && !seen.lock().unwrap_or_else(PoisonError::into_inner).insert(key)
                {
                    return None;
                }
                0
            }
        };
        state.chosen.push((choice, out_of));
        Some(choice)
    }

    /// After both writers have left. Err: they waited for each other.
    pub(crate) fn taken(&self) -> Result<Taken, String> {
        let mut state = self.state();
        if state.deadlock {
            return Err("the writers wait for each other".to_owned());
        }
        let [one, other] = &state.accessed;
        let shared = one
            .iter()
            .filter(|(word, writes)| other.get(word).is_some_and(|other| *other || **writes))
            .map(|(word, _)| *word)
            .collect();
        let chosen = std::mem::take(&mut state.chosen);
        let seen =
            self.seen.as_ref().map(|seen| std::mem::take(&mut *seen.lock().unwrap_or_else(PoisonError::into_inner)));
        Ok(Taken { chosen, abandoned: state.abandoned, shared, seen })
    }
}
