//! What every word was at every time, as far as a reader of one key can tell.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::tape::Event;

/// A time is the number of relevant events that happened.
pub(crate) type Time = u32;

/// A value that a word can be sampled as, and the first time at which it can.
pub(crate) type Choice = (u64, Time);

/// The tape of one run as seen by the readers of one key: events that they cannot notice take no time.
#[derive(Debug)]
pub(crate) struct Timeline {
    initial: Arc<[u64]>,
    /// Of words that are read and that change: what each can be sampled as from a time on.
    changes: HashMap<u64, Vec<(Time, Vec<u64>)>>,
    /// Words that change and are not in the footprint.
    untracked: HashSet<u64>,
    /// Words that were read and change, and were not known to be read.
    missed: RefCell<HashSet<u64>>,
    /// Event and the time at which it is over.
    pub(crate) marks: Vec<(Event, Time)>,
    /// The last time.
    pub(crate) end: Time,
}

impl Timeline {
    /// `footprint`: words that readers of the key are known to read. `is_mine`: whether a mark is about the key.
    pub(crate) fn new(
        initial: &Arc<[u64]>,
        events: &[Event],
        footprint: &HashSet<u64>,
        is_mine: impl Fn(usize) -> bool,
    ) -> Self {
        let mut timeline = Self {
            initial: initial.clone(),
            changes: HashMap::new(),
            untracked: HashSet::new(),
            missed: RefCell::default(),
            marks: Vec::new(),
            end: 0,
        };
        for event in events {
            timeline.add(event, footprint, &is_mine);
        }
        timeline
    }

    fn add(&mut self, event: &Event, footprint: &HashSet<u64>, is_mine: &impl Fn(usize) -> bool) {
        match event {
            Event::Store { word, value } => {
                if !footprint.contains(word) {
                    self.untracked.insert(*word);
                }
                if footprint.contains(word) && *self.now(*word) != [*value] {
                    self.end += 1;
                    self.set(*word, vec![*value]);
                }
            }
            Event::Write { word, values, torn } => {
                let words = || (*word..).zip(values.iter().copied());
                self.untracked.extend(words().map(|(word, _)| word).filter(|word| !footprint.contains(word)));
                let changes: Vec<(u64, u64)> =
                    words().filter(|(word, value)| footprint.contains(word) && *self.now(*word) != [*value]).collect();
                if changes.is_empty() {
                    return;
                }
                self.end += 1;
                for &(word, value) in &changes {
                    let mut either = self.now(word).to_vec();
                    if !either.contains(&value) {
                        either.push(value);
                    }
                    self.set(word, either);
                }
                if !torn {
                    self.end += 1;
                    changes.iter().for_each(|&(word, value)| self.set(word, vec![value]));
                }
            }
            Event::Begin(write) | Event::End(write) => {
                if !is_mine(*write) {
                    return;
                }
                self.end += 1;
            }
        }
        self.marks.push((event.clone(), self.end));
    }

    fn now(&self, word: u64) -> std::borrow::Cow<'_, [u64]> {
        match self.changes.get(&word).and_then(|changes| changes.last()) {
            Some((_, values)) => values.into(),
            None => vec![self.initial[word as usize]].into(),
        }
    }

    fn set(&mut self, word: u64, values: Vec<u64>) {
        self.changes.entry(word).or_default().push((self.end, values));
    }

    /// What a word can be sampled as from `from` on (only at that time, if `instant`), each value at its first time.
    pub(crate) fn choices(&self, word: u64, from: Time, instant: bool) -> Vec<Choice> {
        let Some(changes) = self.changes.get(&word) else {
            if self.untracked.contains(&word) {
                self.missed.borrow_mut().insert(word);
            }
            return vec![(self.initial[word as usize], from)];
        };
        let next = changes.partition_point(|(time, _)| *time <= from);
        let mut choices: Vec<Choice> = match next.checked_sub(1) {
            Some(i) => changes[i].1.iter().map(|&value| (value, from)).collect(),
            None => vec![(self.initial[word as usize], from)],
        };
        if !instant {
            for (time, values) in &changes[next..] {
                for &value in values {
                    if choices.iter().all(|choice| choice.0 != value) {
                        choices.push((value, *time));
                    }
                }
            }
        }
        choices
    }

    /// Words that were read, change, and were not in the footprint: it must be drawn again.
    pub(crate) fn missed(&self) -> HashSet<u64> {
        self.missed.borrow().clone()
    }
}
