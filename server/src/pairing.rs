//! Which is believed at a start, the table in a file or the log: a note beside the table says to which log it belongs, and
//! in which life of the machine it was written; one beside the log says in which life of a table.
//!
//! The pages of a mapped file reach the disk in any order. While the machine lives, the file is whole whatever becomes of the
//! server, and has everything that the log has: the table is believed. In another life of the machine the log is.
//!
//! A log that is filled from the table for the first time says so itself until it has everything: whatever comes between, a
//! part of a table must never be taken for all of it.
//!
//! Invariant: the life that the table's note names, and the one in its root, are among those that the log's note names, at
//! each moment of a start and of the time that it serves. A copy of either that is older than the other is so found out:
//!
//! ```text
//!               log's lives     table's note   table's root
//! served        old             old            old
//! a start       old, new        old            old
//! recovered     old, new        old            new
//! in the log    old, new        new            new
//! served        new             new            new
//! ```

use std::io::ErrorKind;
use std::path::Path;

use sidestep_fabric::shm::host_boot_id;
use tracing::info;

use crate::durable::{LogError, Stored, write_synced};
use crate::error::ServerError;

const FILE_NAME: &str = "table.log";
/// In place of a log: there was none.
const ALONE: &str = "alone";
/// In place of a life of the machine: the file was synced, and not written since. Believed in any life.
const WHOLE: &str = "whole";

/// What is said beside a table that has a log.
struct Note {
    log: u64,
    /// The machine's boot id, or [`WHOLE`].
    state: String,
    /// The table's.
    life: u64,
}

/// What is to be said of a table that has a log.
#[derive(Clone, Copy, Debug)]
pub(crate) enum State {
    /// It is written, in this life of the machine.
    Written,
    /// [`WHOLE`].
    Whole,
}

fn this_boot() -> Result<String, ServerError> {
    host_boot_id().map_err(|source| ServerError::Thread { what: "log", source })
}

/// None: the table has no log, or the note is not ours.
fn read(folder: &Path) -> Result<Option<Note>, ServerError> {
    let path = folder.join(FILE_NAME);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(ServerError::Folder { path, source }),
    };
    let words: Vec<&str> = text.split_whitespace().collect();
    let [log, state, life] = words[..] else { return Ok(None) };
    let word = |word| u64::from_str_radix(word, 16).ok();
    Ok(word(log).zip(word(life)).map(|(log, life)| Note { log, state: state.to_owned(), life }))
}

/// Notes that the table in a folder is written from now on with this log.
pub(crate) fn write(folder: &Path, log: u64, state: State, life: u64) -> Result<(), ServerError> {
    let state = match state {
        State::Written => this_boot()?,
        State::Whole => WHOLE.to_owned(),
    };
    let (path, note) = (folder.join(FILE_NAME), format!("{log:016x} {state} {life:016x}\n"));
    match std::fs::read_to_string(&path) {
        Ok(found) if found == note => Ok(()),
        _ => Ok(write_synced(&path, &note)?),
    }
}

/// Notes that the table in a folder is written from now on without a log. Returns whether it had one.
pub(crate) fn part(folder: &Path) -> Result<bool, ServerError> {
    let path = folder.join(FILE_NAME);
    match std::fs::read_to_string(&path) {
        // A table that never had a log needs no note.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Ok(found) if found.trim() == ALONE => Ok(false),
        Err(error) if error.kind() != ErrorKind::InvalidData => Err(ServerError::Folder { path, source: error }),
        _ => {
            write_synced(&path, &format!("{ALONE}\n"))?;
            Ok(true)
        }
    }
}

/// The life of the table that its note names, if it names this log.
pub(crate) fn noted_life(folder: &Path, log: &Stored) -> Result<Option<u64>, ServerError> {
    Ok(read(folder)?.filter(|note| note.log == log.id()).map(|note| note.life))
}

/// Whether the table in a folder, whose root has this life if it is one, is to be taken; else it is made anew, from the log.
/// An error where each may have what the other has not.
pub(crate) fn is_believed(folder: &Path, life: Option<u64>, log: &Stored) -> Result<bool, ServerError> {
    if log.is_to_be_filled()? {
        return Ok(true);
    }
    let (table, log_path) = (folder.to_owned(), log.path().to_owned());
    let Some(note) = read(folder)?.filter(|note| note.log == log.id()) else {
        return Err(LogError::Apart { table, log: log_path }.into());
    };
    let other = || LogError::OtherTable { table, log: log_path };
    if !log.knows(note.life)? {
        return Err(other().into());
    }
    // What the disk has of a table that the machine went down with may be of any age.
    if note.state != WHOLE && note.state != this_boot()? {
        info!(table = %folder.display(), "the machine was started anew: the table is made again from the log");
        return Ok(false);
    }
    match life {
        Some(life) if !log.knows(life)? => Err(other().into()),
        _ => Ok(true),
    }
}
