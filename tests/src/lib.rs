//! Helpers of the tests across crates.

pub mod certificates;
pub mod fail_points;
pub mod fail_server;
pub mod hot;
pub mod linearizability;
pub mod model;
pub mod process;
pub mod simulation;
pub mod soak;
pub mod tap;
