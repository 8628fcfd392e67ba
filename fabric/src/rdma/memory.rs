//! Protection domains and registered memory.

use std::ffi::c_void;
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys as ffi;
use memmap2::MmapRaw;
use rustix::process::{Resource, getrlimit};

use super::{Device, RdmaError};
use crate::region::Region;

/// A protection domain: queue pairs of one reach the memory that is registered in it and no other. One for each
/// table on a server, one for each server on a client. Cheap to clone.
#[derive(Clone)]
pub struct Domain(Arc<Allocated>);

struct Allocated {
    pd: NonNull<ffi::ibv_pd>,
    // After `pd` is freed.
    device: Device,
}

// SAFETY: libibverbs is thread safe (ibverbs(7)), and the domain is freed once, by its owner's drop.
unsafe impl Send for Allocated {}
// SAFETY: as above.
unsafe impl Sync for Allocated {}

impl Drop for Allocated {
    fn drop(&mut self) {
        // SAFETY: all regions and queue pairs in it held a clone, so they are gone.
        let failed = unsafe { ffi::ibv_dealloc_pd(self.pd.as_ptr()) };
        if failed != 0 {
            tracing::warn!(device = self.device.name(), errno = failed, "cannot free a protection domain");
        }
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Domain").field(&self.0.device).finish()
    }
}

impl Domain {
    /// A new domain.
    pub fn new(device: &Device) -> Result<Self, RdmaError> {
        // SAFETY: the context is open.
        let pd = unsafe { ffi::ibv_alloc_pd(device.context()) };
        let pd = NonNull::new(pd).ok_or_else(|| RdmaError::last("allocate a protection domain"))?;
        Ok(Self(Arc::new(Allocated { pd, device: device.clone() })))
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(super) fn device(&self) -> &Device {
        &self.0.device
    }

    pub(super) fn pd(&self) -> *mut ffi::ibv_pd {
        self.0.pd.as_ptr()
    }

    /// Registers a range of the table's memory for READs of peers, and for READs of our own to be written to. No peer
    /// may write. Pins its pages, which are all allocated then.
    pub fn expose(&self, region: &Region, offset: u64, bytes: u64) -> Result<RemoteReadable, RdmaError> {
        let (map, offset, bytes) =
            region.mapping(offset, bytes).map_err(|source| RdmaError::verb("register", source))?;
        let access = ffi::ibv_access_flags::IBV_ACCESS_REMOTE_READ | ffi::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
        let registered = Registered::new(self, map, offset, bytes, access)?;
        Ok(RemoteReadable { registered })
    }
}

/// A part of the table's memory that peers may read, for as long as this lives.
#[derive(Debug)]
pub struct RemoteReadable {
    registered: Registered,
}

impl RemoteReadable {
    /// The address that a peer's READ names for the first byte.
    pub fn address(&self) -> u64 {
        self.registered.address() as u64
    }

    /// The key that a peer's READ must carry.
    pub fn rkey(&self) -> u32 {
        self.registered.rkey()
    }

    /// The bytes from the byte `at` of it on. None: they are not all within it.
    pub fn range(&self, at: u64, bytes: usize) -> Option<LocalRange> {
        let end = at.checked_add(bytes as u64)?;
        let lkey = self.registered.lkey();
        (end <= self.registered.bytes() as u64).then(|| LocalRange { address: self.address() + at, lkey, bytes })
    }
}

/// A part of registered memory that READs of our own may fill.
#[derive(Clone, Copy, Debug)]
pub struct LocalRange {
    pub(super) address: u64,
    pub(super) lkey: u32,
    pub(super) bytes: usize,
}

/// Registered memory, together with the mapping that it lies in.
pub(super) struct Registered {
    mr: NonNull<ffi::ibv_mr>,
    // Unmapped and freed after `mr` is gone.
    map: Arc<MmapRaw>,
    offset: usize,
    bytes: usize,
    _domain: Domain,
}

// SAFETY: libibverbs is thread safe; the memory is reached through raw pointers whose users say what may be done.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

impl Registered {
    /// `offset` and `bytes` lie within the mapping: both callers have checked it.
    pub(super) fn new(
        domain: &Domain,
        map: Arc<MmapRaw>,
        offset: usize,
        bytes: usize,
        access: ffi::ibv_access_flags,
    ) -> Result<Self, RdmaError> {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= map.len()), "a range outside of the mapping");
        if bytes as u64 > domain.device().limits().region_bytes {
            let most = domain.device().limits().region_bytes;
            let source = io::Error::other(format!("the device takes at most {most} bytes in one region"));
            return Err(RdmaError::verb(format!("register {bytes} bytes"), source));
        }
        let address = map.as_mut_ptr().wrapping_add(offset).cast::<c_void>();
        let access = i32::try_from(access.0).unwrap_or(0);
        // SAFETY: the range is mapped, and stays so until the region is deregistered: we hold the mapping.
        let mr = unsafe { ffi::ibv_reg_mr(domain.pd(), address, bytes, access) };
        let mr = NonNull::new(mr).ok_or_else(|| register_error(bytes))?;
        Ok(Self { mr, map, offset, bytes, _domain: domain.clone() })
    }

    pub(super) fn address(&self) -> *mut u8 {
        self.map.as_mut_ptr().wrapping_add(self.offset)
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Opens it to peers only as far as it was registered for that.
    pub(super) fn rkey(&self) -> u32 {
        // SAFETY: the region is registered until this is dropped.
        unsafe { (*self.mr.as_ptr()).rkey }
    }

    pub(super) fn lkey(&self) -> u32 {
        // SAFETY: the region is registered until this is dropped.
        unsafe { (*self.mr.as_ptr()).lkey }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: the region is ours and deregistered once.
        let failed = unsafe { ffi::ibv_dereg_mr(self.mr.as_ptr()) };
        if failed != 0 {
            // The device may still reach the memory: it must not become anything else.
            tracing::warn!(errno = failed, bytes = self.bytes, "cannot deregister memory; it stays mapped");
            std::mem::forget(self.map.clone());
        }
    }
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registered")
            .field("address", &self.address())
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

fn register_error(bytes: usize) -> RdmaError {
    let source = io::Error::last_os_error();
    if source.raw_os_error() != Some(libc::ENOMEM) {
        return RdmaError::verb(format!("register {bytes} bytes of memory"), source);
    }
    match getrlimit(Resource::Memlock).current {
        Some(limit) => RdmaError::LockedMemory { bytes, limit: format!("{limit} bytes") },
        // It was not the limit, then.
        None => RdmaError::verb(format!("register {bytes} bytes of memory"), source),
    }
}
