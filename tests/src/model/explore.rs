//! All that a lookup can meet: every word of every READ at every time.
//!
//! A READ that was posted at a time may have each of its words sampled at any later one. What the machine is
//! given is decided by the value that each word is sampled as; and a READ that can be delivered sooner can do
//! all that the same READ delivered later can, since the next one may wait as well. So of all ways to the same
//! delivery only the earliest is followed.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use sidestep_core::hash::KeyHash;
use sidestep_core::layout::bucket::{self, SlotWord, WINDOW_SLOTS};
use sidestep_core::layout::directory::DirectoryWord;
use sidestep_core::layout::item::{self, Link, LinkState};
use sidestep_core::layout::root::CURRENT_DIRECTORY_WORD;
use sidestep_core::lookup::{MAX_ROUNDS, Step};

use super::Defence;
use super::keys::{Key, TABLE_ID};
use super::oracle::Read;
use super::reader::{End, Next, Node};
use super::timeline::{Choice, Time, Timeline};

/// Windows that a reader needs at most, from wherever it is, once nobody writes.
pub(crate) const ALONE_WINDOWS: u8 = 3;
/// Ways to sample one READ beyond which the search is cut off, and says so.
const MAX_WAYS: usize = 1 << 20;

/// An empty slot that differs from other empty ones.
const MARK: u64 = 1;

/// The ends that a node can come to, each at the earliest time.
type Ends = Rc<Vec<(End, Time)>>;
/// Bytes of an item as they can be delivered, and when.
type Items = Rc<Vec<(Vec<u8>, Time)>>;

/// The search over one timeline.
pub(crate) struct Explorer<'t> {
    timeline: &'t Timeline,
    without: Option<Defence>,
    fingerprint: u16,
    /// Words of a window that are neither deeper nor of our fingerprint are taken for equal.
    coarse: bool,
    ends: HashMap<(u64, Time), Ends>,
    alone: HashMap<(u64, Time), (u8, bool)>,
    items: HashMap<(u64, usize, Time, bool), Items>,
    /// Directory entries that were read, and since when they can be remembered.
    pub(crate) entries: Vec<(DirectoryWord, Time)>,
    pub(crate) states: u64,
    pub(crate) alone_runs: u64,
    /// A READ had more ways than [`MAX_WAYS`].
    pub(crate) cut: bool,
    /// Most windows that a reader alone took.
    pub(crate) most_windows: u8,
}

fn digest(node: &Node) -> u64 {
    let mut hasher = DefaultHasher::new();
    node.hash(&mut hasher);
    hasher.finish()
}

impl<'t> Explorer<'t> {
    pub(crate) fn new(timeline: &'t Timeline, key: Key, without: Option<Defence>, coarse: bool) -> Self {
        Self {
            timeline,
            without,
            fingerprint: KeyHash::of(key, TABLE_ID).fingerprint(),
            coarse,
            ends: HashMap::new(),
            alone: HashMap::new(),
            items: HashMap::new(),
            entries: Vec::new(),
            states: 0,
            alone_runs: 0,
            cut: false,
            most_windows: 0,
        }
    }

    /// Every end that a reader can come to whose open READ was posted at `time`. Err: one that is alone from here
    /// on would ask the server.
    pub(crate) fn ends(&mut self, node: &Node, time: Time) -> Result<Ends, String> {
        let key = (digest(node), time);
        if let Some(ends) = self.ends.get(&key) {
            return Ok(ends.clone());
        }
        self.states += 1;
        for later in time..=self.timeline.end {
            self.check_alone(node, later)?;
        }
        let mut all: Vec<(End, Time)> = Vec::new();
        let mut add = |end: End, time: Time| match all.iter_mut().find(|(known, _)| *known == end) {
            Some((_, earliest)) => *earliest = time.min(*earliest),
            None => all.push((end, time)),
        };
        for (next, delivered) in self.deliveries(node, time, false) {
            match next {
                Next::End(end) => add(end, delivered),
                Next::Node(next) => self.ends(&next, delivered)?.iter().for_each(|(end, time)| add(end.clone(), *time)),
            }
        }
        let ends = Rc::new(all);
        self.ends.insert(key, ends.clone());
        Ok(ends)
    }

    /// One way from a node to the end of `read`, in words; false if there is none.
    pub(crate) fn way(&mut self, node: &Node, time: Time, read: &Read, way: &mut Vec<String>) -> bool {
        for (next, delivered) in self.deliveries(node, time, false) {
            way.push(format!("  {delivered}: {:?} -> {}", node.step, next.describe()));
            match &next {
                Next::End(end) if *end == read.result && delivered == read.end => return true,
                Next::Node(next) if delivered <= read.end && self.way(next, delivered, read, way) => return true,
                _ => {}
            }
            way.pop();
        }
        false
    }

    /// A reader that is alone from `time` on ends soon, without asking, unless writers took its rounds before.
    fn check_alone(&mut self, node: &Node, time: Time) -> Result<(), String> {
        let (windows, asks) = self.alone(node, time);
        if asks && node.windows + ALONE_WINDOWS <= MAX_ROUNDS {
            return Err("a reader beside a stopped server has to ask it".to_owned());
        }
        if windows > ALONE_WINDOWS {
            return Err(format!("a reader beside a stopped server takes {windows} windows"));
        }
        self.most_windows = self.most_windows.max(windows);
        Ok(())
    }

    /// Windows that it still takes when nobody writes any more, and whether it then asks.
    fn alone(&mut self, node: &Node, time: Time) -> (u8, bool) {
        let key = (digest(node), time);
        if let Some(&known) = self.alone.get(&key) {
            return known;
        }
        self.alone_runs += 1;
        let mut all = (0, false);
        for (next, _) in self.deliveries(node, time, true) {
            match next {
                Next::End(end) => all.1 |= end == End::Ask,
                Next::Node(next) => {
                    let (windows, asks) = self.alone(&next, time);
                    all = (all.0.max(windows + next.windows - node.windows), all.1 | asks);
                }
            }
        }
        self.alone.insert(key, all);
        all
    }

    /// Everything that the open READ can deliver, each at its earliest, or as of one instant.
    pub(crate) fn deliveries(&mut self, node: &Node, time: Time, instant: bool) -> Vec<(Next, Time)> {
        match node.step {
            Step::Root | Step::Entry { .. } => self.words(node, time, instant),
            Step::Window { word } => self.windows(node, word, time, instant),
            Step::Candidates => {
                let reads: Vec<(u64, usize)> =
                    node.lookup.candidates().map(|read| (read.word, read.bytes / 8)).collect();
                let variants: Vec<Items> =
                    reads.iter().map(|&(word, words)| self.items(word, words, time, instant)).collect();
                let mut all = Deliveries::default();
                self.hand_over(node, &variants, time, &mut all);
                all.list()
            }
            Step::Item { read, .. } => {
                let items = self.items(read.word, read.bytes / 8, time, instant);
                let mut all = Deliveries::default();
                items.iter().for_each(|(bytes, time)| all.add(node.on_item(bytes, self.without), *time));
                all.list()
            }
            Step::Next | Step::Found(_) | Step::Absent | Step::Ask => Vec::new(),
        }
    }

    fn words(&mut self, node: &Node, time: Time, instant: bool) -> Vec<(Next, Time)> {
        let word = if let Step::Entry { word } = node.step { word } else { CURRENT_DIRECTORY_WORD };
        let choices = self.timeline.choices(word, time, instant);
        if let Step::Entry { .. } = node.step {
            for &(value, time) in &choices {
                let entry = DirectoryWord(value);
                match self.entries.iter_mut().find(|(known, _)| *known == entry) {
                    Some((_, since)) => *since = time.min(*since),
                    None => self.entries.push((entry, time)),
                }
            }
        }
        choices.into_iter().map(|(value, time)| (node.on_word(value), time)).collect()
    }

    /// The candidates one after the other, for as long as the machine wants more.
    fn hand_over(&self, node: &Node, variants: &[Items], time: Time, all: &mut Deliveries) {
        let Some((items, rest)) = variants.split_first() else { return };
        for (bytes, sampled) in items.iter() {
            let time = time.max(*sampled);
            match node.on_item(bytes, self.without) {
                Next::Node(next) if next.step == Step::Next => self.hand_over(&next, rest, time, all),
                next => all.add(next, time),
            }
        }
    }

    fn windows(&mut self, node: &Node, word: u64, time: Time, instant: bool) -> Vec<(Next, Time)> {
        let depth = node.lookup.entry().depth();
        let mut slots: Vec<Vec<Choice>> = Vec::new();
        // The words as they were first, and the soonest of all deeper ones: what else the window holds does not
        // matter beside a deeper word.
        let mut first = [0; WINDOW_SLOTS];
        let mut deeper: Option<(Time, usize, u64)> = None;
        for (slot, first) in first.iter_mut().enumerate() {
            let mut choices: Vec<Choice> = Vec::new();
            for (value, time) in self.timeline.choices(word + slot as u64, time, instant) {
                let value = self.seen(value, depth);
                if SlotWord(value).depth() > depth {
                    if deeper.is_none_or(|(soonest, ..)| time < soonest) {
                        deeper = Some((time, slot, value));
                    }
                } else if choices.iter().all(|choice| choice.0 != value) {
                    choices.push((value, time));
                }
            }
            *first = choices.first().map_or(0, |choice| choice.0);
            slots.push(choices);
        }
        let mut all = Deliveries::default();
        if let Some((sampled, slot, value)) = deeper {
            let mut window = first;
            window[slot] = value;
            // Slots that have nothing but deeper words by now are not sooner than this one.
            all.add(node.on_window(window, false, instant, self.without), sampled);
        }
        self.cut |= !ways(&slots, |values, sampled| {
            let mut window = [0; WINDOW_SLOTS];
            window.copy_from_slice(values);
            for marked in self.marks(node, instant) {
                let mut window = window;
                if *marked && let Some(word) = window.iter_mut().find(|word| **word == 0) {
                    *word = MARK;
                }
                all.add(node.on_window(window, *marked, instant, self.without), time.max(sampled));
            }
        });
        all.list()
    }

    /// A second look compares windows word for word, and a coarse one does not tell whether words have changed that
    /// matter in no other way. So both are tried, a mark standing for the change, but where the window was read with
    /// nobody writing any more.
    fn marks(&self, node: &Node, instant: bool) -> &'static [bool] {
        match (self.coarse && node.second, instant && node.settled, node.marked) {
            (false, ..) | (true, true, false) => &[false],
            (true, true, true) => &[true],
            (true, false, _) => &[false, true],
        }
    }

    /// A slot word as far as it matters to this lookup.
    fn seen(&self, value: u64, depth: u8) -> u64 {
        let mut word = SlotWord(value);
        if self.without == Some(Defence::DepthStamp) && word.depth() > depth {
            word = word.at_depth(depth);
        }
        let scan = bucket::scan(&[word.0; WINDOW_SLOTS], depth, self.fingerprint);
        match (self.coarse, scan.deeper, scan.candidates != 0) {
            (false, ..) => word.0,
            (true, true, _) => SlotWord::empty(word.depth()).0,
            (true, false, true) => word.at_depth(0).0,
            (true, false, false) => 0,
        }
    }

    /// The bytes that a READ of an item can deliver: all valid ones, and one for all that are not.
    fn items(&mut self, word: u64, words: usize, time: Time, instant: bool) -> Items {
        let key = (word, words, time, instant);
        if let Some(items) = self.items.get(&key) {
            return items.clone();
        }
        let slots: Vec<Vec<Choice>> =
            (word..word + words as u64).map(|word| self.timeline.choices(word, time, instant)).collect();
        let mut valid: HashMap<Vec<u8>, Time> = HashMap::new();
        let mut torn: Option<(Vec<u8>, Time)> = None;
        let without = self.without;
        self.cut |= !ways(&slots, |values, sampled| {
            let mut bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let sampled = time.max(sampled);
            if without == Some(Defence::LinkChecksum) {
                bind(&mut bytes);
            }
            if item::validate(&bytes, TABLE_ID).is_some() {
                let earliest = valid.entry(bytes).or_insert(sampled);
                *earliest = sampled.min(*earliest);
            } else if torn.as_ref().is_none_or(|(_, earliest)| sampled < *earliest) {
                torn = Some((bytes, sampled));
            }
        });
        let mut items: Vec<(Vec<u8>, Time)> = valid.into_iter().chain(torn).collect();
        items.sort();
        let items = Rc::new(items);
        self.items.insert(key, items.clone());
        items
    }
}

/// Makes the link a statement about whatever body it is read with.
fn bind(bytes: &mut [u8]) {
    let word = |i: usize| bytes.get(i * 8..i * 8 + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes);
    let link = Link(word(0));
    if link.state() != LinkState::Forward {
        let bound = Link::bound(link.state(), word(1)).0;
        bytes[..8].copy_from_slice(&bound.to_le_bytes());
    }
}

/// Calls `each` with every way to choose one of each slot's values, and the time of the latest of them.
/// False: there are too many, and none was tried.
fn ways(slots: &[Vec<Choice>], mut each: impl FnMut(&[u64], Time)) -> bool {
    let count = slots.iter().try_fold(1usize, |ways, slot| ways.checked_mul(slot.len()));
    let Some(count) = count.filter(|count| *count <= MAX_WAYS) else { return false };
    let mut values = vec![0; slots.len()];
    for mut way in 0..count {
        let mut latest = 0;
        for (value, slot) in values.iter_mut().zip(slots) {
            let choice = slot[way % slot.len()];
            way /= slot.len();
            *value = choice.0;
            latest = latest.max(choice.1);
        }
        each(&values, latest);
    }
    true
}

/// What a READ can lead to, each at its earliest.
#[derive(Default)]
struct Deliveries(HashMap<Next, Time>);

impl Deliveries {
    fn add(&mut self, next: Next, time: Time) {
        let earliest = self.0.entry(next).or_insert(time);
        *earliest = time.min(*earliest);
    }

    /// In a stable order, the soonest first.
    fn list(self) -> Vec<(Next, Time)> {
        let mut list: Vec<(Next, Time)> = self.0.into_iter().collect();
        list.sort_by_cached_key(|(next, time)| {
            let mut hasher = DefaultHasher::new();
            next.hash(&mut hasher);
            (*time, hasher.finish())
        });
        list
    }
}
