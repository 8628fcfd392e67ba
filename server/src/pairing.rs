//! Which is believed at a start, the table in a file or the log: a note beside the table says to which log it belongs, and
//! in which life of the machine it was written; one beside the log says of which table it is.
//!
//! The pages of a mapped file reach the disk in any order. While the machine lives, the file is whole whatever becomes of the
//! server, and has everything that the log has: the table is believed. In another life of the machine the log is.

use std::io::ErrorKind;
use std::path::Path;

use sidestep_fabric::shm::host_boot_id;
use tracing::info;

use crate::durable::{LogError, Stored, write_synced};
use crate::error::ServerError;

const FILE_NAME: &str = "table.log";
/// In place of a log: there was none.
const ALONE: &str = "alone";

fn note(log: Option<u64>) -> Result<String, ServerError> {
    Ok(match log {
        None => format!("{ALONE}\n"),
        Some(id) => {
            let boot = host_boot_id().map_err(|source| ServerError::Thread { what: "log", source })?;
            format!("{id:016x} {boot}\n")
        }
    })
}

/// Notes that the table in a folder is written from now on with this log, or with none.
pub(crate) fn write(folder: &Path, log: Option<u64>) -> Result<(), ServerError> {
    let path = folder.join(FILE_NAME);
    let note = note(log)?;
    match std::fs::read_to_string(&path) {
        Ok(found) if found == note => Ok(()),
        // A table that never had a log needs no note.
        Err(error) if error.kind() == ErrorKind::NotFound && log.is_none() => Ok(()),
        _ => Ok(write_synced(&path, &note)?),
    }
}

/// Notes that the table in a folder is not what its log says any more. Returns whether it has one.
pub(crate) fn part(folder: &Path) -> Result<bool, ServerError> {
    let path = folder.join(FILE_NAME);
    let had_log = match std::fs::read_to_string(&path) {
        Ok(found) => found.trim() != ALONE,
        Err(error) if error.kind() == ErrorKind::NotFound => false,
        Err(source) => return Err(ServerError::Folder { path, source }),
    };
    write(folder, None)?;
    Ok(had_log)
}

/// Whether the table in a folder is to be taken; else it is made anew, from the log.
pub(crate) fn is_believed(folder: &Path, log: Option<&Stored>) -> Result<bool, ServerError> {
    let Some(log) = log else { return Ok(true) };
    let path = folder.join(FILE_NAME);
    let found = match std::fs::read_to_string(&path) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(source) => return Err(ServerError::Folder { path, source }),
    };
    if found == note(Some(log.id()))? || log.is_empty() {
        return Ok(true);
    }
    if found.split_whitespace().next() == Some(&format!("{:016x}", log.id())) {
        info!(table = %folder.display(), "the machine was started anew: the table is made again from the log");
        return Ok(false);
    }
    Err(LogError::Apart { table: folder.to_owned(), log: log.path().to_owned() }.into())
}

/// That the log was not written without this table since: then it has what the table has not, and both would be mixed up.
pub(crate) fn check(folder: &Path, log: &Stored, table_id: u64) -> Result<(), ServerError> {
    match log.is_of(table_id)? {
        true => Ok(()),
        false => Err(LogError::OtherTable { table: folder.to_owned(), log: log.path().to_owned() }.into()),
    }
}
