//! A reader's mapping of memory that the server writes.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use memmap2::{MmapOptions, MmapRaw};
use sidestep_core::memory::Memory;

use super::words::Words;
use super::{RegionError, checked_len, huge_pages};

/// The table's memory as a client on the same host has it: mapped for reading only.
///
/// A [`Memory::load`] or [`Memory::read`] makes no system call.
pub struct ReadOnlyRegion {
    words: Words,
    // Unmapped on drop; `words` points into it.
    _map: MmapRaw,
}

impl ReadOnlyRegion {
    /// Maps the first `bytes` bytes behind a descriptor, which is closed again.
    ///
    /// Fails unless so many are there. (Sealed memory stays that long; a file is as long as
    /// its owner leaves it.)
    pub fn map(fd: OwnedFd, bytes: u64) -> Result<Self, RegionError> {
        let len = checked_len(bytes)?;
        let stat = rustix::fs::fstat(&fd).map_err(RegionError::io("look at the server's memory"))?;
        let found = u64::try_from(stat.st_size).unwrap_or(0);
        if found < bytes {
            return Err(RegionError::TooShort { expected: bytes, found });
        }
        // Pages that the server has made huge are then mapped as such.
        let map = huge_pages::place(|| MmapOptions::new().len(len).map_raw_read_only(fd.as_raw_fd()))
            .map_err(|source| RegionError::Io { attempt: format!("map {bytes} bytes for reading"), source })?;
        // What comes of it is the server's to say.
        _ = huge_pages::advise(&map, fd.as_fd());
        // SAFETY: a mapping is page aligned; it is `bytes` long and readable, and lives as long as
        // the region, which never writes and hands out neither it nor `words`.
        let words = unsafe { Words::new(map.as_mut_ptr(), bytes / 8) };
        Ok(Self { words, _map: map })
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.words.words() * 8
    }
}

impl fmt::Debug for ReadOnlyRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadOnlyRegion").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

impl Memory for ReadOnlyRegion {
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
