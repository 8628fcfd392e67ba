//! Helpers of the tests across crates.

pub mod simulation;
