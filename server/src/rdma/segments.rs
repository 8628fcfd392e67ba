//! The segments that are registered: for READs of clients, and to be filled by READs of our own. Nobody else may write.

use parking_lot::Mutex;
use sidestep_core::memory::MemoryMut;
use sidestep_fabric::rdma::{Domain, LocalRange, RdmaError, RemoteReadable};
use sidestep_fabric::region::{Expose, Region};
use tracing::{debug, warn};

/// What is registered in the table's protection domain, by its offset. Registered for as long as the table is mapped.
#[derive(Debug)]
pub(super) struct Segments {
    domain: Domain,
    registered: Mutex<Registered>,
}

#[derive(Debug, Default)]
struct Registered {
    segments: Vec<(u64, RemoteReadable)>,
    /// Why the first one that could not be was not.
    failure: Option<String>,
}

impl Segments {
    pub(super) fn new(domain: Domain) -> Self {
        Self { domain, registered: Mutex::default() }
    }

    /// Remote address and rkey of segment 0.
    pub(super) fn root(&self) -> Option<(u64, u32)> {
        let registered = self.registered.lock();
        registered.segments.iter().find(|(offset, _)| *offset == 0).map(|(_, at)| (at.address(), at.rkey()))
    }

    /// A range of the table as a READ of our own names it. None: it is in no registered segment.
    pub(super) fn range(&self, offset: u64, bytes: usize) -> Option<LocalRange> {
        let registered = self.registered.lock();
        registered.segments.iter().find_map(|(start, at)| at.range(offset.checked_sub(*start)?, bytes))
    }

    pub(super) fn failure(&self) -> Option<String> {
        self.registered.lock().failure.clone()
    }

    fn register(&self, region: &Region, offset: u64, bytes: u64) -> Result<RemoteReadable, RdmaError> {
        // Pinning would allocate the pages too, but what there is no room for is then not an error that says so.
        region
            .allocate(offset / 8, bytes)
            .map_err(|source| RdmaError::Verb { attempt: format!("allocate a segment of {bytes} bytes"), source })?;
        self.domain.expose(region, offset, bytes)
    }
}

impl Expose for Segments {
    fn expose(&self, region: &Region, offset: u64, bytes: u64) -> Option<(u64, u32)> {
        match self.register(region, offset, bytes) {
            Ok(segment) => {
                debug!(offset, bytes, "a segment is registered");
                let at = (segment.address(), segment.rkey());
                self.registered.lock().segments.push((offset, segment));
                Some(at)
            }
            Err(error) => {
                let mut registered = self.registered.lock();
                if registered.failure.is_none() {
                    warn!(%error, offset, "a segment cannot be registered: clients on rdma ask the server for what is in it");
                    registered.failure = Some(error.to_string());
                }
                None
            }
        }
    }
}
