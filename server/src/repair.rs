//! `sidestep-server check --repair`: a damaged table is replaced by a new one with all that is whole of it.
//!
//! The damaged file is only read. The new one is made beside it, checked and synced before it takes the name, so that a kill
//! at any moment leaves the one or the other.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use sidestep_core::limits::BLOCK_BYTES;
use sidestep_fabric::region::{FileLock, ReadOnlyRegion, Region, RegionError};

use crate::error::ServerError;
use crate::pairing;
use crate::store::{
    CheckReport, Root, Salvage, SalvageReport, Store, StoreError, StoreOptions, check, system_ms, would_recover,
};
use crate::table::{Folder, NEW_FILE_NAME, folder_error, look_at};

/// What came of it.
#[derive(Debug)]
pub struct Checked {
    /// Of the table as it was.
    pub report: CheckReport,
    /// None: it was sound, and is as it was.
    pub repair: Option<Repair>,
}

/// A repair that was done.
#[derive(Debug)]
pub struct Repair {
    /// What was kept and what not.
    pub report: SalvageReport,
    /// Where the damaged table is now.
    pub damaged: Option<PathBuf>,
    /// Whether the table had a log, from which it could be made again in whole.
    pub had_log: bool,
}

/// Looks at every invariant of the stopped table in a folder, which it maps for reading only. While it looks, no
/// server can have the table.
pub fn check_folder(path: &Path) -> Result<CheckReport, ServerError> {
    let folder = Folder::lock(path, FileLock::shared)?;
    let table = folder.table();
    let looked = Looked::at(&table)?;
    looked.root.check_length(looked.file_bytes).map_err(|source| ServerError::Table { path: table, source })?;
    Ok(looked.report)
}

/// Checks the stopped table in a folder, and if it is damaged, or a server would not start on it, puts a new one in its
/// place. `keep_damaged`: the old one stays, under another name.
pub fn repair_folder(path: &Path, keep_damaged: bool) -> Result<Checked, ServerError> {
    let folder = Folder::lock(path, FileLock::exclusive)?;
    let table = folder.table();
    let Looked { root, file_bytes, memory, report, salvage, _lock } = Looked::at(&table)?;
    if report.is_sound() && root.check_length(file_bytes).is_ok() {
        return Ok(Checked { report, repair: None });
    }
    let salvage = salvage.map_err(|source| ServerError::Table { path: table.clone(), source })?;
    let new = path.join(NEW_FILE_NAME);
    let repair = make(&new, salvage, &memory, &table).and_then(|report| {
        let failed = |source| folder_error(path, source);
        let damaged = if keep_damaged { Some(keep(&table).map_err(failed)?) } else { None };
        let had_log = pairing::part(path)?;
        let rename = std::fs::rename(&new, &table).and_then(|()| File::open(path)?.sync_all());
        rename.map_err(failed)?;
        Ok(Repair { report, damaged, had_log })
    });
    if repair.is_err() {
        // Of no use. If it cannot be removed it is in nobody's way: the next one is made over it.
        let _ = std::fs::remove_file(&new);
    }
    Ok(Checked { report, repair: Some(repair?) })
}

/// A table that nobody has, and what there is to say of it.
struct Looked {
    root: Root,
    file_bytes: u64,
    memory: Arc<ReadOnlyRegion>,
    report: CheckReport,
    salvage: Result<Salvage, StoreError>,
    /// The folder's lock keeps servers out; this one those on another name of the file.
    _lock: FileLock,
}

impl Looked {
    fn at(table: &Path) -> Result<Self, ServerError> {
        let (file, head, file_bytes) = look_at(table)?;
        let refused = |source| ServerError::Table { path: table.to_owned(), source };
        let root = Root::parse_any_length(head, file_bytes).map_err(refused)?;
        let failed = |source| folder_error(table, source);
        let ranges = data(&file, file_bytes).map_err(failed)?;
        let copy = file.try_clone().map_err(failed)?;
        let lock = FileLock::shared(file.into()).map_err(|source| match source.kind() {
            ErrorKind::WouldBlock => RegionError::InUse { path: table.to_owned() }.into(),
            _ => failed(source),
        })?;
        let whole_bytes = file_bytes / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        let memory = Arc::new(ReadOnlyRegion::map(copy.into(), whole_bytes)?);
        let mut report = check(&*memory);
        let salvage = Salvage::of(&*memory, &ranges, system_ms());
        if let Ok(lost @ 1..) = salvage.as_ref().map(Salvage::keys_without_slot) {
            report.problem(format!("{lost} items are the values of keys, but no slot leads to them"));
        }
        if report.is_sound()
            && let Err(refusal) = would_recover(memory.clone(), &options())
        {
            report.problem(refusal.to_string());
        }
        Ok(Self { root, file_bytes, memory, report, salvage, _lock: lock })
    }
}

fn options() -> StoreOptions {
    StoreOptions {
        max_value_bytes: u32::MAX,
        recovery_threads: std::thread::available_parallelism().map_or(1, usize::from),
        ..StoreOptions::default()
    }
}

/// Makes the new table, synced when this returns.
fn make(new: &Path, salvage: Salvage, memory: &ReadOnlyRegion, table: &Path) -> Result<SalvageReport, ServerError> {
    let bytes = salvage.memory_bytes().max(memory.bytes());
    let region = Region::create_file(new, bytes)?;
    region.advise_huge_pages();
    let options =
        StoreOptions { segment_bytes: salvage.segment_bytes(), version_floor: salvage.version_floor(), ..options() };
    let store = Store::create(region, &options)?;
    let report =
        salvage.put_into(memory, &store).map_err(|source| ServerError::Repair { path: table.to_owned(), source })?;
    let checked = check(store.memory());
    if let Some(problem) = checked.problems.first() {
        return Err(StoreError::Damaged(format!("the new table is not sound: {problem}")).into());
    }
    rustix::fs::fsync(store.memory().fd()).map_err(|errno| folder_error(new, errno.into()))?;
    Ok(report)
}

/// Gives a file a second name, which no file has.
fn keep(table: &Path) -> io::Result<PathBuf> {
    let mut number = 1;
    loop {
        let ending = if number == 1 { "damaged".to_owned() } else { format!("damaged-{number}") };
        let name = table.with_extension(format!("sidestep.{ending}"));
        match std::fs::hard_link(table, &name) {
            Ok(()) => return Ok(name),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(error),
        }
    }
}

/// Where a sparse file has anything: to read the rest of it in a mapping would make pages for it.
fn data(file: &File, bytes: u64) -> io::Result<Vec<Range<u64>>> {
    let (mut ranges, mut at) = (Vec::new(), 0);
    while at < bytes {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            // Nothing but a hole up to the end.
            Err(Errno::NXIO) => break,
            start => start?,
        };
        at = rustix::fs::seek(file, SeekFrom::Hole(start))?;
        ranges.push(start..at);
    }
    Ok(ranges)
}
