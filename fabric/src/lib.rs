//! Sidestep's memory and wires: mapped segments, shared memory, the simulator.
//!
//! [`region`] maps the table's memory (the only unsafe code of the crate), [`shm`] hands its
//! descriptor to processes on the same host, [`sim`] is the same memory under a seeded scheduler.

#[cfg(feature = "rdma")]
pub mod rdma;
pub mod region;
#[cfg(not(loom))]
pub mod shm;
pub mod sim;
