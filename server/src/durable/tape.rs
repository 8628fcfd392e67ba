//! Everything that a log does to its disk, in order, and what the disk may have of it when the machine goes down. For tests,
//! which can also have the disk refuse something.
//!
//! Between two syncs of a file nothing is ordered: each sector of what was written since may be there, or not, or torn. The
//! same holds for names that were given or taken since the folder was last synced.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use rand::Rng;
use rand::seq::SliceRandom;
use redb::StorageBackend;

use super::disk::Disk;

const SECTOR: usize = 512;

/// Tapes of folders.
static TAPES: LazyLock<Mutex<HashMap<PathBuf, Arc<Tape>>>> = LazyLock::new(Mutex::default);

/// Something that was done. Files are known by their names without an ending, which is used twice only where the disk has
/// refused.
#[derive(Clone, Debug)]
pub(super) enum Event {
    Write(String, u64, Vec<u8>),
    SetLen(String, u64),
    Sync(String),
    Rename(String),
    SyncFolder,
    Remove(String),
    /// All records before this one are acknowledged.
    Durable(u64),
}

#[derive(Debug, Default)]
pub(super) struct Tape {
    events: Mutex<Vec<Event>>,
    refusal: Mutex<Refusal>,
}

/// Whether the disk refuses something.
type IsRefused = dyn FnMut(&Event) -> bool + Send;

/// What the disk refuses, if anything.
#[derive(Default)]
struct Refusal(Option<Box<IsRefused>>);

impl fmt::Debug for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Refusal").field(&self.0.is_some()).finish()
    }
}

impl Tape {
    /// Records from now on what is done in a folder.
    pub(super) fn of(folder: &Path) -> Arc<Self> {
        TAPES.lock().entry(folder.to_owned()).or_default().clone()
    }

    pub(super) fn end(folder: &Path) {
        TAPES.lock().remove(folder);
    }

    pub(super) fn push(&self, event: Event) {
        self.events.lock().push(event);
    }

    /// From now on the disk refuses this, as one that is full. It is asked before each write, length and sync.
    pub(super) fn refuse(&self, is_refused: impl FnMut(&Event) -> bool + Send + 'static) {
        *self.refusal.lock() = Refusal(Some(Box::new(is_refused)));
    }

    fn refuses(&self, event: &Event) -> bool {
        self.refusal.lock().0.as_mut().is_some_and(|is_refused| is_refused(event))
    }

    pub(super) fn len(&self) -> usize {
        self.events.lock().len()
    }

    pub(super) fn events(&self) -> Vec<Event> {
        self.events.lock().clone()
    }
}

fn tape_of(path: &Path) -> Option<(Arc<Tape>, String)> {
    let tape = path.parent().and_then(|folder| TAPES.lock().get(folder).cloned())?;
    Some((tape, path.file_stem()?.to_string_lossy().into_owned()))
}

fn note(path: &Path, event: impl FnOnce(String) -> Event) {
    if let Some((tape, file)) = tape_of(path) {
        tape.push(event(file));
    }
}

/// Does something and notes it, unless the disk is to refuse it.
fn attempt(path: &Path, event: impl FnOnce(String) -> Event, act: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let Some((tape, file)) = tape_of(path) else { return act() };
    let event = event(file);
    if tape.refuses(&event) {
        return Err(io::ErrorKind::StorageFull.into());
    }
    act()?;
    tape.push(event);
    Ok(())
}

/// A segment has its name, and that is on the disk.
pub(super) fn renamed(path: &Path) {
    note(path, Event::Rename);
    note(path, |_| Event::SyncFolder);
}

/// A segment was removed.
pub(super) fn removed(path: &Path) {
    note(path, Event::Remove);
}

/// A file whose tape runs.
#[derive(Debug)]
pub(super) struct Taped {
    disk: Disk,
    path: PathBuf,
}

impl Taped {
    pub(super) fn new(disk: Disk, path: &Path) -> Self {
        Self { disk, path: path.to_owned() }
    }
}

impl StorageBackend for Taped {
    fn len(&self) -> io::Result<u64> {
        self.disk.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.disk.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        attempt(&self.path, |file| Event::SetLen(file, len), || self.disk.set_len(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        attempt(&self.path, Event::Sync, || self.disk.sync_data())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        attempt(&self.path, |file| Event::Write(file, offset, data.to_vec()), || self.disk.write(offset, data))
    }
}

/// What becomes of what was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// None of it is there.
    Dropped,
    /// Of each sector a part.
    Torn,
    /// Some sectors are there, of several of one place any one.
    Reordered,
}

pub(super) const FATES: [Fate; 3] = [Fate::Dropped, Fate::Torn, Fate::Reordered];

/// One file between two syncs.
#[derive(Debug, Default)]
struct File {
    bytes: Vec<u8>,
    /// Since the last sync.
    sectors: Vec<(usize, Vec<u8>)>,
}

impl File {
    fn apply(&mut self, at: usize, part: &[u8]) {
        // The write of a length that is not there yet makes it so.
        self.bytes.resize(self.bytes.len().max(at + part.len()), 0);
        self.bytes[at..at + part.len()].copy_from_slice(part);
    }

    fn sync(&mut self) {
        for (at, part) in std::mem::take(&mut self.sectors) {
            self.apply(at, &part);
        }
    }

    fn crash(mut self, random: &mut impl Rng, fate: Fate) -> Vec<u8> {
        let mut sectors = std::mem::take(&mut self.sectors);
        if fate == Fate::Reordered {
            sectors.shuffle(random);
        }
        for (at, mut part) in sectors {
            match fate {
                Fate::Dropped => continue,
                Fate::Torn => part.truncate(random.random_range(0..=part.len()) & !7),
                Fate::Reordered if random.random_bool(0.3) => continue,
                Fate::Reordered => {}
            }
            self.apply(at, &part);
        }
        self.bytes
    }
}

/// A segment's own name.
#[derive(Clone, Copy, Debug)]
enum Name {
    /// It was given, and the folder is not synced.
    Given,
    Has,
    /// It was removed, and the folder is not synced.
    Taken,
    Gone,
}

impl Name {
    fn synced(self) -> Self {
        match self {
            Self::Given | Self::Has => Self::Has,
            Self::Taken | Self::Gone => Self::Gone,
        }
    }
}

/// The files of a disk that went down after these events. Returns them by name.
pub(super) fn crash(random: &mut impl Rng, events: &[Event], fate: Fate) -> BTreeMap<String, Vec<u8>> {
    let (mut files, mut names) = (BTreeMap::<String, File>::new(), BTreeMap::<String, Name>::new());
    for event in events {
        match event {
            Event::Write(file, offset, data) => {
                let parts = data.chunks(SECTOR).enumerate();
                let sectors = parts.map(|(i, part)| (*offset as usize + i * SECTOR, part.to_vec()));
                files.entry(file.clone()).or_default().sectors.extend(sectors);
            }
            // The engine orders it and nothing else before the next sync: the length is there first.
            Event::SetLen(file, len) => files.entry(file.clone()).or_default().bytes.resize(*len as usize, 0),
            Event::Sync(file) => files.entry(file.clone()).or_default().sync(),
            Event::Rename(file) => drop(names.insert(file.clone(), Name::Given)),
            Event::Remove(file) => drop(names.insert(file.clone(), Name::Taken)),
            Event::SyncFolder => names.values_mut().for_each(|name| *name = name.synced()),
            Event::Durable(_) => {}
        }
    }
    let mut found = BTreeMap::new();
    for (file, content) in files {
        let ending = match names.get(&file) {
            Some(Name::Has) => Some("redb"),
            Some(Name::Given) => Some(if random.random() { "redb" } else { "new" }),
            Some(Name::Taken) => random.random_bool(0.5).then_some("redb"),
            Some(Name::Gone) => None,
            None => Some("new"),
        };
        if let Some(ending) = ending {
            found.insert(format!("{file}.{ending}"), content.crash(random, fate));
        }
    }
    found
}
