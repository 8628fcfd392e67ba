//! The `rdma` path: this host's NIC reads the server's segments.
//!
//! A GET takes no CPU of the server's process, also when the key is absent.

mod batch;
mod connect;
mod directory;
mod into;
mod reader;
mod remote;

pub(crate) use connect::{Nic, connect};
pub(crate) use into::Registered;
pub(crate) use reader::{Item, RdmaReader};
