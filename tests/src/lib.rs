//! Helpers of the tests across crates.

pub mod process;
pub mod simulation;
