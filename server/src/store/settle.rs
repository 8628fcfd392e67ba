//! Recovery of the slots: each comes to name a settled item, or nothing.

use std::panic::resume_unwind;

use sidestep_core::layout::bucket::{SUBTABLE_BLOCKS, SUBTABLE_SLOTS, SlotWord};
use sidestep_core::layout::item::{HEADER_BYTES, Header, Link, LinkState};
use sidestep_core::layout::root;
use sidestep_core::limits::{BLOCK_BYTES, BLOCK_WORDS};
use sidestep_core::location::Location;
use sidestep_core::memory::MemoryMut;

use super::{Store, StoreError};

/// Items whose headers are fetched ahead.
const PREFETCH: usize = 16;

/// What settling some subtables came to.
#[derive(Debug, Default)]
pub(super) struct Settled {
    /// First block and length of each item that a slot names, by address.
    pub(super) items: Vec<(u64, u64)>,
    pub(super) updates_finished: u64,
    pub(super) slots_emptied: u64,
}

impl<M: MemoryMut + Send + Sync + 'static> Store<M> {
    /// Settles these subtables, in as many parts as there are threads. With one, in the caller's.
    pub(super) fn settle(&self, subtables: &[u64], threads: usize) -> Result<Vec<Settled>, StoreError> {
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

    fn settle_part(&self, subtables: &[u64]) -> Result<Settled, StoreError> {
        let mut settled = Settled::default();
        for &subtable in subtables {
            self.settle_subtable(subtable, &mut settled)?;
        }
        // Space is taken in this order: a slab at a time, not one for each item.
        settled.items.sort_unstable();
        Ok(settled)
    }

    fn settle_subtable(&self, subtable: u64, settled: &mut Settled) -> Result<(), StoreError> {
        let first = subtable * BLOCK_WORDS;
        let slots = first..first + SUBTABLE_SLOTS as u64;
        let words: Vec<(u64, SlotWord)> =
            slots.map(|slot| (slot, SlotWord(self.memory.load(slot)))).filter(|(_, word)| !word.is_empty()).collect();
        let prefetch = |(_, word): &(u64, SlotWord)| self.memory.prefetch(word.location().word(), HEADER_BYTES);
        words.iter().take(PREFETCH).for_each(prefetch);
        for (i, &(slot, word)) in words.iter().enumerate() {
            words.get(i + PREFETCH).into_iter().for_each(prefetch);
            self.settle_slot(slot, word, settled)?;
        }
        Ok(())
    }

    /// Brings a slot to a settled item or to emptiness.
    fn settle_slot(&self, slot: u64, word: SlotWord, settled: &mut Settled) -> Result<(), StoreError> {
        let header = self.checked_header(word.location())?;
        let (location, header) = match header.link.state() {
            LinkState::Current => (word.location(), header),
            LinkState::Forward => {
                let successor = header.link.successor();
                let next = self.checked_header(successor)?;
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
}
