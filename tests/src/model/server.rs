//! The real store on a tape: what is done to it, and what is found in it.

use std::sync::Arc;

use sidestep_core::lookup::local::{LocalReader, Outcome};
use sidestep_server::store::{Store, WriteError};

use super::keys::{Key, MEMORY_BYTES, geometry, options};
use super::readers::Written;
use super::tape::Tape;

/// A client's write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    /// With a value that is written once only.
    Put(Key),
    Delete(Key),
}

impl Op {
    /// What the key is once this write, the one with this number, is done.
    pub(crate) fn state(self, number: usize) -> Option<Vec<u8>> {
        match self {
            Self::Put(key) => Some(format!("{}:{}", number + 1, String::from_utf8_lossy(key)).into_bytes()),
            Self::Delete(_) => None,
        }
    }

    pub(crate) fn key(self) -> Key {
        match self {
            Self::Put(key) | Self::Delete(key) => key,
        }
    }
}

/// A server's memory and the store on it.
pub(crate) type Server = Arc<Store<Arc<Tape>>>;

/// A table with these keys, as it is before a server takes it up.
pub(crate) fn table(filled: &[Key]) -> Result<Vec<u64>, String> {
    let tape = Tape::new(&vec![0; (MEMORY_BYTES / 8) as usize], None, None);
    let store = Store::create(tape.clone(), &options()).map_err(|error| error.to_string())?;
    for key in filled {
        store.put(key, &first_value(key), None, 0).map_err(|error| error.to_string())?;
    }
    Ok(tape.words_now())
}

/// Does one write. Returns the version of the value, or of what was deleted.
pub(crate) fn write(server: &Server, op: Op, number: usize) -> Result<Option<u64>, String> {
    let done = match op {
        Op::Put(key) => server.put(key, &op.state(number).unwrap_or_default(), None, 0).map(Some),
        Op::Delete(key) => server.delete(key, None),
    };
    done.map_err(|error: WriteError| error.to_string())
}

/// What a key holds at the beginning.
fn first_value(key: Key) -> Vec<u8> {
    let mut value = b"0:".to_vec();
    value.extend_from_slice(key);
    value
}

/// A server that takes up what is there.
pub(crate) fn recover(tape: &Arc<Tape>) -> Result<Server, String> {
    let (server, _) = Store::recover(tape.clone(), &options()).map_err(|error| format!("recovery: {error}"))?;
    Ok(server)
}

/// What a reader alone finds.
pub(crate) fn state_of(tape: &Tape, key: Key) -> Written {
    let mut reader = LocalReader::new(tape, geometry());
    match reader.get(key) {
        Outcome::Found { value, found } => Written { key, state: Some(value.to_vec()), version: Some(found.version) },
        Outcome::Absent => Written { key, state: None, version: Some(0) },
        Outcome::Ask => Written { key, state: Some(b"would ask the server".to_vec()), version: None },
    }
}
