//! The search for an order, of the operations of one key.

use std::collections::HashSet;

use super::operation::Operation;
use super::register::State;

/// Configurations looked at for each operation before the search gives up.
const PATIENCE: u64 = 1000;

/// An operation as the search sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) operation: Operation,
    /// It was done, and by its end. Otherwise it may have been done at any time after its start, or not at all.
    pub(super) required: bool,
}

/// What a search came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Explained {
    Yes,
    No,
    /// Too many orders to try. Never a claim of either.
    GaveUp,
}

/// Sentinel of the list.
const HEAD: usize = 0;

#[derive(Clone, Copy, Debug)]
enum Event {
    Head,
    Start(usize),
    End,
}

/// Starts and ends of what is not placed yet, in the order of time: a doubly linked list in an array.
struct Timeline {
    events: Vec<Event>,
    next: Vec<usize>,
    previous: Vec<usize>,
    /// For each operation where it starts, and where it ends if it must have been done.
    at: Vec<(usize, Option<usize>)>,
}

impl Timeline {
    fn new(entries: &[Entry]) -> Self {
        // A start before an end of the same time: they overlap.
        let mut times: Vec<(u64, bool, usize)> = Vec::with_capacity(entries.len() * 2);
        for (i, entry) in entries.iter().enumerate() {
            times.push((entry.operation.start, false, i));
            if entry.required {
                times.push((entry.operation.end, true, i));
            }
        }
        times.sort_unstable();
        let mut events = vec![Event::Head];
        let mut at = vec![(HEAD, None); entries.len()];
        for (_, is_end, i) in times {
            if is_end {
                at[i].1 = Some(events.len());
                events.push(Event::End);
            } else {
                at[i].0 = events.len();
                events.push(Event::Start(i));
            }
        }
        let count = events.len();
        let next = (0..count).map(|i| (i + 1) % count).collect();
        let previous = (0..count).map(|i| (i + count - 1) % count).collect();
        Self { events, next, previous, at }
    }

    fn remove(&mut self, operation: usize) {
        let (start, end) = self.at[operation];
        for node in [Some(start), end].into_iter().flatten() {
            let (previous, next) = (self.previous[node], self.next[node]);
            self.next[previous] = next;
            self.previous[next] = previous;
        }
    }

    /// Undoes the last [`Self::remove`] that was not undone.
    fn restore(&mut self, operation: usize) {
        let (start, end) = self.at[operation];
        for node in [end, Some(start)].into_iter().flatten() {
            let (previous, next) = (self.previous[node], self.next[node]);
            self.next[previous] = node;
            self.previous[next] = node;
        }
    }
}

/// An operation that was given its place.
struct Placed {
    operation: usize,
    before: State,
    /// It changed nothing: another place for it is not worth trying.
    forced: bool,
}

struct Search<'e> {
    entries: &'e [Entry],
    timeline: Timeline,
    state: State,
    /// Stands for the set of operations placed: equal sets have equal numbers, different ones differ (but for a
    /// chance of 2^-128 each, and then a history is refused, never accepted).
    set: (u64, u64),
    placed: Vec<Placed>,
    /// Operations that must be placed still.
    left: usize,
    seen: HashSet<((u64, u64), State)>,
}

/// Whether these operations of one key can be explained, from this state on.
pub(super) fn explain(entries: &[Entry], from: State) -> Explained {
    let left = entries.iter().filter(|entry| entry.required).count();
    let mut search = Search {
        entries,
        timeline: Timeline::new(entries),
        state: from,
        set: (0, 0),
        placed: Vec::new(),
        left,
        seen: HashSet::new(),
    };
    let mut patience = PATIENCE.saturating_mul(entries.len() as u64 + 1);
    let mut from = search.settle();
    while search.left > 0 {
        patience -= 1;
        if patience == 0 {
            return Explained::GaveUp;
        }
        from = match search.advance(from) {
            true => search.settle(),
            false => match search.back() {
                Some(next) => next,
                None => return Explained::No,
            },
        };
    }
    Explained::Yes
}

impl Search<'_> {
    /// Places every operation that changes nothing and fits now. Returns where to look for one that does.
    fn settle(&mut self) -> usize {
        let mut node = self.timeline.next[HEAD];
        while let Event::Start(operation) = self.timeline.events[node] {
            let observed = &self.entries[operation].operation;
            if observed.did.is_observation() && self.state.after(observed) == Some(self.state) {
                // With it goes its end, which may have stood before others that may come now.
                let previous = self.timeline.previous[node];
                self.place(operation, self.state, true);
                node = self.timeline.next[previous];
            } else {
                node = self.timeline.next[node];
            }
        }
        self.timeline.next[HEAD]
    }

    /// Places the next operation from `node` on that may come now and leads where the search has not been.
    fn advance(&mut self, mut node: usize) -> bool {
        while let Event::Start(operation) = self.timeline.events[node] {
            let entry = &self.entries[operation];
            // What need not have been done is no use as an observation.
            let useful = entry.required || !entry.operation.did.is_observation();
            if useful && let Some(after) = self.state.after(&entry.operation) {
                let set = toggle(self.set, operation);
                if self.seen.insert((set, after)) {
                    self.place(operation, after, false);
                    return true;
                }
            }
            node = self.timeline.next[node];
        }
        false
    }

    fn place(&mut self, operation: usize, after: State, forced: bool) {
        self.placed.push(Placed { operation, before: self.state, forced });
        self.timeline.remove(operation);
        self.set = toggle(self.set, operation);
        self.left -= usize::from(self.entries[operation].required);
        self.state = after;
    }

    /// Takes back the last choice. Returns where to look for another one, or none if there was no choice.
    fn back(&mut self) -> Option<usize> {
        loop {
            let Placed { operation, before, forced } = self.placed.pop()?;
            self.timeline.restore(operation);
            self.set = toggle(self.set, operation);
            self.left += usize::from(self.entries[operation].required);
            self.state = before;
            if !forced {
                return Some(self.timeline.next[self.timeline.at[operation].0]);
            }
        }
    }
}

/// Adds an operation to a set, or takes it out.
fn toggle(set: (u64, u64), operation: usize) -> (u64, u64) {
    let mixed = |salt: u64| {
        // splitmix64
        let mut x = (operation as u64).wrapping_add(salt).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    };
    (set.0 ^ mixed(1), set.1 ^ mixed(0x5851_f42d_4c95_7f2d))
}
