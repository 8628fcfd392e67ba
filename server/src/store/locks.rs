//! What the writer knows of each subtable, beside the table in ordinary memory, by page number: its lock with the
//! version floor, when it next has something to sweep, and which of its items were used lately.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use crossbeam_utils::CachePadded;
use parking_lot::{Mutex, MutexGuard};
use sidestep_core::layout::bucket::{SUBTABLE_BLOCKS, SUBTABLE_SLOTS};

/// Pages that share one allocation: as many as are given to subtables at a time.
const GROUP: usize = 16;

type Group = Box<[CachePadded<Beside>; GROUP]>;

/// Of one subtable.
#[derive(Debug)]
pub(crate) struct Beside {
    floor: Mutex<u64>,
    /// No item of the subtable expires before this, in milliseconds since the Unix epoch. Stored under the lock.
    pub(crate) soonest_ms: AtomicU64,
    /// For each slot whether its item was used since the hand of the clock was there. Only kept where items are evicted.
    pub(crate) referenced: [AtomicU64; SUBTABLE_SLOTS / 64],
}

impl Beside {
    fn new(floor: u64) -> Self {
        Self { floor: Mutex::new(floor), soonest_ms: AtomicU64::new(u64::MAX), referenced: Default::default() }
    }
}

/// A subtable's floor under its lock: at least every version that was ever removed from it.
pub(crate) type FloorGuard<'l> = MutexGuard<'l, u64>;

/// One lock for each page that is a subtable; memory is taken when a page is first locked.
#[derive(Debug)]
pub(crate) struct Locks {
    groups: Box<[OnceLock<Group>]>,
    first_floor: u64,
}

impl Locks {
    /// Locks for a space of `blocks` blocks, every floor being `first_floor`.
    pub(crate) fn new(blocks: u64, first_floor: u64) -> Self {
        let groups = (blocks / SUBTABLE_BLOCKS).div_ceil(GROUP as u64) as usize;
        Self { groups: std::iter::repeat_with(OnceLock::new).take(groups).collect(), first_floor }
    }

    /// The lock of the subtable whose first block is `subtable`.
    pub(crate) fn of(&self, subtable: u64) -> &Mutex<u64> {
        &self.beside(subtable).floor
    }

    /// What is beside the subtable whose first block is `subtable`.
    pub(crate) fn beside(&self, subtable: u64) -> &Beside {
        let page = (subtable / SUBTABLE_BLOCKS) as usize;
        let new = |_| CachePadded::new(Beside::new(self.first_floor));
        &self.groups[page / GROUP].get_or_init(|| Box::new(std::array::from_fn(new)))[page % GROUP]
    }
}
