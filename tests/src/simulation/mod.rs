//! The real store and the real lookup machine under a seed, with readers between any two stores.
//!
//! One writer, the server, runs operations on a few crowded keys. Before each of its stores, also before
//! each word of an item that it writes, readers move on: they are bare lookup machines whose READs are
//! sampled one word at a time, in any order. They start from stale directory entries and stale locations,
//! extents are reused at once, the server is killed between two stores and recovers under the readers; the table
//! may be full, and keys are evicted for others. What a reader returns must be explained by the history of its key.
//!
//! What only two writers can show is in `writers.rs`. `scripts/mutants` shows that all this can fail.

mod history;
mod memory;
mod reader;
mod record;
mod setup;
mod world;
mod writers;

pub use setup::keys;
pub use world::{Outcome, Plan, run, run_recorded};
pub use writers::{Meeting, meet};
