//! What can go wrong in a run.

use crate::workload::WrongValue;

/// Why a run ended without a result.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A property, option or file that cannot be used.
    #[error("{0}")]
    Usage(String),
    /// The store cannot be reached, or the path cannot be had.
    #[error("{store}: {reason}")]
    Unavailable {
        /// Path or peer.
        store: String,
        /// Why, as the store says it.
        reason: String,
    },
    /// An operation failed.
    #[error("{store}: {operation} of record {record}: {reason}")]
    Operation {
        /// Path or peer.
        store: String,
        /// `read`, `write` or `insert`.
        operation: &'static str,
        /// The record.
        record: u64,
        /// Why, as the store says it.
        reason: String,
    },
    /// The store gave a value that was not written for that record: the run is worth nothing.
    #[error("{store}: WRONG DATA: the value read for record {record} {wrong}")]
    WrongValue {
        /// Path or peer.
        store: String,
        /// The record.
        record: u64,
        /// What is wrong with it.
        wrong: WrongValue,
    },
    /// The store says that a record that was loaded is absent.
    #[error("{store}: WRONG DATA: record {record} is absent; was the workload loaded with the same settings?")]
    Missing {
        /// Path or peer.
        store: String,
        /// The record.
        record: u64,
    },
    /// The store gave a version older than one that this client had seen before it asked.
    #[error("{store}: WRONG DATA: stale read of record {record}: version {found} after {seen} was seen")]
    Stale {
        /// Path or peer.
        store: String,
        /// The record.
        record: u64,
        /// Version read.
        found: u64,
        /// Version seen earlier.
        seen: u64,
    },
    /// An agent says that its part failed, or says nothing sensible.
    #[error("agent {agent}: {reason}")]
    Agent {
        /// Its address.
        agent: String,
        /// Exit code of what went wrong there.
        code: u8,
        /// What it says.
        reason: String,
    },
    /// Ctrl-C before there was anything to show.
    #[error("interrupted")]
    Interrupted,
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// A system call or a thread failed.
    #[error("{attempted}: {reason}")]
    System {
        /// What was attempted.
        attempted: &'static str,
        /// What was found.
        reason: String,
    },
}

impl BenchError {
    /// Exit code of the process: those of `sidestep`, and 1 for wrong data.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::WrongValue { .. } | Self::Missing { .. } | Self::Stale { .. } => 1,
            Self::Usage(_) => 2,
            Self::Agent { code, .. } => *code,
            Self::Interrupted => 130,
            Self::Unavailable { .. } => 3,
            Self::Operation { .. } | Self::File { .. } | Self::System { .. } => 4,
        }
    }
}
