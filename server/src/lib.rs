//! Sidestep's server: keeps the table in memory that clients can read around it, and answers over TCP
//! those who cannot.
//!
//! [`Server::start`] runs one in this process; the program `sidestep-server` is a thin wrapper of it.
//!
//! ```text
//! acceptor ── connections, in turn ──> worker (event loop) ── turns ──> connection ──> service ──> store
//!                                                                      handshake, frames, sessions
//! ```

mod acceptor;
pub mod access;
mod backing;
pub mod config;
mod connection;
mod control;
mod durable;
mod error;
mod exporter;
mod frame;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod handle;
mod input;
mod metrics;
mod output;
mod pairing;
#[cfg(feature = "rdma")]
mod rdma;
#[cfg(not(feature = "rdma"))]
#[path = "no_rdma.rs"]
mod rdma;
mod repair;
mod scan;
mod server;
mod service;
mod sessions;
pub mod size;
pub mod store;
mod table;
pub mod tls;
mod upkeep;
mod uses;
mod worker;

/// This build, for `--version`, the statistics and the metrics.
pub const BUILD: sidestep_build_info::Features = sidestep_build_info::Features { rdma: cfg!(feature = "rdma") };

pub use backing::Backing;
pub use config::Config;
pub use durable::{LogConfig, LogError, SyncMode};
pub use error::ServerError;
pub use repair::{Checked, Repair, check_folder, repair_folder};
pub use server::Server;
pub use table::FILE_NAME;
