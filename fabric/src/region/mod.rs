//! The table's memory, mapped from a memfd or a file.
//!
//! [`Region`] is the server's read-write mapping, [`ReadOnlyRegion`] a reader's. Both speak in
//! 8-byte words (`words`), each read and written atomically; no Rust reference to the mapped
//! bytes exists anywhere, because another process may change or be reading them at any time.
//!
//! Under `--cfg loom` the words are loom's, and mappings, which cannot hold those, are left out.
#![allow(unsafe_code)]
// Of what is left of it there, mappings used the rest.
#![cfg_attr(loom, allow(dead_code))]

mod atomic;
mod copy;
#[cfg(loom)]
mod heap;
#[cfg(not(loom))]
mod huge_pages;
#[cfg(not(loom))]
mod lock;
#[cfg(not(loom))]
mod mapping;
#[cfg(not(loom))]
mod raw_io;
#[cfg(not(loom))]
mod read_only;
#[cfg(all(test, not(any(loom, miri))))]
mod tests;
mod words;

use std::io;
use std::path::PathBuf;

use sidestep_core::limits::{ADDRESS_BITS, BLOCK_BYTES};
use thiserror::Error;

#[cfg(loom)]
pub use heap::HeapRegion;
#[cfg(not(loom))]
pub use huge_pages::HugePages;
#[cfg(not(loom))]
pub use lock::FileLock;
#[cfg(not(loom))]
pub use mapping::{Expose, Region};
#[cfg(not(loom))]
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

/// Why a table's file is not to be had.
#[cfg(not(loom))]
fn lock_error(path: &std::path::Path, source: io::Error) -> RegionError {
    match source.kind() {
        io::ErrorKind::WouldBlock => RegionError::InUse { path: path.into() },
        _ => RegionError::Io { attempt: format!("lock {}", path.display()), source },
    }
}

/// Both mappings are read in the same way: by their words.
#[cfg(not(loom))]
macro_rules! memory_of_words {
    ($region:ty) => {
        impl sidestep_core::memory::Memory for $region {
            #[inline]
            fn words(&self) -> u64 {
                self.words.words()
            }
            #[inline]
            fn load(&self, word: u64) -> u64 {
                self.words.load(word)
            }
            #[inline]
            fn read(&self, word: u64, into: &mut [u8]) {
                self.words.read(word, into);
            }
            #[inline]
            fn prefetch(&self, word: u64, bytes: usize) {
                self.words.prefetch(word, bytes);
            }
        }
    };
}
#[cfg(not(loom))]
use memory_of_words;
