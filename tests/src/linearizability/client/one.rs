//! One thread of a plan: what it asks for, and what it notes of that.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use sidestep_client::{Error, PutOptions, Session, Value};

use super::journal::Journal;
use super::{LONG, Plan, RunError, Via, key_bytes, now, value_bytes, value_number};
use crate::linearizability::operation::{Did, Operation};

/// Keys of a batch.
const BATCH: usize = 8;
/// Of a value that expires.
const TTL_MS: std::ops::Range<u64> = 20..2000;

/// One thread.
pub(super) struct One {
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
    expiring: bool,
    prefix: String,
    history: Vec<Operation>,
    /// In place of the history.
    journal: Option<Journal>,
}

/// Whether the server cannot be reached for the time being: nothing was done, and nothing was learnt.
pub(super) fn is_loss(error: &Error) -> bool {
    matches!(
        error,
        Error::Unreachable { .. } | Error::Stopping { .. } | Error::PathUnavailable { .. } | Error::TimedOut { .. }
    )
}

impl One {
    pub(super) fn new(plan: &Plan, index: usize, via: Via, session: Session) -> io::Result<Self> {
        let client = plan.first_client + index as u32;
        let journal = plan.journals.as_deref().map(|folder| Journal::create(folder, client)).transpose()?;
        Ok(Self {
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
            expiring: plan.expiring,
            prefix: plan.prefix.clone(),
            history: Vec::new(),
            journal,
        })
    }

    /// What it has done, unless that is in a journal.
    pub(super) fn history(self) -> Vec<Operation> {
        self.history
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

    pub(super) fn step(&mut self, progress: u64) -> Result<(), RunError> {
        let key = self.any_key(progress);
        if self.random.random_range(0..100) < self.reads {
            if self.random.random_range(0..16) == 0 {
                return self.get_many(progress);
            }
            let name = key_bytes(&self.prefix, key);
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

    fn get_many(&mut self, progress: u64) -> Result<(), RunError> {
        let keys: Vec<u64> = (0..BATCH).map(|_| self.any_key(progress)).collect();
        let names: Vec<Vec<u8>> = keys.iter().map(|&key| key_bytes(&self.prefix, key)).collect();
        let start = now();
        match self.session.multi_get(&names) {
            Ok(values) => {
                let end = now();
                keys.iter().zip(values).try_for_each(|(&key, value)| self.note_read(key, start, end, value))
            }
            Err(error) => self.lost(error),
        }
    }

    fn read(&mut self, key: u64, start: u64, read: Result<Option<Value>, Error>) -> Result<(), RunError> {
        let end = now();
        match read {
            Ok(value) => self.note_read(key, start, end, value),
            Err(error) => self.lost(error),
        }
    }

    fn note_read(&mut self, key: u64, start: u64, end: u64, value: Option<Value>) -> Result<(), RunError> {
        let did = match value {
            Some(value) => Did::Found { version: value.version(), value: value_number(&value) },
            None => Did::Absent,
        };
        self.note(self.operation(key, start, end, did))
    }

    fn put(&mut self, key: u64, expect: Option<u64>) -> Result<(), RunError> {
        self.sequence += 1;
        let value = self.long | u64::from(self.client) << 32 | u64::from(self.sequence);
        self.value.clear();
        value_bytes(value, &mut self.value);
        let name = key_bytes(&self.prefix, key);
        let expires = self.expiring && self.random.random_range(0..4) == 0;
        let ttl = expires.then(|| Duration::from_millis(self.random.random_range(TTL_MS)));
        let ttl_ns = ttl.map(|ttl| ttl.as_nanos() as u64);
        let start = now();
        let unknown = Did::PutUnknown { value, expect };
        self.intend(Operation { ttl: ttl_ns, ..self.operation(key, start, u64::MAX, unknown) })?;
        let written = self.session.put_with(name, &self.value, PutOptions { expect, ttl });
        let end = now();
        let did = match written {
            Ok(version) => Did::Put { value, expect, version },
            Err(Error::VersionMismatch { found }) => Did::Mismatch { expect: expect.unwrap_or(u64::MAX), found },
            Err(Error::OutcomeUnknown(_)) if self.may_lose_server => unknown,
            Err(error) => return self.not_done(error),
        };
        self.note(Operation { ttl: ttl_ns, ..self.operation(key, start, end, did) })
    }

    fn delete(&mut self, key: u64, expect: Option<u64>) -> Result<(), RunError> {
        let name = key_bytes(&self.prefix, key);
        let start = now();
        let unknown = Did::DeleteUnknown { expect };
        self.intend(self.operation(key, start, u64::MAX, unknown))?;
        let deleted = match expect {
            Some(expect) => self.session.delete_if(name, expect),
            None => self.session.delete(name),
        };
        let end = now();
        let did = match deleted {
            Ok(true) => Did::Deleted { expect },
            Ok(false) => Did::DeletedNothing,
            Err(Error::VersionMismatch { found }) => Did::Mismatch { expect: expect.unwrap_or(u64::MAX), found },
            Err(Error::OutcomeUnknown(_)) if self.may_lose_server => unknown,
            Err(error) => return self.not_done(error),
        };
        self.note(self.operation(key, start, end, did))
    }

    fn operation(&self, key: u64, start: u64, end: u64, did: Did) -> Operation {
        Operation { client: self.client, key, start, end, did, ttl: None }
    }

    /// What is about to be done: known also if this process is killed meanwhile.
    fn intend(&mut self, operation: Operation) -> Result<(), RunError> {
        Ok(self.journal.as_mut().map_or(Ok(()), |journal| journal.write(&operation))?)
    }

    fn note(&mut self, operation: Operation) -> Result<(), RunError> {
        match operation.did {
            Did::Found { version, .. } | Did::Put { version, .. } | Did::Mismatch { found: version, .. } => {
                self.met.insert(operation.key, version);
            }
            Did::Absent | Did::Deleted { .. } | Did::DeletedNothing => {
                self.met.insert(operation.key, 0);
            }
            Did::PutUnknown { .. } | Did::DeleteUnknown { .. } => {}
        }
        match &mut self.journal {
            Some(journal) => journal.write(&operation)?,
            None => self.history.push(operation),
        }
        Ok(())
    }

    /// A write that was intended was not done.
    fn not_done(&mut self, error: Error) -> Result<(), RunError> {
        self.journal.as_mut().map_or(Ok(()), Journal::take_back)?;
        self.lost(error)
    }

    /// Nothing was done and nothing was learnt. Fine where the table is full or the server may be lost.
    fn lost(&self, error: Error) -> Result<(), RunError> {
        match error {
            Error::Full(_) => Ok(()),
            error if self.may_lose_server && is_loss(&error) => Ok(()),
            error => Err(error.into()),
        }
    }
}
