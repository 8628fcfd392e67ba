//! The table's memory as the worst machine would have it, under a seed.
//!
//! [`SimMemory`] delivers the words of a read, and performs those of a write, in shuffled order,
//! calls a hook before every access, and can end its server at any store. [`run`] makes
//! logical threads take turns at every one of these accesses. With the same seeds and the same
//! code the same happens again, so a failing seed is a whole bug report.
//!
//! ```
//! use sidestep_core::memory::{Memory, MemoryMut};
//! use sidestep_fabric::sim::{self, SimMemory};
//!
//! let memory = SimMemory::new(1024, 7);
//! let steps = sim::run(7, vec![
//!     Box::new(|| (1..10).for_each(|round| memory.write(0, &[round; 64]))),
//!     Box::new(|| {
//!         let mut torn = [0; 64];
//!         memory.read(0, &mut torn);
//!     }),
//! ]).steps;
//! assert_eq!(steps, 9 * 8 + 8, "one for every word that is written or read");
//! ```

mod memory;
#[cfg(test)]
mod tests;
mod threads;

pub use memory::{Killed, SimMemory, kill, until_killed};
pub use threads::{Report, Task, run, step};
