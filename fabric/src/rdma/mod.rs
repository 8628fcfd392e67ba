//! RDMA: two small safe layers on verbs, of which nothing leaks raw pointers upward.
//!
//! | layer | what it has |
//! | --- | --- |
//! | device and memory | [`Port`], [`Domain`], [`RemoteReadable`], [`BufferPool`], [`Buffer`] |
//! | queue pair and completions | [`Acceptor`] and [`Accepted`] on the serving side, [`Unconnected`] and [`Reads`] on the reading one; [`Exchange`] on both, for messages |
//!
//! Ownership is the order of tear-down: whatever is made on something holds it. A [`Reads`] owns the buffers of its
//! READs until their completions have been seen, or the queue pair is destroyed; an [`Exchange`] likewise what its
//! messages and READs name.
//!
//! The `ibverbs` crate lists the devices and types the GID table. The rest is its sys crate: 0.9.2 of `ibverbs` can
//! neither read one-sided, nor register memory of ours or without remote write, nor post chains, nor wait for
//! completions, and its types give no handle away. One binary serves machines with and without libibverbs (`shim`).
#![allow(unsafe_code)]

mod completions;
mod device;
mod error;
mod gid;
mod inventory;
mod memory;
mod messages;
mod pool;
mod port;
mod queue_pair;
mod reads;
mod shim;
#[cfg(test)]
mod tests;

pub use device::{Device, DeviceChoice, device_names};
pub use error::RdmaError;
pub use gid::{GidEntry, GidKind, LinkLayer};
pub use inventory::{DeviceReport, FileSystem, Inventory, LockedMemory, OpenedDevice, PortReport, Problem};
pub use memory::{Domain, LocalRange, RemoteReadable};
pub use messages::{Channel, Exchange, MESSAGE_BYTES};
pub use pool::{Buffer, BufferPool};
pub use port::Port;
pub use queue_pair::{Accepted, Acceptor};
pub use reads::{Reads, RemoteRange, Unconnected, Waiting};
