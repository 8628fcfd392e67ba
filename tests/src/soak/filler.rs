//! Fills the memory to the last extent and empties it again, beside everybody else.

use std::sync::atomic::{AtomicBool, Ordering};

use sidestep_client::{Client, Error, Options, Session};

use crate::linearizability::client::{key_bytes, value_bytes, value_number};

/// Keys at most, when the server evicts rather than refuses.
const MOST: u64 = 2000;
/// The bit of a long value's number, see [`value_bytes`].
const LONG: u64 = 1 << 62;

/// What it came to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Filled {
    pub(super) puts: u64,
    pub(super) refused: u64,
}

/// Goes on until it is stopped, and removes its keys. The server may be lost meanwhile.
pub(super) fn fill(server: &str, prefix: &str, stop: &AtomicBool) -> Result<Filled, String> {
    let mut filled = Filled::default();
    let mut keys = 0..0;
    while !stop.load(Ordering::Relaxed) {
        let Ok(mut session) = connect(server) else { continue };
        if let Err(error) = round(&mut session, prefix, &mut keys, stop, &mut filled)? {
            expect_loss(error)?;
        }
    }
    let mut session = connect(server).map_err(|error| format!("the filler: {error}"))?;
    empty(&mut session, prefix, &mut keys).map_err(|error| format!("the filler: {error}"))?;
    Ok(filled)
}

fn connect(server: &str) -> Result<Session, Error> {
    Client::connect(server, Options::default())?.session()
}

/// Puts until nothing fits any more, looks at what there is, and removes it. The outer error is a fault.
fn round(
    session: &mut Session,
    prefix: &str,
    keys: &mut std::ops::Range<u64>,
    stop: &AtomicBool,
    filled: &mut Filled,
) -> Result<Result<(), Error>, String> {
    let mut value = Vec::new();
    while keys.end - keys.start < MOST && !stop.load(Ordering::Relaxed) {
        value.clear();
        value_bytes(LONG | keys.end, &mut value);
        value.truncate(100_000 / 8 * 8);
        keys.end += 1;
        match session.put(key_bytes(prefix, keys.end - 1), &value) {
            Ok(_) => filled.puts += 1,
            Err(Error::Full(_)) => {
                filled.refused += 1;
                break;
            }
            Err(error) => return Ok(Err(error)),
        }
    }
    for key in keys.clone() {
        match session.get(key_bytes(prefix, key)) {
            Ok(Some(found)) if !is_whole(&found, LONG | key) => {
                return Err(format!("the filler's key {key} has another value: {}", value_number(&found)));
            }
            Ok(_) => {}
            Err(error) => return Ok(Err(error)),
        }
    }
    Ok(empty(session, prefix, keys))
}

/// Whether every word of a value is its number.
fn is_whole(value: &[u8], number: u64) -> bool {
    value.len() >= 8 && value.len().is_multiple_of(8) && value.chunks(8).all(|word| word == number.to_le_bytes())
}

fn empty(session: &mut Session, prefix: &str, keys: &mut std::ops::Range<u64>) -> Result<(), Error> {
    for key in keys.clone() {
        session.delete(key_bytes(prefix, key))?;
    }
    keys.start = keys.end;
    Ok(())
}

fn expect_loss(error: Error) -> Result<(), String> {
    match error {
        Error::Unreachable { .. }
        | Error::Stopping { .. }
        | Error::PathUnavailable { .. }
        | Error::TimedOut { .. }
        | Error::OutcomeUnknown(_) => Ok(()),
        error => Err(format!("the filler: {error}")),
    }
}
