//! What the writer knows of each subtable, beside the table in ordinary memory, by page number: its lock with the
//! version floor, and when it next has something to sweep.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use crossbeam_utils::CachePadded;
use parking_lot::{Mutex, MutexGuard};
use sidestep_core::layout::bucket::SUBTABLE_BLOCKS;

/// Pages that share one allocation: as many as are given to subtables at a time.
const GROUP: usize = 16;

type Group = Box<[CachePadded<Beside>; GROUP]>;

/// Of one subtable.
#[derive(Debug)]
pub(crate) struct Beside {
    floor: Mutex<u64>,
    /// No item of the subtable expires before this, in milliseconds since the Unix epoch. Stored under the lock.
    pub(crate) soonest_ms: AtomicU64,
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
        let new =
            |_| CachePadded::new(Beside { floor: Mutex::new(self.first_floor), soonest_ms: AtomicU64::new(u64::MAX) });
        &self.groups[page / GROUP].get_or_init(|| Box::new(std::array::from_fn(new)))[page % GROUP]
    }
}
