//! What a server is told.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use sidestep_core::limits;
use thiserror::Error;

mod options;

use crate::access::{TokenFileError, Tokens};
use crate::durable::{LogConfig, SyncMode};
use crate::size::ByteSize;
use crate::store::Eviction;
use crate::tls::{Tls, TlsFileError};
pub use options::{EvictionPolicy, LogFormat, Options, SyncPolicy};

/// Why options make no configuration.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// A file that cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A configuration file that is not one.
    #[error("cannot understand {}: {reason}", path.display())]
    Parse {
        /// Which file.
        path: PathBuf,
        /// Where and why, on one line.
        reason: String,
    },
    /// A file that gives no tokens.
    #[error(transparent)]
    Tokens(#[from] TokenFileError),
    /// Files that give no TLS.
    #[error(transparent)]
    Tls(#[from] TlsFileError),
    /// An open door that nobody has said to be meant.
    #[error(
        "anyone who reaches {address} could enter: give clients a token (--token-file FILE), encrypt connections \
         (--tls-cert FILE --tls-key FILE), or say --insecure"
    )]
    Open {
        /// What would be listened on.
        address: SocketAddr,
    },
    /// A value out of range.
    #[error("expected {expected}, found {found}")]
    Value {
        /// What would be right.
        expected: String,
        /// What was given.
        found: String,
    },
}

/// How long the server waits for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For a connection to get through the handshake.
    pub handshake: Duration,
    /// For a request to arrive whole, beside what its bytes take at 64 KiB/s.
    pub frame: Duration,
    /// For the next bytes of a value that is read from a client's memory.
    pub pull: Duration,
    /// For a client to take any byte of the replies that wait for it.
    pub send: Duration,
    /// That a session outlives its connection.
    pub session: Duration,
    /// For a client's host to give any sign of life, asked for: 1 s to 9 h.
    pub silence: Duration,
    /// For an open connection to ask for anything; None: for ever. One whose queue pair reads the table is never idle.
    pub idle: Option<Duration>,
    /// For the connections to end when the server stops.
    pub stop: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(5),
            frame: Duration::from_secs(10),
            pull: Duration::from_secs(4),
            send: Duration::from_secs(30),
            session: Duration::from_secs(60),
            silence: Duration::from_secs(120),
            idle: None,
            stop: Duration::from_secs(5),
        }
    }
}

/// Everything that [`Server::start`](crate::Server::start) needs. The defaults serve a memfd on the default port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Address to listen on, with the port; port 0 takes a free one.
    pub listen: String,
    /// Bytes of the address space. None: what an existing table has, else [`DEFAULT_MEMORY_BYTES`].
    pub memory_bytes: Option<u64>,
    /// What to do when the memory is full.
    pub eviction: Eviction,
    /// Folder of the table's file; None: a memfd.
    pub data: Option<PathBuf>,
    /// The log of all writes; None: there is none.
    pub durable: Option<LogConfig>,
    /// Worker threads, at least 1.
    pub workers: usize,
    /// Who may enter; None: anyone who reaches the port.
    pub tokens: Option<Tokens>,
    /// What connections are encrypted with; None: they are not.
    pub tls: Option<Tls>,
    /// Whether to listen beyond the loopback interface although anyone who reaches the port could enter.
    pub insecure: bool,
    /// Largest value to take.
    pub max_value_bytes: u32,
    /// Bytes of a segment, a power of two; None: by the size of the memory.
    pub segment_bytes: Option<u64>,
    /// RDMA device: `NAME`, `NAME/PORT`, `auto` (the one that has the address listened on) or `none`.
    pub device: String,
    /// Whether worker n runs on processor n alone.
    pub pin: bool,
    /// User ids, beside the server's own, whose processes may map the table.
    pub allow_uids: Vec<u32>,
    /// Connections open at once.
    pub max_connections: usize,
    /// Bytes of waiting replies and unfinished requests that all connections together may hold, at least 1 MiB.
    pub client_memory_bytes: u64,
    /// Address of metrics and health, over HTTP; None: nowhere.
    pub metrics: Option<String>,
    /// How long to wait for whom.
    pub timeouts: Timeouts,
}

/// From the smallest segment, of which a table has one at least, to what locations can name.
const MEMORY_BYTES: RangeInclusive<u64> = 256 << 10..=1 << 40;
/// Bytes of a new table's address space unless told otherwise.
pub const DEFAULT_MEMORY_BYTES: u64 = 1 << 30;

impl Default for Config {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            listen: format!("127.0.0.1:{}", limits::DEFAULT_PORT),
            memory_bytes: None,
            eviction: Eviction::None,
            data: None,
            durable: None,
            workers: (processors / 2).max(1),
            tokens: None,
            tls: None,
            insecure: false,
            max_value_bytes: limits::DEFAULT_MAX_VALUE_BYTES,
            segment_bytes: None,
            device: "auto".into(),
            pin: false,
            allow_uids: Vec::new(),
            max_connections: 16384,
            client_memory_bytes: 512 << 20,
            metrics: None,
            timeouts: Timeouts::default(),
        }
    }
}

impl Config {
    /// Whether it may be served at this address, which the one to listen on stands for.
    pub(crate) fn check_address(&self, address: SocketAddr) -> Result<(), ConfigError> {
        let is_here = address.ip().to_canonical().is_loopback();
        if is_here || self.tokens.is_some() || self.tls.is_some() || self.insecure {
            Ok(())
        } else {
            Err(ConfigError::Open { address })
        }
    }

    /// Whether the numbers make sense by themselves; those that belong to the table are checked there.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let at_least_one = [("workers", self.workers), ("connections", self.max_connections)];
        for (what, found) in at_least_one {
            if found == 0 {
                return Err(ConfigError::Value { expected: format!("{what} of at least 1"), found: found.to_string() });
            }
        }
        if let Some(found) = self.memory_bytes.filter(|bytes| !MEMORY_BYTES.contains(bytes)) {
            let expected =
                format!("--memory of {} to {}", ByteSize(*MEMORY_BYTES.start()), ByteSize(*MEMORY_BYTES.end()));
            return Err(ConfigError::Value { expected, found: ByteSize(found).to_string() });
        }
        // Nobody would be quick enough.
        let timeouts = &self.timeouts;
        let waits = [("handshake", timeouts.handshake), ("frame", timeouts.frame), ("send", timeouts.send)];
        if let Some((name, _)) = waits.iter().find(|(_, time)| time.is_zero()) {
            let expected = format!("--{name}-timeout-ms of at least 1");
            return Err(ConfigError::Value { expected, found: "0".to_owned() });
        }
        if self.client_memory_bytes < 1 << 20 {
            let (expected, found) = ("client memory of at least 1 MiB".into(), self.client_memory_bytes.to_string());
            return Err(ConfigError::Value { expected, found: format!("{found} bytes") });
        }
        if let Some(LogConfig { path, sync }) = &self.durable {
            if self.data.as_ref() == Some(path) {
                let expected = "a folder for the log that is not the table's".to_owned();
                return Err(ConfigError::Value { expected, found: path.display().to_string() });
            }
            if *sync == SyncMode::Interval(Duration::ZERO) {
                let expected = "a sync interval of at least 1 ms (or --sync always)".to_owned();
                return Err(ConfigError::Value { expected, found: "0 ms".to_owned() });
            }
        }
        // What the kernel's clock of a connection can do.
        let (silence, expected) = (self.timeouts.silence, "a silence timeout of 1 s to 9 h".to_owned());
        if !(Duration::from_secs(1)..=Duration::from_secs(9 * 3600)).contains(&silence) {
            return Err(ConfigError::Value { expected, found: format!("{} ms", silence.as_millis()) });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
