//! The stores that a run can drive, behind one small interface, so that the workload, the verification and the
//! measuring are the same for all: only the path differs.

mod bare_read;
mod floor;
mod local;
mod memcached;
mod own;
mod peer;
mod redis;
mod sidestep;
mod wire;

use std::ops::{AddAssign, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use bare_read::BareRead;
pub use floor::{Echo, Memcpy};
pub use local::Local;
pub use memcached::Memcached;
pub use own::OwnServer;
pub use peer::{Peer, PeerKind, is_loopback};
pub use redis::Redis;
pub use sidestep::{Credentials, PathReport, ServerAddress, Sidestep, paths_of};

/// Why a store did not do what it was asked.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct TargetError(pub String);

impl TargetError {
    /// From anything that says what is wrong.
    pub fn new(reason: impl std::fmt::Display) -> Self {
        Self(reason.to_string())
    }
}

/// Who did the work of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Route {
    /// A map in this process.
    Local,
    /// This process, in the server's memory.
    Shm,
    /// The server's CPU, over a socket.
    Tcp,
    /// The NIC.
    Rdma,
    /// The server's CPU, over a queue pair.
    RdmaRpc,
}

impl Route {
    /// Every route, in the order of their discriminants.
    pub const ALL: [Self; 5] = [Self::Local, Self::Shm, Self::Tcp, Self::Rdma, Self::RdmaRpc];

    /// What the column "served by" says.
    #[must_use]
    pub fn served_by(self) -> &'static str {
        match self {
            Self::Local => "this process",
            Self::Shm => "client CPU",
            Self::Tcp => "server CPU",
            Self::Rdma => "client NIC",
            Self::RdmaRpc => "server CPU (queue pair)",
        }
    }
}

/// What comes back with a value or for a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Version of the item; 0 where the store has none.
    pub version: u64,
    /// Who did the work.
    pub route: Route,
}

/// What the operations of a connection took beside their answers, as sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effort {
    /// Lookups that had to look again, and requests that were sent again.
    pub retries: u64,
    /// Lost connections that were got back.
    pub reconnects: u64,
    /// Bytes of requests: what was handed to the socket or the queue pair.
    pub bytes_sent: u64,
    /// Bytes of replies, and of one-sided READs.
    pub bytes_received: u64,
}

impl Effort {
    /// Sent and received.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.bytes_sent + self.bytes_received
    }
}

impl AddAssign for Effort {
    fn add_assign(&mut self, other: Self) {
        self.retries += other.retries;
        self.reconnects += other.reconnects;
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
    }
}

impl Sub for Effort {
    type Output = Self;
    fn sub(self, before: Self) -> Self {
        Self {
            retries: self.retries.saturating_sub(before.retries),
            reconnects: self.reconnects.saturating_sub(before.reconnects),
            bytes_sent: self.bytes_sent.saturating_sub(before.bytes_sent),
            bytes_received: self.bytes_received.saturating_sub(before.bytes_received),
        }
    }
}

/// The end of a request that was submitted under `tag`.
#[derive(Debug)]
pub struct Completion<'a> {
    /// As submitted.
    pub tag: usize,
    /// The value and its reply, none of an absent key; of a write, an empty value.
    pub outcome: Result<Option<(&'a [u8], Reply)>, TargetError>,
}

/// Takes a read of a batch: its place, and what was found.
pub type EachRead<'e> = &'e mut (dyn FnMut(usize, Option<(&[u8], Reply)>) + 'e);
/// Takes what has ended.
pub type EachCompletion<'e> = &'e mut (dyn FnMut(Completion<'_>) + 'e);

/// One connection to a store, used by one thread.
pub trait Connection: Send {
    /// Reads a value into `value`, whose memory is used again. `None`: absent.
    ///
    /// # Errors
    /// What the store says.
    fn read(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<Option<Reply>, TargetError>;

    /// Writes a value.
    ///
    /// # Errors
    /// What the store says.
    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<Reply, TargetError>;

    /// Reads many keys at once, handing over each with its place in `keys`, in any order.
    ///
    /// # Errors
    /// What the store says; some may have been handed over.
    fn read_batch(&mut self, keys: &[&[u8]], each: EachRead<'_>) -> Result<(), TargetError>;

    /// Submits a read under `tag`, which must be below the depth that the connection was opened with and free.
    ///
    /// # Errors
    /// What the store says.
    fn submit_read(&mut self, tag: usize, key: &[u8]) -> Result<(), TargetError>;

    /// Submits a write, as [`Connection::submit_read`].
    ///
    /// # Errors
    /// What the store says.
    fn submit_write(&mut self, tag: usize, key: &[u8], value: &[u8]) -> Result<(), TargetError>;

    /// Sends what was submitted and hands out what has ended: with `wait`, at least one, if anything is in flight.
    ///
    /// # Errors
    /// The connection is lost.
    fn complete(&mut self, wait: bool, each: EachCompletion<'_>) -> Result<(), TargetError>;

    /// What its operations took so far. Asked twice in a run; nothing where there is no wire.
    fn effort(&mut self) -> Effort {
        Effort::default()
    }
}

/// A store as another machine is told of it. Tokens do not travel: whoever opens it has its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "store")]
pub enum RemoteStore {
    /// A server of Sidestep.
    Sidestep {
        /// `HOST:PORT`.
        address: String,
        /// `tcp`, `shm`, …
        path: String,
        /// Entries of the location cache of each session.
        location_cache: usize,
        /// Whether to poll the socket instead of sleeping in it.
        spin: bool,
    },
    /// memcached.
    Memcached {
        /// `HOST:PORT`.
        address: String,
    },
    /// A server of the Redis protocol.
    Redis {
        /// `HOST:PORT`.
        address: String,
    },
}

impl RemoteStore {
    /// Path or peer, and where.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Sidestep { address, path, .. } => format!("{path} to {address}"),
            Self::Memcached { address } => format!("memcached at {address}"),
            Self::Redis { address } => format!("redis at {address}"),
        }
    }

    /// Opens it; `credentials` are for a server of Sidestep.
    ///
    /// # Errors
    /// It cannot be reached, or the path cannot be had.
    pub fn open(&self, credentials: &Credentials) -> Result<Box<dyn Target>, TargetError> {
        Ok(match self {
            Self::Sidestep { address, path, location_cache, spin } => {
                let Credentials { token, tls } = credentials.clone();
                let (address, location_cache, spin) = (address.clone(), *location_cache, *spin);
                let server = ServerAddress { address, token, tls, location_cache, spin };
                Box::new(Sidestep::connect(&server, path)?)
            }
            Self::Memcached { address } => Box::new(Memcached::new(Peer::running(address))?),
            Self::Redis { address } => Box::new(Redis::new(Peer::running(address))?),
        })
    }
}

/// A store under test.
pub trait Target: Send + Sync {
    /// Name of the row: `shm`, `tcp`, `local`, `memcached` …
    fn name(&self) -> &str;

    /// What else to say of it: version, address, how it was started.
    fn about(&self) -> String;

    /// Who does the work of a read, unless something is in the way.
    fn route(&self) -> Route;

    /// Opens a connection with room for `depth` requests in flight.
    ///
    /// # Errors
    /// The store cannot be reached, or the path cannot be had.
    fn connect(&self, depth: usize) -> Result<Box<dyn Connection>, TargetError>;

    /// User and system time that the server's process has used since it started; `None` when there is none
    /// or it cannot be known.
    fn server_cpu(&self) -> Option<Duration>;

    /// Whether the server's process runs on this machine.
    fn is_on_this_host(&self) -> bool {
        true
    }

    /// How another process can open the same store; none where it lives in this process.
    fn remote(&self) -> Option<RemoteStore> {
        None
    }

    /// Whether an operation is a matter of nanoseconds, so that reading the clock for each would be most of it.
    fn is_memory(&self) -> bool {
        false
    }

    /// Memory that the store has in use for its entries and index, where it can tell.
    ///
    /// # Errors
    /// The store cannot be asked.
    fn memory_in_use(&self) -> Result<Option<u64>, TargetError> {
        Ok(None)
    }
}
