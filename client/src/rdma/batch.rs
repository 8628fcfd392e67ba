//! Many keys at once: each round posts one READ step of all keys as one chain, with one doorbell.

use sidestep_core::hash::KeyHash;
use sidestep_core::layout::directory::DirectoryWord;
use sidestep_core::lookup::{CachedLocation, ItemRead, Lookup, Step};
use sidestep_fabric::rdma::RdmaError;

use super::reader::{Begun, End, Item, ROOT, RdmaReader, WINDOW_BYTES, end_of, on_item, on_window};
use super::remote::{Fetched, Remote};
use crate::shm::Looked;

/// Keys under way at once: a chain's length, more or less.
const KEYS_AT_ONCE: usize = 64;

/// A key that is being looked up.
struct One<'k> {
    index: usize,
    hash: KeyHash,
    cached: Option<CachedLocation>,
    lookup: Lookup<'k>,
    step: Step,
    last: Fetched,
    kept: Fetched,
    /// Its step of this round is done; what still comes for it are the other candidates.
    is_decided: bool,
}

fn has_ended(step: Step) -> bool {
    matches!(step, Step::Found(_) | Step::Absent | Step::Ask)
}

impl RdmaReader {
    /// Looks keys up. `each` is called with the index of every key that is found or absent; those that need a closer
    /// look, or were not come to, go into `again`.
    pub(crate) fn look_batch<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        again: &mut Vec<usize>,
        each: &mut impl FnMut(usize, Option<Item>),
    ) {
        for (group, first) in keys.chunks(KEYS_AT_ONCE).zip((0..).step_by(KEYS_AT_ONCE)) {
            let mut all: Vec<One<'_>> =
                group.iter().enumerate().map(|(i, key)| self.one(first + i, key.as_ref())).collect();
            if let Err(error) = run(&mut all, &mut self.remote) {
                self.break_off(error);
                again.extend(first..keys.len());
                break;
            }
            for one in all {
                let One { index, hash, cached, lookup, step, last, kept, .. } = one;
                let end: End = end_of(step, last, kept);
                self.learn(hash, &lookup, cached, &end);
                let mut item = None;
                match self.conclude(end, &mut item) {
                    Looked::Found | Looked::Absent => each(index, item),
                    Looked::Ask | Looked::Gone => again.push(index),
                }
            }
        }
        self.publish_trace();
    }

    fn one<'k>(&self, index: usize, key: &'k [u8]) -> One<'k> {
        let Begun { hash, cached, lookup, step } = self.begin(key);
        One { index, hash, cached, lookup, step, last: Fetched::Nothing, kept: Fetched::Nothing, is_decided: false }
    }
}

/// Rounds until all have ended.
fn run(all: &mut [One<'_>], remote: &mut Remote) -> Result<(), RdmaError> {
    while all.iter().any(|one| !has_ended(one.step)) {
        if all.iter().any(|one| one.step == Step::Root) {
            // One READ serves all that begin at the root.
            let root = DirectoryWord(remote.fetch(ROOT)?.word());
            for one in all.iter_mut().filter(|one| one.step == Step::Root) {
                one.step = one.lookup.on_root(root);
            }
        }
        round(all, remote)?;
    }
    Ok(())
}

/// One READ step of all keys.
fn round(all: &mut [One<'_>], remote: &mut Remote) -> Result<(), RdmaError> {
    for one in all.iter() {
        match read_of(one.step) {
            Some(read) => remote.prepare(std::iter::once(read))?,
            None if one.step == Step::Candidates => remote.prepare(one.lookup.candidates())?,
            None => {}
        }
    }
    for (tag, one) in (0..).zip(all.iter_mut()) {
        one.is_decided = false;
        if let Step::Item { keep: true, .. } = one.step {
            one.kept = std::mem::take(&mut one.last);
        }
        match read_of(one.step) {
            Some(read) => remote.push(tag, read)?,
            None if one.step == Step::Candidates => {
                for read in one.lookup.candidates() {
                    remote.push(tag, read)?;
                }
            }
            None => {}
        }
    }
    while let Some((tag, fetched)) = remote.next()? {
        if let Some(one) = all.get_mut(tag as usize).filter(|one| !one.is_decided) {
            one.take(fetched);
        }
    }
    Ok(())
}

/// The one READ of a step that has one.
fn read_of(step: Step) -> Option<ItemRead> {
    match step {
        Step::Entry { word } => Some(ItemRead { word, bytes: 8 }),
        Step::Window { word } => Some(ItemRead { word, bytes: WINDOW_BYTES }),
        Step::Item { read, .. } => Some(read),
        _ => None,
    }
}

impl One<'_> {
    /// Takes what came for its step.
    fn take(&mut self, fetched: Fetched) {
        let step = match self.step {
            Step::Entry { .. } => self.lookup.on_entry(DirectoryWord(fetched.word())),
            Step::Window { .. } => on_window(&mut self.lookup, &fetched),
            Step::Candidates | Step::Item { .. } => {
                let step = on_item(&mut self.lookup, &fetched);
                self.last = fetched;
                step
            }
            ended => ended,
        };
        if step != Step::Next {
            self.step = step;
            self.is_decided = true;
        }
    }
}
