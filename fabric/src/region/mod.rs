//! The table's memory, mapped from a memfd or a file.
//!
//! [`Region`] is the server's read-write mapping, [`ReadOnlyRegion`] a reader's. Both speak in
//! 8-byte words (`words`), each read and written atomically; no Rust reference to the mapped
//! bytes exists anywhere, because another process may change or be reading them at any time.
#![allow(unsafe_code)]

mod copy;
mod huge_pages;
mod mapping;
mod raw_io;
mod read_only;
#[cfg(test)]
mod tests;
mod words;

use std::io;
use std::path::PathBuf;

use sidestep_core::limits::{ADDRESS_BITS, BLOCK_BYTES};
use thiserror::Error;

pub use huge_pages::HugePages;
pub use mapping::Region;
pub use read_only::ReadOnlyRegion;

/// Largest space that block addresses reach, in bytes.
pub const MAX_REGION_BYTES: u64 = (BLOCK_BYTES as u64) << ADDRESS_BITS;

/// Why memory could not be mapped.
#[derive(Debug, Error)]
pub enum RegionError {
    /// Not a size that a table can have.
    #[error(
        "expected a size of whole {BLOCK_BYTES} byte blocks, at least one and at most 2^{ADDRESS_BITS}, found {bytes} bytes"
    )]
    Size {
        /// What was asked for, or the file's length.
        bytes: u64,
    },
    /// Less memory behind a descriptor than its owner promised: touching the rest would be a SIGBUS.
    #[error("expected memory of {expected} bytes behind the descriptor, found {found}")]
    TooShort {
        /// Bytes that were to be mapped.
        expected: u64,
        /// Bytes that are there.
        found: u64,
    },
    /// Another server holds the file.
    #[error("{} is in use by another server", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The system refused.
    #[error("cannot {attempt}: {source}")]
    Io {
        /// What was attempted, on what.
        attempt: String,
        /// Why it failed.
        source: io::Error,
    },
}

impl RegionError {
    fn io(attempt: impl Into<String>) -> impl FnOnce(rustix::io::Errno) -> Self {
        let attempt = attempt.into();
        move |errno| Self::Io { attempt, source: errno.into() }
    }
}

/// The length as the mapping wants it, if it is one that a table can have.
fn checked_len(bytes: u64) -> Result<usize, RegionError> {
    if bytes == 0 || !bytes.is_multiple_of(BLOCK_BYTES as u64) || bytes > MAX_REGION_BYTES {
        return Err(RegionError::Size { bytes });
    }
    usize::try_from(bytes).map_err(|_| RegionError::Size { bytes })
}
