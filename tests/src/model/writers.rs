//! Two writers on one store: every order of what they do, kills in between, and readers of all that.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use super::readers::Written;
use super::scenario::{Scenario, Search};
use super::server::{Op, Server, write};
use super::tape::{Event, Tape, become_writer};
use super::turns::{Abandoned, Taken, Turns, WRITERS};

/// One order of the writers' steps.
pub(crate) struct Meeting {
    pub(crate) events: Vec<Event>,
    pub(crate) writes: Vec<Written>,
    pub(crate) taken: Taken,
}

/// What the second writer does while the first one does the scenario's operations.
#[derive(Clone, Debug)]
pub(crate) struct Second {
    pub(crate) ops: Vec<Op>,
    /// Orders that come to a state of the server that another one came to are not followed from there:
    /// what a reader saw before is then not combined with all that may come after.
    pub(crate) joins: bool,
}

impl Search<'_> {
    /// Every order in which the two writers can go on. `words`: the table before.
    pub(crate) fn meetings(&mut self, words: &[u64], second: &Second) -> Result<(), String> {
        let mut shared: HashSet<u64> = HashSet::new();
        loop {
            let mut seen = second.joins.then(HashSet::new);
            let mut more: HashSet<u64> = HashSet::new();
            let mut open: Vec<Vec<u8>> = vec![Vec::new()];
            self.restart();
            while let Some(prefix) = open.pop() {
                let from = prefix.len();
                let turns = Turns::new(shared.clone(), prefix, seen.take());
                let mut meeting = self.meet(words, second, turns)?;
                seen = meeting.taken.seen.take();
                more.extend(meeting.taken.shared.difference(&shared));
                let chosen = &meeting.taken.chosen;
                for i in from..chosen.len() {
                    for other in chosen[i].0 + 1..chosen[i].1 {
                        let before = chosen[..i].iter().map(|choice| choice.0);
                        open.push(before.chain([other]).collect());
                    }
                }
                if more.is_empty() {
                    self.report.orders += 1;
                    self.judge(words, meeting)?;
                }
            }
            if more.is_empty() {
                return Ok(());
            }
            shared.extend(more);
        }
    }

    fn meet(&mut self, words: &[u64], second: &Second, turns: Turns) -> Result<Meeting, String> {
        let turns = Arc::new(turns);
        let (tape, server) = self.take_up(words, Some(turns.clone()))?;
        let writes: Mutex<Vec<Written>> = Mutex::default();
        let scenario: &Scenario = self.scenario;
        let results: Vec<Result<(), String>> = std::thread::scope(|scope| {
            let handles: Vec<_> = [&scenario.ops, &second.ops]
                .into_iter()
                .enumerate()
                .map(|(writer, ops)| {
                    let (turns, tape, server, writes) = (&turns, &tape, &server, &writes);
                    scope.spawn(move || {
                        become_writer(writer);
                        let done = catch_unwind(AssertUnwindSafe(|| operate(writer, ops, turns, tape, server, writes)));
                        turns.leave(writer);
                        done.unwrap_or_else(
                            |payload| {
                                if payload.is::<Abandoned>() { Ok(()) } else { resume_unwind(payload) }
                            },
                        )
                    })
                })
                .collect();
            let panicked = |_| Err("a writer panicked".to_owned());
            handles.into_iter().map(|handle| handle.join().unwrap_or_else(panicked)).collect()
        });
        debug_assert_eq!(results.len(), WRITERS);
        let events = tape.take_events();
        results.into_iter().collect::<Result<(), String>>()?;
        let writes = writes.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(Meeting { events, writes, taken: turns.taken()? })
    }
}

fn operate(
    writer: usize,
    ops: &[Op],
    turns: &Turns,
    tape: &Tape,
    server: &Server,
    writes: &Mutex<Vec<Written>>,
) -> Result<(), String> {
    let lock = || writes.lock().unwrap_or_else(PoisonError::into_inner);
    for op in ops {
        turns.access(writer, None);
        let number = {
            let mut writes = lock();
            let number = writes.len();
            writes.push(Written { key: op.key(), state: op.state(number), version: None });
            number
        };
        tape.mark(Event::Begin(number));
        let version = write(server, *op, number)?;
        tape.mark(Event::End(number));
        lock()[number].version = version;
    }
    Ok(())
}
