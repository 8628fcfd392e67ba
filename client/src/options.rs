//! What a caller may ask for.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::error::Error;
use crate::tls::Tls;

/// A way for a request to reach the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Path {
    /// The server's CPU answers over a socket.
    Tcp,
    /// This process reads the server's segments, mapped read-only. Same host only.
    Shm,
    /// This host's NIC reads the server's memory.
    Rdma,
    /// The server's CPU answers over a queue pair.
    RdmaRpc,
}

impl Path {
    /// Every path, fastest first.
    pub const ALL: [Self; 4] = [Self::Shm, Self::Rdma, Self::RdmaRpc, Self::Tcp];

    /// The name on command lines and in counters.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Shm => "shm",
            Self::Rdma => "rdma",
            Self::RdmaRpc => "rdma-rpc",
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Path {
    type Err = Error;
    fn from_str(name: &str) -> Result<Self, Error> {
        Self::ALL
            .into_iter()
            .find(|path| path.name() == name)
            .ok_or_else(|| Error::Options(format!("expected a path of tcp, shm, rdma or rdma-rpc, found {name:?}")))
    }
}

/// Which path to use, and what to do when it cannot be had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathMode {
    /// `shm` on the server's host, else `rdma` (not over TLS, since RDMA is not encrypted), else `tcp`.
    #[default]
    Auto,
    /// This path; where it cannot be had, `tcp`, which is logged once and counted, and the path is tried again.
    Prefer(Path),
    /// This path or [`Error::PathUnavailable`].
    Require(Path),
}

/// Options of a [`Client`](crate::Client). Every field has a default; the methods chain.
///
/// ```
/// use std::time::Duration;
/// use sidestep_client::{Options, Path, PathMode};
///
/// let options = Options::default()
///     .path(PathMode::Prefer(Path::Shm))
///     .location_cache(1 << 16)
///     .request_timeout(Duration::from_secs(2));
/// # let _ = options;
/// ```
#[derive(Clone)]
pub struct Options {
    pub(crate) path: PathMode,
    pub(crate) token: Vec<u8>,
    pub(crate) tls: Option<Tls>,
    pub(crate) connect_timeout: Duration,
    pub(crate) request_timeout: Duration,
    pub(crate) reconnect_timeout: Duration,
    pub(crate) location_cache: usize,
    pub(crate) spin: bool,
    #[cfg_attr(not(feature = "rdma"), allow(dead_code))]
    pub(crate) device: String,
    #[cfg_attr(not(feature = "rdma"), allow(dead_code))]
    pub(crate) queue_depth: u32,
    #[cfg_attr(not(feature = "rdma"), allow(dead_code))]
    pub(crate) buffer_pool_bytes: usize,
    pub(crate) path_pause: Duration,
    pub(crate) client_id: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            path: PathMode::Auto,
            token: Vec::new(),
            tls: None,
            connect_timeout: Duration::from_secs(3),
            request_timeout: Duration::from_secs(10),
            reconnect_timeout: Duration::from_secs(5),
            location_cache: 0,
            spin: false,
            device: "auto".to_owned(),
            queue_depth: 128,
            buffer_pool_bytes: 64 << 20,
            path_pause: Duration::from_secs(30),
            client_id: None,
        }
    }
}

impl Options {
    /// Which path to use. Default: [`PathMode::Auto`].
    pub fn path(mut self, mode: PathMode) -> Self {
        self.path = mode;
        self
    }

    /// The secret shared with the server. Default: none.
    pub fn token(mut self, token: impl Into<Vec<u8>>) -> Self {
        self.token = token.into();
        self
    }

    /// Encrypts control connections and all that travels on `tcp`; the server must have TLS too. Default: none.
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Longest time for one attempt to connect, handshake included. Default: 3 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Longest time that a call waits on a connection that brings nothing. Default: 10 s.
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// Longest time that a call tries to get a lost connection back. Zero: one attempt. Default: 5 s.
    pub fn reconnect_timeout(mut self, timeout: Duration) -> Self {
        self.reconnect_timeout = timeout;
        self
    }

    /// Entries of each session's location cache, 24 bytes each, rounded up to a power of two; 0 = none, the default.
    /// A cached key takes one READ instead of two. Batches on `shm` look keys up without it: their READs overlap, and
    /// the cache's own misses cost more than it saves.
    pub fn location_cache(mut self, entries: usize) -> Self {
        self.location_cache = entries;
        self
    }

    /// Poll socket and completion queue instead of sleeping: a core for a shorter round trip. Default: off; on `rdma`
    /// and `rdma-rpc` it polls for 50 µs before it sleeps.
    pub fn spin(mut self, spin: bool) -> Self {
        self.spin = spin;
        self
    }

    /// The RDMA device to read with: `NAME`, `NAME/PORT`, `auto` (the one that owns the address by which the server is
    /// reached) or `none`. Default: `auto`.
    pub fn device(mut self, device: impl Into<String>) -> Self {
        self.device = device.into();
        self
    }

    /// READs that a session posts at most before it waits, as far as the device has room. Default: 128.
    pub fn queue_depth(mut self, requests: u32) -> Self {
        self.queue_depth = requests;
        self
    }

    /// Memory that each session on `rdma` keeps registered for values, more or less: as much as it has needed at a time, up
    /// to this. Values hold on to it until they are dropped; when it is used up they are copied out of it instead. A value
    /// that does not fit into it is read into memory that is registered, which means cleared and pinned, for it alone. As
    /// much again is kept, on `rdma-rpc` too, for large values that are written. Default: 64 MiB.
    pub fn buffer_pool_bytes(mut self, bytes: usize) -> Self {
        self.buffer_pool_bytes = bytes;
        self
    }

    /// How long `rdma` and `rdma-rpc` are left alone after it broke three times within 10 s. Each further time twice as long as before, at
    /// most ten times this. Default: 30 s.
    pub fn path_pause(mut self, pause: Duration) -> Self {
        self.path_pause = pause;
        self
    }

    /// The id of the first session instead of a random one; each further session's is one more.
    /// Two clients of one server must never share an id.
    pub fn client_id(mut self, id: u64) -> Self {
        self.client_id = Some(id);
        self
    }
}

/// The token is left out.
impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("path", &self.path)
            .field("has_token", &!self.token.is_empty())
            .field("tls", &self.tls)
            .field("connect_timeout", &self.connect_timeout)
            .field("request_timeout", &self.request_timeout)
            .field("reconnect_timeout", &self.reconnect_timeout)
            .field("location_cache", &self.location_cache)
            .field("spin", &self.spin)
            .field("device", &self.device)
            .field("queue_depth", &self.queue_depth)
            .field("buffer_pool_bytes", &self.buffer_pool_bytes)
            .field("path_pause", &self.path_pause)
            .field("client_id", &self.client_id)
            .finish()
    }
}

/// How to put, beyond key and value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PutOptions {
    /// Only if the key's version is this one; 0 = only if the key is absent.
    pub expect: Option<u64>,
    /// The value expires after this time, counted by the server's clock from the arrival of the request: this machine's
    /// clock has no part in it. In whole milliseconds, at least one.
    pub ttl: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_names_round_trip() {
        for path in Path::ALL {
            assert_eq!(path.name().parse::<Path>().unwrap(), path);
        }
        assert!("udp".parse::<Path>().is_err());
    }

    #[test]
    fn debug_keeps_the_token() {
        assert!(!format!("{:?}", Options::default().token("hunter2")).contains("hunter2"));
    }
}
