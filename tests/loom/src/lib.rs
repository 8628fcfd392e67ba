//! The store and the lookup machine under the C11 memory model, every interleaving and every stale value
//! that it allows explored by [loom](https://docs.rs/loom), within the bounds that each model states.
//!
//! What runs is the code that ships: `server/src/store`, `core::lookup`, `crossbeam-epoch`, and
//! `fabric::region`'s words, whose atomics are loom's here by one swapped import. `memory` puts loom's
//! words only where a writer and a reader meet. `scripts/loom` builds this with
//! `--cfg loom --cfg crossbeam_loom`; in every other build the crate is empty.
#![cfg(loom)]

pub mod memory;
pub mod model;

// The store alone: the crate around it brings sockets and mappings, which know nothing of loom.
#[allow(dead_code)]
#[path = "../../../server/src/store/mod.rs"]
pub mod store;
