//! A lookup at one point of its way: the real machine, and what of its READs it has been given.

use sidestep_core::hash::KeyHash;
use sidestep_core::layout::bucket::WINDOW_SLOTS;
use sidestep_core::layout::directory::DirectoryWord;
use sidestep_core::layout::item::{self, Link, LinkState};
use sidestep_core::lookup::{CachedLocation, Found, Lookup, Step};

use super::Defence;
use super::keys::{Key, TABLE_ID, geometry};

/// How a lookup ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum End {
    /// The value, its version, and where it was.
    Found { value: Vec<u8>, version: u64, location: CachedLocation },
    /// No such key.
    Absent,
    /// It would ask the server.
    Ask,
}

/// A lookup that waits for what it asked for. Equal nodes go on alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Node {
    pub(crate) lookup: Lookup<'static>,
    pub(crate) step: Step,
    /// Bytes of the item that the machine wanted kept.
    kept: Vec<u8>,
    /// Windows read, second looks not counted.
    pub(crate) windows: u8,
    /// The READ that is open is a second look at the window.
    pub(crate) second: bool,
    /// The window in hand was read with nobody writing any more.
    pub(crate) settled: bool,
    /// It has the mark of a coarse second look.
    pub(crate) marked: bool,
    /// Only where the second look is taken away: what to show instead of it.
    first_window: Option<[u64; WINDOW_SLOTS]>,
}

/// Where a delivery leads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Next {
    /// On.
    Node(Box<Node>),
    /// To the end.
    End(End),
}

impl Next {
    /// For a message.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Node(node) => format!("{:?}", node.step),
            Self::End(end) => format!("{end:?}"),
        }
    }
}

impl Node {
    /// A lookup with what its caches remember.
    pub(crate) fn start(key: Key, entry: Option<DirectoryWord>, location: Option<CachedLocation>) -> Self {
        let mut lookup = Lookup::new(key, KeyHash::of(key, TABLE_ID), geometry());
        let step = match location {
            Some(location) => lookup.start_at(location, entry),
            None => lookup.start(entry),
        };
        lookup.take_trace();
        let windows = u8::from(matches!(step, Step::Window { .. }));
        Self {
            lookup,
            step,
            kept: Vec::new(),
            windows,
            second: false,
            settled: false,
            marked: false,
            first_window: None,
        }
    }

    /// The root's directory word, or a directory entry, was read.
    pub(crate) fn on_word(&self, word: u64) -> Next {
        let mut next = self.clone();
        let step = match self.step {
            Step::Root => next.lookup.on_root(DirectoryWord(word)),
            _ => next.lookup.on_entry(DirectoryWord(word)),
        };
        next.go(step, &[])
    }

    /// A window was read; `marked` and `instant` as in [`Node`].
    pub(crate) fn on_window(
        &self,
        mut window: [u64; WINDOW_SLOTS],
        marked: bool,
        instant: bool,
        without: Option<Defence>,
    ) -> Next {
        let mut next = self.clone();
        if let Some(first) = next.first_window.take().filter(|_| self.second) {
            window = first;
        }
        let mut step = next.lookup.on_window(&window);
        match without {
            Some(Defence::SecondLookAtWindow) if !self.second => next.first_window = Some(window),
            Some(Defence::SecondLookAtItems) if self.second && matches!(step, Step::Item { .. }) => {
                step = Step::Absent;
            }
            // What is remembered of the directory is believed again.
            Some(Defence::RootAfterDeeper) if next.lookup.trace().stale_directory > 0 && step == Step::Root => {
                step = next.lookup.on_entry(next.lookup.entry());
            }
            _ => {}
        }
        if step == Step::Candidates {
            (next.settled, next.marked) = (instant, marked);
        }
        // A second window that differs is the first of a round.
        next.windows += u8::from(self.second && step == Step::Candidates);
        next.second = false;
        next.go(step, &[])
    }

    /// The next of the items asked for was read.
    pub(crate) fn on_item(&self, bytes: &[u8], without: Option<Defence>) -> Next {
        let mut next = self.clone();
        let chained = matches!(self.step, Step::Item { keep: true, .. });
        let pending = item::validate(bytes, TABLE_ID)
            .filter(|item| chained && item.header.link.state() == LinkState::Pending && item.key == self.lookup.key());
        let step = match (without, pending) {
            (Some(Defence::PendingRule), Some(item)) => {
                let mut bytes = bytes.to_vec();
                let link = Link::bound(LinkState::Current, item.header.checksum).0;
                bytes[..8].copy_from_slice(&link.to_le_bytes());
                let step = next.lookup.on_item(&bytes);
                return next.go(step, &bytes);
            }
            (Some(Defence::PendingVersion), Some(_)) => return Next::End(self.previous()),
            _ => next.lookup.on_item(bytes),
        };
        next.go(step, bytes)
    }

    /// The item before the successor, as an end.
    fn previous(&self) -> End {
        let Some(before) = item::validate(&self.kept, TABLE_ID) else { return End::Ask };
        let header = before.header;
        let offset = item::value_offset(before.key.len());
        let value = self.kept[offset..offset + header.value_bytes as usize].to_vec();
        // Where it was is of no use to anyone: it is replaced.
        End::Found { value, version: header.version, location: CachedLocation { address: 0, bytes: 0 } }
    }

    fn go(mut self, step: Step, last: &[u8]) -> Next {
        self.step = step;
        // Counters are no part of what it will do.
        let looks_again = self.lookup.take_trace().second_looks > 0;
        match step {
            Step::Found(found) => return Next::End(self.found(&found, last)),
            Step::Absent => return Next::End(End::Absent),
            Step::Ask => return Next::End(End::Ask),
            Step::Item { keep: true, .. } => self.kept = last.to_vec(),
            Step::Window { .. } => self.post_window(looks_again),
            Step::Root => self.kept = Vec::new(),
            _ => {}
        }
        Next::Node(Box::new(self))
    }

    /// A window after candidates that decided nothing is a second look; every other begins a round.
    fn post_window(&mut self, second: bool) {
        self.kept = Vec::new();
        self.second = second;
        if !self.second {
            self.windows += 1;
            self.first_window = None;
        }
    }

    fn found(&self, found: &Found, last: &[u8]) -> End {
        let bytes = if found.kept { &self.kept } else { last };
        let value = bytes[found.value_offset..found.value_offset + found.value_bytes].to_vec();
        End::Found { value, version: found.version, location: found.location }
    }
}
