//! The lookup machine.

use super::{CachedLocation, Geometry, MAX_HOPS, MAX_HOPS_CACHED, MAX_ROUNDS, Trace};
use crate::hash::KeyHash;
use crate::layout::bucket::{self, SUBTABLE_BLOCKS, SlotWord, WINDOW_SLOTS};
use crate::layout::directory::DirectoryWord;
use crate::layout::item::{self, Arriving, Header, LinkState, ValidItem};
use crate::limits::{BLOCK_BYTES, BLOCK_WORDS};
use crate::location::Location;

/// What the driver is to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Read the root's current directory word, then call [`Lookup::on_root`].
    Root,
    /// Read one directory word, then call [`Lookup::on_entry`].
    Entry {
        /// Its word index.
        word: u64,
    },
    /// Read a window of 16 words, then call [`Lookup::on_window`].
    Window {
        /// Its first word.
        word: u64,
    },
    /// Read all of [`Lookup::candidates`], at once if that is cheaper, and hand them to
    /// [`Lookup::on_item`] in their order for as long as it answers [`Step::Next`].
    Candidates,
    /// Hand over the next candidate.
    Next,
    /// Read an item, then call [`Lookup::on_item`].
    Item {
        /// Where, and how much.
        read: ItemRead,
        /// The bytes handed over last must stay: the outcome may be in them.
        keep: bool,
    },
    /// The value is in the bytes handed over last, or (`kept`) in those that were to be kept.
    Found(Found),
    /// The key is absent.
    Absent,
    /// No answer after [`MAX_ROUNDS`] rounds: ask the server.
    Ask,
}

/// One READ of an item or of its first block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ItemRead {
    /// First word.
    pub word: u64,
    /// Length, a multiple of 8.
    pub bytes: usize,
}

/// The value that was found, within the bytes of its item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Found {
    /// In the bytes that were kept, not in the last ones.
    pub kept: bool,
    /// First byte of the value.
    pub value_offset: usize,
    /// Length of the value.
    pub value_bytes: usize,
    /// Version of the item.
    pub version: u64,
    /// When it expires, in milliseconds since the Unix epoch; 0 = never.
    pub expires_ms: u64,
    /// For the location cache.
    pub location: CachedLocation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    Route,
    Window,
    Candidate,
    Cached,
    Chain { hops: u8, from_slot: bool },
    SecondWindow,
    SecondItem { index: usize },
}

/// A valid item of another key behind a slot with our fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Collision {
    location: Location,
    version: u64,
    checksum: u64,
}

/// The lookup of one key. Cheap to make; its size is a window and some words. Equal machines go on alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lookup<'k> {
    key: &'k [u8],
    hash: KeyHash,
    geometry: Geometry,
    state: State,
    entry: DirectoryWord,
    rounds: u8,
    /// Candidates not handed over yet, as bits of window slots.
    remaining: u16,
    torn: bool,
    /// The item that is being read: where it is, and how many bytes were asked for.
    location: Location,
    asked: usize,
    /// The FORWARD item before the one that is being read.
    previous: Option<Found>,
    collisions: Vec<Collision>,
    window: [u64; WINDOW_SLOTS],
    trace: Trace,
}

/// The READs of a window's candidates, in slot order.
#[derive(Clone, Debug)]
pub struct Candidates<'l> {
    window: &'l [u64; WINDOW_SLOTS],
    remaining: u16,
    blocks: u64,
}

impl Iterator for Candidates<'_> {
    type Item = ItemRead;

    #[inline]
    fn next(&mut self) -> Option<ItemRead> {
        if self.remaining == 0 {
            return None;
        }
        let slot = self.remaining.trailing_zeros() as usize;
        self.remaining &= self.remaining - 1;
        let location = SlotWord(self.window[slot]).location();
        Some(first_read(location, self.blocks))
    }
}

/// The first READ at a location, cut off at the end of the space (what was cut is then not valid). Of what lies
/// beyond the end no bytes are read, at a word that there is.
#[inline]
fn first_read(location: Location, blocks: u64) -> ItemRead {
    let available = blocks.saturating_sub(location.address()) as usize;
    let bytes = location.first_read_bytes().min(available.saturating_mul(BLOCK_BYTES));
    ItemRead { word: if bytes == 0 { 0 } else { location.word() }, bytes }
}

impl<'k> Lookup<'k> {
    /// A lookup of `key`, whose hash under the table's id is `hash`.
    #[inline]
    pub fn new(key: &'k [u8], hash: KeyHash, geometry: Geometry) -> Self {
        Self {
            key,
            hash,
            geometry,
            state: State::Route,
            entry: DirectoryWord(0),
            rounds: 0,
            remaining: 0,
            torn: false,
            location: Location::from_bits(0),
            asked: 0,
            previous: None,
            collisions: Vec::new(),
            window: [0; WINDOW_SLOTS],
            trace: Trace::default(),
        }
    }

    /// The key.
    pub fn key(&self) -> &'k [u8] {
        self.key
    }

    /// What happened so far.
    pub fn trace(&self) -> Trace {
        self.trace
    }

    /// What happened since this was last called, for drivers that follow a lookup step by step.
    pub fn take_trace(&mut self) -> Trace {
        std::mem::take(&mut self.trace)
    }

    /// The directory entry in use, for the driver's cache.
    pub fn entry(&self) -> DirectoryWord {
        self.entry
    }

    /// The candidates that were not handed over yet.
    #[inline]
    pub fn candidates(&self) -> Candidates<'_> {
        Candidates { window: &self.window, remaining: self.remaining, blocks: self.geometry.blocks() }
    }

    /// First step, with a directory entry from a cache (however old) or from nothing.
    #[inline]
    pub fn start(&mut self, cached: Option<DirectoryWord>) -> Step {
        match cached {
            Some(entry) => self.on_entry(entry),
            None => self.route(),
        }
    }

    /// First step, with a location at which the key was once found. `cached` as in [`Lookup::start`].
    #[inline]
    pub fn start_at(&mut self, location: CachedLocation, cached: Option<DirectoryWord>) -> Step {
        let bytes = (location.bytes as usize).next_multiple_of(8);
        let blocks = bytes.div_ceil(BLOCK_BYTES) as u64;
        if blocks == 0 || location.address.saturating_add(blocks) > self.geometry.blocks() {
            self.trace.stale_locations += 1;
            return self.start(cached);
        }
        self.entry = cached.unwrap_or_default();
        self.state = State::Cached;
        self.location = Location::new(location.address, blocks);
        self.asked = bytes;
        Step::Item { read: ItemRead { word: location.address * BLOCK_WORDS, bytes }, keep: false }
    }

    #[inline]
    fn route(&mut self) -> Step {
        self.state = State::Route;
        Step::Root
    }

    /// The root's current directory word was read.
    #[inline]
    pub fn on_root(&mut self, word: DirectoryWord) -> Step {
        let index = self.hash.directory_index(word.depth());
        let at = (word.address() * BLOCK_WORDS).saturating_add(index);
        if word.address() == 0 || at >= self.geometry.blocks() * BLOCK_WORDS {
            return self.again_from_root();
        }
        Step::Entry { word: at }
    }

    /// A directory entry was read.
    #[inline]
    pub fn on_entry(&mut self, entry: DirectoryWord) -> Step {
        let address = entry.address();
        let fits = address.saturating_add(SUBTABLE_BLOCKS) <= self.geometry.blocks();
        if address == 0 || !address.is_multiple_of(SUBTABLE_BLOCKS) || !fits {
            return self.again_from_root();
        }
        self.entry = entry;
        self.read_window(State::Window)
    }

    #[inline]
    fn read_window(&mut self, state: State) -> Step {
        self.state = state;
        Step::Window { word: bucket::window_word(self.entry.address(), self.hash) }
    }

    /// A window was read.
    #[inline]
    pub fn on_window(&mut self, window: &[u64; WINDOW_SLOTS]) -> Step {
        if self.state == State::SecondWindow {
            return self.on_second_window(window);
        }
        let scan = bucket::scan(window, self.entry.depth(), self.hash.fingerprint());
        if scan.deeper {
            self.trace.stale_directory += 1;
            return self.again_from_root();
        }
        if scan.candidates == 0 {
            return Step::Absent;
        }
        self.window = *window;
        self.remaining = scan.candidates;
        self.torn = false;
        self.collisions.clear();
        self.state = State::Candidate;
        self.aim_at_candidate();
        Step::Candidates
    }

    /// Sets what [`Lookup::on_item`] expects to the first of the remaining candidates.
    #[inline]
    fn aim_at_candidate(&mut self) {
        if self.remaining != 0 {
            let slot = self.remaining.trailing_zeros() as usize;
            self.location = SlotWord(self.window[slot]).location();
            self.asked = first_read(self.location, self.geometry.blocks()).bytes;
        }
    }

    /// The item that was asked for was read. Fewer bytes than asked for are not valid.
    #[inline]
    pub fn on_item(&mut self, bytes: &[u8]) -> Step {
        self.on_item_arrived(bytes, None)
    }

    /// The same, with the checksum that was made while the bytes arrived.
    #[inline]
    pub fn on_item_arrived(&mut self, bytes: &[u8], arriving: Option<&Arriving>) -> Step {
        if self.location.is_long()
            && self.asked <= BLOCK_BYTES
            && let Some(step) = self.long_body(bytes)
        {
            return step;
        }
        let valid = match arriving {
            None => item::validate(bytes, self.geometry.table_id),
            Some(arriving) => item::validate_arrived(bytes, self.geometry.table_id, arriving),
        };
        match self.state {
            State::Candidate => self.on_candidate(valid),
            State::Cached => self.on_cached(valid),
            State::Chain { hops, from_slot } => self.on_chain(valid, hops, from_slot),
            State::SecondItem { index } => self.on_second_item(valid, index),
            State::Route | State::Window | State::SecondWindow => self.again_from_root(),
        }
    }

    /// The header of a long item was read: what to read to have it whole. None if the header is not believed.
    fn long_body(&mut self, header: &[u8]) -> Option<Step> {
        let header = Header::read(header).filter(Header::is_plausible)?;
        let fits = self.location.address().saturating_add(header.blocks()) <= self.geometry.blocks();
        if header.value_bytes > self.geometry.max_value_bytes || header.blocks() < Location::LONG || !fits {
            return None;
        }
        self.asked = item::pad(header.exact_bytes());
        Some(Step::Item { read: ItemRead { word: self.location.word(), bytes: self.asked }, keep: false })
    }

    #[inline]
    fn found(&self, header: &Header, kept: bool) -> Found {
        Found {
            kept,
            value_offset: item::value_offset(usize::from(header.key_bytes)),
            value_bytes: header.value_bytes as usize,
            version: header.version,
            expires_ms: header.expires_ms,
            location: CachedLocation { address: self.location.address(), bytes: header.exact_bytes() as u32 },
        }
    }

    #[inline]
    fn on_candidate(&mut self, valid: Option<ValidItem<'_>>) -> Step {
        let location = self.location;
        self.remaining &= self.remaining.wrapping_sub(1);
        match valid {
            Some(item) if item.key == self.key => match item.header.link.state() {
                LinkState::Current => return Step::Found(self.found(&item.header, false)),
                LinkState::Forward => return self.follow(&item.header, 1, true),
                LinkState::Dead => return Step::Absent,
                LinkState::Pending => {
                    self.trace.pending += 1;
                    return self.again_from_window();
                }
            },
            Some(item) => {
                let collision = Collision { location, version: item.header.version, checksum: item.header.checksum };
                self.collisions.push(collision);
            }
            None => self.torn = true,
        }
        if self.remaining != 0 {
            self.aim_at_candidate();
            return Step::Next;
        }
        if self.torn {
            self.trace.torn += 1;
            return self.again_from_window();
        }
        self.trace.second_looks += 1;
        self.read_window(State::SecondWindow)
    }

    /// Goes on to the successor of a valid FORWARD item of our key; its bytes stay with the driver.
    #[inline]
    fn follow(&mut self, header: &Header, hops: u8, from_slot: bool) -> Step {
        self.trace.hops += 1;
        let successor = header.link.successor();
        let read = first_read(successor, self.geometry.blocks());
        if successor.size() == 0 || read.bytes == 0 {
            self.trace.torn += 1;
            return self.again_from_window();
        }
        self.previous = Some(self.found(header, true));
        self.state = State::Chain { hops, from_slot };
        self.location = successor;
        self.asked = read.bytes;
        Step::Item { read, keep: true }
    }

    fn on_chain(&mut self, valid: Option<ValidItem<'_>>, hops: u8, from_slot: bool) -> Step {
        let Some(item) = valid.filter(|item| item.key == self.key) else {
            self.trace.torn += 1;
            return self.again_from_window();
        };
        match (item.header.link.state(), self.previous) {
            (LinkState::Current, _) => Step::Found(self.found(&item.header, false)),
            (LinkState::Pending, Some(previous)) if item.header.version == previous.version.wrapping_add(1) => {
                Step::Found(previous)
            }
            (LinkState::Forward, _) if hops < if from_slot { MAX_HOPS } else { MAX_HOPS_CACHED } => {
                self.follow(&item.header, hops + 1, from_slot)
            }
            (LinkState::Dead, _) if from_slot => Step::Absent,
            (LinkState::Pending, _) => {
                self.trace.pending += 1;
                self.again_from_window()
            }
            _ => self.again_from_window(),
        }
    }

    #[inline]
    fn on_cached(&mut self, valid: Option<ValidItem<'_>>) -> Step {
        let Some(item) = valid.filter(|item| item.key == self.key) else {
            self.trace.stale_locations += 1;
            return self.full_lookup();
        };
        match item.header.link.state() {
            LinkState::Current => Step::Found(self.found(&item.header, false)),
            LinkState::Forward => self.follow(&item.header, 1, false),
            LinkState::Dead | LinkState::Pending => {
                self.trace.stale_locations += 1;
                self.full_lookup()
            }
        }
    }

    /// After a cached location that led nowhere. Not a round: it happens once.
    fn full_lookup(&mut self) -> Step {
        if self.entry.address() == 0 { self.route() } else { self.on_entry(self.entry) }
    }

    /// The window of a miss with collisions, read a second time.
    fn on_second_window(&mut self, window: &[u64; WINDOW_SLOTS]) -> Step {
        if *window != self.window {
            return self.again_with(window);
        }
        self.second_item(0)
    }

    fn second_item(&mut self, index: usize) -> Step {
        let Some(collision) = self.collisions.get(index).copied() else {
            return Step::Absent;
        };
        self.state = State::SecondItem { index };
        self.location = collision.location;
        let read = first_read(collision.location, self.geometry.blocks());
        self.asked = read.bytes;
        Step::Item { read, keep: false }
    }

    fn on_second_item(&mut self, valid: Option<ValidItem<'_>>, index: usize) -> Step {
        let before = self.collisions.get(index).copied();
        match (valid, before) {
            (Some(item), Some(before))
                if item.header.version == before.version && item.header.checksum == before.checksum =>
            {
                self.second_item(index + 1)
            }
            _ => {
                self.trace.torn += 1;
                self.again_from_window()
            }
        }
    }

    /// A new round with a window that was just read.
    fn again_with(&mut self, window: &[u64; WINDOW_SLOTS]) -> Step {
        if self.is_last_round() {
            return Step::Ask;
        }
        self.state = State::Window;
        self.on_window(window)
    }

    #[inline]
    fn again_from_window(&mut self) -> Step {
        if self.is_last_round() {
            return Step::Ask;
        }
        self.full_lookup()
    }

    #[inline]
    fn again_from_root(&mut self) -> Step {
        if self.is_last_round() {
            return Step::Ask;
        }
        self.route()
    }

    fn is_last_round(&mut self) -> bool {
        self.rounds += 1;
        self.previous = None;
        let last = self.rounds >= MAX_ROUNDS;
        self.trace.asks += u32::from(last);
        last
    }
}
