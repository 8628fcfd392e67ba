//! A lock on a file or a folder, against other servers.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::fs::{FlockOperation, flock};

/// A `flock(2)` on an open file or folder, with its descriptor: had at once or not at all, and given up on drop.
///
/// Given up by name, since closing is not enough: a child of this process that is between fork and exec has the
/// descriptor too, and with it the lock, until it is gone. A process that dies gives it up in any case.
#[derive(Debug)]
pub struct FileLock(OwnedFd);

impl FileLock {
    /// For one who writes: nobody else has any lock. [`io::ErrorKind::WouldBlock`]: somebody has.
    pub fn exclusive(fd: OwnedFd) -> io::Result<Self> {
        Self::lock(fd, FlockOperation::NonBlockingLockExclusive)
    }

    /// For those who only read: nobody has an exclusive lock. [`io::ErrorKind::WouldBlock`]: somebody has.
    pub fn shared(fd: OwnedFd) -> io::Result<Self> {
        Self::lock(fd, FlockOperation::NonBlockingLockShared)
    }

    fn lock(fd: OwnedFd, operation: FlockOperation) -> io::Result<Self> {
        flock(&fd, operation)?;
        Ok(Self(fd))
    }
}

impl AsFd for FileLock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for FileLock {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // It can fail for a descriptor that is none, which this is not.
        _ = flock(&self.0, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::path::Path;
    use std::process::{Command, Stdio};

    use rustix::io::{FdFlags, fcntl_setfd};

    use super::*;

    fn open(path: &Path) -> OwnedFd {
        File::open(path).unwrap().into()
    }

    fn refused(result: io::Result<FileLock>) -> bool {
        result.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    #[test]
    fn one_writer_or_many_readers() {
        let folder = tempfile::tempdir().unwrap();
        let writer = FileLock::exclusive(open(folder.path())).unwrap();
        assert!(refused(FileLock::exclusive(open(folder.path()))) && refused(FileLock::shared(open(folder.path()))));
        drop(writer);
        let reader = FileLock::shared(open(folder.path())).unwrap();
        let other = FileLock::shared(open(folder.path())).unwrap();
        assert!(refused(FileLock::exclusive(open(folder.path()))));
        drop((reader, other));
        FileLock::exclusive(open(folder.path())).unwrap();
    }

    /// A child between fork and exec holds every descriptor of its parent. This one stays as it is then: it
    /// has inherited the lock and goes on until its input ends.
    #[test]
    fn a_lock_that_a_child_inherited_ends_with_its_holder() {
        let folder = tempfile::tempdir().unwrap();
        let lock = FileLock::exclusive(open(folder.path())).unwrap();
        let inherited = lock.as_fd().try_clone_to_owned().unwrap();
        fcntl_setfd(&inherited, FdFlags::empty()).unwrap();
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        drop(inherited);
        let in_child = std::fs::read_dir(format!("/proc/{}/fd", child.id())).unwrap();
        let path = folder.path().canonicalize().unwrap();
        assert!(in_child.flatten().any(|fd| std::fs::read_link(fd.path()).is_ok_and(|target| target == path)));
        assert!(refused(FileLock::exclusive(open(folder.path()))));
        drop(lock);
        let again = FileLock::exclusive(open(folder.path()));
        drop(child.stdin.take());
        child.wait().unwrap();
        again.unwrap();
    }
}
