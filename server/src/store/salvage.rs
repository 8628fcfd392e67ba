//! What is whole of a table that is not, put into a new one.
//!
//! Items say themselves what they are: one whose checksum is right and whose link says CURRENT of that very checksum is the
//! value of its key, whatever has become of the index. (A key's old item is FORWARD or DEAD before its new one is CURRENT,
//! and an extent is free only after that.) So all memory is looked through for those, and the index is asked for the rest:
//! items that were written when the server was killed, whose link is damaged, or which are not whole.

mod items;
mod slots;

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use sidestep_core::layout::root;
use sidestep_core::memory::{Memory, MemoryMut};

use super::head::read_root_of_any_length;
use super::plausible::{LAST_VERSION, segments_problem};
use super::time::MOST_AHEAD_MS;
use super::{Store, StoreError, WriteError};
use items::Items;
use slots::Slots;

/// New versions are so far above all that is known: the ceiling may be one of long ago.
const VERSION_JUMP: u64 = 1 << 48;

/// Why an item was not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LossReason {
    /// The slot leads out of the table.
    Outside,
    /// The bytes are not those that were written.
    Torn,
    /// A newer value of its key is not whole.
    Replaced,
    /// Its key was being inserted or deleted; a recovery empties the slot, too.
    Removed,
    /// It was never the value of a key, and the slot is not its key's.
    Misplaced,
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Outside => "the slot leads out of the table",
            Self::Torn => "the bytes are not those that were written",
            Self::Replaced => "was replaced by an item that is not whole",
            Self::Removed => "was being deleted, or inserted",
            Self::Misplaced => "the slot leads to what was never a value",
        })
    }
}

/// A slot whose item is not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Why.
    pub reason: LossReason,
    /// Of which key, where that can still be told.
    pub key: Option<Vec<u8>>,
}

/// What a repair kept and what not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SalvageReport {
    /// Keys in the new table.
    pub keys: u64,
    /// Bytes of their keys and values.
    pub payload_bytes: u64,
    /// Of the keys, those to whose item no slot led.
    pub keys_without_slot: u64,
    /// Items that had expired.
    pub expired: u64,
    /// Items of keys of which there is one with a higher version.
    pub older_values: u64,
    /// Slots whose key is in the new table all the same, by another item.
    pub made_good: u64,
    /// All others, whose item is not kept.
    pub losses: Vec<Loss>,
    /// Directories, entries and subtables that make no sense.
    pub index_problems: u64,
    /// Whether the version ceiling in the root cannot be right.
    pub ceiling_is_wrong: bool,
    /// Versions of writes to the new table are above this.
    pub version_floor: u64,
}

/// What was found.
#[derive(Debug)]
pub struct Salvage {
    /// First blocks of the items to keep.
    items: BTreeSet<u64>,
    keys_without_slot: u64,
    losses: Vec<Loss>,
    index_problems: u64,
    ceiling_is_wrong: bool,
    version_floor: u64,
    clock_ms: Option<u64>,
    segment_bytes: Option<u64>,
    memory_bytes: u64,
}

impl Salvage {
    /// Looks through a table that nobody writes to: those ranges of its bytes where anything is. Refuses one whose root
    /// makes no sense, or of which nothing is whole. Cost: two words of each block, every item whole once or twice.
    pub fn of(memory: &impl Memory, ranges: &[Range<u64>], now_ms: u64) -> Result<Self, StoreError> {
        let root = read_root_of_any_length(memory)?;
        let mut items = Items::new(memory, &root);
        let current = items.current(ranges);
        let mut slots = Slots::new(items, &current);
        slots.look();
        let Slots { items, more, led_to, losses, slots, index_problems, .. } = slots;
        if current.is_empty() && more.is_empty() && slots > 0 {
            return Err(StoreError::Nothing { slots });
        }
        let keys_without_slot = current.iter().filter(|&address| !led_to.contains(address)).count() as u64;
        let ceiling = memory.load(root::VERSION_CEILING_WORD).max(memory.load(root::VERSION_FLOOR_WORD));
        let end = current.iter().chain(&more).max().map_or(0, |address| address + 1);
        let segments_are_wrong = segments_problem(memory, &root, end).is_some();
        let is_wrong = ceiling > LAST_VERSION || ceiling < items.highest_version;
        let known = if ceiling > LAST_VERSION { items.highest_version } else { ceiling.max(items.highest_version) };
        let version_floor = known.checked_add(VERSION_JUMP).filter(|&floor| floor <= LAST_VERSION);
        let no_versions = || StoreError::Damaged(format!("an item has version {}", items.highest_version));
        let clock_ms = memory.load(root::CLOCK_FLOOR_WORD);
        Ok(Self {
            keys_without_slot,
            losses,
            index_problems,
            ceiling_is_wrong: is_wrong,
            version_floor: version_floor.ok_or_else(no_versions)?,
            clock_ms: (clock_ms <= now_ms.saturating_add(MOST_AHEAD_MS)).then_some(clock_ms),
            segment_bytes: (!segments_are_wrong).then_some(root.segment_bytes),
            memory_bytes: root.memory_bytes,
            items: current.into_iter().chain(more).collect(),
        })
    }

    /// Values of keys to which no slot leads.
    pub fn keys_without_slot(&self) -> u64 {
        self.keys_without_slot
    }

    /// What [`StoreOptions::version_floor`](super::StoreOptions::version_floor) of the new table must be.
    pub fn version_floor(&self) -> u64 {
        self.version_floor
    }

    /// Segments of the new table; none: what the old one says of its own cannot be.
    pub fn segment_bytes(&self) -> Option<u64> {
        self.segment_bytes
    }

    /// Bytes of the new table.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// Puts everything that was found in a memory into a table that was made for it.
    pub fn put_into<M: MemoryMut + Send + Sync + 'static>(
        self,
        memory: &impl Memory,
        to: &Arc<Store<M>>,
    ) -> Result<SalvageReport, WriteError> {
        let mut report = SalvageReport {
            keys_without_slot: self.keys_without_slot,
            index_problems: self.index_problems,
            ceiling_is_wrong: self.ceiling_is_wrong,
            version_floor: self.version_floor,
            ..SalvageReport::default()
        };
        to.raise_clock_floor(self.clock_ms.unwrap_or(0));
        let root = read_root_of_any_length(memory).map_err(|error| WriteError::Full(error.to_string()))?;
        let mut items = Items::new(memory, &root);
        for &address in &self.items {
            let Some(header) = items.read(address) else { continue };
            let (key, value) = (items.key(), items.value());
            if to.is_expired(header.expires_ms) {
                report.expired += 1;
                continue;
            }
            let other = to.item_of(key);
            report.older_values += u64::from(other.is_some());
            if other.is_some_and(|(version, _)| version >= header.version) {
                continue;
            }
            to.restore(key, value, header.version, header.expires_ms)?;
            let bytes = (key.len() + value.len()) as u64;
            report.payload_bytes += bytes - other.map_or(0, |(_, bytes)| bytes);
        }
        report.keys = to.keys();
        let (kept, lost): (Vec<Loss>, Vec<Loss>) =
            self.losses.into_iter().partition(|loss| loss.key.as_ref().is_some_and(|key| to.item_of(key).is_some()));
        (report.made_good, report.losses) = (kept.len() as u64, lost);
        Ok(report)
    }
}

impl<M: MemoryMut + Send + Sync + 'static> Store<M> {
    /// Version of the key's item, and bytes of its key and value.
    fn item_of(&self, key: &[u8]) -> Option<(u64, u64)> {
        let hash = self.hash(key);
        let locked = self.lock_subtable(hash);
        let header = self.find(&locked, key, hash).ok()?.header;
        Some((header.version, u64::from(header.key_bytes) + u64::from(header.value_bytes)))
    }
}

#[cfg(test)]
mod tests;
