//! The peers' processes: one that runs already, or an installed one that is started for the run and stopped after it.

use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use super::TargetError;
use crate::accounting;

/// Longest wait for a peer that was started to listen.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Which store to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerKind {
    /// memcached.
    Memcached,
    /// Anything that speaks the Redis protocol.
    Redis,
}

impl PeerKind {
    /// Name of its row.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Memcached => "memcached",
            Self::Redis => "redis",
        }
    }
}

impl FromStr for PeerKind {
    type Err = TargetError;
    fn from_str(name: &str) -> Result<Self, TargetError> {
        match name {
            "memcached" => Ok(Self::Memcached),
            "redis" => Ok(Self::Redis),
            _ => Err(TargetError::new(format!("peer {name:?} is not known; there are memcached and redis"))),
        }
    }
}

/// A server to connect to. Dropping it stops it if it was started here.
#[derive(Debug)]
pub struct Peer {
    pub(super) address: String,
    pid: Option<u32>,
    child: Option<Child>,
    started_with: String,
}

impl Peer {
    /// One that runs already.
    #[must_use]
    pub fn running(address: impl Into<String>) -> Self {
        Self { address: address.into(), pid: None, child: None, started_with: String::new() }
    }

    /// Starts the installed server, with one worker thread, on a free port of the loopback interface, with room for
    /// `payload_bytes` and values of `value_bytes`.
    ///
    /// # Errors
    /// It is not installed or does not start.
    pub fn start(kind: PeerKind, payload_bytes: u64, value_bytes: usize) -> Result<Self, TargetError> {
        let port = free_port()?;
        let (program, arguments) = match kind {
            PeerKind::Memcached => ("memcached", memcached_arguments(port, payload_bytes, value_bytes)),
            PeerKind::Redis => ("redis-server", redis_arguments(port)),
        };
        let child = Command::new(program)
            .args(&arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| TargetError::new(format!("cannot start {program}: {error}")))?;
        let address = format!("127.0.0.1:{port}");
        let started_with = format!("{program} {}", arguments.join(" "));
        let mut peer = Self { address, pid: Some(child.id()), child: Some(child), started_with };
        peer.wait_until_it_listens()?;
        Ok(peer)
    }

    fn wait_until_it_listens(&mut self) -> Result<(), TargetError> {
        let deadline = Instant::now() + START_TIMEOUT;
        while TcpStream::connect(&self.address).is_err() {
            if let Some(Ok(Some(status))) = self.child.as_mut().map(Child::try_wait) {
                return Err(TargetError::new(format!("{} ended: {status}", self.started_with)));
            }
            if Instant::now() > deadline {
                return Err(TargetError::new(format!("{} does not listen", self.started_with)));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// The process id that the server itself gave; worth something on this host only.
    pub(super) fn know_pid(&mut self, pid: Option<u32>) {
        if self.pid.is_none() && is_loopback(&self.address) {
            self.pid = pid;
        }
    }

    /// CPU time of its process, if it runs on this host.
    pub(super) fn cpu(&self) -> Option<Duration> {
        accounting::process_cpu(self.pid?).ok()
    }

    pub(super) fn describe(&self) -> String {
        match self.child {
            Some(_) => format!("{} (started as: {})", self.address, self.started_with),
            None => self.address.clone(),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // Both may fail only if it has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Whether `address` is one of this host's loopback interface.
#[must_use]
pub fn is_loopback(address: &str) -> bool {
    address.to_socket_addrs().is_ok_and(|mut all| all.all(|one| one.ip().is_loopback()))
}

fn free_port() -> Result<u16, TargetError> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(TargetError::new)?;
    Ok(listener.local_addr().map_err(TargetError::new)?.port())
}

fn memcached_arguments(port: u16, payload_bytes: u64, value_bytes: usize) -> Vec<String> {
    // Twice the payload keeps it from evicting; its largest item must hold the value and its header.
    let memory_mb = (payload_bytes * 2 >> 20).max(256);
    let item_mb = (value_bytes >> 20) + 1;
    let mut arguments: Vec<String> = ["-t", "1", "-l", "127.0.0.1", "-U", "0", "-p"].map(String::from).to_vec();
    arguments.extend([port.to_string(), "-m".into(), memory_mb.to_string(), "-I".into(), format!("{item_mb}m")]);
    if rustix::process::geteuid().is_root() {
        arguments.extend(["-u".into(), "root".into()]);
    }
    arguments
}

fn redis_arguments(port: u16) -> Vec<String> {
    let fixed = ["--save", "", "--appendonly", "no", "--bind", "127.0.0.1", "--port"];
    fixed.map(String::from).into_iter().chain([port.to_string()]).collect()
}
