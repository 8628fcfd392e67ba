//! A reader's mapping of memory that the server writes.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{Mode, OFlags};

use super::words::Words;
use super::{FileLock, RegionError, checked_len, huge_pages, lock_error, memory_of_words};

/// The table's memory as a client on the same host has it: mapped for reading only.
///
/// A [`Memory::load`](sidestep_core::memory::Memory::load) or `read` makes no system call.
pub struct ReadOnlyRegion {
    words: Words,
    // Unmapped on drop; `words` points into it.
    _map: MmapRaw,
    // Of a file that was opened by name; given up after it is unmapped.
    _lock: Option<FileLock>,
}

impl ReadOnlyRegion {
    /// Maps the first `bytes` bytes behind a descriptor, which is closed again.
    ///
    /// Fails unless so many are there. (Sealed memory stays that long; a file is as long as
    /// its owner leaves it.)
    pub fn map(fd: OwnedFd, bytes: u64) -> Result<Self, RegionError> {
        checked_len(bytes)?;
        let found = length(fd.as_fd())?;
        if found < bytes {
            return Err(RegionError::TooShort { expected: bytes, found });
        }
        Self::map_all(fd.as_fd(), bytes)
    }

    /// Maps a file of a table that no server has, for as long as none is to have it. Changes nothing about it.
    pub fn open_file(path: &Path) -> Result<Self, RegionError> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let attempt = format!("open {}", path.display());
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(RegionError::io(attempt))?;
        let lock = FileLock::shared(fd).map_err(|source| lock_error(path, source))?;
        let bytes = length(lock.as_fd())?;
        let region = Self::map_all(lock.as_fd(), bytes)?;
        Ok(Self { _lock: Some(lock), ..region })
    }

    fn map_all(fd: BorrowedFd<'_>, bytes: u64) -> Result<Self, RegionError> {
        let len = checked_len(bytes)?;
        // Pages that the server has made huge are then mapped as such.
        let map = huge_pages::place(|| MmapOptions::new().len(len).map_raw_read_only(fd.as_raw_fd()))
            .map_err(|source| RegionError::Io { attempt: format!("map {bytes} bytes for reading"), source })?;
        // What comes of it is the server's to say.
        _ = huge_pages::advise(&map, fd);
        // SAFETY: a mapping is page aligned; it is `bytes` long and readable, and lives as long as
        // the region, which never writes and hands out neither it nor `words`.
        let words = unsafe { Words::new(map.as_mut_ptr(), bytes / 8) };
        Ok(Self { words, _map: map, _lock: None })
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

/// Length of what is behind a descriptor.
fn length(fd: BorrowedFd<'_>) -> Result<u64, RegionError> {
    let stat = rustix::fs::fstat(fd).map_err(RegionError::io("look at the server's memory"))?;
    Ok(u64::try_from(stat.st_size).unwrap_or(0))
}

memory_of_words!(ReadOnlyRegion);
