//! Where a table lives: a memfd, or a file in a folder that one server at a time has.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FlockOperation, Mode, flock};
use sidestep_fabric::region::{HugePages, Region, RegionError};
use tracing::{info, warn};

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
pub(crate) struct Table {
    pub(crate) store: Arc<Store<Region>>,
    /// For a person: where it is, how large, on which pages.
    pub(crate) description: String,
    /// The lock on the folder, for as long as the table is open.
    pub(crate) lock: Option<Folder>,
}

/// A folder that no other server uses.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    /// `flock(2)` on the folder itself: it is there before any table is, and ends with the process.
    lock: File,
}

impl Folder {
    fn lock(path: &Path) -> Result<Self, ServerError> {
        let failed = |source| ServerError::Folder { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        if !file.metadata().map_err(failed)?.is_dir() {
            return Err(failed(std::io::ErrorKind::NotADirectory.into()));
        }
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { path: path.to_owned(), lock: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(ServerError::InUse { path: path.to_owned() }),
            Err(errno) => Err(failed(errno.into())),
        }
    }

    fn table(&self) -> PathBuf {
        self.path.join(FILE_NAME)
    }
}

/// Opens the table of the configuration, or makes it.
pub(crate) fn open(config: &Config) -> Result<Table, ServerError> {
    let options = StoreOptions {
        segment_bytes: config.segment_bytes,
        max_value_bytes: config.max_value_bytes,
        ..StoreOptions::default()
    };
    let memory_bytes = config.memory_bytes.unwrap_or(DEFAULT_MEMORY_BYTES);
    let (store, place, pages, lock) = match &config.data {
        None => {
            let region = Region::memfd(memory_bytes)?;
            let pages = region.advise_huge_pages();
            (Store::create(region, &options)?, "memfd".to_owned(), pages, None)
        }
        Some(path) => {
            create_folder(path)?;
            let folder = Folder::lock(path)?;
            let table = folder.table();
            let (store, pages) = if table.try_exists().map_err(|source| folder_error(path, source))? {
                let region = Region::open_file(&table)?;
                warn_of_size(&region, config.memory_bytes);
                let pages = region.advise_huge_pages();
                let (store, report) = Store::recover(region, &options)?;
                info!(?report, table = %table.display(), "table recovered");
                (store, pages)
            } else {
                create_file(&folder, memory_bytes, &options)?
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

/// Unlocks by name: a child of this process that is between fork and exec has the descriptor too, and
/// closing ours alone would leave the folder locked until it is gone.
impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = flock(&self.lock, FlockOperation::Unlock) {
            warn!(%error, folder = %self.path.display(), "cannot unlock the folder");
        }
    }
}

fn folder_error(path: &Path, source: std::io::Error) -> ServerError {
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
fn create_file(
    folder: &Folder,
    memory_bytes: u64,
    options: &StoreOptions,
) -> Result<(Arc<Store<Region>>, HugePages), ServerError> {
    let new = folder.path.join(NEW_FILE_NAME);
    let region = Region::create_file(&new, memory_bytes)?;
    let pages = region.advise_huge_pages();
    let store = Store::create(region, options)?;
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

/// Looks at every invariant of the stopped table in a folder. Changes nothing.
pub fn check_folder(path: &Path) -> Result<CheckReport, ServerError> {
    let folder = Folder::lock(path)?;
    let region = Region::open_file(&folder.table()).map_err(|error| match error {
        RegionError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            ServerError::NoTable { path: folder.table() }
        }
        error => error.into(),
    })?;
    Ok(check(&region))
}
