//! Buffers that a NIC may write to, or that a peer may read.
//!
//! A [`Buffer`] has one owner at any time: whoever fills or reads it, or, while a READ into it is under way, the
//! queue pair's in-flight table. So the bytes of a buffer that somebody holds do not change.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ibverbs_sys::ibv_access_flags;
use memmap2::{MmapOptions, MmapRaw};
use parking_lot::Mutex;

use super::memory::Registered;
use super::{Domain, RdmaError};

/// The smallest buffer.
const SMALLEST_BYTES: usize = 256;
/// Classes from one power of two to the next: a buffer is a quarter longer than what is asked for at most.
const STEPS: usize = 4;
/// Buffers are registered so many bytes at a time where they are smaller.
const SLAB_BYTES: usize = 256 << 10;
const CLASSES: usize = 40 * STEPS;

/// Buffers by size class. Cheap to clone; buffers may outlive it.
#[derive(Clone)]
pub struct BufferPool(Arc<Shared>);

struct Shared {
    domain: Domain,
    access: ibv_access_flags,
    /// Buffers that are not in use, by class. The locks are for those that come back from other threads.
    free: [Mutex<Vec<Slot>>; CLASSES],
    /// Registered so far, and how much of that is kept when it comes back.
    registered_bytes: AtomicUsize,
    keep_bytes: usize,
}

/// A buffer's place in registered memory.
struct Slot {
    memory: Arc<Registered>,
    offset: usize,
    bytes: usize,
    /// Whether it goes back to the pool.
    is_kept: bool,
}

fn class_of(bytes: usize) -> usize {
    let most = bytes.max(SMALLEST_BYTES) - 1;
    let shift = most.ilog2() - STEPS.ilog2();
    let first_shift = SMALLEST_BYTES.ilog2() - STEPS.ilog2() - 1;
    (shift - first_shift) as usize * STEPS + (most >> shift) - STEPS
}

fn class_bytes(class: usize) -> usize {
    let first_shift = (SMALLEST_BYTES.ilog2() - STEPS.ilog2() - 1) as usize;
    (STEPS + class % STEPS + 1) << (class / STEPS + first_shift)
}

impl BufferPool {
    /// An empty pool that keeps about `keep_bytes` registered; what is taken beyond that is given up on return.
    pub fn new(domain: &Domain, keep_bytes: usize) -> Self {
        Self::with_access(domain, keep_bytes, ibv_access_flags::IBV_ACCESS_LOCAL_WRITE)
    }

    /// As [`Self::new`], of buffers that peers of the domain's queue pairs may read, for as long as they are registered.
    pub fn lent(domain: &Domain, keep_bytes: usize) -> Self {
        Self::with_access(domain, keep_bytes, ibv_access_flags::IBV_ACCESS_REMOTE_READ)
    }

    fn with_access(domain: &Domain, keep_bytes: usize, access: ibv_access_flags) -> Self {
        let free = std::array::from_fn(|_| Mutex::default());
        let registered_bytes = AtomicUsize::new(0);
        Self(Arc::new(Shared { domain: domain.clone(), access, free, registered_bytes, keep_bytes }))
    }

    /// A buffer of at least `bytes` bytes, its contents those of its last use. Registers memory if none is free.
    pub fn take(&self, bytes: usize) -> Result<Buffer, RdmaError> {
        let class = class_of(bytes);
        if class >= CLASSES {
            return Err(RdmaError::LockedMemory {
                bytes,
                limit: format!("{} bytes in one buffer", class_bytes(CLASSES - 1)),
            });
        }
        let free = self.0.free[class].lock().pop();
        let slot = match free {
            Some(slot) => slot,
            None => self.grow(class)?,
        };
        Ok(Buffer { slot: Some(slot), class, pool: self.clone() })
    }

    /// A buffer of just these bytes, page aligned, that is registered now and given up when it is dropped.
    pub fn take_alone(&self, bytes: usize) -> Result<Buffer, RdmaError> {
        let memory = Arc::new(register(&self.0, bytes.max(1))?);
        let slot = Slot { bytes: memory.bytes(), memory, offset: 0, is_kept: false };
        Ok(Buffer { slot: Some(slot), class: 0, pool: self.clone() })
    }

    /// Whether READs of this pool's queue pairs may go into the buffer.
    pub fn has_domain_of(&self, buffer: &Buffer) -> bool {
        self.0.domain.is_same(&buffer.pool.0.domain)
    }

    fn grow(&self, class: usize) -> Result<Slot, RdmaError> {
        let each = class_bytes(class);
        let before = self.0.registered_bytes.load(Ordering::Relaxed);
        let slab = each.max(SLAB_BYTES);
        let is_kept = before.saturating_add(slab) <= self.0.keep_bytes;
        let bytes = if is_kept { slab } else { each };
        let memory = Arc::new(register(&self.0, bytes)?);
        if is_kept {
            self.0.registered_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        let slot = |offset| Slot { memory: memory.clone(), offset, bytes: each, is_kept };
        self.0.free[class].lock().extend((1..bytes / each).map(|index| slot(index * each)));
        Ok(slot(0))
    }
}

/// New zeroed memory, registered for what the pool is for.
fn register(shared: &Shared, bytes: usize) -> Result<Registered, RdmaError> {
    let map = MmapOptions::new().len(bytes).map_anon().map_err(|source| RdmaError::verb("map a buffer", source))?;
    Registered::new(&shared.domain, Arc::new(MmapRaw::from(map)), 0, bytes, shared.access)
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let registered_bytes = self.0.registered_bytes.load(Ordering::Relaxed);
        f.debug_struct("BufferPool").field("registered_bytes", &registered_bytes).finish_non_exhaustive()
    }
}

/// Registered memory of one owner. Derefs to its bytes; dropping it gives it back to its pool.
pub struct Buffer {
    /// Taken only by drop.
    slot: Option<Slot>,
    class: usize,
    pool: BufferPool,
}

impl Buffer {
    /// Whether the pool has registered all that it keeps: what is held longer costs a registration.
    pub fn is_scarce(&self) -> bool {
        let slab = class_bytes(self.class).max(SLAB_BYTES);
        self.pool.0.registered_bytes.load(Ordering::Relaxed).saturating_add(slab) > self.pool.0.keep_bytes
    }

    /// The address and key by which a peer reads it, if its pool is of those that may be read.
    pub fn lent_at(&self) -> Option<(u64, u32)> {
        let slot = self.slot.as_ref().filter(|_| self.pool.0.access == ibv_access_flags::IBV_ACCESS_REMOTE_READ)?;
        Some((self.address() as u64, slot.memory.rkey()))
    }

    fn address(&self) -> *mut u8 {
        match &self.slot {
            Some(slot) => slot.memory.address().wrapping_add(slot.offset),
            None => std::ptr::NonNull::dangling().as_ptr(),
        }
    }

    fn bytes(&self) -> usize {
        self.slot.as_ref().map_or(0, |slot| slot.bytes)
    }

    /// Some of its bytes, while a device may write to others.
    ///
    /// # Safety
    /// No work request that names any of them is under way for as long as the slice lives.
    pub(super) unsafe fn arrived(&self, at: usize, bytes: usize) -> &[u8] {
        assert!(at.checked_add(bytes).is_some_and(|end| end <= self.bytes()), "bytes outside of a buffer");
        // SAFETY: within the mapping, as of `deref`; that nobody writes to them is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.address().wrapping_add(at), bytes) }
    }

    /// What a work request names: address and local key.
    pub(super) fn target(&self) -> (u64, u32) {
        (self.address() as u64, self.slot.as_ref().map_or(0, |slot| slot.memory.lkey()))
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        debug_assert!(self.slot.as_ref().is_none_or(|slot| slot.offset + self.bytes() <= slot.memory.bytes()));
        // SAFETY: the range is within the mapping, zeroed at first, and nobody else's: no other buffer has it, and no
        // work request that names it is under way, since posting one takes the buffer away from its holder.
        unsafe { std::slice::from_raw_parts(self.address(), self.bytes()) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the holder is the only one.
        unsafe { std::slice::from_raw_parts_mut(self.address(), self.bytes()) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take().filter(|slot| slot.is_kept) {
            self.pool.0.free[self.class].lock().push(slot);
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("address", &self.address()).field("bytes", &self.bytes()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_hold_what_they_are_asked_for() {
        for bytes in [0, 1, 255, 256, 257, 320, 321, 4096, 4097, 1 << 20, (16 << 20) + 4200, 1 << 40] {
            let class = class_of(bytes);
            assert!(class_bytes(class) >= bytes && class_bytes(class).is_multiple_of(64), "{bytes}");
            assert!(class_bytes(class) <= bytes.max(SMALLEST_BYTES) * 5 / 4, "{bytes}: {}", class_bytes(class));
            assert!(bytes < SMALLEST_BYTES || class_bytes(class - 1) < bytes, "{bytes}");
        }
    }
}
