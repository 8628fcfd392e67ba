//! Clients that keep a history: threads of one process, each with a session of its own on some path.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use rustix::time::{ClockId, clock_gettime};
use sidestep_client::{Client, Error, Options, Path, PathMode, Session, Value};

use super::operation::{Did, MALFORMED, Operation};

/// A bit of the number of a value that is 40 KB to 4 MB long.
const LONG: u64 = 1 << 62;
/// Keys of a batch.
const BATCH: usize = 8;

/// How a session reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    fn options(self) -> Options {
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
pub fn key_bytes(number: u64) -> Vec<u8> {
    format!("key {number}").into_bytes()
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

/// Runs a plan to its end. `progress` is told of the operations begun, now and then.
pub fn run(plan: &Plan, progress: impl Fn(u64) + Sync) -> Result<Outcome, Error> {
    let clients: HashMap<Via, Client> = plan
        .sessions
        .iter()
        .map(|&via| Ok((via, Client::connect(&plan.server, via.options())?)))
        .collect::<Result<_, Error>>()?;
    let begun = AtomicU64::new(0);
    let every = (plan.operations / 128).clamp(1, 1000);
    let histories: Result<Vec<Vec<Operation>>, Error> = thread::scope(|scope| {
        let mut threads = Vec::new();
        for (i, via) in plan.sessions.iter().enumerate() {
            let mut one = One::new(plan, i, *via, clients[via].session()?);
            let (begun, progress) = (&begun, &progress);
            threads.push(scope.spawn(move || {
                loop {
                    let number = begun.fetch_add(1, Ordering::Relaxed);
                    if number >= plan.operations {
                        return Ok(one.history);
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
        for (i, (name, count)) in client.stats()?.client.into_iter().enumerate() {
            match counters.get_mut(i) {
                Some(sum) => sum.1 += count,
                None => counters.push((name, count)),
            }
        }
    }
    Ok(Outcome { history: histories?.concat(), counters })
}

/// One thread.
struct One {
    client: u32,
    session: Session,
    random: Xoshiro256PlusPlus,
    hot_keys: u64,
    /// Of 100 operations so many are reads.
    reads: u32,
    may_lose_server: bool,
    long: u64,
    sequence: u32,
    /// Version of each key when last met; 0 = absent.
    met: HashMap<u64, u64>,
    value: Vec<u8>,
    history: Vec<Operation>,
}

impl One {
    fn new(plan: &Plan, index: usize, via: Via, session: Session) -> Self {
        let client = plan.first_client + index as u32;
        Self {
            client,
            session,
            random: Xoshiro256PlusPlus::seed_from_u64(plan.seed ^ (u64::from(client) << 32)),
            hot_keys: plan.hot_keys,
            reads: if via.reads_from_memory() { 80 } else { 50 },
            may_lose_server: plan.may_lose_server,
            long: if plan.long_values { LONG } else { 0 },
            sequence: 0,
            met: HashMap::new(),
            value: Vec::new(),
            history: Vec::new(),
        }
    }

    /// Hot keys, the first ones most of all, or one of those that become more as time goes by, often of the latest.
    fn any_key(&mut self, progress: u64) -> u64 {
        let random = &mut self.random;
        if random.random() {
            return random.random_range(0..self.hot_keys).min(random.random_range(0..self.hot_keys));
        }
        let cold = 64 + progress / 6;
        let back = if random.random() { random.random_range(0..64) } else { random.random_range(0..cold) };
        self.hot_keys + cold - 1 - back
    }

    fn step(&mut self, progress: u64) -> Result<(), Error> {
        let key = self.any_key(progress);
        if self.random.random_range(0..100) < self.reads {
            if self.random.random_range(0..16) == 0 {
                return self.get_many(progress);
            }
            let name = key_bytes(key);
            let start = now();
            let read = self.session.get(name);
            return self.read(key, start, read);
        }
        let known = self.met.get(&key).copied();
        match self.random.random_range(0..10) {
            0..4 => self.put(key, None),
            4..7 => self.put(key, Some(known.unwrap_or(0))),
            7 if known.is_some_and(|version| version > 0) => self.delete(key, known),
            _ => self.delete(key, None),
        }
    }

    fn get_many(&mut self, progress: u64) -> Result<(), Error> {
        let keys: Vec<u64> = (0..BATCH).map(|_| self.any_key(progress)).collect();
        let names: Vec<Vec<u8>> = keys.iter().map(|&key| key_bytes(key)).collect();
        let start = now();
        match self.session.multi_get(&names) {
            Ok(values) => {
                let end = now();
                keys.iter().zip(values).for_each(|(&key, value)| self.note_read(key, start, end, value));
                Ok(())
            }
            Err(error) => self.lost(error),
        }
    }

    fn read(&mut self, key: u64, start: u64, read: Result<Option<Value>, Error>) -> Result<(), Error> {
        let end = now();
        match read {
            Ok(value) => self.note_read(key, start, end, value),
            Err(error) => return self.lost(error),
        }
        Ok(())
    }

    fn note_read(&mut self, key: u64, start: u64, end: u64, value: Option<Value>) {
        let did = match value {
            Some(value) => Did::Found { version: value.version(), value: value_number(&value) },
            None => Did::Absent,
        };
        self.note(key, start, end, did);
    }

    fn put(&mut self, key: u64, expect: Option<u64>) -> Result<(), Error> {
        self.sequence += 1;
        let value = self.long | u64::from(self.client) << 32 | u64::from(self.sequence);
        self.value.clear();
        value_bytes(value, &mut self.value);
        let name = key_bytes(key);
        let start = now();
        let written = match expect {
            Some(expect) => self.session.put_if(name, &self.value, expect),
            None => self.session.put(name, &self.value),
        };
        let end = now();
        let did = match written {
            Ok(version) => Did::Put { value, expect, version },
            Err(Error::VersionMismatch { found }) => Did::Mismatch { expect: expect.unwrap_or(u64::MAX), found },
            Err(Error::OutcomeUnknown(_)) if self.may_lose_server => Did::PutUnknown { value, expect },
            Err(error) => return self.lost(error),
        };
        self.note(key, start, end, did);
        Ok(())
    }

    fn delete(&mut self, key: u64, expect: Option<u64>) -> Result<(), Error> {
        let name = key_bytes(key);
        let start = now();
        let deleted = match expect {
            Some(expect) => self.session.delete_if(name, expect),
            None => self.session.delete(name),
        };
        let end = now();
        let did = match deleted {
            Ok(true) => Did::Deleted { expect },
            Ok(false) => Did::DeletedNothing,
            Err(Error::VersionMismatch { found }) => Did::Mismatch { expect: expect.unwrap_or(u64::MAX), found },
            Err(Error::OutcomeUnknown(_)) if self.may_lose_server => Did::DeleteUnknown { expect },
            Err(error) => return self.lost(error),
        };
        self.note(key, start, end, did);
        Ok(())
    }

    fn note(&mut self, key: u64, start: u64, end: u64, did: Did) {
        match did {
            Did::Found { version, .. } | Did::Put { version, .. } | Did::Mismatch { found: version, .. } => {
                self.met.insert(key, version);
            }
            Did::Absent | Did::Deleted { .. } | Did::DeletedNothing => {
                self.met.insert(key, 0);
            }
            Did::PutUnknown { .. } | Did::DeleteUnknown { .. } => {}
        }
        self.history.push(Operation { client: self.client, key, start, end, did });
    }

    /// Nothing was done and nothing was learnt. Fine where the table is full or the server may be lost.
    fn lost(&self, error: Error) -> Result<(), Error> {
        match error {
            Error::Full(_) => Ok(()),
            Error::Unreachable { .. }
            | Error::Stopping { .. }
            | Error::PathUnavailable { .. }
            | Error::TimedOut { .. }
                if self.may_lose_server =>
            {
                Ok(())
            }
            error => Err(error),
        }
    }
}
