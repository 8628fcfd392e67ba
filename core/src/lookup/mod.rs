//! Finding a key without asking anyone: one state machine, no input or output.
//!
//! [`Lookup`] is told what was read and says what to read next, or the outcome. Whoever can read
//! the table's memory drives it: [`local`] over any [`Memory`](crate::memory::Memory), an RDMA path
//! by posting READs. Within one READ words may be sampled at any time and in any order; the only thing
//! the machine relies on is that a READ it asks for begins after the one before it was delivered.
//! `docs/PROTOCOL.md` argues why each answer is right.

pub mod local;
mod machine;

pub use machine::{Candidates, Found, ItemRead, Lookup, Step};

use crate::limits::BLOCK_BYTES;

/// Rounds before a lookup gives up and the server is to be asked.
pub const MAX_ROUNDS: u8 = 8;
/// Hops along FORWARD links from a slot.
pub const MAX_HOPS: u8 = 3;
/// Hops along FORWARD links from a cached location.
pub const MAX_HOPS_CACHED: u8 = 1;

/// What a reader knows of a table for as long as it is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    /// Seed of both hashes.
    pub table_id: u64,
    /// Bytes of the whole space: no READ goes past it.
    pub memory_bytes: u64,
    /// Largest value that an item may hold; a header that claims more is not believed.
    pub max_value_bytes: u32,
}

impl Geometry {
    /// Blocks of the whole space.
    pub fn blocks(&self) -> u64 {
        self.memory_bytes / BLOCK_BYTES as u64
    }
}

/// Where a value was last found: lets the next lookup of its key take one READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CachedLocation {
    /// First block of the item.
    pub address: u64,
    /// Exact length of the item in bytes.
    pub bytes: u32,
}

/// What happened on the way to an outcome; added up by drivers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Trace {
    /// Windows with a word deeper than the directory entry: the directory was read again.
    pub stale_directory: u32,
    /// Started again because of bytes that are not valid, or of an item that has no business where it was met.
    pub torn: u32,
    /// Started again because of an update that was not linearized yet.
    pub pending: u32,
    /// FORWARD links followed.
    pub hops: u32,
    /// Misses that looked twice because of a fingerprint collision.
    pub second_looks: u32,
    /// Cached locations that did not lead to the value.
    pub stale_locations: u32,
    /// Lookups that gave up after [`MAX_ROUNDS`] rounds.
    pub asks: u32,
}

impl std::ops::AddAssign for Trace {
    fn add_assign(&mut self, other: Self) {
        self.stale_directory += other.stale_directory;
        self.torn += other.torn;
        self.pending += other.pending;
        self.hops += other.hops;
        self.second_looks += other.second_looks;
        self.stale_locations += other.stale_locations;
        self.asks += other.asks;
    }
}
