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
    /// Nothing is there.
    #[error("the file is empty, expected a table: put a copy back, or move it away to start with a new table")]
    Empty,
    /// Not a table.
    #[error(
        "not a Sidestep table: expected a file that begins with \"SIDESTEP\", found \"{}\": put a copy of the table back, or \
         move the file away to start with a new one",
        found.escape_ascii()
    )]
    Foreign {
        /// What is there.
        found: [u8; 8],
    },
    /// Of an older version.
    #[error(
        "format {found} is older than {expected}, the one that this server reads: start the server that wrote it, \
         `sidestep dump` the table, and `sidestep load` that into a new table of this one"
    )]
    Older {
        /// Ours.
        expected: u64,
        /// The table's.
        found: u64,
    },
    /// Of a newer version.
    #[error(
        "format {found} is newer than {expected}, the one that this server reads: start a server as new as the one that wrote \
         it; to go back, `sidestep dump` the table there, and `sidestep load` that into a new table of this one"
    )]
    Newer {
        /// Ours.
        expected: u64,
        /// The table's.
        found: u64,
    },
    /// Not as long as it was made.
    #[error(
        "expected {expected} bytes, found {found}: the file was truncated or made longer by something else; put a copy back, \
         or see `sidestep-server check --help` on how to keep what is whole"
    )]
    Length {
        /// What the root says.
        expected: u64,
        /// The length that it has.
        found: u64,
    },
    /// Its first page makes no sense.
    #[error(
        "damaged root: it speaks of {memory_bytes} bytes in segments of {segment_bytes}; without it nothing can be found or \
         told from garbage, and a repair is not possible: put a copy back"
    )]
    Root {
        /// Of the space.
        memory_bytes: u64,
        /// Of a segment.
        segment_bytes: u64,
    },
    /// So much is damaged that nothing can be kept.
    #[error(
        "no item is whole, though {slots} slots lead to some: perhaps the table's id, with which all checksums are made, is \
         damaged; put a copy back"
    )]
    Nothing {
        /// Slots that are not empty.
        slots: u64,
    },
    /// The table contradicts itself.
    #[error("damaged table: {0}")]
    Damaged(String),
    /// Words of its root, which have no checksum, cannot be right.
    #[error(
        "damaged root: {0}; `sidestep-server check --repair` makes a new table of what is whole, or put a copy back"
    )]
    Words(String),
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
    /// The last version was given.
    #[error("no version is left above {0:#x}: `sidestep dump` the table, and `sidestep load` that into a new one")]
    NoVersion(u64),
    /// An empty key.
    #[error("expected a key of 1 to 4096 bytes, found {0}")]
    BadKey(usize),
}
