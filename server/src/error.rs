//! Why a server does not start.

use std::io;
use std::path::PathBuf;

use sidestep_fabric::region::RegionError;
use thiserror::Error;

use crate::config::ConfigError;
use crate::durable::LogError;
use crate::store::StoreError;

/// Why a server does not start, or a table cannot be looked at.
#[derive(Debug, Error)]
pub enum ServerError {
    /// The configuration makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// As configured.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The address for metrics cannot be listened on.
    #[error("cannot listen on {address} for metrics")]
    Metrics {
        /// As configured.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// Another server has the table, or a check.
    #[error("{} is in use by another server, or being checked", path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// The folder of the table cannot be used.
    #[error("cannot use {} as the folder of a table", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is no table to look at.
    #[error("no table: {} does not exist", path.display())]
    NoTable {
        /// The file that is missing.
        path: PathBuf,
    },
    /// The table's memory cannot be had.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The log cannot be used.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The table cannot be made or recovered.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The RDMA device that was asked for by name cannot be used.
    #[error("cannot use the RDMA device {device}: {reason}")]
    Device {
        /// As configured.
        device: String,
        /// Why.
        reason: String,
    },
    /// The system refuses a thread or an event loop.
    #[error("cannot start the {what}")]
    Thread {
        /// Which part of the server.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}
