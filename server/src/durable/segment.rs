//! A segment of the log: one file of the engine, to which batches are added until the next segment begins.
//!
//! A batch is one transaction of the engine: after a crash it is there as a whole or not at all. Its bytes are cut into
//! cells that fit the engine's pages; each has a checksum of its own over its bytes and its place.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::{
    Database, ReadOnlyTable, ReadableDatabase, ReadableTable, ReadableTableMetadata, StorageBackend, TableDefinition,
};
use xxhash_rust::xxh3::xxh3_64_with_seed;
use zerocopy::IntoBytes;

use super::counters::Counters;
use super::disk::Disk;
use super::error::LogError;
use super::queue::Batch;
use super::record::{BATCH_HEADER_BYTES, BatchHeader};

/// Format of what is in a segment.
pub(super) const FORMAT: u64 = 1;
/// Longest cell, so that one with all that the engine puts around it fits 16 KiB.
const CELL_BYTES: usize = 16_200;
const CHECKSUM_BYTES: usize = 8;
/// Memory that the engine keeps pages in: of the segment that is written; of one that is read, once from end to end.
const WRITE_CACHE_BYTES: usize = 32 << 20;
const READ_CACHE_BYTES: usize = 4 << 20;
/// Longest batch that is believed: far beyond what a queue takes.
const MOST_BATCH_BYTES: u64 = 8 << 30;

const CELLS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("cells");
const FACTS: TableDefinition<'_, &str, u64> = TableDefinition::new("facts");

/// Takes a batch, with its header in front.
pub(super) type Each<'e> = dyn FnMut(&BatchHeader, Vec<u8>) -> Result<(), LogError> + 'e;

/// What a segment says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// Of the log.
    pub(super) log_id: u64,
    /// Of the segment; they are counted.
    pub(super) number: u64,
    /// The first segment that is needed.
    pub(super) base: u64,
    /// Number of its first record.
    pub(super) first: u64,
    /// No version above this is in the log, or was given by the server that writes it.
    pub(super) ceiling: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Segment {
    database: Database,
    path: PathBuf,
    facts: Facts,
    cells: u64,
    /// Whether the last commit was torn, and is gone.
    pub(super) is_torn: bool,
}

fn cell_seed(facts: &Facts, cell: u64) -> u64 {
    facts.log_id ^ facts.number.rotate_left(40) ^ cell
}

impl Segment {
    /// Makes a new one, under another name until it is whole. One that has its name goes then.
    pub(super) fn create(path: &Path, facts: Facts, counters: &Arc<Counters>) -> Result<Self, LogError> {
        let new = path.with_extension("new");
        let made = Self::create_at(&new, facts, counters).and_then(|segment| {
            let renamed = std::fs::rename(&new, path).and_then(|()| sync_folder_of(path));
            renamed.map_err(LogError::io("make", path))?;
            #[cfg(test)]
            super::tape::renamed(path);
            Ok(Self { path: path.to_owned(), ..segment })
        });
        if made.is_err() {
            // Of no use, and maybe the space is. If it cannot be removed now, it is at the next start.
            let _ = std::fs::remove_file(&new);
        }
        made
    }

    fn create_at(path: &Path, facts: Facts, counters: &Arc<Counters>) -> Result<Self, LogError> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(path);
        let file = file.map_err(LogError::io("make", path))?;
        let disk = Disk::new(file, counters.clone());
        #[cfg(test)]
        let disk = super::tape::Taped::new(disk, path);
        Self::make(disk, path, facts)
    }

    /// Makes one on any storage. `path`: for messages.
    pub(super) fn make(storage: impl StorageBackend, path: &Path, facts: Facts) -> Result<Self, LogError> {
        let what = "make";
        let database = redb::Builder::new().set_cache_size(WRITE_CACHE_BYTES).create_with_backend(storage);
        let database = database.map_err(LogError::engine(what, path))?;
        let transaction = database.begin_write().map_err(LogError::engine(what, path))?;
        {
            transaction.open_table(CELLS).map_err(LogError::engine(what, path))?;
            let mut table = transaction.open_table(FACTS).map_err(LogError::engine(what, path))?;
            let Facts { log_id, number, base, first, ceiling } = facts;
            for (name, fact) in [
                ("format", FORMAT),
                ("log id", log_id),
                ("number", number),
                ("base", base),
                ("first", first),
                ("ceiling", ceiling),
            ] {
                table.insert(name, fact).map_err(LogError::engine(what, path))?;
            }
        }
        transaction.commit().map_err(LogError::engine(what, path))?;
        Ok(Self { database, path: path.to_owned(), facts, cells: 0, is_torn: false })
    }

    /// Opens one and checks all of it.
    pub(super) fn open(path: &Path, counters: &Arc<Counters>) -> Result<Self, LogError> {
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(LogError::io("open", path))?;
        Self::open_on(Disk::new(file, counters.clone()), path)
    }

    /// Opens one on any storage. `path`: for messages.
    pub(super) fn open_on(storage: impl StorageBackend, path: &Path) -> Result<Self, LogError> {
        if storage.len().map_err(LogError::io("open", path))? == 0 {
            return Err(LogError::damaged(path, "expected a segment, found an empty file"));
        }
        let is_torn = Arc::new(AtomicBool::new(false));
        let torn = is_torn.clone();
        let mut builder = redb::Builder::new();
        builder.set_cache_size(READ_CACHE_BYTES).set_check_integrity_on_open(true).set_repair_callback(
            move |session| {
                // Called at 0.3 only if the newest commit does not fit its checksums, and the one before is gone back to.
                let is_going_back = (0.2..0.5).contains(&session.progress());
                torn.fetch_or(is_going_back, Ordering::Relaxed);
            },
        );
        let database = builder.create_with_backend(storage).map_err(|error| match error {
            redb::DatabaseError::Storage(redb::StorageError::Corrupted(reason)) => LogError::damaged(path, reason),
            error => LogError::engine("open", path)(error),
        })?;
        let (facts, cells) = read_facts(&database, path)?;
        Ok(Self { database, path: path.to_owned(), facts, cells, is_torn: is_torn.load(Ordering::Relaxed) })
    }

    pub(super) fn facts(&self) -> &Facts {
        &self.facts
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether no batch was added.
    pub(super) fn is_empty(&self) -> bool {
        self.cells == 0
    }

    /// Adds a batch, synced when this returns. After an error the segment takes no more.
    pub(super) fn append(&mut self, batch: &Batch, clock_ms: u64) -> Result<(), LogError> {
        let what = "write to";
        let mut cells = self.cells;
        let transaction = self.database.begin_write().map_err(LogError::engine(what, &self.path))?;
        {
            let mut table = transaction.open_table(CELLS).map_err(LogError::engine(what, &self.path))?;
            let mut bytes = Cutter::new(batch, clock_ms);
            while bytes.left > 0 {
                let cell_bytes = bytes.left.min((CELL_BYTES - CHECKSUM_BYTES) as u64) as usize;
                let reserved = table.insert_reserve(cells, CHECKSUM_BYTES + cell_bytes);
                let mut cell = reserved.map_err(LogError::engine(what, &self.path))?;
                let (checksum, body) = cell.as_mut().split_at_mut(CHECKSUM_BYTES);
                bytes.fill(body);
                checksum.copy_from_slice(&xxh3_64_with_seed(body, cell_seed(&self.facts, cells)).to_le_bytes());
                cells += 1;
            }
            if batch.ceiling > self.facts.ceiling {
                let mut facts = transaction.open_table(FACTS).map_err(LogError::engine(what, &self.path))?;
                facts.insert("ceiling", batch.ceiling).map_err(LogError::engine(what, &self.path))?;
            }
        }
        transaction.commit().map_err(LogError::engine(what, &self.path))?;
        self.cells = cells;
        self.facts.ceiling = self.facts.ceiling.max(batch.ceiling);
        Ok(())
    }

    /// Says that nothing before a segment is needed any more.
    pub(super) fn set_base(&mut self, base: u64) -> Result<(), LogError> {
        let what = "write to";
        let transaction = self.database.begin_write().map_err(LogError::engine(what, &self.path))?;
        {
            let mut facts = transaction.open_table(FACTS).map_err(LogError::engine(what, &self.path))?;
            facts.insert("base", base).map_err(LogError::engine(what, &self.path))?;
        }
        transaction.commit().map_err(LogError::engine(what, &self.path))?;
        self.facts.base = base;
        Ok(())
    }

    /// Hands out each batch with its header, in order. Returns the number of the record after the last one.
    pub(super) fn batches(&self, each: &mut Each<'_>) -> Result<u64, LogError> {
        let table = self.cells()?;
        let (mut next, mut gathered, mut wanted) = (self.facts.first, Vec::new(), 0);
        for (expected, entry) in (0..).zip(table.iter().map_err(LogError::engine("read", &self.path))?) {
            let (number, cell) = entry.map_err(LogError::engine("read", &self.path))?;
            if number.value() != expected {
                let reason = format!("expected cell {expected}, found cell {}", number.value());
                return Err(LogError::damaged(&self.path, reason));
            }
            let body = self.checked(expected, cell.value())?;
            if gathered.is_empty() {
                wanted = self.batch_bytes(next, body)?;
            }
            gathered.extend_from_slice(body);
            if gathered.len() < wanted {
                continue;
            }
            let header = BatchHeader::read(&gathered).filter(|_| gathered.len() == wanted);
            let header = header.ok_or_else(|| LogError::damaged(&self.path, "a batch has another length"))?;
            next += u64::from(header.records.get());
            each(&header, std::mem::take(&mut gathered))?;
        }
        if gathered.is_empty() { Ok(next) } else { Err(LogError::damaged(&self.path, "the last batch is cut off")) }
    }

    fn cells(&self) -> Result<ReadOnlyTable<u64, &'static [u8]>, LogError> {
        let transaction = self.database.begin_read().map_err(LogError::engine("read", &self.path))?;
        transaction.open_table(CELLS).map_err(LogError::engine("read", &self.path))
    }

    fn checked<'c>(&self, number: u64, cell: &'c [u8]) -> Result<&'c [u8], LogError> {
        let (checksum, body) = cell.split_first_chunk::<CHECKSUM_BYTES>().unwrap_or((&[0; CHECKSUM_BYTES], &[]));
        let (expected, found) =
            (u64::from_le_bytes(*checksum), xxh3_64_with_seed(body, cell_seed(&self.facts, number)));
        if expected != found || body.is_empty() {
            let reason = format!("expected the checksum {expected:#018x} of cell {number}, found {found:#018x}");
            return Err(LogError::damaged(&self.path, reason));
        }
        Ok(body)
    }

    /// The length of the batch that begins with this cell, and must begin with record `next`.
    fn batch_bytes(&self, next: u64, body: &[u8]) -> Result<usize, LogError> {
        let header = BatchHeader::read(body).filter(|header| header.bytes.get() <= MOST_BATCH_BYTES);
        let header = header.ok_or_else(|| LogError::damaged(&self.path, "expected the beginning of a batch"))?;
        if header.first.get() != next {
            let reason = format!("expected record {next}, found record {}", header.first.get());
            return Err(LogError::damaged(&self.path, reason));
        }
        Ok(BATCH_HEADER_BYTES + header.bytes.get() as usize)
    }
}

/// Makes what was done to names in a file's folder last.
pub(super) fn sync_folder_of(path: &Path) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

fn read_facts(database: &Database, path: &Path) -> Result<(Facts, u64), LogError> {
    let transaction = database.begin_read().map_err(LogError::engine("read", path))?;
    let no_segment = |error: redb::TableError| match error {
        redb::TableError::Storage(error) => LogError::engine("read", path)(error),
        error => LogError::damaged(path, format!("not a segment: {error}")),
    };
    let table = transaction.open_table(FACTS).map_err(no_segment)?;
    let fact = |name: &'static str| match table.get(name) {
        Ok(Some(fact)) => Ok(fact.value()),
        Ok(None) => Err(LogError::damaged(path, format!("expected the fact {name:?}, found none"))),
        Err(error) => Err(LogError::engine("read", path)(error)),
    };
    let found = fact("format")?;
    if found != FORMAT {
        return Err(LogError::Format { path: path.to_owned(), expected: FORMAT, found });
    }
    let (log_id, number, base) = (fact("log id")?, fact("number")?, fact("base")?);
    let facts = Facts { log_id, number, base, first: fact("first")?, ceiling: fact("ceiling")? };
    let cells = transaction.open_table(CELLS).map_err(no_segment)?;
    Ok((facts, cells.len().map_err(LogError::engine("read", path))?))
}

/// The bytes of a batch, to be put into cells.
struct Cutter<'b> {
    header: BatchHeader,
    header_done: usize,
    pieces: std::slice::Iter<'b, Vec<u8>>,
    piece: &'b [u8],
    left: u64,
}

impl<'b> Cutter<'b> {
    fn new(batch: &'b Batch, clock_ms: u64) -> Self {
        let header = BatchHeader::new(batch.first, batch.records, batch.bytes, clock_ms);
        let left = BATCH_HEADER_BYTES as u64 + batch.bytes;
        Self { header, header_done: 0, pieces: batch.pieces.iter(), piece: &[], left }
    }

    fn fill(&mut self, mut cell: &mut [u8]) {
        self.left -= cell.len() as u64;
        while !cell.is_empty() {
            let from = if self.header_done < BATCH_HEADER_BYTES {
                &self.header.as_bytes()[self.header_done..]
            } else if self.piece.is_empty() {
                match self.pieces.next() {
                    Some(piece) => self.piece = piece,
                    None => return,
                }
                continue;
            } else {
                self.piece
            };
            let bytes = from.len().min(cell.len());
            cell[..bytes].copy_from_slice(&from[..bytes]);
            cell = &mut cell[bytes..];
            if self.header_done < BATCH_HEADER_BYTES {
                self.header_done += bytes;
            } else {
                self.piece = &self.piece[bytes..];
            }
        }
    }
}

#[cfg(test)]
#[path = "segment_tests.rs"]
mod tests;
