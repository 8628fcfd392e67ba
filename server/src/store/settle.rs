//! Recovery of the slots: each comes to name a settled item, or nothing.

use std::panic::resume_unwind;

use sidestep_core::layout::bucket::{self, SUBTABLE_BLOCKS, SUBTABLE_SLOTS, SlotWord, WINDOW_SLOTS};
use sidestep_core::layout::directory::DirectoryWord;
use sidestep_core::layout::item::{self, HEADER_BYTES, Header, Link, LinkState};
use sidestep_core::layout::root;
use sidestep_core::limits::{BLOCK_BYTES, BLOCK_WORDS};
use sidestep_core::location::Location;
use sidestep_core::memory::MemoryMut;

use super::{Store, StoreError};

/// Items that are fetched ahead, and at most so many bytes of each: the processor goes on by itself from there.
const PREFETCH: usize = 16;
const PREFETCH_BYTES: usize = 512;

/// What settling some subtables came to.
#[derive(Debug, Default)]
pub(super) struct Settled {
    /// First block and length of each item that a slot names, by address.
    pub(super) items: Vec<(u64, u64)>,
    pub(super) updates_finished: u64,
    pub(super) slots_emptied: u64,
}

/// A subtable and the hashes that the directory leads to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    /// First block and depth of the subtable.
    pub(super) entry: DirectoryWord,
    /// What they begin with.
    pub(super) prefix: u64,
}

impl<M: MemoryMut + Send + Sync + 'static> Store<M> {
    /// Settles these subtables, in as many parts as there are threads. With one, in the caller's.
    pub(super) fn settle(&self, subtables: &[Route], threads: usize) -> Result<Vec<Settled>, StoreError> {
        if threads <= 1 {
            return Ok(vec![self.settle_part(subtables)?]);
        }
        let part = subtables.len().div_ceil(threads).max(1);
        std::thread::scope(|scope| {
            let running: Vec<_> =
                subtables.chunks(part).map(|part| scope.spawn(move || self.settle_part(part))).collect();
            running.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
        })
    }

    fn settle_part(&self, subtables: &[Route]) -> Result<Settled, StoreError> {
        let mut settled = Settled::default();
        let mut body = Vec::new();
        for route in subtables {
            self.settle_subtable(route, &mut settled, &mut body)?;
        }
        // Space is taken in this order: a slab at a time, not one for each item.
        settled.items.sort_unstable();
        Ok(settled)
    }

    fn settle_subtable(&self, route: &Route, settled: &mut Settled, body: &mut Vec<u8>) -> Result<(), StoreError> {
        let first = route.entry.address() * BLOCK_WORDS;
        let slots = first..first + SUBTABLE_SLOTS as u64;
        let mut words: Vec<(u64, SlotWord)> = slots.map(|slot| (slot, SlotWord(self.memory.load(slot)))).collect();
        // Whoever finds a word deeper than the entry that led there looks at the directory again, and so for ever.
        if let Some((slot, word)) = words.iter().find(|(_, word)| word.depth() != route.entry.depth()) {
            let (at, entry) = (slot - first, route.entry);
            return Err(StoreError::Damaged(format!("slot {at} of {entry:?} is {word:?}, of another depth")));
        }
        words.retain(|(_, word)| !word.is_empty());
        let prefetch = |(_, word): &(u64, SlotWord)| {
            let bytes = (word.location().size() as usize).saturating_mul(BLOCK_BYTES).min(PREFETCH_BYTES);
            self.memory.prefetch(word.location().word(), bytes);
        };
        words.iter().take(PREFETCH).for_each(prefetch);
        for (i, &(slot, word)) in words.iter().enumerate() {
            words.get(i + PREFETCH).into_iter().for_each(prefetch);
            self.settle_slot(route, (slot, word), settled, body)?;
        }
        Ok(())
    }

    /// Brings a slot to a settled item or to emptiness.
    fn settle_slot(
        &self,
        route: &Route,
        (slot, word): (u64, SlotWord),
        settled: &mut Settled,
        body: &mut Vec<u8>,
    ) -> Result<(), StoreError> {
        let header = self.checked_header(word.location())?;
        let (location, header) = match header.link.state() {
            LinkState::Current => {
                self.check_body(word.location(), &header, body)?;
                self.check_place(route, (slot, word), &header, body)?;
                (word.location(), header)
            }
            LinkState::Forward => {
                let successor = header.link.successor();
                let next = self.checked_header(successor)?;
                self.check_body(successor, &next, body)?;
                self.check_place(route, (slot, word), &next, body)?;
                if next.link.state() == LinkState::Pending {
                    self.memory.store(successor.word(), Link::bound(LinkState::Current, next.checksum).0);
                }
                self.memory.store(slot, SlotWord::new(word.depth(), word.fingerprint(), successor).0);
                settled.updates_finished += 1;
                (successor, next)
            }
            LinkState::Dead | LinkState::Pending => {
                self.memory.store(slot, SlotWord::empty(word.depth()).0);
                settled.slots_emptied += 1;
                return Ok(());
            }
        };
        let ceiling = self.memory.load(root::VERSION_CEILING_WORD);
        if header.version > ceiling {
            let version = header.version;
            return Err(StoreError::Words(format!(
                "an item has version {version}, above the version ceiling {ceiling}"
            )));
        }
        settled.items.push((location.address(), header.blocks()));
        // One thread has the subtable, and nobody writes yet.
        self.note_expiry(slot / SUBTABLE_SLOTS as u64 * SUBTABLE_BLOCKS, header.expires_ms);
        Ok(())
    }

    fn checked_header(&self, location: Location) -> Result<Header, StoreError> {
        let blocks = self.memory_bytes / BLOCK_BYTES as u64;
        let damaged = |what: &str| StoreError::Damaged(format!("a slot names {location:?}: {what}"));
        if location.address() < root::ROOT_BLOCKS || location.address() >= blocks {
            return Err(damaged("outside the space"));
        }
        let header = self.header(location);
        let size = header.blocks().min(Location::LONG);
        if !header.is_plausible() || size != location.size() || location.address() + header.blocks() > blocks {
            return Err(damaged("the item there has other lengths"));
        }
        if !header.link.is_about(header.checksum) {
            return Err(damaged("the item's link is about another body"));
        }
        Ok(header)
    }

    /// The server gives out values without a look at their checksums, so it looks at them now: a kill leaves every
    /// item whole, but a disk may have lost or changed something.
    fn check_body(&self, location: Location, header: &Header, body: &mut Vec<u8>) -> Result<(), StoreError> {
        body.resize(item::pad(header.exact_bytes()), 0);
        self.memory.read(location.word(), body);
        match item::checksum(&body[..header.exact_bytes()], self.table_id) == header.checksum {
            true => Ok(()),
            false => {
                Err(StoreError::Damaged(format!("a slot names {location:?}: the bytes there were not written so")))
            }
        }
    }

    /// A key is where whoever looks for it will look.
    fn check_place(
        &self,
        route: &Route,
        (slot, word): (u64, SlotWord),
        header: &Header,
        body: &[u8],
    ) -> Result<(), StoreError> {
        let hash = self.hash(&body[HEADER_BYTES..HEADER_BYTES + usize::from(header.key_bytes)]);
        let window = bucket::window_word(route.entry.address(), hash);
        let is_here = hash.directory_index(route.entry.depth()) == route.prefix
            && (window..window + WINDOW_SLOTS as u64).contains(&slot)
            && hash.fingerprint() == word.fingerprint();
        match is_here {
            true => Ok(()),
            false => Err(StoreError::Damaged(format!("the key at {:?} belongs into another slot", word.location()))),
        }
    }
}
