//! Clients that keep a history: threads of one process, each with a session of its own on some path.

mod journal;
mod one;

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use rustix::time::{ClockId, clock_gettime};
use sidestep_client::{Client, Options, Path, PathMode};
use thiserror::Error;

use super::operation::{MALFORMED, Operation};
use one::One;

pub use journal::read_journals;

/// A bit of the number of a value that is 40 KB to 4 MB long.
const LONG: u64 = 1 << 62;

/// How a session reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Via {
    /// Through the server's CPU.
    Tcp,
    /// From the server's memory.
    Shm,
    /// From the server's memory, with a location cache.
    ShmCached,
    /// From the server's memory, by the NIC.
    Rdma,
    /// From the server's memory, by the NIC, with a location cache.
    RdmaCached,
    /// Through the server's CPU, over a queue pair.
    RdmaRpc,
}

impl FromStr for Via {
    type Err = String;
    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "tcp" => Ok(Self::Tcp),
            "shm" => Ok(Self::Shm),
            "shm-cached" => Ok(Self::ShmCached),
            "rdma" => Ok(Self::Rdma),
            "rdma-cached" => Ok(Self::RdmaCached),
            "rdma-rpc" => Ok(Self::RdmaRpc),
            _ => Err(format!("expected tcp, shm, shm-cached, rdma, rdma-cached or rdma-rpc, found {name:?}")),
        }
    }
}

impl Via {
    /// As it is parsed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Shm => "shm",
            Self::ShmCached => "shm-cached",
            Self::Rdma => "rdma",
            Self::RdmaCached => "rdma-cached",
            Self::RdmaRpc => "rdma-rpc",
        }
    }

    /// Of a client that reads so.
    pub fn options(self) -> Options {
        let (path, cache) = match self {
            Self::Tcp => (Path::Tcp, 0),
            Self::Shm => (Path::Shm, 0),
            Self::ShmCached => (Path::Shm, 1 << 14),
            Self::Rdma => (Path::Rdma, 0),
            Self::RdmaCached => (Path::Rdma, 1 << 14),
            Self::RdmaRpc => (Path::RdmaRpc, 0),
        };
        Options::default().path(PathMode::Require(path)).location_cache(cache)
    }

    /// Whether a read takes a small part of the time of a write.
    fn reads_from_memory(self) -> bool {
        matches!(self, Self::Shm | Self::ShmCached)
    }
}

/// What the clients of a process do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The server's address.
    pub server: String,
    /// One thread each.
    pub sessions: Vec<Via>,
    /// Operations of all of them together.
    pub operations: u64,
    /// Decides what they ask for, not when.
    pub seed: u64,
    /// Number of the first client; the others' follow.
    pub first_client: u32,
    /// Keys that half of the operations are on. The others are on keys of which there are more and more.
    pub hot_keys: u64,
    /// Whether every value is a long one.
    pub long_values: bool,
    /// Whether the server may be lost now and then. Otherwise that is an error.
    pub may_lose_server: bool,
    /// Whether some of the values expire.
    pub expiring: bool,
    /// What the names of keys begin with.
    pub prefix: String,
    /// Folder of journals, one for each thread, in which each operation is before and after it is done: for clients that
    /// may be killed. See [`read_journals`].
    pub journals: Option<PathBuf>,
}

/// What came of a plan.
#[derive(Debug)]
pub struct Outcome {
    /// Every operation that did or may have done something, and every read that was answered.
    pub history: Vec<Operation>,
    /// The clients' counters, summed.
    pub counters: Vec<(String, u64)>,
}

/// Nanoseconds on the clock that all processes of this host share.
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The bytes of a key.
pub fn key_bytes(prefix: &str, number: u64) -> Vec<u8> {
    format!("{prefix} {number}").into_bytes()
}

/// Appends the bytes of a value: its number, repeated; a length of its own, now and then a long one.
pub fn value_bytes(number: u64, into: &mut Vec<u8>) {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let words = match mixed % 512 {
        _ if number & LONG != 0 => 5000 + mixed % 500_000,
        0 => 5000,
        1..16 => 600,
        _ => 1 + mixed / 512 % 40,
    };
    (0..words).for_each(|_| into.extend_from_slice(&number.to_le_bytes()));
}

/// The number of a value, [`MALFORMED`] if no number has these bytes.
pub fn value_number(bytes: &[u8]) -> u64 {
    let Some(Ok(first)) = bytes.get(..8).map(<[u8; 8]>::try_from) else { return MALFORMED };
    let number = u64::from_le_bytes(first);
    let mut expected = Vec::new();
    value_bytes(number, &mut expected);
    if expected == bytes { number } else { MALFORMED }
}

/// Why a plan was not run to its end.
#[derive(Debug, Error)]
pub enum RunError {
    /// What the client says.
    #[error(transparent)]
    Client(#[from] sidestep_client::Error),
    /// A journal that cannot be written.
    #[error("cannot write the journal: {0}")]
    Journal(#[from] io::Error),
}

/// Runs a plan to its end, or until `stop` is set. `progress` is told of the operations begun, now and then.
pub fn run(plan: &Plan, stop: &AtomicBool, progress: impl Fn(u64) + Sync) -> Result<Outcome, RunError> {
    let clients: HashMap<Via, Client> = plan
        .sessions
        .iter()
        .map(|&via| Ok((via, patiently(plan, stop, || Client::connect(&plan.server, via.options()))?)))
        .collect::<Result<_, RunError>>()?;
    let begun = AtomicU64::new(0);
    let every = (plan.operations / 128).clamp(1, 1000);
    let histories: Result<Vec<Vec<Operation>>, RunError> = thread::scope(|scope| {
        let mut threads = Vec::new();
        for (i, via) in plan.sessions.iter().enumerate() {
            let mut one = One::new(plan, i, *via, patiently(plan, stop, || clients[via].session())?)?;
            let (begun, progress) = (&begun, &progress);
            threads.push(scope.spawn(move || {
                loop {
                    let number = begun.fetch_add(1, Ordering::Relaxed);
                    if number >= plan.operations || stop.load(Ordering::Relaxed) {
                        return Ok(one.history());
                    }
                    if number.is_multiple_of(every) {
                        progress(number);
                    }
                    one.step(number)?;
                }
            }));
        }
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    let mut counters: Vec<(String, u64)> = Vec::new();
    for client in clients.values() {
        for (i, (name, count)) in patiently(plan, stop, || client.stats())?.client.into_iter().enumerate() {
            match counters.get_mut(i) {
                Some(sum) => sum.1 += count,
                None => counters.push((name, count)),
            }
        }
    }
    Ok(Outcome { history: histories?.concat(), counters })
}

/// Tries again while the server is lost, if it may be.
fn patiently<T>(
    plan: &Plan,
    stop: &AtomicBool,
    mut attempt: impl FnMut() -> Result<T, sidestep_client::Error>,
) -> Result<T, sidestep_client::Error> {
    loop {
        match attempt() {
            Err(error) if plan.may_lose_server && one::is_loss(&error) && !stop.load(Ordering::Relaxed) => {
                thread::yield_now();
            }
            outcome => return outcome,
        }
    }
}
