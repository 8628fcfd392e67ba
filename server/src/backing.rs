//! What a served table may lie in.

use std::fmt::Debug;

use sidestep_core::memory::MemoryMut;
use sidestep_fabric::region::Region;

/// The memory of a served table: a mapped region, or a region with something around it that sees its stores.
pub trait Backing: MemoryMut + Debug + Send + Sync + 'static {
    /// The region: what is handed to clients, and what sockets are read into and written from.
    fn region(&self) -> &Region;
}

impl Backing for Region {
    #[inline]
    fn region(&self) -> &Region {
        self
    }
}
