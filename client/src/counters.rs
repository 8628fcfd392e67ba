//! What a client counts, by session, so that the data path shares no cache line.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

macro_rules! counters {
    ($($variant:ident $name:literal,)*) => {
        /// One counter of a session.
        #[cfg_attr(not(feature = "rdma"), allow(dead_code))]
        #[derive(Clone, Copy, Debug)]
        pub(crate) enum Count { $($variant,)* }
        /// Names in the order of [`Count`].
        const NAMES: &[&str] = &[$($name,)*];
    };
}

counters! {
    TcpGetFound "tcp_get_found",
    TcpGetAbsent "tcp_get_absent",
    TcpPutOk "tcp_put_ok",
    TcpDeleteOk "tcp_delete_ok",
    TcpDeleteAbsent "tcp_delete_absent",
    TcpVersionMismatch "tcp_version_mismatch",
    TcpOtherErrors "tcp_other_errors",
    RpcGetFound "rdma_rpc_get_found",
    RpcGetAbsent "rdma_rpc_get_absent",
    RpcPutOk "rdma_rpc_put_ok",
    RpcDeleteOk "rdma_rpc_delete_ok",
    RpcDeleteAbsent "rdma_rpc_delete_absent",
    RpcVersionMismatch "rdma_rpc_version_mismatch",
    RpcOtherErrors "rdma_rpc_other_errors",
    ShmGetFound "shm_get_found",
    ShmGetAbsent "shm_get_absent",
    ShmAsks "shm_asks_server",
    ShmRetriesDirectory "shm_retries_stale_directory",
    ShmRetriesTorn "shm_retries_torn",
    ShmRetriesPending "shm_retries_pending",
    ShmRetriesLocation "shm_retries_stale_location",
    ShmHops "shm_forward_hops",
    ShmCollisions "shm_collisions_looked_at_twice",
    ShmExpired "shm_get_expired",
    RdmaGetFound "rdma_get_found",
    RdmaGetAbsent "rdma_get_absent",
    RdmaAsks "rdma_asks_server",
    RdmaReads "rdma_reads",
    RdmaReadBytes "rdma_read_bytes",
    RdmaErrors "rdma_errors",
    RdmaRetriesDirectory "rdma_retries_stale_directory",
    RdmaRetriesTorn "rdma_retries_torn",
    RdmaRetriesPending "rdma_retries_pending",
    RdmaRetriesLocation "rdma_retries_stale_location",
    RdmaHops "rdma_forward_hops",
    RdmaCollisions "rdma_collisions_looked_at_twice",
    CacheHits "location_cache_hits",
    CacheMisses "location_cache_misses",
    CacheDropped "location_cache_dropped",
    NotLent "values_not_lent",
    BytesSent "bytes_sent",
    BytesReceived "bytes_received",
    ConnectionsLost "connections_lost",
    Reconnects "reconnects",
    SessionsResumed "sessions_resumed",
    Replayed "requests_replayed",
    OutcomesUnknown "outcomes_unknown",
    Fallbacks "path_fallbacks",
    PathsRegained "paths_regained",
    UsesReported "uses_reported",
}

/// What makes a lookup look again, and a request be sent again.
const RETRIES: [Count; 11] = [
    Count::ShmRetriesDirectory,
    Count::ShmRetriesTorn,
    Count::ShmRetriesPending,
    Count::ShmRetriesLocation,
    Count::ShmCollisions,
    Count::RdmaRetriesDirectory,
    Count::RdmaRetriesTorn,
    Count::RdmaRetriesPending,
    Count::RdmaRetriesLocation,
    Count::RdmaCollisions,
    Count::Replayed,
];

/// What a session's operations took beside their answers, since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effort {
    /// Times that a lookup in the server's memory had to look again: an old directory entry or cached location, an item
    /// that was torn or being written, another key's item with the same fingerprint. And requests that were sent again
    /// over a new connection.
    pub retries: u64,
    /// Lost connections that were got back.
    pub reconnects: u64,
    /// Bytes of frames sent, over a socket or in messages.
    pub bytes_sent: u64,
    /// Bytes of frames received, and of one-sided READs. What `shm` copies out of the server's memory is none of them.
    pub bytes_received: u64,
}

/// Counters of one session. Only its thread writes; anyone may read.
#[derive(Debug)]
pub(crate) struct Counters([AtomicU64; NAMES.len()]);

impl Counters {
    fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    /// A plain add: there is one writer.
    pub(crate) fn add(&self, count: Count, n: u64) {
        let word = &self.0[count as usize];
        word.store(word.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self, count: Count) -> u64 {
        self.0[count as usize].load(Ordering::Relaxed)
    }

    fn sum(&self, counts: &[Count]) -> u64 {
        counts.iter().map(|count| self.get(*count)).sum()
    }

    pub(crate) fn effort(&self) -> Effort {
        Effort {
            retries: self.sum(&RETRIES),
            reconnects: self.get(Count::Reconnects),
            bytes_sent: self.get(Count::BytesSent),
            bytes_received: self.sum(&[Count::BytesReceived, Count::RdmaReadBytes]),
        }
    }
}

/// The counters of a client's sessions, those that are gone included.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    inner: Mutex<Sessions>,
}

#[derive(Debug, Default)]
struct Sessions {
    live: Vec<Arc<Counters>>,
    gone: Option<Box<Counters>>,
}

impl Registry {
    pub(crate) fn enter(&self) -> Arc<Counters> {
        let counters = Arc::new(Counters::new());
        self.inner.lock().live.push(counters.clone());
        counters
    }

    /// Keeps the sums of a session that ends.
    pub(crate) fn leave(&self, counters: &Arc<Counters>) {
        let mut inner = self.inner.lock();
        inner.live.retain(|other| !Arc::ptr_eq(other, counters));
        let gone = inner.gone.get_or_insert_with(|| Box::new(Counters::new()));
        for (sum, word) in gone.0.iter().zip(&counters.0) {
            sum.fetch_add(word.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Name and sum of every counter, in a stable order.
    pub(crate) fn sums(&self) -> Vec<(String, u64)> {
        let inner = self.inner.lock();
        let all = || inner.live.iter().map(Arc::as_ref).chain(inner.gone.as_deref());
        NAMES
            .iter()
            .enumerate()
            .map(|(i, name)| ((*name).to_owned(), all().map(|c| c.0[i].load(Ordering::Relaxed)).sum()))
            .collect()
    }
}

/// Counters of the server and of this client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Of the server, by name in its order.
    pub server: Vec<(String, u64)>,
    /// Of the server's build: `version`, `commit`, `rustc`, `features`.
    pub facts: Vec<(String, String)>,
    /// Of this client, all its sessions summed, by name.
    pub client: Vec<(String, u64)>,
}

impl Stats {
    /// A counter of the server.
    pub fn server(&self, name: &str) -> Option<u64> {
        find(&self.server, name)
    }

    /// A counter of this client.
    pub fn client(&self, name: &str) -> Option<u64> {
        find(&self.client, name)
    }
}

fn find(counters: &[(String, u64)], name: &str) -> Option<u64> {
    counters.iter().find(|(other, _)| other == name).map(|(_, value)| *value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_outlive_sessions() {
        let registry = Registry::default();
        let (a, b) = (registry.enter(), registry.enter());
        a.add(Count::Reconnects, 2);
        b.add(Count::Reconnects, 3);
        registry.leave(&a);
        assert_eq!(a.get(Count::Reconnects), 2);
        let stats = Stats { client: registry.sums(), ..Stats::default() };
        assert_eq!(stats.client("reconnects"), Some(5));
        assert_eq!(stats.client("no_such"), None);
    }
}
