//! One writer: its run, and every run that a kill at one of its stores leads to.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use sidestep_core::layout::root::BOOT_ID_WORD;
use sidestep_server::store::check;

use super::keys::Key;
use super::readers::{Run, Written, check_readers};
use super::server::{Op, Server, recover, state_of, table, write};
use super::tape::{Event, Tape};
use super::turns::Turns;
use super::writers::{Meeting, Second};
use super::{Bounds, Defence, Report};

/// A run of one server and all that can become of it.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What it is about.
    pub name: &'static str,
    /// Keys that are there at the beginning.
    pub(crate) filled: Vec<Key>,
    pub(crate) ops: Vec<Op>,
    /// What the server does after each recovery.
    pub(crate) afterwards: Vec<Op>,
    /// Keys that are read.
    pub(crate) read: Vec<Key>,
    pub(crate) bounds: Bounds,
    /// A second writer beside the first.
    pub(crate) second: Option<Second>,
}

impl Scenario {
    /// Kills one after the other, instead of what the scenario has.
    pub fn set_kills(&mut self, kills: u32) {
        self.bounds.kills = kills;
    }
}

/// What a run has come to.
#[derive(Clone)]
struct Past {
    memory: Vec<u64>,
    /// Of the memory, whoever's boot it is.
    digest: u64,
    run: Run,
    /// By key that is read: of all that its readers can notice.
    noticed: Vec<u64>,
    /// Writes that have begun.
    begun: usize,
    /// Writes that were acknowledged.
    told: BTreeSet<usize>,
}

fn mix(parts: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}

/// A search of one scenario.
pub(crate) struct Search<'s> {
    pub(crate) scenario: &'s Scenario,
    without: Option<Defence>,
    before: BTreeMap<Key, Written>,
    /// By key that is read: words that its readers read.
    footprints: Vec<HashSet<u64>>,
    seen: HashSet<u64>,
    read: HashSet<(usize, u64)>,
    grown: bool,
    pub(crate) report: Report,
}

/// Searches a scenario to its end. Err: a violation, with the run that shows it.
pub fn run(scenario: &Scenario, without: Option<Defence>) -> Result<Report, String> {
    let words = table(&scenario.filled)?;
    let mut search = Search {
        scenario,
        without,
        before: BTreeMap::new(),
        footprints: vec![HashSet::new(); scenario.read.len()],
        seen: HashSet::new(),
        read: HashSet::new(),
        grown: true,
        report: Report::default(),
    };
    // What readers read is known only when they have read it: again, until nothing is new.
    while std::mem::take(&mut search.grown) {
        search.restart();
        match &scenario.second {
            Some(second) => search.meetings(&words, second)?,
            None => search.first_run(&words)?,
        }
    }
    Ok(search.report)
}

impl Search<'_> {
    fn first_run(&mut self, words: &[u64]) -> Result<(), String> {
        let (tape, mut server) = self.take_up(words, None)?;
        let past = self.past(&tape.words_now());
        let mut writes = Vec::new();
        self.operate(&mut server, &tape, &self.scenario.ops, &mut writes)?;
        self.go_on(past, tape.take_events(), writes, 0, true)
    }

    /// A server on this table, and its state at the beginning of the run.
    pub(crate) fn take_up(&mut self, words: &[u64], turns: Option<Arc<Turns>>) -> Result<(Arc<Tape>, Server), String> {
        let tape = Tape::new(words, self.without, None);
        let server = recover(&tape)?;
        self.before = self.scenario.filled.iter().map(|key| (*key, state_of(&tape, key))).collect();
        let Some(turns) = turns else {
            tape.take_events();
            return Ok((tape, server));
        };
        // Writers that take turns begin where a recovery ended.
        let tape = Tape::new(&tape.words_now(), self.without, Some(turns));
        Ok((tape.clone(), tape.without_turns(|| recover(&tape))?))
    }

    /// Forgets what was found: more is known now of what is read and shared.
    pub(crate) fn restart(&mut self) {
        self.seen.clear();
        self.read.clear();
        self.report = Report::default();
    }

    fn past(&self, words: &[u64]) -> Past {
        let run = Run { initial: words.into(), events: Vec::new(), writes: Vec::new() };
        Past {
            digest: 0,
            memory: words.to_vec(),
            run,
            noticed: vec![0; self.scenario.read.len()],
            begun: 0,
            told: BTreeSet::new(),
        }
    }

    /// Everything that can become of a run of two writers.
    pub(crate) fn judge(&mut self, words: &[u64], meeting: Meeting) -> Result<(), String> {
        let past = self.past(words);
        self.go_on(past, meeting.events, meeting.writes, 0, !meeting.taken.abandoned)
    }

    /// Lets the server do what it is to do. Marks are set for the writes from `writes.len()` on.
    fn operate(
        &self,
        server: &mut Server,
        tape: &Arc<Tape>,
        ops: &[Op],
        writes: &mut Vec<Written>,
    ) -> Result<(), String> {
        for op in ops {
            let number = writes.len();
            tape.mark(Event::Begin(number));
            let subtables = tape.subtables();
            let version = write(server, *op, number)?;
            tape.mark(Event::End(number));
            writes.push(Written { key: op.key(), state: op.state(number), version });
            if self.without == Some(Defence::FloorInheritance) && tape.subtables() > subtables {
                *server = tape.forgetting_floors(|| recover(tape))?;
            }
        }
        Ok(())
    }

    /// Events follow on a past: kills between them, and the end of it all, if it comes to its end. Every write is
    /// known beforehand, as it will be acknowledged if it comes to that.
    fn go_on(
        &mut self,
        mut past: Past,
        events: Vec<Event>,
        writes: Vec<Written>,
        kills: u32,
        ends: bool,
    ) -> Result<(), String> {
        past.run.writes = writes;
        for event in events {
            if kills < self.scenario.bounds.kills && !matches!(event, Event::Begin(_)) {
                self.kill(&past, None, kills)?;
                if let Event::Write { word, values, .. } = &event {
                    let torn = Event::Write { word: *word, values: values.clone(), torn: true };
                    self.kill(&past, Some(torn), kills)?;
                }
            }
            self.apply(&mut past, &event);
        }
        if ends { self.check_end(&past) } else { Ok(()) }
    }

    /// The server is killed after `past`, in the middle of `torn`; the next one recovers and goes on.
    fn kill(&mut self, past: &Past, torn: Option<Event>, kills: u32) -> Result<(), String> {
        let key = mix((past.digest, &past.noticed, &past.begun, &past.told, kills, &torn));
        if !self.seen.insert(key) {
            return Ok(());
        }
        self.report.kills += 1;
        let mut past = past.clone();
        if let Some(torn) = &torn {
            self.apply(&mut past, torn);
        }
        // What was not acknowledged has no version that anyone was told, and what was not begun never was.
        past.run.writes.truncate(past.begun);
        for (number, write) in past.run.writes.iter_mut().enumerate() {
            if !past.told.contains(&number) {
                write.version = None;
            }
        }
        let tape = Tape::new(&past.memory, self.without, None);
        let mut server = recover(&tape).map_err(|error| self.show(&past, &error))?;
        self.sound(&tape).map_err(|error| self.show(&past, &error))?;
        let mut writes = past.run.writes.clone();
        self.operate(&mut server, &tape, &self.scenario.afterwards, &mut writes)
            .map_err(|error| self.show(&past, &error))?;
        self.go_on(past, tape.take_events(), writes, kills + 1, true)
    }

    fn apply(&self, past: &mut Past, event: &Event) {
        let set = |word: u64, value: u64, past: &mut Past| {
            let cell = &mut past.memory[word as usize];
            if word != BOOT_ID_WORD {
                past.digest ^= mix((word, *cell)) ^ mix((word, value));
            }
            *cell = value;
        };
        let notices = |footprint: &HashSet<u64>, key: Key, past: &Past| match event {
            Event::Store { word, value } => footprint.contains(word) && past.memory[*word as usize] != *value,
            Event::Write { word, values, .. } => {
                (*word..).zip(values.iter()).any(|(word, _)| footprint.contains(&word))
            }
            Event::Begin(number) | Event::End(number) => past.run.writes[*number].key == key,
        };
        for (i, key) in self.scenario.read.iter().enumerate() {
            if notices(&self.footprints[i], key, past) {
                past.noticed[i] = mix((past.noticed[i], event));
            }
        }
        match event {
            Event::Store { word, value } => set(*word, *value, past),
            Event::Write { word, values, torn } => {
                // Half of the words of a torn write are there. Nothing that a recovery reads is among them.
                for (word, value) in (*word..).zip(values.iter().copied()).filter(|(word, _)| !torn || word % 2 == 0) {
                    set(word, value, past);
                }
            }
            Event::Begin(_) => past.begun += 1,
            Event::End(number) => {
                past.told.insert(*number);
            }
        }
        past.run.events.push(event.clone());
    }

    /// A run is over: the table is sound, nothing acknowledged is lost, and every reader there can be was right.
    fn check_end(&mut self, whole: &Past) -> Result<(), String> {
        let tape = Tape::new(&whole.memory, None, None);
        self.sound(&tape).map_err(|error| self.show(whole, &error))?;
        let keys: HashSet<Key> =
            self.scenario.filled.iter().copied().chain(whole.run.writes.iter().map(|write| write.key)).collect();
        for key in keys {
            let found = state_of(&tape, key);
            let allowed = self.allowed(&whole.run, key);
            if !allowed.contains(&found.state) {
                let show =
                    |state: &Option<Vec<u8>>| state.as_ref().map(|value| String::from_utf8_lossy(value).into_owned());
                let allowed: Vec<_> = allowed.iter().map(show).collect();
                let text = format!(
                    "key {}: expected one of {allowed:?} at the end, found {:?}",
                    String::from_utf8_lossy(key),
                    show(&found.state)
                );
                return Err(self.show(whole, &text));
            }
        }
        for (i, key) in self.scenario.read.iter().enumerate() {
            if !self.read.insert((i, whole.noticed[i])) {
                continue;
            }
            let before = self.before.get(key).cloned().unwrap_or(Written { key, state: None, version: Some(0) });
            let mut report = self.report;
            self.grown |= check_readers(
                &whole.run,
                key,
                &before,
                self.scenario.bounds,
                self.without,
                &mut self.footprints[i],
                &mut report,
            )?;
            self.report = report;
        }
        Ok(())
    }

    /// What a key may be at the end: whatever was not replaced by a write that began after it and was acknowledged.
    fn allowed(&self, run: &Run, key: Key) -> Vec<Option<Vec<u8>>> {
        let place = |event: Event| run.events.iter().position(|other| *other == event);
        let mine: Vec<usize> = (0..run.writes.len()).filter(|&number| run.writes[number].key == key).collect();
        let told = |number: usize| place(Event::End(number)).is_some();
        let replaces =
            |later: usize, end: usize| told(later) && place(Event::Begin(later)).is_some_and(|begin| begin > end);
        let stands = |number: &usize| {
            place(Event::End(*number)).is_none_or(|end| !mine.iter().any(|&later| replaces(later, end)))
        };
        let mut allowed: Vec<Option<Vec<u8>>> =
            mine.iter().copied().filter(stands).map(|number| run.writes[number].state.clone()).collect();
        if !mine.iter().any(|&number| told(number)) {
            allowed.push(self.before.get(key).and_then(|before| before.state.clone()));
        }
        allowed
    }

    /// Where it is the ceiling that is missing, what that leads to is to be seen, not that it is missing.
    fn sound(&self, tape: &Tape) -> Result<(), String> {
        if self.without == Some(Defence::PersistedCeiling) {
            return Ok(());
        }
        let report = check(tape);
        if report.is_sound() { Ok(()) } else { Err(format!("check: {:?}", report.problems)) }
    }

    fn show(&self, past: &Past, failure: &str) -> String {
        let marks: Vec<String> = past
            .run
            .events
            .iter()
            .rev()
            .take(60)
            .rev()
            .map(|event| match event {
                Event::Store { word, value } => format!("{word:#x} := {value:#x}"),
                Event::Write { word, values, torn } => {
                    format!("{word:#x}.. := {} words{}", values.len(), if *torn { ", killed" } else { "" })
                }
                other => format!("{other:?}"),
            })
            .collect();
        format!("{failure}\nthe server's last stores:\n  {}", marks.join("\n  "))
    }
}
