//! Why a server does not start.

use std::io;
use std::path::PathBuf;

use sidestep_fabric::region::RegionError;
use thiserror::Error;

use crate::config::ConfigError;
use crate::durable::LogError;
use crate::size::ByteSize;
use crate::store::{StoreError, WriteError};

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
    /// What is in the table's file is no table of this server's, or a damaged one.
    #[error("cannot take up {}: {source}", path.display())]
    Table {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: StoreError,
    },
    /// The table is of another size than was asked for.
    #[error(
        "{} was made with {option} {}, found {option} {} now: leave the option out, or start with that of before; to change it, \
         `sidestep dump` the table, move the file away, start with the new one, and `sidestep load` the dump",
        path.display(), ByteSize(*made), ByteSize(*asked)
    )]
    OtherSize {
        /// The file.
        path: PathBuf,
        /// Which option.
        option: &'static str,
        /// What it was when the table was made.
        made: u64,
        /// What it is now.
        asked: u64,
    },
    /// What a repair found has no room in a table of the same size.
    #[error("cannot repair {}, nothing was changed", path.display())]
    Repair {
        /// The file.
        path: PathBuf,
        /// Why.
        source: WriteError,
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

impl ServerError {
    /// Whether it will be the same at the next try, whatever becomes of the system: what was asked for makes no sense.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Config(_) | Self::Store(StoreError::Size { .. }) => true,
            // No address at all.
            Self::Listen { source, .. } | Self::Metrics { source, .. } => source.kind() == io::ErrorKind::InvalidInput,
            _ => false,
        }
    }
}
