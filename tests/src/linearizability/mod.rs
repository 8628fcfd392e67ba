//! Whether what clients saw can be explained: histories, and a checker of linearizability.
//!
//! A history is a list of [`Operation`]s: who did what to which key, from when to when on one clock, and what came
//! of it. A key's operations are linearizable if each can be given a moment between its start and its end such
//! that, done one after the other at those moments, each has the result that it had ([Herlihy and Wing 1990]).
//! Linearizability is local, so that keys are checked one by one.
//!
//! The checker is the search of [Wing and Gong 1993] with the memory of [Lowe 2017]: no configuration (what was
//! done, and the state that it led to) is looked at twice. Two properties of this store make it nearly linear in
//! practice. A version says which write follows which, so there is hardly a choice among writes; and an operation
//! that changes nothing can be placed as soon as it fits, for that never makes another one impossible.
//!
//! # The file of a history
//!
//! One JSON object a line, in any order; times are nanoseconds of `CLOCK_MONOTONIC`, which the processes of a host
//! share. Lines that are empty or begin with `#` are skipped.
//!
//! ```text
//! {"client":3,"key":17,"start":1000,"end":2500,"did":{"put":{"value":4294967296,"expect":null,"version":12}}}
//! {"client":4,"key":17,"start":1900,"end":2100,"did":{"found":{"version":12,"value":4294967296}}}
//! {"client":5,"key":17,"start":2600,"end":2700,"did":"absent"}
//! ```
//!
//! A write of a value that expires has `"ttl"`, in nanoseconds; a history of a server that evicts is checked with
//! `--evicting`. [`Did`] lists what can have been done. `cargo run -p sidestep-tests --bin check-history FILE` checks a file.
//!
//! [Herlihy and Wing 1990]: https://doi.org/10.1145/78969.78972
//! [Wing and Gong 1993]: https://doi.org/10.1006/jpdc.1993.1015
//! [Lowe 2017]: https://doi.org/10.1002/cpe.3928

mod checker;
#[cfg(test)]
mod checker_tests;
pub mod client;
mod operation;
mod register;
mod search;
mod window;

pub use checker::{Report, Violation, check, check_evicting, check_evicting_or_keep, check_or_keep};
pub use operation::{Did, MALFORMED, Operation, read_history, write_history};
