//! Receive buffers that all channels of an exchange share.
//!
//! A message takes the next buffer, whichever channel it is for, so that buffers are not bound to channels that are
//! quiet. The queue holds as many as all channels have given credits for: no channel that keeps to its credits finds it
//! empty.

use std::fmt;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use ibverbs_sys as ffi;

use super::super::completions::Completions;
use super::super::{Buffer, BufferPool, Domain, RdmaError};
use super::MESSAGE_BYTES;

/// Set in the ids of receives, and in no other request's.
pub(super) const RECEIVE: u64 = 1 << 63;

/// A shared receive queue.
pub(in super::super) struct SharedQueue {
    srq: NonNull<ffi::ibv_srq>,
    // After `srq` is destroyed.
    completions: Arc<Completions>,
    _domain: Domain,
}

// SAFETY: libibverbs is thread safe (ibverbs(7)); the queue is destroyed once, by the owner's drop.
unsafe impl Send for SharedQueue {}
// SAFETY: as above.
unsafe impl Sync for SharedQueue {}

impl SharedQueue {
    fn new(domain: &Domain, completions: &Arc<Completions>, receives: u32) -> Result<Self, RdmaError> {
        let attr = ffi::ibv_srq_attr { max_wr: receives, max_sge: 1, srq_limit: 0 };
        let mut attr = ffi::ibv_srq_init_attr { srq_context: null_mut(), attr };
        // SAFETY: the domain lives, and is held for as long as the queue.
        let srq = unsafe { ffi::ibv_create_srq(domain.pd(), &raw mut attr) };
        let srq = NonNull::new(srq).ok_or_else(|| RdmaError::last("create a shared receive queue"))?;
        Ok(Self { srq, completions: completions.clone(), _domain: domain.clone() })
    }

    pub(in super::super) fn queue(&self) -> *mut ffi::ibv_srq {
        self.srq.as_ptr()
    }

    /// # Safety
    /// The buffer stays the device's own until the receive has completed or the queue is destroyed.
    unsafe fn post(&self, id: u64, buffer: &Buffer) -> Result<(), RdmaError> {
        let Some(post) = self.completions.ops().post_srq_recv else { return Err(RdmaError::NoLibrary) };
        let (addr, lkey) = buffer.target();
        let mut target = ffi::ibv_sge { addr, length: MESSAGE_BYTES as u32, lkey };
        let mut request = ffi::ibv_recv_wr { wr_id: id, next: null_mut(), sg_list: &raw mut target, num_sge: 1 };
        let mut refused = null_mut();
        // SAFETY: the queue lives, the request is one of a buffer of this length; the rest is the caller's promise.
        let failed = unsafe { post(self.srq.as_ptr(), &raw mut request, &raw mut refused) };
        RdmaError::check("post a receive buffer", failed)
    }
}

impl Drop for SharedQueue {
    fn drop(&mut self) {
        // SAFETY: ours; all queue pairs that use it held it, so they are gone.
        let failed = unsafe { ffi::ibv_destroy_srq(self.srq.as_ptr()) };
        if failed != 0 {
            tracing::warn!(errno = failed, "cannot destroy a shared receive queue");
        }
    }
}

/// The queue and the buffers in it, each the device's own until its receive has completed.
pub(super) struct Receives {
    /// None once it is destroyed.
    queue: Option<Arc<SharedQueue>>,
    pool: BufferPool,
    /// By the ids of their receives.
    posted: Vec<Option<Buffer>>,
    free: Vec<usize>,
    /// Buffers that should be in the queue or with a channel.
    wanted: usize,
    /// Those that are.
    held: usize,
}

impl Receives {
    pub(super) fn new(
        domain: &Domain,
        pool: &BufferPool,
        completions: &Arc<Completions>,
        most: u32,
    ) -> Result<Self, RdmaError> {
        let queue = Some(Arc::new(SharedQueue::new(domain, completions, most)?));
        Ok(Self { queue, pool: pool.clone(), posted: Vec::new(), free: Vec::new(), wanted: 0, held: 0 })
    }

    pub(super) fn queue(&self) -> Result<&Arc<SharedQueue>, RdmaError> {
        self.queue.as_ref().ok_or(RdmaError::NoLibrary)
    }

    /// Makes room for `count` more messages under way.
    pub(super) fn grow(&mut self, count: u32) -> Result<(), RdmaError> {
        self.wanted += count as usize;
        while self.held < self.wanted {
            let buffer = self.pool.take(MESSAGE_BYTES)?;
            self.held += 1;
            self.post(buffer)?;
        }
        Ok(())
    }

    /// As many fewer. Buffers leave as they come back.
    pub(super) fn shrink(&mut self, count: u32) {
        self.wanted = self.wanted.saturating_sub(count as usize);
    }

    /// The buffer of a receive that has completed. None: no such receive was posted.
    pub(super) fn take(&mut self, id: u64) -> Option<Buffer> {
        let index = usize::try_from(id & !RECEIVE).ok()?;
        let buffer = self.posted.get_mut(index)?.take();
        self.free.extend(buffer.is_some().then_some(index));
        buffer
    }

    /// A buffer is of no more use to the channel that it came for.
    pub(super) fn give_back(&mut self, buffer: Buffer) -> Result<(), RdmaError> {
        if self.held > self.wanted {
            self.held -= 1;
            return Ok(());
        }
        self.post(buffer)
    }

    fn post(&mut self, buffer: Buffer) -> Result<(), RdmaError> {
        let index = self.free.pop().unwrap_or_else(|| {
            self.posted.push(None);
            self.posted.len() - 1
        });
        let buffer = self.posted[index].insert(buffer);
        let Some(queue) = &self.queue else { return Err(RdmaError::NoLibrary) };
        // SAFETY: the buffer is in the table from here on, and leaves it with the receive's completion, or after the
        // queue is destroyed.
        unsafe { queue.post(RECEIVE | index as u64, buffer) }
    }

    /// Destroys the queue, if nothing else holds it. False: buffers may still be written to.
    pub(super) fn destroy(&mut self) -> bool {
        self.queue.take().is_none_or(|queue| Arc::into_inner(queue).is_some())
    }

    /// The device may still write into the buffers: they must not be used again.
    pub(super) fn forget(&mut self) {
        std::mem::forget(std::mem::take(&mut self.posted));
    }
}

impl fmt::Debug for Receives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receives").field("wanted", &self.wanted).field("held", &self.held).finish_non_exhaustive()
    }
}
