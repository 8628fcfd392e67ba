//! What is left of the index: which items it leads to beside those that were found without it, and what it leads to
//! that is not whole.

use std::collections::{BTreeMap, BTreeSet};

use sidestep_core::hash::KeyHash;
use sidestep_core::layout::bucket::{self, SUBTABLE_BLOCKS, SUBTABLE_SLOTS, SlotWord, WINDOW_SLOTS};
use sidestep_core::layout::directory::DirectoryWord;
use sidestep_core::layout::item::{Header, LinkState};
use sidestep_core::layout::root::{self, IntentWord};
use sidestep_core::limits::{BLOCK_WORDS, MAX_DEPTH};
use sidestep_core::memory::Memory;

use super::items::Items;
use super::{Loss, LossReason};
use crate::store::space::directory_blocks;

/// Updates that are followed from one slot.
const MOST_HOPS: usize = 64;
/// A page is a subtable if so many of its words have one depth.
const SAME_DEPTH: usize = SUBTABLE_SLOTS / 4 * 3;

/// See the module.
pub(super) struct Slots<'m, 'f, M> {
    pub(super) items: Items<'m, M>,
    /// Items that need no slot.
    current: &'f BTreeSet<u64>,
    /// Items to be kept beside those.
    pub(super) more: BTreeSet<u64>,
    /// All items that slots led to.
    pub(super) led_to: BTreeSet<u64>,
    pub(super) losses: Vec<Loss>,
    /// That are not empty.
    pub(super) slots: u64,
    pub(super) index_problems: u64,
}

impl<'m, 'f, M: Memory> Slots<'m, 'f, M> {
    pub(super) fn new(items: Items<'m, M>, current: &'f BTreeSet<u64>) -> Self {
        let (more, led_to, losses) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
        Self { items, current, more, led_to, losses, slots: 0, index_problems: 0 }
    }

    /// Looks at every slot of every subtable that can be found.
    pub(super) fn look(&mut self) {
        for subtable in self.subtables() {
            for slot in 0..SUBTABLE_SLOTS as u64 {
                let word = SlotWord(self.items.memory.load(subtable * BLOCK_WORDS + slot));
                if !word.is_empty() {
                    self.slots += 1;
                    self.slot(slot, word);
                }
            }
        }
    }

    /// Those that directories of any depth name, and split intents.
    fn subtables(&mut self) -> BTreeSet<u64> {
        let mut named = BTreeSet::new();
        for (depth, directory) in self.directories() {
            for index in 0..1u64 << depth {
                let entry = DirectoryWord(self.items.memory.load(directory * BLOCK_WORDS + index));
                if entry.depth() <= MAX_DEPTH && self.is_page(entry.address()) {
                    named.insert(entry.address());
                } else {
                    self.index_problems += 1;
                }
            }
        }
        for intent in 0..root::INTENTS {
            let intent = IntentWord(self.items.memory.load(root::INTENTS_WORD + intent));
            if !intent.is_none() {
                named.extend([intent.old(), intent.new_sibling()].into_iter().filter(|&address| self.is_page(address)));
            }
        }
        let (subtables, others) = named.into_iter().partition(|&address| self.is_subtable(address));
        self.index_problems += BTreeSet::len(&others) as u64;
        subtables
    }

    fn directories(&mut self) -> Vec<(u8, u64)> {
        let mut found = Vec::new();
        for depth in 0..=MAX_DEPTH {
            let word = DirectoryWord(self.items.memory.load(root::DIRECTORIES_WORD + u64::from(depth)));
            let end = word.address().saturating_add(directory_blocks(depth));
            if word.0 == 0 {
                continue;
            }
            if word.depth() == depth && word.address() >= root::ROOT_BLOCKS && end <= self.items.blocks {
                found.push((depth, word.address()));
            } else {
                self.index_problems += 1;
            }
        }
        found
    }

    fn is_page(&self, address: u64) -> bool {
        address >= root::ROOT_BLOCKS
            && address.is_multiple_of(SUBTABLE_BLOCKS)
            && address.saturating_add(SUBTABLE_BLOCKS) <= self.items.blocks
    }

    /// Not where items are, and of words with one depth.
    fn is_subtable(&self, address: u64) -> bool {
        let mut depths = BTreeMap::<u8, usize>::new();
        for slot in 0..SUBTABLE_SLOTS as u64 {
            *depths.entry(SlotWord(self.items.memory.load(address * BLOCK_WORDS + slot)).depth()).or_default() += 1;
        }
        // In a split there are two.
        let most = depths.iter().map(|(depth, count)| count + depths.get(&(depth + 1)).copied().unwrap_or(0)).max();
        most.is_some_and(|most| most >= SAME_DEPTH)
            && self.current.range(address..address + SUBTABLE_BLOCKS).next().is_none()
    }

    fn slot(&mut self, slot: u64, word: SlotWord) {
        match self.follow(slot, word) {
            Ok(item) => {
                self.led_to.insert(item);
                if !self.current.contains(&item) {
                    self.more.insert(item);
                }
            }
            Err(loss) => self.losses.push(loss),
        }
    }

    /// The item that is the value of the slot's key.
    fn follow(&mut self, slot: u64, word: SlotWord) -> Result<u64, Loss> {
        let address = word.location().address();
        let Some(header) = self.items.read(address) else {
            let is_outside = !(root::ROOT_BLOCKS..self.items.blocks).contains(&address);
            let reason = if is_outside { LossReason::Outside } else { LossReason::Torn };
            let key = self.items.key_of_torn(address).filter(|key| self.fits(key, slot, word));
            return Err(Loss { reason, key });
        };
        let key = self.items.key().to_vec();
        let fits = self.fits(&key, slot, word);
        let is_about = header.link.is_about(header.checksum);
        let settled = match header.link.state() {
            LinkState::Current if is_about => Ok(address),
            LinkState::Dead if is_about => Err(LossReason::Removed),
            LinkState::Forward if is_about => self.successor(header, &key, fits),
            // A damaged link may be one to a successor; else the slot says that the item is the value: it came there before.
            state => match state == LinkState::Forward {
                true => self.successor(header, &key, fits).ok(),
                false => None,
            }
            .or_else(|| fits.then_some(address))
            .ok_or(LossReason::Misplaced),
        };
        let settled = settled.and_then(|item| if self.is_inside(item) { Err(LossReason::Misplaced) } else { Ok(item) });
        // Of a slot that is not its own nothing is said of the key, which may have been removed long ago.
        settled.map_err(|reason| Loss { reason, key: Some(key).filter(|_| fits && reason != LossReason::Misplaced) })
    }

    /// Whether it is in the value of another item.
    fn is_inside(&mut self, item: u64) -> bool {
        if self.current.contains(&item) {
            return false;
        }
        let around = self.current.range(..item).next_back().copied();
        around.and_then(|around| Some(around + self.items.read(around)?.blocks())).is_some_and(|end| end > item)
    }

    /// The last item that those before it lead to. `fits`: the slot is the key's own, so what it leads to is the value even
    /// where the last link says nothing. Any other slot may lead to what was the value long ago.
    fn successor(&mut self, mut header: Header, key: &[u8], fits: bool) -> Result<u64, LossReason> {
        for _ in 0..MOST_HOPS {
            let address = header.link.successor().address();
            let next = self.items.read(address).filter(|next| next.version > header.version && self.items.key() == key);
            let next = next.ok_or(LossReason::Replaced)?;
            match next.link.state() {
                LinkState::Forward if next.link.is_about(next.checksum) => header = next,
                LinkState::Dead if next.link.is_about(next.checksum) => return Err(LossReason::Removed),
                _ if fits || next.link.is_about(next.checksum) => return Ok(address),
                _ => return Err(LossReason::Misplaced),
            }
        }
        Err(LossReason::Replaced)
    }

    /// Whether whoever looks for the key looks into this slot.
    fn fits(&self, key: &[u8], slot: u64, word: SlotWord) -> bool {
        let hash = KeyHash::of(key, self.items.table_id());
        let first = bucket::window_word(0, hash);
        (first..first + WINDOW_SLOTS as u64).contains(&slot) && hash.fingerprint() == word.fingerprint()
    }
}
