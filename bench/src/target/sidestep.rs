//! Sidestep itself, over one of its paths. The only file that knows the client crate.

use std::collections::VecDeque;
use std::time::Duration;

use sidestep_client::{Answer, Client, Error, Meta, Options, Path, PathMode, PutOptions, Session, Ticket, Tls};

use super::peer::is_loopback;
use super::{Completion, Connection, EachCompletion, EachRead, Effort, RemoteStore, Reply, Route, Target, TargetError};
use crate::accounting;

/// What lets a client in. It is told to no other machine.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// The shared secret, if there is one.
    pub token: Vec<u8>,
    /// How connections are encrypted, if they are.
    pub tls: Option<Tls>,
}

/// Where the server is and how to reach it.
#[derive(Clone, Debug, Default)]
pub struct ServerAddress {
    /// `HOST:PORT`.
    pub address: String,
    /// The shared secret, if it has one.
    pub token: Vec<u8>,
    /// How its connections are encrypted, if they are.
    pub tls: Option<Tls>,
    /// Entries of the location cache of each session; 0 = none.
    pub location_cache: usize,
    /// Whether to poll the socket instead of sleeping in it.
    pub spin: bool,
}

impl ServerAddress {
    fn options(&self, mode: PathMode) -> Options {
        let options = match &self.tls {
            Some(tls) => Options::default().tls(tls.clone()),
            None => Options::default(),
        };
        options
            .path(mode)
            .token(self.token.clone())
            .location_cache(self.location_cache)
            .spin(self.spin)
            .connect_timeout(Duration::from_secs(5))
    }
}

/// A path by name, and why it cannot be had if it cannot.
#[derive(Clone, Debug)]
pub struct PathReport {
    /// `shm`, `tcp`, `rdma`, `rdma-rpc`.
    pub name: &'static str,
    /// `Err`: the reason.
    pub available: Result<(), String>,
}

/// What the server says of its paths, fastest first.
///
/// # Errors
/// It cannot be reached.
pub fn paths_of(server: &ServerAddress) -> Result<Vec<PathReport>, TargetError> {
    let client = connect(server, PathMode::Require(Path::Tcp))?;
    let offered = client.server_info().map_err(TargetError::new)?.paths;
    let report = |path: Path| {
        let found = offered.iter().find(|(other, _)| *other == path).map(|(_, available)| available.clone());
        PathReport { name: path.name(), available: found.unwrap_or_else(|| Err("the server does not name it".into())) }
    };
    Ok(Path::ALL.into_iter().map(report).collect())
}

fn connect(server: &ServerAddress, mode: PathMode) -> Result<Client, TargetError> {
    Client::connect(server.address.as_str(), server.options(mode)).map_err(TargetError::new)
}

/// The server by one path.
pub struct Sidestep {
    path: Path,
    address: String,
    client: Client,
    /// Of the server, if it runs on this host.
    pid: Option<u32>,
    location_cache: usize,
    spin: bool,
}

impl Sidestep {
    /// Requires `path` (`tcp`, `shm`, …) or takes the best for `auto`.
    ///
    /// # Errors
    /// The server cannot be reached or the path cannot be had.
    pub fn connect(server: &ServerAddress, path: &str) -> Result<Self, TargetError> {
        let mode = match path {
            "auto" => PathMode::Auto,
            name => PathMode::Require(name.parse().map_err(|error: Error| TargetError::new(error))?),
        };
        let client = connect(server, mode)?;
        let path = client.path().map_err(TargetError::new)?;
        let info = client.server_info().map_err(TargetError::new)?;
        Ok(Self {
            path,
            address: server.address.clone(),
            client,
            // `shm` proves that the server is on this host, whatever its address looks like.
            pid: (path == Path::Shm || is_loopback(&server.address)).then_some(info.pid),
            location_cache: server.location_cache,
            spin: server.spin,
        })
    }

    /// Process of the server, if it runs on this host.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// Counters of the server and of this client, by name.
    ///
    /// # Errors
    /// The server cannot be asked.
    pub fn counters(&self) -> Result<Vec<(String, u64)>, TargetError> {
        let stats = self.client.stats().map_err(TargetError::new)?;
        let client = stats.client.into_iter().map(|(name, value)| (format!("client.{name}"), value));
        Ok(stats.server.into_iter().chain(client).collect())
    }
}

impl Target for Sidestep {
    fn name(&self) -> &str {
        self.path.name()
    }

    fn about(&self) -> String {
        let cache = match self.location_cache {
            0 => "location cache off".into(),
            entries => format!("location cache of {entries} entries"),
        };
        format!("sidestep server at {}, path {}, {cache}", self.address, self.path)
    }

    fn route(&self) -> Route {
        route(self.path)
    }

    fn connect(&self, depth: usize) -> Result<Box<dyn Connection>, TargetError> {
        let session = self.client.session().map_err(TargetError::new)?;
        Ok(Box::new(SidestepConnection { session, tags: VecDeque::with_capacity(depth) }))
    }

    fn server_cpu(&self) -> Option<Duration> {
        if let Some(cpu) = self.pid.and_then(|pid| accounting::process_cpu(pid).ok()) {
            return Some(cpu);
        }
        let stats = self.client.stats().ok()?;
        let used = stats.server("process_cpu_user_us")? + stats.server("process_cpu_system_us")?;
        Some(Duration::from_micros(used))
    }

    fn is_on_this_host(&self) -> bool {
        self.pid.is_some()
    }

    fn remote(&self) -> Option<RemoteStore> {
        Some(RemoteStore::Sidestep {
            address: self.address.clone(),
            path: self.path.name().to_owned(),
            location_cache: self.location_cache,
            spin: self.spin,
        })
    }

    fn is_memory(&self) -> bool {
        self.path == Path::Shm
    }

    fn memory_in_use(&self) -> Result<Option<u64>, TargetError> {
        let stats = self.client.stats().map_err(TargetError::new)?;
        let counters = stats.server("memory_usable_bytes").zip(stats.server("memory_free_bytes"));
        Ok(counters.map(|(usable, free)| usable.saturating_sub(free)))
    }
}

struct SidestepConnection {
    session: Session,
    /// What is in flight, oldest first. Replies come in that order as a rule, so that a ticket is found at the front.
    tags: VecDeque<(Ticket, usize)>,
}

impl SidestepConnection {
    fn keep(&mut self, tag: usize, submitted: Result<Ticket, Error>) -> Result<(), TargetError> {
        self.tags.push_back((submitted.map_err(TargetError::new)?, tag));
        Ok(())
    }
}

impl Connection for SidestepConnection {
    fn read(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<Option<Reply>, TargetError> {
        match self.session.get_into(key, value) {
            Ok(found) => Ok(found.map(reply)),
            Err(error) => Err(TargetError::new(error)),
        }
    }

    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<Reply, TargetError> {
        self.session.put(key, value).map(written).map_err(TargetError::new)
    }

    fn read_batch(&mut self, keys: &[&[u8]], each: EachRead<'_>) -> Result<(), TargetError> {
        self.session
            .multi_get_with(keys, |index, found| each(index, found.map(|(bytes, meta)| (bytes, reply(meta)))))
            .map_err(TargetError::new)
    }

    fn submit_read(&mut self, tag: usize, key: &[u8]) -> Result<(), TargetError> {
        let submitted = self.session.submit_get(key);
        self.keep(tag, submitted)
    }

    fn submit_write(&mut self, tag: usize, key: &[u8], value: &[u8]) -> Result<(), TargetError> {
        let submitted = self.session.submit_put(key, value, PutOptions::default());
        self.keep(tag, submitted)
    }

    fn complete(&mut self, wait: bool, each: EachCompletion<'_>) -> Result<(), TargetError> {
        let Self { session, tags } = self;
        let on = |completion: sidestep_client::Completion<'_>| {
            let place = tags.iter().position(|(ticket, _)| *ticket == completion.ticket);
            let Some((_, tag)) = place.and_then(|place| tags.remove(place)) else { return };
            let outcome = match completion.answer {
                Ok(Answer::Value(bytes, meta)) => Ok(Some((bytes, reply(meta)))),
                Ok(Answer::Written { version }) => Ok(Some((&[][..], written(version)))),
                Ok(Answer::Absent) => Ok(None),
                Ok(other) => Err(TargetError::new(format!("unexpected answer {other:?}"))),
                Err(error) => Err(TargetError::new(error)),
            };
            each(Completion { tag, outcome });
        };
        if wait {
            session.poll(on);
        } else {
            session.try_poll(on);
        }
        Ok(())
    }

    fn effort(&mut self) -> Effort {
        let sidestep_client::Effort { retries, reconnects, bytes_sent, bytes_received } = self.session.effort();
        Effort { retries, reconnects, bytes_sent, bytes_received }
    }
}

fn route(path: Path) -> Route {
    match path {
        Path::Shm => Route::Shm,
        Path::Tcp => Route::Tcp,
        Path::Rdma => Route::Rdma,
        Path::RdmaRpc => Route::RdmaRpc,
    }
}

fn reply(meta: Meta) -> Reply {
    Reply { version: meta.version, route: route(meta.path) }
}

/// Writes go through the server's CPU on every path.
fn written(version: u64) -> Reply {
    Reply { version, route: Route::Tcp }
}
