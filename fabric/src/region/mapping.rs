//! The server's mapping: read-write, and the only writer.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use sidestep_core::memory::{Memory, MemoryMut};

use super::words::Words;
use super::{FileLock, HugePages, RegionError, checked_len, huge_pages, memory_of_words, raw_io};

/// Owner only: whoever may open the file for writing could change the table.
const FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// The table's memory as the server has it: one sparse memfd or file, mapped shared and writable.
///
/// Pages come into being by [`MemoryMut::allocate`]. Writing to others works too, but where
/// memory has run out that is a SIGBUS in place of an error.
pub struct Region {
    // Before `map` and `fd` in use only: it points into `map`.
    words: Words,
    /// Shared with what is registered of it, which must be gone before it is unmapped.
    map: Arc<MmapRaw>,
    /// Of a memfd, which nobody else can open, it is a lock that nobody asks for.
    fd: FileLock,
    /// Whether newly allocated pages are made into huge ones.
    collapse: AtomicBool,
    exposer: OnceLock<Arc<dyn Expose>>,
}

/// Makes segments readable by the NICs of peers.
pub trait Expose: fmt::Debug + Send + Sync {
    /// As [`MemoryMut::expose`], of a range whose pages have been allocated. It says itself why it could not.
    fn expose(&self, region: &Region, offset: u64, bytes: u64) -> Option<(u64, u32)>;
}

impl Region {
    /// New zeroed memory without a name, gone with its last descriptor and mapping.
    ///
    /// Sealed once it is mapped: nobody else can map it for writing, write to it, or change its size,
    /// not even through a descriptor reopened under `/proc`.
    pub fn memfd(bytes: u64) -> Result<Self, RegionError> {
        let fd = create_memfd().map_err(RegionError::io("create a memfd"))?;
        // Sealing keeps writers out; the mode keeps out whoever is another user and was not handed a descriptor.
        rustix::fs::fchmod(&fd, FILE_MODE).map_err(RegionError::io("set the mode of the memfd"))?;
        checked_len(bytes)?;
        rustix::fs::ftruncate(&fd, bytes).map_err(RegionError::io(format!("size the memfd to {bytes} bytes")))?;
        let attempt = "lock the memfd".to_owned();
        let fd = FileLock::exclusive(fd).map_err(|source| RegionError::Io { attempt, source })?;
        let region = Self::map(fd, bytes)?;
        // The seal on future writes leaves the one mapping that exists by now as it is.
        let seals = SealFlags::FUTURE_WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&region.fd, seals).map_err(RegionError::io("seal the memfd"))?;
        Ok(region)
    }

    /// New zeroed memory in a file of mode 0600, locked against other servers.
    ///
    /// What a file of this name held is discarded once its lock is had, so this is for a
    /// temporary name that is renamed when the table in it is whole.
    pub fn create_file(path: &Path, bytes: u64) -> Result<Self, RegionError> {
        checked_len(bytes)?;
        let fd = open_locked(path, OFlags::CREATE)?;
        for size in [0, bytes] {
            rustix::fs::ftruncate(&fd, size)
                .map_err(RegionError::io(format!("size {} to {size} bytes", path.display())))?;
        }
        Self::map(fd, bytes)
    }

    /// The memory in an existing file, of the file's size, locked against other servers.
    pub fn open_file(path: &Path) -> Result<Self, RegionError> {
        let fd = open_locked(path, OFlags::empty())?;
        let stat = rustix::fs::fstat(&fd).map_err(RegionError::io(format!("look at {}", path.display())))?;
        Self::map(fd, u64::try_from(stat.st_size).unwrap_or(0))
    }

    fn map(fd: FileLock, bytes: u64) -> Result<Self, RegionError> {
        let len = checked_len(bytes)?;
        let map = huge_pages::place(|| MmapOptions::new().len(len).map_raw(fd.as_raw_fd()))
            .map_err(|source| RegionError::Io { attempt: format!("map {bytes} bytes for writing"), source })?;
        // SAFETY: a mapping is page aligned; it is `bytes` long, readable and writable, and lives
        // as long as the region, which never lends it out or hands out `words`.
        let words = unsafe { Words::new(map.as_mut_ptr(), bytes / 8) };
        Ok(Self { words, map: Arc::new(map), fd, collapse: AtomicBool::new(false), exposer: OnceLock::new() })
    }

    /// The descriptor that is mapped. It can write: not for clients.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Has every segment that is taken into use from now on exposed. The first call counts.
    pub fn expose_by(&self, exposer: Arc<dyn Expose>) {
        _ = self.exposer.set(exposer);
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.words.words() * 8
    }

    /// A fresh descriptor of the same memory that can only read, to be handed to clients.
    ///
    /// It is an open file of its own: closing it does not give up the lock on the file.
    pub fn read_only_fd(&self) -> Result<OwnedFd, RegionError> {
        let path = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(RegionError::io(format!("reopen {path} for reading")))
    }

    /// Asks for huge pages and says what comes of it: call it before anything is allocated.
    ///
    /// Tries it on the first huge page of the region. Where that works, [`MemoryMut::allocate`] makes
    /// every whole 2 MiB that it is given huge, at about 1 ms per MiB in place of 0.3 (the
    /// page faults that are saved, in each process, make up for it). Elsewhere the answer is
    /// what the system's policy makes of madvise.
    pub fn advise_huge_pages(&self) -> HugePages {
        let by_policy = huge_pages::advise(&self.map, self.fd.as_fd());
        if huge_pages::can_hold(&self.map) && self.allocate(0, 1).is_ok() && huge_pages::try_first(&self.map).is_ok() {
            self.collapse.store(true, Ordering::Relaxed);
            return HugePages::Granted("MADV_COLLAPSE".into());
        }
        by_policy
    }

    /// Sends `prefix` and then `bytes` bytes of the region from byte `offset` on, in one `writev`.
    ///
    /// Returns the number of bytes sent, of the prefix and the region together; it may be smaller
    /// than asked for. An interrupted call is repeated, `WouldBlock` is returned.
    pub fn send_to(&self, fd: BorrowedFd<'_>, prefix: &[u8], offset: u64, bytes: usize) -> io::Result<usize> {
        let from = self.checked_bytes(offset, bytes)?;
        // SAFETY: inside the mapping.
        unsafe { raw_io::send(fd, prefix, from, bytes) }
    }

    /// Receives at most `bytes` bytes into the region from byte `offset` on, in one `read`.
    ///
    /// Returns the number of bytes received, 0 at the end of the stream. An interrupted call is
    /// repeated, `WouldBlock` is returned.
    pub fn receive_into(&self, fd: BorrowedFd<'_>, offset: u64, bytes: usize) -> io::Result<usize> {
        let into = self.checked_bytes(offset, bytes)?;
        // SAFETY: inside the mapping, which is writable and has no references to it.
        unsafe { raw_io::receive(fd, into, bytes) }
    }

    /// Writes bytes from byte `offset` on, where nobody else reads or writes yet. What is before them in their first word
    /// stays; what is behind them in their last one does not.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) {
        let (word, within) = (offset / 8, (offset % 8) as usize);
        if within == 0 {
            return self.write(word, bytes);
        }
        let (head, rest) = bytes.split_at(bytes.len().min(8 - within));
        let mut first = self.load(word).to_le_bytes();
        first[within..within + head.len()].copy_from_slice(head);
        self.store(word, u64::from_le_bytes(first));
        if !rest.is_empty() {
            self.write(word + 1, rest);
        }
    }

    /// The mapping, and a range of it that has been checked.
    #[cfg(feature = "rdma")]
    pub(crate) fn mapping(&self, offset: u64, bytes: u64) -> io::Result<(Arc<MmapRaw>, usize, usize)> {
        let outside = || self.outside(offset, bytes);
        let length = usize::try_from(bytes).map_err(|_| outside())?;
        self.checked_bytes(offset, length)?;
        Ok((self.map.clone(), usize::try_from(offset).map_err(|_| outside())?, length))
    }

    fn checked_bytes(&self, offset: u64, bytes: usize) -> io::Result<*mut u8> {
        self.words.bytes_at(offset, bytes).ok_or_else(|| self.outside(offset, bytes as u64))
    }

    fn outside(&self, offset: u64, bytes: u64) -> io::Error {
        let mapped = self.bytes();
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("expected a range within the {mapped:#x} mapped bytes, found {bytes:#x} bytes at {offset:#x}"),
        )
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("bytes", &self.bytes()).field("fd", &self.fd).finish_non_exhaustive()
    }
}

fn create_memfd() -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match rustix::fs::memfd_create("sidestep", flags | MemfdFlags::NOEXEC_SEAL) {
        // Before Linux 6.3 there was no such flag, and no setting that demands it.
        Err(Errno::INVAL) => rustix::fs::memfd_create("sidestep", flags),
        other => other,
    }
}

/// Opens a file for reading and writing under an exclusive lock, with the mode that a table must have.
fn open_locked(path: &Path, create: OFlags) -> Result<FileLock, RegionError> {
    let attempt = |what: &str| RegionError::io(format!("{what} {}", path.display()));
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | create;
    let fd = rustix::fs::open(path, flags, FILE_MODE).map_err(attempt("open"))?;
    let fd = FileLock::exclusive(fd).map_err(|source| super::lock_error(path, source))?;
    // Another server may have renamed or replaced the file between open and lock; what is locked
    // here is then not what the name stands for, perhaps the very table under its final name.
    let opened = rustix::fs::fstat(&fd).map_err(attempt("look at"))?;
    match rustix::fs::lstat(path) {
        Ok(named) if (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino) => {}
        Ok(_) | Err(Errno::NOENT) => return Err(RegionError::InUse { path: path.into() }),
        Err(errno) => return Err(attempt("look at")(errno)),
    }
    rustix::fs::fchmod(&fd, FILE_MODE).map_err(attempt("set the mode of"))?;
    Ok(fd)
}

memory_of_words!(Region);

impl MemoryMut for Region {
    #[inline]
    fn store(&self, word: u64, value: u64) {
        self.words.store(word, value);
    }
    #[inline]
    fn fetch_max(&self, word: u64, value: u64) -> u64 {
        self.words.fetch_max(word, value)
    }
    #[inline]
    fn write(&self, word: u64, from: &[u8]) {
        self.words.write(word, from);
    }
    #[inline]
    fn fence(&self) {
        self.words.fence();
    }
    /// One `fallocate`, which leaves pages that are there as they are, and where the kernel allows one
    /// `madvise` that makes them huge. About 1.7 ms a MiB; ENOSPC and ENOMEM are among the errors. A file system that cannot do it says EOPNOTSUPP.
    fn allocate(&self, word: u64, bytes: u64) -> io::Result<()> {
        let offset = word.checked_mul(8).ok_or_else(|| self.outside(u64::MAX, bytes))?;
        // Beyond the end it would make the file longer.
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes()) {
            return Err(self.outside(offset, bytes));
        }
        if bytes == 0 {
            return Ok(());
        }
        loop {
            match rustix::fs::fallocate(&self.fd, FallocateFlags::empty(), offset, bytes) {
                // A signal undoes it on tmpfs.
                Err(Errno::INTR) => {}
                other => break other?,
            }
        }
        if self.collapse.load(Ordering::Relaxed) {
            // There may be no huge page to be had just now; small ones do.
            _ = huge_pages::collapse(&self.map, offset as usize, bytes as usize);
        }
        Ok(())
    }

    fn expose(&self, word: u64, bytes: u64) -> (u64, u32) {
        let exposed = self.exposer.get().and_then(|exposer| exposer.expose(self, word.saturating_mul(8), bytes));
        exposed.unwrap_or((0, 0))
    }
}
