//! The clock by which items expire: this machine's, but never below the floor in the root.
//!
//! What was once said to be expired stays so, whatever the machine's clock does: the floor is the latest time by which that
//! was said. After a clock that was ahead, the table's stands still there until the machine's has caught up. Times to live
//! are therefore counted from the table's clock (`docs/PROTOCOL.md`, *Expiry*).

use std::time::{SystemTime, UNIX_EPOCH};

use sidestep_core::layout::root;
use sidestep_core::memory::{Memory, MemoryMut};

use super::Store;

/// A floor that is further ahead of this machine's clock is not believed.
pub(crate) const MOST_AHEAD_MS: u64 = 366 * 24 * 3600 * 1000;
/// Less is the work of whoever keeps the machine's clock right.
const TOLD_MS: u64 = 1000;

/// This machine's clock, in milliseconds since the Unix epoch.
pub(crate) fn system_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis() as u64)
}

/// What is wrong with the clock floor of a table, if anything is.
pub(super) fn clock_problem(memory: &impl Memory, system_ms: u64) -> Option<String> {
    let floor_ms = memory.load(root::CLOCK_FLOOR_WORD);
    (floor_ms > system_ms.saturating_add(MOST_AHEAD_MS)).then(|| {
        format!(
            "the table's clock stands at {floor_ms} ms since the Unix epoch, this machine's at {system_ms}: more than a year \
             ahead is not believed; set this machine's clock if it is wrong"
        )
    })
}

/// Whether someone was told that the table's clock is ahead.
#[derive(Debug, Default)]
pub(super) struct ClockWatch {
    is_ahead: bool,
}

impl ClockWatch {
    /// What there is to tell: by how much it is ahead, 0 when it is no more.
    pub(super) fn look(&mut self, ahead_ms: u64) -> Option<u64> {
        let told = match (self.is_ahead, ahead_ms) {
            (false, TOLD_MS..) => Some(ahead_ms),
            (true, 0) => Some(0),
            _ => None,
        };
        self.is_ahead = told.map_or(self.is_ahead, |ahead_ms| ahead_ms > 0);
        told
    }
}

impl<M: MemoryMut + Send + Sync + 'static> Store<M> {
    /// The table's clock in milliseconds since the Unix epoch.
    pub(super) fn now_ms(&self) -> u64 {
        system_ms().max(self.clock_floor_ms())
    }

    /// Whether an item with this expiry is gone. The answer is made to last: the clock never goes back before it.
    pub(super) fn is_expired(&self, expires_ms: u64) -> bool {
        if expires_ms == 0 {
            return false;
        }
        let now = self.now_ms();
        self.raise_clock_floor(now);
        now >= expires_ms
    }

    /// When something expires that is to live so long from now on; 0 = never. By any other clock it might be over before it
    /// began, and the write be acknowledged all the same.
    pub fn end_after(&self, ttl_ms: u64) -> u64 {
        match ttl_ms {
            0 => 0,
            ttl_ms => self.now_ms().saturating_add(ttl_ms),
        }
    }

    /// How far this machine's clock has to go until the table's goes on.
    pub fn clock_ahead_ms(&self) -> u64 {
        self.clock_floor_ms().saturating_sub(system_ms())
    }

    /// The clock has been there.
    pub fn raise_clock_floor(&self, clock_ms: u64) {
        self.memory.fetch_max(root::CLOCK_FLOOR_WORD, clock_ms);
    }

    /// The clock is not told to be earlier than this.
    pub fn clock_floor_ms(&self) -> u64 {
        self.memory.load(root::CLOCK_FLOOR_WORD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreOptions;
    use sidestep_fabric::region::Region;

    #[test]
    fn a_clock_that_is_ahead_is_told_of_once_and_so_is_its_end() {
        let mut watch = ClockWatch::default();
        let told = [0, TOLD_MS - 1, TOLD_MS, TOLD_MS + 5, 7, 0, 0, 9000].map(|ahead_ms| watch.look(ahead_ms));
        assert_eq!(told, [None, None, Some(TOLD_MS), None, None, Some(0), None, Some(9000)]);
    }

    #[test]
    fn a_time_to_live_counts_from_the_floor() {
        let store = Store::create(Region::memfd(64 << 20).unwrap(), &StoreOptions::default()).unwrap();
        let (before, end, after) = (system_ms(), store.end_after(10), system_ms());
        assert!((before + 10..=after + 10).contains(&end) && store.clock_ahead_ms() == 0);
        let floor = after + 3_600_000;
        store.raise_clock_floor(floor);
        assert_eq!((store.end_after(0), store.end_after(10), store.end_after(u64::MAX)), (0, floor + 10, u64::MAX));
        assert!((3_500_000..=3_600_000).contains(&store.clock_ahead_ms()));
        store.put(b"key", b"value", None, store.end_after(1)).unwrap();
        assert!(!store.is_expired(store.end_after(1)) && store.is_expired(floor));
    }
}
