//! Options of the command line and of a file, and the configuration that they make.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use serde::Deserialize;

use super::{Config, ConfigError, Timeouts};
use crate::access::Tokens;
use crate::durable::{LogConfig, SyncMode};
use crate::size::ByteSize;
use crate::store::Eviction;
use crate::tls::{Tls, TlsFiles};

/// Longest time from a write to its sync unless told otherwise, in milliseconds.
const DEFAULT_SYNC_INTERVAL_MS: u64 = 100;

/// Options as given on the command line or, under the same names, in a TOML file. The command line wins.
#[derive(Clone, Debug, Default, Deserialize, clap::Args)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Options {
    /// Address to listen on; port 0 takes a free one [default: 127.0.0.1:7411]
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Size of the table's address space, taken as the table grows [default: 1GiB]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<ByteSize>,
    /// What to do when the memory is full: refuse writes, or evict what was not used lately [default: none]
    #[arg(long, value_name = "POLICY")]
    pub evict: Option<EvictionPolicy>,
    /// Folder (on tmpfs or disk) that keeps the table over restarts; without it the table lives in a memfd
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Folder on a disk for a log of all writes, from which the table is rebuilt after a crash of the machine
    #[arg(long, value_name = "DIR")]
    pub durable: Option<PathBuf>,
    /// When writes in the log are on the disk: some time, within --sync-interval-ms, or before they are acknowledged
    /// [default: interval]
    #[arg(long, value_name = "WHEN")]
    pub sync: Option<SyncPolicy>,
    /// Longest time from a write to its sync [default: 100]
    #[arg(long, value_name = "MS")]
    pub sync_interval_ms: Option<u64>,
    /// Threads that serve connections [default: half the processors]
    #[arg(long, value_name = "N")]
    pub workers: Option<usize>,
    /// TOML file with any of these options
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// File with the tokens of which clients must prove to know one; read again on SIGHUP
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// The server's certificate in PEM, with those that lead to its CA: connections are TLS 1.3; read again on SIGHUP
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// The private key of that certificate in PEM; read again on SIGHUP
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// CAs of which clients must have a certificate, in PEM; read again on SIGHUP
    #[arg(long, value_name = "FILE")]
    pub tls_client_ca: Option<PathBuf>,
    /// Listen beyond this machine although anyone who reaches the port could enter
    #[arg(long)]
    pub insecure: bool,
    /// Largest value to take [default: 16MiB]
    #[arg(long, value_name = "SIZE")]
    pub max_value: Option<ByteSize>,
    /// Size of a segment, a power of two [default: by the size of the memory]
    #[arg(long, value_name = "SIZE")]
    pub segment: Option<ByteSize>,
    /// RDMA device to serve: NAME or NAME/PORT; auto: the one that has the address listened on; none [default: auto]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Pin each worker to a processor
    #[arg(long)]
    pub pin: bool,
    /// User ids, beside the server's own, whose processes may map the table
    #[arg(long, value_name = "UID", num_args = 1.., value_delimiter = ',')]
    pub allow_uid: Vec<u32>,
    /// Connections open at once; the next one is refused [default: 16384]
    #[arg(long, value_name = "N", visible_alias = "max-clients")]
    #[serde(alias = "max-clients")]
    pub max_connections: Option<usize>,
    /// Memory for replies that wait for their clients and requests that are not whole, of all connections together; beyond
    /// that clients take what waits before they are served on, and new ones are refused [default: 512MiB]
    #[arg(long, value_name = "SIZE")]
    pub client_memory: Option<ByteSize>,
    /// Address that answers HTTP for /metrics (Prometheus), /health and /ready [default: none]
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<String>,
    /// How to write the log on stderr [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
    /// Time for a client to be let in [default: 5000]
    #[arg(long, value_name = "MS", help_heading = "Timeouts")]
    pub handshake_timeout_ms: Option<u64>,
    /// Time for a request to arrive whole, beside what its bytes take at 64 KiB/s [default: 10000]
    #[arg(long, value_name = "MS", help_heading = "Timeouts")]
    pub frame_timeout_ms: Option<u64>,
    /// Time for the next bytes of a value that is read from a client's memory [default: 4000]
    #[arg(long, value_name = "MS", help_heading = "Timeouts")]
    pub pull_timeout_ms: Option<u64>,
    /// Time for a client to take any byte of waiting replies [default: 30000]
    #[arg(long, value_name = "MS", help_heading = "Timeouts")]
    pub send_timeout_ms: Option<u64>,
    /// Time that a session outlives its connection [default: 60000]
    #[arg(long, value_name = "MS", help_heading = "Timeouts")]
    pub session_timeout_ms: Option<u64>,
    /// Time that a client's host may give no sign of life [default: 120000]
    #[arg(long, value_name = "MS", help_heading = "Timeouts")]
    pub silence_timeout_ms: Option<u64>,
    /// Time that a connection may ask nothing before it is closed, 0 for ever; over RDMA it is never idle [default: 0]
    #[arg(long, value_name = "MS", help_heading = "Timeouts")]
    pub idle_timeout_ms: Option<u64>,
}

/// The name of an [`Eviction`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum EvictionPolicy {
    /// Refuse writes.
    #[default]
    None,
    /// Evict what was not used lately.
    Clock,
}

/// The name of a [`SyncMode`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum SyncPolicy {
    /// When some writes have gathered.
    Off,
    /// So long after a write.
    #[default]
    Interval,
    /// Before a write is acknowledged.
    Always,
}

/// Form of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

fn read(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })
}

impl Options {
    /// These options, and for what they leave open those of the file that they name.
    pub fn with_file(self) -> Result<Self, ConfigError> {
        let Some(path) = &self.config else { return Ok(self) };
        let file: Self = toml::from_str(&read(path)?).map_err(|e| ConfigError::Parse {
            path: path.clone(),
            reason: e.to_string().trim_end().replace('\n', " "),
        })?;
        Ok(Self {
            listen: self.listen.or(file.listen),
            memory: self.memory.or(file.memory),
            evict: self.evict.or(file.evict),
            data: self.data.or(file.data),
            durable: self.durable.or(file.durable),
            sync: self.sync.or(file.sync),
            sync_interval_ms: self.sync_interval_ms.or(file.sync_interval_ms),
            workers: self.workers.or(file.workers),
            config: self.config,
            token_file: self.token_file.or(file.token_file),
            tls_cert: self.tls_cert.or(file.tls_cert),
            tls_key: self.tls_key.or(file.tls_key),
            tls_client_ca: self.tls_client_ca.or(file.tls_client_ca),
            insecure: self.insecure || file.insecure,
            max_value: self.max_value.or(file.max_value),
            segment: self.segment.or(file.segment),
            device: self.device.or(file.device),
            pin: self.pin || file.pin,
            allow_uid: if self.allow_uid.is_empty() { file.allow_uid } else { self.allow_uid },
            max_connections: self.max_connections.or(file.max_connections),
            client_memory: self.client_memory.or(file.client_memory),
            metrics: self.metrics.or(file.metrics),
            log_format: self.log_format.or(file.log_format),
            handshake_timeout_ms: self.handshake_timeout_ms.or(file.handshake_timeout_ms),
            frame_timeout_ms: self.frame_timeout_ms.or(file.frame_timeout_ms),
            pull_timeout_ms: self.pull_timeout_ms.or(file.pull_timeout_ms),
            send_timeout_ms: self.send_timeout_ms.or(file.send_timeout_ms),
            session_timeout_ms: self.session_timeout_ms.or(file.session_timeout_ms),
            silence_timeout_ms: self.silence_timeout_ms.or(file.silence_timeout_ms),
            idle_timeout_ms: self.idle_timeout_ms.or(file.idle_timeout_ms),
        })
    }

    /// Where certificate and key are, if there is TLS. Good once a file's options are in.
    pub fn tls_files(&self) -> Result<Option<TlsFiles>, ConfigError> {
        let both = |found: &str| ConfigError::Value {
            expected: "a certificate and its key (--tls-cert FILE --tls-key FILE) where there is TLS".into(),
            found: found.into(),
        };
        match (&self.tls_cert, &self.tls_key, &self.tls_client_ca) {
            (None, None, None) => Ok(None),
            (Some(cert), Some(key), ca) => {
                Ok(Some(TlsFiles { cert: cert.clone(), key: key.clone(), client_ca: ca.clone() }))
            }
            (Some(_), None, _) => Err(both("a certificate alone")),
            (None, Some(_), _) => Err(both("a key alone")),
            (None, None, Some(_)) => Err(both("the CA of clients alone")),
        }
    }

    /// Where and how writes are logged, if they are.
    fn log(&self) -> Result<Option<LogConfig>, ConfigError> {
        let interval = Duration::from_millis(self.sync_interval_ms.unwrap_or(DEFAULT_SYNC_INTERVAL_MS));
        let sync = match self.sync.unwrap_or_default() {
            // A promise that nobody keeps.
            SyncPolicy::Always if self.durable.is_none() => {
                return Err(ConfigError::Value {
                    expected: "a folder for the log that is to be synced (--durable DIR)".into(),
                    found: "--sync always alone".into(),
                });
            }
            SyncPolicy::Off => SyncMode::Off,
            SyncPolicy::Interval => SyncMode::Interval(interval),
            SyncPolicy::Always => SyncMode::Always,
        };
        Ok(self.durable.clone().map(|path| LogConfig { path, sync }))
    }

    /// The configuration that these options make of the defaults. Reads the files of tokens, certificates and the key.
    pub fn into_config(self) -> Result<Config, ConfigError> {
        let default = Config::default();
        let time = |given: Option<u64>, default| given.map_or(default, Duration::from_millis);
        let max_value_bytes = match self.max_value {
            None => default.max_value_bytes,
            Some(size) => u32::try_from(size.0).map_err(|_| ConfigError::Value {
                expected: "a largest value of less than 4 GiB".into(),
                found: size.to_string(),
            })?,
        };
        let tls = self.tls_files()?.as_ref().map(Tls::read).transpose()?;
        let durable = self.log()?;
        let config = Config {
            listen: self.listen.unwrap_or(default.listen),
            memory_bytes: self.memory.map(|size| size.0),
            eviction: match self.evict.unwrap_or_default() {
                EvictionPolicy::None => Eviction::None,
                EvictionPolicy::Clock => Eviction::Clock,
            },
            data: self.data,
            durable,
            workers: self.workers.unwrap_or(default.workers),
            tokens: self.token_file.as_deref().map(Tokens::read).transpose()?,
            tls,
            insecure: self.insecure,
            max_value_bytes,
            segment_bytes: self.segment.map(|size| size.0),
            device: self.device.unwrap_or(default.device),
            pin: self.pin,
            allow_uids: self.allow_uid,
            max_connections: self.max_connections.unwrap_or(default.max_connections),
            client_memory_bytes: self.client_memory.map_or(default.client_memory_bytes, |size| size.0),
            metrics: self.metrics.filter(|address| address != "none"),
            timeouts: Timeouts {
                handshake: time(self.handshake_timeout_ms, default.timeouts.handshake),
                frame: time(self.frame_timeout_ms, default.timeouts.frame),
                pull: time(self.pull_timeout_ms, default.timeouts.pull),
                send: time(self.send_timeout_ms, default.timeouts.send),
                session: time(self.session_timeout_ms, default.timeouts.session),
                silence: time(self.silence_timeout_ms, default.timeouts.silence),
                idle: self.idle_timeout_ms.filter(|&ms| ms > 0).map(Duration::from_millis),
                stop: default.timeouts.stop,
            },
        };
        config.check()?;
        Ok(config)
    }
}
