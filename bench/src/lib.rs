//! A YCSB-style bench that answers one question: what does bypassing the server's CPU change, on this machine, for this
//! workload?
//!
//! [`workload`] says what is asked, [`target`] who is asked, [`driver`] asks and measures, [`report`] says what came of
//! it; with [`agents`], several machines ask together. Values prove themselves: every read is verified, and one wrong byte fails the run.

pub mod accounting;
pub mod agents;
pub mod compare;
mod devices;
pub mod difference;
pub mod driver;
pub mod environment;
pub mod error;
pub mod figure;
pub mod fill;
pub mod interleave;
pub mod interrupt;
pub mod progress;
pub mod report;
pub mod statistics;
pub mod target;
pub mod undo;
pub mod workload;
