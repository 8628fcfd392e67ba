//! What is there when nobody writes, and whether it stays.

use std::collections::BTreeMap;

use sidestep_client::Client;

use crate::linearizability::client::{Via, key_bytes, now, value_number};
use crate::linearizability::{Did, Operation};

/// Keys of a batch.
const BATCH: usize = 64;

/// What a key is.
type Known = Option<(u64, u64)>;

/// The keys of earlier rounds.
#[derive(Debug)]
pub(super) struct Audit {
    may_evict: bool,
    /// By the prefix of the round and the key's number. Those that expire are not among them.
    kept: BTreeMap<(String, u64), Known>,
}

impl Audit {
    pub(super) fn new(may_evict: bool) -> Self {
        Self { may_evict, kept: BTreeMap::new() }
    }

    /// Reads every key of a round's history on every path, as one more client each, and adds that to the history.
    pub(super) fn read_all(
        &mut self,
        server: &str,
        prefix: &str,
        paths: &[Via],
        first_client: u32,
        history: &mut Vec<Operation>,
    ) -> Result<(), String> {
        let mut keys: Vec<u64> = history.iter().map(|operation| operation.key).collect();
        keys.sort_unstable();
        keys.dedup();
        for (client, via) in (first_client..).zip(paths) {
            let session = Client::connect(server, via.options());
            for keys in keys.chunks(BATCH) {
                let names: Vec<Vec<u8>> = keys.iter().map(|&key| key_bytes(prefix, key)).collect();
                let start = now();
                let values = session.as_ref().map_err(|error| error.to_string());
                let values = values.and_then(|client| client.multi_get(&names).map_err(|error| error.to_string()));
                let values = values.map_err(|error| format!("cannot read by {}: {error}", via.name()))?;
                let end = now();
                for (&key, value) in keys.iter().zip(values) {
                    let did = match value {
                        Some(value) => Did::Found { version: value.version(), value: value_number(&value) },
                        None => Did::Absent,
                    };
                    history.push(Operation { client, key, start, end, did, ttl: None });
                }
            }
        }
        let mut last: BTreeMap<u64, (Known, bool)> = BTreeMap::new();
        for operation in &*history {
            let entry = last.entry(operation.key).or_default();
            entry.1 |= operation.ttl.is_some();
            if operation.client >= first_client {
                entry.0 = match operation.did {
                    Did::Found { version, value } => Some((version, value)),
                    _ => None,
                };
            }
        }
        let lasting = last.into_iter().filter(|(_, (_, expires))| !expires);
        self.kept.extend(lasting.map(|(key, (known, _))| ((prefix.to_owned(), key), known)));
        Ok(())
    }

    /// Reads what earlier rounds have left. It is as it was; where the server evicts it may be gone, for good. Returns
    /// how much is there.
    pub(super) fn read_again(&mut self, server: &str, via: Via) -> Result<u64, String> {
        let client = Client::connect(server, via.options()).map_err(|error| error.to_string())?;
        let mut there = 0;
        let mut kept: Vec<_> = self.kept.iter_mut().collect();
        for batch in kept.chunks_mut(BATCH) {
            let names: Vec<Vec<u8>> = batch.iter().map(|((prefix, key), _)| key_bytes(prefix, *key)).collect();
            let values = client.multi_get(&names).map_err(|error| error.to_string())?;
            for (((prefix, key), known), value) in batch.iter_mut().zip(values) {
                let found = value.map(|value| (value.version(), value_number(&value)));
                if found != **known && !(self.may_evict && found.is_none()) {
                    return Err(format!("key {prefix} {key} was {known:?} and is {found:?}, by {}", via.name()));
                }
                **known = found;
                there += u64::from(found.is_some());
            }
        }
        Ok(there)
    }

    /// Forgets everything: the table was emptied.
    pub(super) fn forget(&mut self) {
        self.kept.clear();
    }
}
