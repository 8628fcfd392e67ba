//! The ceiling: a `dashmap` in this process, with a fast hasher, keys and values as boxed bytes, the value copied out.

use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use foldhash::fast::RandomState;

use super::{Completion, Connection, EachCompletion, EachRead, Reply, Route, Target, TargetError};

type Map = DashMap<Box<[u8]>, Box<[u8]>, RandomState>;

const REPLY: Reply = Reply { version: 0, route: Route::Local };

/// The map.
#[derive(Debug)]
pub struct Local {
    map: Arc<Map>,
}

impl Local {
    /// With room for `records`.
    #[must_use]
    pub fn new(records: u64) -> Self {
        Self { map: Arc::new(Map::with_capacity_and_hasher(records as usize, RandomState::default())) }
    }
}

impl Target for Local {
    fn name(&self) -> &str {
        "local"
    }

    fn about(&self) -> String {
        "dashmap in this process, foldhash, boxed bytes, value copied out".into()
    }

    fn route(&self) -> Route {
        Route::Local
    }

    fn connect(&self, depth: usize) -> Result<Box<dyn Connection>, TargetError> {
        let submitted = Vec::with_capacity(depth);
        Ok(Box::new(LocalConnection { map: self.map.clone(), submitted, value: Vec::new() }))
    }

    fn server_cpu(&self) -> Option<Duration> {
        None
    }

    fn is_memory(&self) -> bool {
        true
    }
}

/// Tag, and the key of a read; a write is done when it is submitted.
type Submitted = (usize, Option<Box<[u8]>>);

struct LocalConnection {
    map: Arc<Map>,
    submitted: Vec<Submitted>,
    value: Vec<u8>,
}

impl Connection for LocalConnection {
    fn read(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<Option<Reply>, TargetError> {
        Ok(self.map.get(key).map(|found| {
            value.clear();
            value.extend_from_slice(&found);
            REPLY
        }))
    }

    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<Reply, TargetError> {
        self.map.insert(key.into(), value.into());
        Ok(REPLY)
    }

    fn read_batch(&mut self, keys: &[&[u8]], each: EachRead<'_>) -> Result<(), TargetError> {
        let mut value = std::mem::take(&mut self.value);
        for (index, key) in keys.iter().enumerate() {
            let found = self.read(key, &mut value)?;
            each(index, found.map(|reply| (value.as_slice(), reply)));
        }
        self.value = value;
        Ok(())
    }

    fn submit_read(&mut self, tag: usize, key: &[u8]) -> Result<(), TargetError> {
        self.submitted.push((tag, Some(key.into())));
        Ok(())
    }

    /// Written at once: with copies kept until [`Connection::complete`] the heap would be in pieces after a load, key
    /// and value of an entry far apart, and the ceiling lower by a third.
    fn submit_write(&mut self, tag: usize, key: &[u8], value: &[u8]) -> Result<(), TargetError> {
        self.write(key, value)?;
        self.submitted.push((tag, None));
        Ok(())
    }

    fn complete(&mut self, _wait: bool, each: EachCompletion<'_>) -> Result<(), TargetError> {
        let mut value = std::mem::take(&mut self.value);
        for (tag, key) in std::mem::take(&mut self.submitted) {
            let outcome = match key {
                None => Ok(Some((&[][..], REPLY))),
                Some(key) => self.read(&key, &mut value).map(|found| found.map(|reply| (value.as_slice(), reply))),
            };
            each(Completion { tag, outcome });
        }
        self.value = value;
        Ok(())
    }
}
