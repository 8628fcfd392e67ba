//! Sockets straight to and from mapped memory.
//!
//! Every safe wrapper of these calls takes a slice, and a slice of memory that others change must
//! not exist. The kernel's side of a copy is outside Rust's memory model like any other process's.

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `struct iovec` of POSIX, `<sys/uio.h>`.
#[repr(C)]
struct IoVec {
    base: *const c_void,
    len: usize,
}

// Of the C library that std is linked to; signatures as in POSIX.1-2017.
unsafe extern "C" {
    fn writev(fd: c_int, iov: *const IoVec, iovcnt: c_int) -> isize;
    fn read(fd: c_int, buf: *mut c_void, nbyte: usize) -> isize;
}

fn retry(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        match usize::try_from(call()) {
            Ok(bytes) => return Ok(bytes),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

/// One `writev` of `prefix` and the `bytes` bytes at `from`.
///
/// # Safety
/// `bytes` bytes from `from` on are mapped and readable.
pub(super) unsafe fn send(fd: BorrowedFd<'_>, prefix: &[u8], from: *const u8, bytes: usize) -> io::Result<usize> {
    let parts = [IoVec { base: prefix.as_ptr().cast(), len: prefix.len() }, IoVec { base: from.cast(), len: bytes }];
    // SAFETY: both parts are readable for their lengths (a slice, the caller's promise), and the
    // kernel keeps no pointer beyond the call.
    retry(|| unsafe { writev(fd.as_raw_fd(), parts.as_ptr(), parts.len() as c_int) })
}

/// One `read` of at most `bytes` bytes to `into`.
///
/// # Safety
/// `bytes` bytes from `into` on are mapped and writable, and no Rust reference to them exists.
pub(super) unsafe fn receive(fd: BorrowedFd<'_>, into: *mut u8, bytes: usize) -> io::Result<usize> {
    // SAFETY: the caller's promise; the kernel keeps no pointer beyond the call.
    retry(|| unsafe { read(fd.as_raw_fd(), into.cast(), bytes) })
}
