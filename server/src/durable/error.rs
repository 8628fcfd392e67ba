//! What can be wrong with a log.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why a log cannot be used.
#[derive(Debug, Error)]
pub enum LogError {
    /// Another server has it.
    #[error("the log in {} is in use by another server", path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// Something else is in the folder.
    #[error(
        "{} is not the folder of a log: expected the file {expected}, or nothing, found {found}: give another folder, or \
         move away what is in it",
        path.display()
    )]
    Foreign {
        /// The folder.
        path: PathBuf,
        /// What marks one.
        expected: &'static str,
        /// What is there.
        found: String,
    },
    /// Made by another version.
    #[error(
        "the log in {} is of format {found}, this server reads and writes format {expected}: {}, or `sidestep dump` its \
         table there, and `sidestep load` that into a server of this version with an empty folder as its log",
        path.display(),
        if found > expected { "start a server as new as the one that wrote it" } else { "start the server that wrote it" }
    )]
    Format {
        /// The folder.
        path: PathBuf,
        /// Ours.
        expected: u64,
        /// Its.
        found: u64,
    },
    /// A segment is missing between others.
    #[error(
        "the log in {} has no segment {number}, though older and newer ones: put it back, or move all older segments \
         away to start with what the newer ones have",
        path.display()
    )]
    Missing {
        /// The folder.
        path: PathBuf,
        /// Which one.
        number: u64,
    },
    /// What was synced once is not what is there.
    #[error(
        "{} is damaged: {reason}; restore it, or move it and all older segments away to start with what the newer ones \
         have",
        path.display()
    )]
    Damaged {
        /// The segment.
        path: PathBuf,
        /// What was expected and found.
        reason: String,
    },
    /// The table on which the log is to go on was written without it.
    #[error(
        "the table in {} was written without the log in {}: to go on with the table, give it an empty folder as its log; \
         to go on with the log, move the table away",
        table.display(), log.display()
    )]
    Apart {
        /// The table's folder.
        table: PathBuf,
        /// The log's folder.
        log: PathBuf,
    },
    /// The log on which the table is to go on was written with another one, with one in memory, or with an older or newer
    /// copy of it.
    #[error(
        "the log in {} was written without the table in {}, or one of them is an older copy than the other: to go on with \
         the log, move the table away; to go on with the table, give it an empty folder as its log",
        log.display(), table.display()
    )]
    OtherTable {
        /// The table's folder.
        table: PathBuf,
        /// The log's folder.
        log: PathBuf,
    },
    /// A table was being put into it by a start that failed or was killed, and is not there.
    #[error(
        "the log in {} has a part only of the table that was to be put into it: start with that table as --data, or give \
         an empty folder as the log",
        path.display()
    )]
    Unfilled {
        /// The folder.
        path: PathBuf,
    },
    /// The engine or its file refuses.
    #[error("cannot {what} {}", path.display())]
    Engine {
        /// What was tried.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why.
        source: Box<redb::Error>,
    },
    /// The system refuses.
    #[error("cannot {what} {}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The table has no room for what the log has.
    #[error(
        "the table cannot take what the log has: {0}; start with the --max-value of before and more --memory: items are \
         packed in another way than before, so what a full table had may need an eighth more"
    )]
    NoRoom(String),
    /// The table, which is ahead of the log, cannot be put into it.
    #[error("cannot put the table into the log in {}: {reason}", path.display())]
    Copy {
        /// The log's folder.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

impl LogError {
    pub(super) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, path: path.to_owned(), source }
    }

    pub(super) fn engine<E: Into<redb::Error>>(what: &'static str, path: &Path) -> impl FnOnce(E) -> Self {
        move |error| Self::Engine { what, path: path.to_owned(), source: Box::new(error.into()) }
    }

    pub(super) fn damaged(path: &Path, reason: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), reason: reason.into() }
    }
}
