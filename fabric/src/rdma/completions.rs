//! Completions: polled for, or waited for.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::time::Duration;

use ibverbs_sys as ffi;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;

use super::{Device, RdmaError};

/// Completions, and a descriptor that can be waited for.
pub(super) struct Completions {
    cq: NonNull<ffi::ibv_cq>,
    channel: NonNull<ffi::ibv_comp_channel>,
    device: Device,
}

// SAFETY: libibverbs is thread safe (ibverbs(7)); both are destroyed once, by the owner's drop.
unsafe impl Send for Completions {}
// SAFETY: as above.
unsafe impl Sync for Completions {}

impl Completions {
    pub(super) fn new(device: &Device, entries: u32) -> Result<Self, RdmaError> {
        // SAFETY: the context is open.
        let channel = unsafe { ffi::ibv_create_comp_channel(device.context()) };
        let channel = NonNull::new(channel).ok_or_else(|| RdmaError::last("create a completion channel"))?;
        let entries = i32::try_from(entries.min(device.limits().completions)).unwrap_or(i32::MAX);
        // SAFETY: context and channel are open; the vector 0 is always there.
        let cq = unsafe { ffi::ibv_create_cq(device.context(), entries, null_mut(), channel.as_ptr(), 0) };
        let Some(cq) = NonNull::new(cq) else {
            let error = RdmaError::last("create a completion queue");
            // SAFETY: ours, and nothing uses it.
            unsafe { ffi::ibv_destroy_comp_channel(channel.as_ptr()) };
            return Err(error);
        };
        let completions = Self { cq, channel, device: device.clone() };
        let flags = rustix::fs::fcntl_getfl(completions.fd());
        flags
            .and_then(|flags| rustix::fs::fcntl_setfl(completions.fd(), flags | OFlags::NONBLOCK))
            .map_err(|errno| RdmaError::verb("set up a completion channel", errno.into()))?;
        Ok(completions)
    }

    pub(super) fn queue(&self) -> *mut ffi::ibv_cq {
        self.cq.as_ptr()
    }

    /// The provider's functions of the data path, which the header's inline functions call.
    pub(super) fn ops(&self) -> &ffi::ibv_context_ops {
        // SAFETY: the device is open for as long as `self` holds it.
        unsafe { &(*self.device.context()).ops }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is open.
        let fd = unsafe { (*self.channel.as_ptr()).fd };
        // SAFETY: the descriptor is open for as long as the channel, and so as `self`, is.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// Takes what has completed, at most as many as there is room for. No system call.
    pub(super) fn poll(&self, into: &mut [ffi::ibv_wc]) -> Result<usize, RdmaError> {
        let room = i32::try_from(into.len()).unwrap_or(i32::MAX);
        let Some(poll_cq) = self.ops().poll_cq else { return Err(RdmaError::NoLibrary) };
        // SAFETY: the queue lives and there is room for as many completions as told.
        let count = unsafe { poll_cq(self.cq.as_ptr(), room, into.as_mut_ptr()) };
        usize::try_from(count).map_err(|_| RdmaError::last("poll a completion queue"))
    }

    /// Asks to be woken by the next completion. What completed before is not told of: poll after this.
    pub(super) fn arm(&self) -> Result<(), RdmaError> {
        let Some(notify) = self.ops().req_notify_cq else { return Err(RdmaError::NoLibrary) };
        // SAFETY: the queue lives.
        RdmaError::check("arm a completion queue", unsafe { notify(self.cq.as_ptr(), 0) })
    }

    /// Sleeps until a completion after [`Self::arm`], for at most `time`. May wake for nothing.
    pub(super) fn sleep(&self, time: Duration) -> Result<(), RdmaError> {
        self.sleep_beside(&mut [PollFd::from_borrowed_fd(self.fd(), PollFlags::IN)], time)
    }

    /// Sleeps until a completion after [`Self::arm`], or until `other` ends or has bytes. True: it did. May wake for
    /// nothing.
    pub(super) fn sleep_or(&self, other: BorrowedFd<'_>, time: Duration) -> Result<bool, RdmaError> {
        let mut fds = [
            PollFd::from_borrowed_fd(self.fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(other, PollFlags::IN | PollFlags::RDHUP),
        ];
        self.sleep_beside(&mut fds, time)?;
        Ok(!fds[1].revents().is_empty())
    }

    /// The first of `fds` is ours.
    fn sleep_beside(&self, fds: &mut [PollFd<'_>], time: Duration) -> Result<(), RdmaError> {
        let time = Timespec::try_from(time).unwrap_or(Timespec { tv_sec: i64::from(i32::MAX), tv_nsec: 0 });
        match poll(fds, Some(&time)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => Ok(()),
            Ok(_) => {
                self.acknowledge();
                Ok(())
            }
            Err(errno) => Err(RdmaError::verb("wait for a completion", errno.into())),
        }
    }

    /// Takes the event of a completion, if there is one. True: there was.
    pub(super) fn acknowledge(&self) -> bool {
        let (mut cq, mut of_cq) = (null_mut(), null_mut());
        // SAFETY: the channel is open and does not block; both are places for a pointer.
        let none = unsafe { ffi::ibv_get_cq_event(self.channel.as_ptr(), &raw mut cq, &raw mut of_cq) };
        if none == 0 {
            // SAFETY: the one event that was taken is of our queue, the only one on the channel.
            unsafe { ffi::ibv_ack_cq_events(self.cq.as_ptr(), 1) };
        }
        none == 0
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        // SAFETY: ours; all queue pairs that use it held it, so they are gone, and all events were acknowledged.
        let of_queue = unsafe { ffi::ibv_destroy_cq(self.cq.as_ptr()) };
        // SAFETY: ours, and its queue is gone.
        let of_channel = unsafe { ffi::ibv_destroy_comp_channel(self.channel.as_ptr()) };
        if of_queue != 0 || of_channel != 0 {
            tracing::warn!(of_queue, of_channel, "cannot destroy a completion queue");
        }
    }
}

impl fmt::Debug for Completions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Completions")
    }
}
