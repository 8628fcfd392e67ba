//! Where a table lives: a memfd, or a file in a folder that one server at a time has.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::{Mode, OFlags};
use sidestep_fabric::region::{FileLock, HugePages, Region, RegionError};
use tracing::{info, warn};

use crate::access::exposed_mode;
use crate::backing::Backing;
use crate::config::{Config, DEFAULT_MEMORY_BYTES};
use crate::durable::{Log, LogConfig, Stored};
use crate::error::ServerError;
use crate::pairing::{self, State};
use crate::size::ByteSize;
use crate::store::{HEAD_WORDS, Root, Store, StoreOptions};

/// Name of the table's file in its folder.
pub const FILE_NAME: &str = "table.sidestep";
/// Name of a file that is not a whole table yet.
pub(crate) const NEW_FILE_NAME: &str = "table.sidestep.new";
/// Name of the last table in whose place one was made from the log.
const OLD_FILE_NAME: &str = "table.sidestep.old";

/// An open table.
#[derive(Debug)]
pub(crate) struct Table<M = Region> {
    pub(crate) store: Arc<Store<M>>,
    /// For a person: where it is, how large, on which pages.
    pub(crate) description: String,
    /// The lock on the folder, for as long as the table is open.
    pub(crate) lock: Option<Folder>,
    /// The log of its writes.
    pub(crate) log: Option<Log>,
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
    pub(crate) fn lock(path: &Path, lock: impl FnOnce(OwnedFd) -> io::Result<FileLock>) -> Result<Self, ServerError> {
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

    pub(crate) fn table(&self) -> PathBuf {
        self.path.join(FILE_NAME)
    }

    /// Has the table's file on the disk, and notes that it is, for a log that has less. Nobody writes to the table any more.
    pub(crate) fn keep_whole<M: Backing>(&self, store: &Store<M>, log: u64) -> Result<(), ServerError> {
        rustix::fs::fsync(store.memory().region().fd()).map_err(|errno| folder_error(&self.path, errno.into()))?;
        pairing::write(&self.path, log, State::Whole, store.boot_id())
    }
}

/// Opens the table of the configuration, or makes it, and its log.
pub(crate) fn open<M: Backing>(config: &Config, wrap: impl FnOnce(Region) -> M) -> Result<Table<M>, ServerError> {
    let mut stored = config.durable.as_ref().map(Stored::open).transpose()?;
    let options = StoreOptions {
        segment_bytes: config.segment_bytes,
        max_value_bytes: config.max_value_bytes,
        eviction: config.eviction,
        recovery_threads: std::thread::available_parallelism().map_or(1, usize::from),
        version_floor: stored.as_ref().map_or(0, Stored::ceiling),
        ..StoreOptions::default()
    };
    let memory_bytes = config.memory_bytes.unwrap_or(DEFAULT_MEMORY_BYTES);
    let (store, place, pages, lock, log) = match &config.data {
        None => {
            let region = Region::memfd(memory_bytes)?;
            let pages = region.advise_huge_pages();
            let store = Store::create(wrap(region), &options)?;
            fill(&store, stored.as_mut())?;
            stored.iter().try_for_each(|log| log.set_lives(&[store.boot_id()], false))?;
            let log = stored.map(|stored| stored.go_on(&store, false)).transpose()?;
            (store, "memfd".to_owned(), pages, None, log)
        }
        Some(path) => {
            create_folder(path)?;
            let folder = Folder::lock(path, FileLock::exclusive)?;
            let table = folder.table();
            let is_there = is_there(&table).map_err(|source| folder_error(path, source))?;
            let life = if is_there { life_of(&table)? } else { None };
            let is_believed = match &stored {
                Some(log) if is_there => pairing::is_believed(path, life, log)?,
                _ => is_there,
            };
            let (store, pages, log) = if is_believed {
                take_up(&folder, config, options, wrap, stored)?
            } else {
                let (store, pages) = create_file(&folder, is_there, memory_bytes, &options, wrap, stored.as_mut())?;
                let log = stored.map(|stored| stored.go_on(&store, false)).transpose()?;
                (store, pages, log)
            };
            match &log {
                // Only now: with it the log is believed after a crash of the machine.
                Some(log) => {
                    pairing::write(path, log.id(), State::Written, store.boot_id())?;
                    log.settle(store.boot_id())?;
                }
                None => _ = pairing::part(path)?,
            }
            (store, table.display().to_string(), pages, Some(folder), log)
        }
    };
    let mut description = format!(
        "{place} {} in segments of {}, {pages}",
        ByteSize(store.memory_bytes()),
        ByteSize(store.segment_bytes())
    );
    if let Some(LogConfig { path, sync }) = &config.durable {
        description = format!("{description}; log: {}, {sync}", path.display());
    }
    Ok(Table { store, description, lock, log })
}

/// Whether anything has the name, a link that leads nowhere too: a new table would take its place.
fn is_there(table: &Path) -> io::Result<bool> {
    match table.symlink_metadata() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The life that a file's table names, if it is one.
fn life_of(table: &Path) -> Result<Option<u64>, ServerError> {
    let (_, head, file_bytes) = look_at(table)?;
    Ok(Root::parse(head, file_bytes).ok().map(|root| root.boot_id))
}

/// What [`take_up`] gives.
type TakenUp<M> = (Arc<Store<M>>, HugePages, Option<Log>);

/// Takes up the table in a file, and puts into its log what the log has not.
fn take_up<M: Backing>(
    folder: &Folder,
    config: &Config,
    mut options: StoreOptions,
    wrap: impl FnOnce(Region) -> M,
    log: Option<Stored>,
) -> Result<TakenUp<M>, ServerError> {
    let root = check_head(&folder.table(), config)?;
    warn_of_others(&folder.table());
    if let Some(log) = &log {
        let new = getrandom::u64().map_err(|error| folder_error(&folder.path, io::Error::other(error.to_string())))?;
        let noted = pairing::noted_life(&folder.path, log)?;
        log.set_lives(&[noted.unwrap_or(root.boot_id), root.boot_id, new], log.is_to_be_filled()?)?;
        options.boot_id = Some(new);
    }
    let (store, pages) = recover(&folder.table(), &options, wrap)?;
    let log = log.map(|log| log.go_on(&store, true)).transpose()?;
    Ok((store, pages, log))
}

/// It is made with mode 0600. Readers of this host need no more: they are handed a descriptor.
fn warn_of_others(table: &Path) {
    if let Ok(Some(mode)) = table.metadata().map(|metadata| exposed_mode(&metadata)) {
        let table = table.display();
        warn!(
            "others than this server's user can open the table {table}, around its tokens: found mode {mode:04o}, chmod 600 it"
        );
    }
}

fn recover<M: Backing>(
    table: &Path,
    options: &StoreOptions,
    wrap: impl FnOnce(Region) -> M,
) -> Result<(Arc<Store<M>>, HugePages), ServerError> {
    let region = Region::open_file(table)?;
    let pages = region.advise_huge_pages();
    let since = Instant::now();
    let failed = |source| ServerError::Table { path: table.to_owned(), source };
    let (store, report) = Store::recover(wrap(region), options).map_err(failed)?;
    let threads = options.recovery_threads;
    info!(?report, ms = since.elapsed().as_millis(), threads, table = %table.display(), "table recovered");
    Ok((store, pages))
}

/// Puts into a new table what the log has.
fn fill<M: Backing>(store: &Arc<Store<M>>, log: Option<&mut Stored>) -> Result<(), ServerError> {
    match log {
        Some(log) if !log.is_empty() => Ok(log.rebuild(store)?),
        _ => Ok(()),
    }
}

pub(crate) fn folder_error(path: &Path, source: io::Error) -> ServerError {
    ServerError::Folder { path: path.to_owned(), source }
}

/// Makes the folder, for its owner alone, unless it is there.
fn create_folder(path: &Path) -> Result<(), ServerError> {
    use std::os::unix::fs::DirBuilderExt;
    let mode = Mode::RWXU.bits();
    std::fs::DirBuilder::new().recursive(true).mode(mode).create(path).map_err(|source| folder_error(path, source))
}

/// Makes the file under another name until there is a whole table in it, with all that the log has, so that a kill at any
/// moment leaves either what was there before or a table that can be recovered. What was there before keeps another name:
/// of writes that the log had not yet, it may have some.
fn create_file<M: Backing>(
    folder: &Folder,
    is_there: bool,
    memory_bytes: u64,
    options: &StoreOptions,
    wrap: impl FnOnce(Region) -> M,
    mut log: Option<&mut Stored>,
) -> Result<(Arc<Store<M>>, HugePages), ServerError> {
    let failed = |source| folder_error(&folder.path, source);
    let (new, old) = (folder.path.join(NEW_FILE_NAME), folder.path.join(OLD_FILE_NAME));
    if is_there {
        // Only one is kept, and there need be room for no more than that and the new one.
        match std::fs::remove_file(&old) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
    }
    let region = Region::create_file(&new, memory_bytes)?;
    let pages = region.advise_huge_pages();
    let store = Store::create(wrap(region), options)?;
    fill(&store, log.as_deref_mut())?;
    if let Some(log) = &log {
        let noted = pairing::noted_life(&folder.path, log)?;
        log.set_lives(&[noted.unwrap_or(store.boot_id()), store.boot_id()], false)?;
        // The new table may be smaller, and lack what was evicted.
        log.reopen()?;
    }
    if is_there {
        std::fs::rename(folder.table(), &old).map_err(failed)?;
        info!(old = %old.display(), "what was the table is kept under another name; it may be removed");
    }
    // The note speaks of the file that is there, so one of another life has gone first.
    match log {
        Some(log) => pairing::write(&folder.path, log.id(), State::Written, store.boot_id())?,
        None => _ = pairing::part(&folder.path)?,
    }
    let rename = std::fs::rename(&new, folder.table()).and_then(|()| File::open(&folder.path)?.sync_all());
    rename.map_err(failed)?;
    Ok((store, pages))
}

/// Reads the first words of a table's file, and nothing else: of a file that is no table, nothing is changed.
pub(crate) fn look_at(table: &Path) -> Result<(File, [u64; HEAD_WORDS], u64), ServerError> {
    // Whatever is there: a pipe must not keep a server waiting.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => ServerError::NoTable { path: table.to_owned() },
        _ => RegionError::Io { attempt: format!("open {}", table.display()), source }.into(),
    };
    let file = rustix::fs::open(table, flags, Mode::empty()).map_err(|errno| match std::fs::read_link(table) {
        Ok(to) => {
            let found = format!("expected a file, found a symbolic link to {}: is a disk not mounted?", to.display());
            failed(io::Error::other(found))
        }
        Err(_) => failed(errno.into()),
    })?;
    let file = File::from(file);
    let about = file.metadata().map_err(failed)?;
    if !about.is_file() {
        return Err(failed(io::Error::other("expected a file, found something else")));
    }
    let mut bytes = [0; HEAD_WORDS * 8];
    let there = usize::try_from(about.len()).map_or(bytes.len(), |there| there.min(bytes.len()));
    file.read_exact_at(&mut bytes[..there], 0).map_err(failed)?;
    let (words, _) = bytes.as_chunks::<8>();
    Ok((file, std::array::from_fn(|i| u64::from_le_bytes(words[i])), about.len()))
}

/// Refuses what is no table of this server's, and one of another size than is asked for.
fn check_head(table: &Path, config: &Config) -> Result<Root, ServerError> {
    let (_, head, file_bytes) = look_at(table)?;
    let root = Root::parse(head, file_bytes).map_err(|source| ServerError::Table { path: table.to_owned(), source })?;
    // How much more was asked for then, in whole segments nothing, is not known any more.
    let memory_bytes = config.memory_bytes.map(|asked| asked / root.segment_bytes * root.segment_bytes);
    let sizes =
        [("--memory", root.memory_bytes, memory_bytes), ("--segment", root.segment_bytes, config.segment_bytes)];
    for (option, made, asked) in sizes {
        if let Some(asked) = asked.filter(|&asked| asked != made) {
            return Err(ServerError::OtherSize { path: table.to_owned(), option, made, asked });
        }
    }
    Ok(root)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durable::SyncMode;

    /// What a smaller table has evicted is in the log still. A start that is killed before that is compacted leaves a table
    /// that must not be taken for all that the log has.
    #[test]
    fn a_table_made_from_a_log_takes_back_that_this_was_ended_in_order() {
        let place = tempfile::tempdir().unwrap();
        let (data, log) = (place.path().join("data"), place.path().join("log"));
        let config = LogConfig { path: log.clone(), sync: SyncMode::Off };
        let store = Store::create(Region::memfd(64 << 20).unwrap(), &StoreOptions::default()).unwrap();
        drop(Stored::open(&config).unwrap().go_on(&store, false).unwrap());
        assert!(log.join("clean").exists());
        create_folder(&data).unwrap();
        let folder = Folder::lock(&data, FileLock::exclusive).unwrap();
        let (mut stored, options) = (Stored::open(&config).unwrap(), StoreOptions::default());
        create_file(&folder, false, 8 << 20, &options, |region| region, Some(&mut stored)).unwrap();
        assert!(folder.table().exists() && !log.join("clean").exists());
    }
}
