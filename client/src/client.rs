//! The client: what sessions share, and a pool of them for callers that have none of their own.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sidestep_core::handshake::Welcome;
use tracing::{info, warn};

use crate::counters::{Registry, Stats};
use crate::error::Error;
use crate::options::{Options, Path, PutOptions};
use crate::session::Session;
use crate::shm::{NoView, View};
use crate::value::{Meta, Value};
use crate::watch::Watch;

/// Idle sessions that a client keeps for its own calls.
const POOLED_SESSIONS: usize = 64;

/// What the sessions of one client share.
pub(crate) struct Shared {
    server: String,
    options: Options,
    watch: Watch,
    registry: Registry,
    next_client_id: AtomicU64,
    view: Mutex<Option<Arc<View>>>,
    #[cfg(feature = "rdma")]
    nic: Mutex<Option<Arc<crate::rdma::Nic>>>,
    fallback_logged: AtomicBool,
    in_the_clear_logged: AtomicBool,
    left_out_logged: AtomicBool,
}

impl Shared {
    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    pub(crate) fn watch(&self) -> &Watch {
        &self.watch
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    pub(crate) fn new_client_id(&self) -> u64 {
        self.next_client_id.fetch_add(1, Ordering::Relaxed)
    }

    /// The server's memory, mapped once for all sessions.
    pub(crate) fn view(&self, welcome: &Welcome) -> Result<Arc<View>, NoView> {
        let mut shared = self.view.lock();
        if let Some(view) = shared.as_ref().filter(|view| view.is_of(welcome)) {
            return Ok(view.clone());
        }
        let view = Arc::new(View::open(welcome, self.options.connect_timeout)?);
        *shared = Some(view.clone());
        Ok(view)
    }

    /// This host's port to the server, opened once for all sessions.
    #[cfg(feature = "rdma")]
    pub(crate) fn nic(
        &self,
        open: impl FnOnce() -> Result<crate::rdma::Nic, NoView>,
    ) -> Result<Arc<crate::rdma::Nic>, NoView> {
        let mut shared = self.nic.lock();
        match &*shared {
            Some(nic) => Ok(nic.clone()),
            None => Ok(shared.insert(Arc::new(open()?)).clone()),
        }
    }

    /// The port is looked for again when it is next needed.
    #[cfg(feature = "rdma")]
    pub(crate) fn forget_nic(&self) {
        *self.nic.lock() = None;
    }

    /// Says once that another path than the preferred one is in use, until that one is back.
    pub(crate) fn log_fallback(&self, path: Path, reason: &str) {
        if !self.fallback_logged.swap(true, Ordering::Relaxed) {
            warn!(server = self.server, %path, reason, "path not available, falling back to tcp");
        }
    }

    /// Says once to who asked for TLS what it does not cover.
    pub(crate) fn log_in_the_clear(&self, path: Path) {
        if self.options.tls.is_some() && !self.in_the_clear_logged.swap(true, Ordering::Relaxed) {
            warn!(server = self.server, %path, "keys and values are not encrypted on this path: TLS covers the control connection");
        }
    }

    /// Says once to who asked for TLS why `auto` does not take `rdma`, though the server offers it.
    pub(crate) fn log_left_out(&self) {
        if self.options.tls.is_some() && !self.left_out_logged.swap(true, Ordering::Relaxed) {
            let reason =
                "TLS was asked for, and READs by rdma are not encrypted; who means it asks for the path by name";
            info!(server = self.server, reason, "the server offers rdma, auto reads by tcp");
        }
    }

    pub(crate) fn log_regained(&self, path: Path) {
        if self.fallback_logged.swap(false, Ordering::Relaxed) {
            info!(server = self.server, %path, "path is back");
        }
    }
}

/// What a server told of itself, and which paths it offers.
#[derive(Clone, Debug)]
pub struct ServerInfo {
    /// Its process id, for accounting on the same host.
    pub pid: u32,
    /// The table, for ever.
    pub table_id: u64,
    /// This start of the server.
    pub boot_id: u64,
    /// Bytes of the whole address space.
    pub memory_bytes: u64,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Largest value that it takes.
    pub max_value_bytes: u32,
    /// Whether the table outlives the server's process.
    pub durable: bool,
    /// Its device, port and address, or why it offers no RDMA.
    pub rdma: Result<String, String>,
    /// This host's address on the control connection; none while that is lost.
    pub local_address: Option<SocketAddr>,
    /// Each path and, where the server or this client cannot have it, why not.
    pub paths: Vec<(Path, Result<(), String>)>,
}

/// The port of this host that the RDMA paths use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// Device, port, link layer, GID, MTU, speed, for a person.
    pub description: String,
    /// Whether a CPU does the device's work (Soft-RoCE): it shows function, and no speed of RDMA.
    pub is_software: bool,
}

/// A server, as many threads may use it. Cheap to clone: clones share everything.
///
/// Its own calls borrow a session from a pool (a lock and, the first time, a connection). A thread that
/// makes many calls takes a [`Session`] of its own.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
    pool: Arc<Mutex<Vec<Session>>>,
}

impl Client {
    /// Connects, authenticates, and gets the path that the options ask for.
    ///
    /// `server` is `HOST`, `HOST:PORT`, `[IPV6]:PORT`; the default port is 7411.
    pub fn connect(server: impl Into<String>, options: Options) -> Result<Self, Error> {
        let server = server.into();
        let unreachable = |source| Error::Unreachable { server: server.clone(), source: Arc::new(source) };
        let first_id = match options.client_id {
            Some(id) => id,
            None => getrandom::u64().map_err(|error| unreachable(error.into()))?,
        };
        let watch = Watch::start().map_err(unreachable)?;
        let shared = Arc::new(Shared {
            server,
            options,
            watch,
            registry: Registry::default(),
            next_client_id: AtomicU64::new(first_id),
            view: Mutex::default(),
            #[cfg(feature = "rdma")]
            nic: Mutex::default(),
            fallback_logged: AtomicBool::new(false),
            in_the_clear_logged: AtomicBool::new(false),
            left_out_logged: AtomicBool::new(false),
        });
        let first = Session::connect(shared.clone())?;
        Ok(Self { shared, pool: Arc::new(Mutex::new(vec![first])) })
    }

    /// A session for one thread: its own connection, buffers and location cache.
    pub fn session(&self) -> Result<Session, Error> {
        match self.pooled() {
            Some(session) => Ok(session),
            None => Session::connect(self.shared.clone()),
        }
    }

    fn pooled(&self) -> Option<Session> {
        self.pool.lock().pop()
    }

    /// Runs one call on a session of the pool.
    fn with<R>(&self, call: impl FnOnce(&mut Session) -> Result<R, Error>) -> Result<R, Error> {
        let mut session = self.session()?;
        let result = call(&mut session);
        let mut pool = self.pool.lock();
        if pool.len() < POOLED_SESSIONS {
            pool.push(session);
        }
        result
    }

    /// What the server told of itself when a session last connected.
    pub fn server_info(&self) -> Result<ServerInfo, Error> {
        self.with(|session| Ok(session.server_info()))
    }

    /// The path that reads take now.
    pub fn path(&self) -> Result<Path, Error> {
        self.with(|session| Ok(session.path()))
    }

    /// The port of this host that `rdma` and `rdma-rpc` use; none until a session has used one of them.
    pub fn port(&self) -> Option<PortInfo> {
        #[cfg(feature = "rdma")]
        return self.shared.nic.lock().as_ref().map(|nic| nic.info());
        #[cfg(not(feature = "rdma"))]
        None
    }

    /// See [`Session::get`].
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>, Error> {
        self.with(|session| session.get(key))
    }

    /// See [`Session::get_into`].
    pub fn get_into(&self, key: impl AsRef<[u8]>, into: &mut Vec<u8>) -> Result<Option<Meta>, Error> {
        self.with(|session| session.get_into(key, into))
    }

    /// See [`Session::multi_get`].
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Value>>, Error> {
        self.with(|session| session.multi_get(keys))
    }

    /// See [`Session::put`].
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<u64, Error> {
        self.with(|session| session.put(key, value))
    }

    /// See [`Session::put_if`].
    pub fn put_if(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, expect: u64) -> Result<u64, Error> {
        self.with(|session| session.put_if(key, value, expect))
    }

    /// See [`Session::put_with`].
    pub fn put_with(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, options: PutOptions) -> Result<u64, Error> {
        self.with(|session| session.put_with(key, value, options))
    }

    /// See [`Session::multi_put`].
    pub fn multi_put<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: &[(K, V)],
    ) -> Result<Vec<Result<u64, Error>>, Error> {
        self.with(|session| session.multi_put(pairs))
    }

    /// See [`Session::delete`].
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<bool, Error> {
        self.with(|session| session.delete(key))
    }

    /// See [`Session::delete_if`].
    pub fn delete_if(&self, key: impl AsRef<[u8]>, expect: u64) -> Result<bool, Error> {
        self.with(|session| session.delete_if(key, expect))
    }

    /// See [`Session::stats`].
    pub fn stats(&self) -> Result<Stats, Error> {
        self.with(Session::stats)
    }

    /// See [`Session::ping`].
    pub fn ping(&self) -> Result<Duration, Error> {
        self.with(Session::ping)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("server", &self.shared.server)
            .field("options", &self.shared.options)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_threads_may_do_with_what() {
        fn is_send<T: Send>() {}
        fn is_sync<T: Sync>() {}
        is_send::<Client>();
        is_sync::<Client>();
        is_send::<Session>();
        is_send::<Error>();
        is_sync::<Value>();
    }
}
