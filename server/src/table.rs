//! Where a table lives: a memfd, or a file in a folder that one server at a time has.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::Mode;
use sidestep_fabric::region::{FileLock, HugePages, ReadOnlyRegion, Region, RegionError};
use tracing::{info, warn};

use crate::backing::Backing;
use crate::config::{Config, DEFAULT_MEMORY_BYTES};
use crate::error::ServerError;
use crate::size::ByteSize;
use crate::store::{CheckReport, Store, StoreOptions, check};

/// Name of the table's file in its folder.
pub const FILE_NAME: &str = "table.sidestep";
/// Name of a file that is not a whole table yet.
const NEW_FILE_NAME: &str = "table.sidestep.new";

/// An open table.
#[derive(Debug)]
pub(crate) struct Table<M = Region> {
    pub(crate) store: Arc<Store<M>>,
    /// For a person: where it is, how large, on which pages.
    pub(crate) description: String,
    /// The lock on the folder, for as long as the table is open.
    pub(crate) lock: Option<Folder>,
}

/// A folder that no other server uses.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    /// On the folder itself: it is there before any table is.
    _lock: FileLock,
}

impl Folder {
    /// Locks it with [`FileLock::exclusive`] or [`FileLock::shared`].
    fn lock(path: &Path, lock: impl FnOnce(OwnedFd) -> io::Result<FileLock>) -> Result<Self, ServerError> {
        let failed = |source| folder_error(path, source);
        let file = File::open(path).map_err(failed)?;
        if !file.metadata().map_err(failed)?.is_dir() {
            return Err(failed(io::ErrorKind::NotADirectory.into()));
        }
        match lock(file.into()) {
            Ok(lock) => Ok(Self { path: path.to_owned(), _lock: lock }),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(ServerError::InUse { path: path.to_owned() })
            }
            Err(error) => Err(failed(error)),
        }
    }

    fn table(&self) -> PathBuf {
        self.path.join(FILE_NAME)
    }
}

/// Opens the table of the configuration, or makes it.
pub(crate) fn open<M: Backing>(config: &Config, wrap: impl FnOnce(Region) -> M) -> Result<Table<M>, ServerError> {
    let options = StoreOptions {
        segment_bytes: config.segment_bytes,
        max_value_bytes: config.max_value_bytes,
        eviction: config.eviction,
        recovery_threads: std::thread::available_parallelism().map_or(1, usize::from),
        ..StoreOptions::default()
    };
    let memory_bytes = config.memory_bytes.unwrap_or(DEFAULT_MEMORY_BYTES);
    let (store, place, pages, lock) = match &config.data {
        None => {
            let region = Region::memfd(memory_bytes)?;
            let pages = region.advise_huge_pages();
            (Store::create(wrap(region), &options)?, "memfd".to_owned(), pages, None)
        }
        Some(path) => {
            create_folder(path)?;
            let folder = Folder::lock(path, FileLock::exclusive)?;
            let table = folder.table();
            let (store, pages) = if table.try_exists().map_err(|source| folder_error(path, source))? {
                let region = Region::open_file(&table)?;
                warn_of_size(&region, config.memory_bytes);
                let pages = region.advise_huge_pages();
                let since = Instant::now();
                let (store, report) = Store::recover(wrap(region), &options)?;
                let threads = options.recovery_threads;
                info!(?report, ms = since.elapsed().as_millis(), threads, table = %table.display(), "table recovered");
                (store, pages)
            } else {
                create_file(&folder, memory_bytes, &options, wrap)?
            };
            (store, table.display().to_string(), pages, Some(folder))
        }
    };
    let description = format!(
        "{place} {} in segments of {}, {pages}",
        ByteSize(store.memory_bytes()),
        ByteSize(store.segment_bytes())
    );
    Ok(Table { store, description, lock })
}

fn folder_error(path: &Path, source: io::Error) -> ServerError {
    ServerError::Folder { path: path.to_owned(), source }
}

/// Makes the folder, for its owner alone, unless it is there.
fn create_folder(path: &Path) -> Result<(), ServerError> {
    use std::os::unix::fs::DirBuilderExt;
    let mode = Mode::RWXU.bits();
    std::fs::DirBuilder::new().recursive(true).mode(mode).create(path).map_err(|source| folder_error(path, source))
}

/// Makes the file under another name until there is a whole table in it, so that a kill at any moment leaves
/// either none or one that can be recovered.
fn create_file<M: Backing>(
    folder: &Folder,
    memory_bytes: u64,
    options: &StoreOptions,
    wrap: impl FnOnce(Region) -> M,
) -> Result<(Arc<Store<M>>, HugePages), ServerError> {
    let new = folder.path.join(NEW_FILE_NAME);
    let region = Region::create_file(&new, memory_bytes)?;
    let pages = region.advise_huge_pages();
    let store = Store::create(wrap(region), options)?;
    let rename = std::fs::rename(&new, folder.table()).and_then(|()| File::open(&folder.path)?.sync_all());
    rename.map_err(|source| folder_error(&folder.path, source))?;
    Ok((store, pages))
}

fn warn_of_size(region: &Region, asked_bytes: Option<u64>) {
    if let Some(asked) = asked_bytes
        && asked != region.bytes()
    {
        warn!(
            "the table was made with {}; the {} asked for now are not taken",
            ByteSize(region.bytes()),
            ByteSize(asked)
        );
    }
}

/// Looks at every invariant of the stopped table in a folder, which it maps for reading only. While it looks, no
/// server can have the table.
pub fn check_folder(path: &Path) -> Result<CheckReport, ServerError> {
    let folder = Folder::lock(path, FileLock::shared)?;
    let region = ReadOnlyRegion::open_file(&folder.table()).map_err(|error| match error {
        RegionError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
            ServerError::NoTable { path: folder.table() }
        }
        error => error.into(),
    })?;
    Ok(check(&region))
}
