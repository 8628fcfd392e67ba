//! The folder of a log: whose it is, which segments are in it, and small notes beside them.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use sidestep_fabric::region::FileLock;
use xxhash_rust::xxh3::xxh3_64;

use super::error::LogError;
use super::segment::{FORMAT, sync_folder_of};

/// Marks the folder of a log, and says which.
const MARK: &str = "sidestep-log";
/// Says that the log was ended in order, after which record.
const CLEAN: &str = "clean";
/// How far the server had come, by its own word; not synced.
const TAIL: &str = "tail";
/// Says in which lives of a table the log was last written.
const LIVES: &str = "lives";
/// Beside them: the log has a part of the table only, of which the table has all.
const FILLING: &str = "filling";
const PREFIX: &str = "segment-";
const ENDING: &str = ".redb";
const NEW_ENDING: &str = ".new";

/// How far a server had come when it last began or ended a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tail {
    /// Records before this were synced.
    pub(super) synced: u64,
    /// Records before this were being written.
    pub(super) begun: u64,
}

/// A log's folder, which no other server uses meanwhile.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    log_id: u64,
    tail: File,
    _lock: FileLock,
}

impl Folder {
    /// Locks a folder, which is made if need be, for its owner alone.
    pub(super) fn open(path: &Path) -> Result<Self, LogError> {
        let cannot_open = |error| LogError::io("use the folder", path)(error);
        make_folder(path).map_err(cannot_open)?;
        let folder = File::open(path).map_err(cannot_open)?;
        let lock = FileLock::exclusive(folder.into()).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => LogError::InUse { path: path.to_owned() },
            _ => cannot_open(error),
        })?;
        let log_id = match std::fs::read_to_string(path.join(MARK)) {
            Ok(mark) => read_mark(path, &mark)?,
            Err(error) if error.kind() == ErrorKind::NotFound => make_mark(path)?,
            Err(error) if error.kind() == ErrorKind::InvalidData => return Err(foreign(path, "other bytes in it")),
            Err(error) => return Err(LogError::io("read", &path.join(MARK))(error)),
        };
        let tail =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path.join(TAIL));
        let tail = tail.map_err(LogError::io("open", &path.join(TAIL)))?;
        Ok(Self { path: path.to_owned(), log_id, tail, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn log_id(&self) -> u64 {
        self.log_id
    }

    /// Where a segment is.
    pub(super) fn segment(&self, number: u64) -> PathBuf {
        self.path.join(format!("{PREFIX}{number:010}{ENDING}"))
    }

    /// The segments that are there, in order. What is left of ones that were being made is removed.
    pub(super) fn segments(&self) -> Result<Vec<u64>, LogError> {
        let cannot_read = |error| LogError::io("read the folder", &self.path)(error);
        let mut numbers = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(cannot_read)? {
            let name = entry.map_err(cannot_read)?.file_name();
            let Some(rest) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else { continue };
            if let Some(number) = rest.strip_suffix(ENDING).and_then(|number| number.parse().ok()) {
                numbers.push(number);
            } else if rest.ends_with(NEW_ENDING) {
                std::fs::remove_file(self.path.join(name)).map_err(cannot_read)?;
            }
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Removes segments, the oldest first, so that none is missing between others.
    pub(super) fn remove_before(&self, base: u64) -> Result<(), LogError> {
        for number in self.segments()?.into_iter().take_while(|&number| number < base) {
            let path = self.segment(number);
            std::fs::remove_file(&path).map_err(LogError::io("remove", &path))?;
            #[cfg(test)]
            super::tape::removed(&path);
        }
        Ok(())
    }

    /// Bytes that segments take on the disk.
    pub(super) fn disk_bytes(&self) -> Result<u64, LogError> {
        use std::os::unix::fs::MetadataExt;
        let bytes = |number| std::fs::metadata(self.segment(number)).map(|of| of.blocks() * 512);
        let sum: io::Result<u64> = self.segments()?.into_iter().map(bytes).sum();
        sum.map_err(LogError::io("read the folder", &self.path))
    }

    /// Bytes that the disk has left for us.
    pub(super) fn free_bytes(&self) -> Result<u64, LogError> {
        let of = rustix::fs::statvfs(&self.path).map_err(io::Error::from);
        of.map(|of| of.f_bavail * of.f_frsize).map_err(LogError::io("ask for the room in", &self.path))
    }

    /// The record after the last one, if the log was ended in order.
    pub(super) fn clean(&self) -> Result<Option<u64>, LogError> {
        let path = self.path.join(CLEAN);
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(text.trim().parse().ok()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(LogError::io("read", &path)(error)),
        }
    }

    /// The log is in use from now on.
    pub(super) fn remove_clean(&self) -> Result<(), LogError> {
        let path = self.path.join(CLEAN);
        match std::fs::remove_file(&path).and_then(|()| sync_folder_of(&path)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(LogError::io("remove", &path)(error)),
            _ => Ok(()),
        }
    }

    /// Notes that the log was ended in order.
    pub(super) fn set_clean(&self, next: u64) -> Result<(), LogError> {
        write_synced(&self.path.join(CLEAN), &format!("{next}\n"))
    }

    /// Whether the log was last written in this life of a table, or is just being taken up by it.
    pub(super) fn knows(&self, life: u64) -> Result<bool, LogError> {
        self.says(&life_line(life))
    }

    /// Whether it was not given all of its table yet.
    pub(super) fn is_filling(&self) -> Result<bool, LogError> {
        self.says(FILLING)
    }

    fn says(&self, wanted: &str) -> Result<bool, LogError> {
        let path = self.path.join(LIVES);
        match std::fs::read_to_string(&path) {
            Ok(found) => Ok(found.lines().any(|line| line == wanted)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(LogError::io("read", &path)(error)),
        }
    }

    /// Notes in which life of a table the log is written from now on, or may be, and whether it has a part of that only.
    pub(super) fn set_lives(&self, lives: &[u64], is_filling: bool) -> Result<(), LogError> {
        let lines = lives.iter().map(|&life| life_line(life)).chain(is_filling.then(|| FILLING.to_owned()));
        let lines: Vec<String> = lines.collect();
        write_synced(&self.path.join(LIVES), &format!("{}\n", lines.join("\n")))
    }

    /// What the last server had come to, if that is known.
    pub(super) fn tail(&self) -> Option<Tail> {
        let mut bytes = [0; 24];
        self.tail.read_exact_at(&mut bytes, 0).ok()?;
        let (words, _) = bytes.as_chunks::<8>();
        let [synced, begun, checksum] = std::array::from_fn(|i| u64::from_le_bytes(words[i]));
        (checksum == xxh3_64(&bytes[..16])).then_some(Tail { synced, begun })
    }

    /// Notes how far we have come. A hint: it may be lost in a crash of the machine, and nothing depends on it.
    pub(super) fn set_tail(&self, tail: Tail) {
        let mut bytes = [tail.synced.to_le_bytes(), tail.begun.to_le_bytes()].concat();
        bytes.extend(xxh3_64(&bytes).to_le_bytes());
        // One that cannot be written tells nothing at the next start.
        let _ = self.tail.write_all_at(&bytes, 0);
    }
}

/// Makes a folder, and those above it that are not there, for their owner alone. Each that is made is on the disk when this
/// returns: else all of the log may go with the name of a folder.
fn make_folder(path: &Path) -> io::Result<()> {
    let make = || DirBuilder::new().mode(0o700).create(path);
    let made = match (make(), path.parent()) {
        (Err(error), Some(above)) if error.kind() == ErrorKind::NotFound && !above.as_os_str().is_empty() => {
            make_folder(above)?;
            make()
        }
        (made, _) => made,
    };
    match made {
        Ok(()) => sync_folder_of(path),
        Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Writes a small file under another name, and gives it its own when it is on the disk.
pub(crate) fn write_synced(path: &Path, text: &str) -> Result<(), LogError> {
    let new = path.with_extension("new");
    let write = || {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, path)?;
        sync_folder_of(path)
    };
    write().map_err(LogError::io("write", path))
}

fn life_line(life: u64) -> String {
    format!("{life:016x}")
}

fn foreign(path: &Path, found: impl Into<String>) -> LogError {
    LogError::Foreign { path: path.to_owned(), expected: MARK, found: found.into() }
}

/// `sidestep-log 1 0123456789abcdef`: what it is, its format, its id.
fn read_mark(path: &Path, mark: &str) -> Result<u64, LogError> {
    let words: Vec<&str> = mark.split_whitespace().collect();
    let [MARK, format, id] = words[..] else { return Err(foreign(path, "other text in it")) };
    let Ok(found) = format.parse() else { return Err(foreign(path, "other text in it")) };
    if found != FORMAT {
        return Err(LogError::Format { path: path.to_owned(), expected: FORMAT, found });
    }
    u64::from_str_radix(id, 16).map_err(|_| foreign(path, "other text in it"))
}

fn make_mark(path: &Path) -> Result<u64, LogError> {
    let cannot_read = |error| LogError::io("read the folder", path)(error);
    for entry in std::fs::read_dir(path).map_err(cannot_read)? {
        let name = entry.map_err(cannot_read)?.file_name();
        // A file system's own folder is no content; nor is what is left of a mark that was being made.
        if name != "lost+found" && name != Path::new(MARK).with_extension("new").as_os_str() {
            return Err(foreign(path, name.to_string_lossy()));
        }
    }
    let random = getrandom::u64().map_err(|error| LogError::io("make", path)(io::Error::other(error.to_string())))?;
    write_synced(&path.join(MARK), &format!("{MARK} {FORMAT} {random:016x}\n"))?;
    Ok(random)
}
