//! Errors of the store.

use std::io;

use thiserror::Error;

/// Why a table could not be made or taken up again.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The space is too small or not cut into whole segments.
    #[error("memory of {memory_bytes} bytes in segments of {segment_bytes}: expected {expected}")]
    Size {
        /// Of the space.
        memory_bytes: u64,
        /// Of a segment.
        segment_bytes: u64,
        /// What would do.
        expected: &'static str,
    },
    /// Not a table.
    #[error("not a sidestep table: expected {expected:#018x} in root word {word}, found {found:#018x}")]
    NotATable {
        /// Which word of the root.
        word: u64,
        /// What belongs there.
        expected: u64,
        /// What is there.
        found: u64,
    },
    /// The table contradicts itself.
    #[error("damaged table: {0}")]
    Damaged(String),
    /// The storage behind the memory refuses.
    #[error("cannot allocate {bytes} bytes of table memory")]
    Allocate {
        /// Asked for.
        bytes: u64,
        /// From the operating system.
        source: io::Error,
    },
    /// No random numbers to be had.
    #[error("cannot get random bytes: {0}")]
    Random(String),
}

/// Why a write was not done. Nothing was changed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum WriteError {
    /// A conditional write met another version.
    #[error("expected another version, found {found}")]
    VersionMismatch {
        /// The version found; 0 = absent.
        found: u64,
    },
    /// No memory.
    #[error("{0}")]
    Full(String),
    /// Key or value beyond the limits.
    #[error("{0}")]
    TooLarge(String),
    /// The log that the write would have to be in cannot be written.
    #[error("the log cannot be written, so nothing is: {0}")]
    NotLogged(String),
    /// An empty key.
    #[error("expected a key of 1 to 4096 bytes, found {0}")]
    BadKey(usize),
}
