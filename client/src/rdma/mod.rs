//! The RDMA paths. On `rdma` this host's NIC reads the server's segments: a GET takes no CPU of the server's process,
//! also when the key is absent. All other requests, and on `rdma-rpc` all requests, travel in messages.

mod batch;
mod connect;
mod directory;
mod into;
mod messages;
mod reader;
mod remote;

pub(crate) use connect::{Nic, connect};
pub(crate) use into::Registered;
pub(crate) use messages::Messages;
pub(crate) use reader::{Item, RdmaReader};
