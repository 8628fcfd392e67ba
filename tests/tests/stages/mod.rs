//! Tables on the point of a write, of which it is known what it will store.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use rustix::process::Signal;
use sidestep_client::{Client, Error, Options, Session};
use sidestep_core::hash::KeyHash;
use sidestep_server::FILE_NAME;
use sidestep_tests::fail_server::{MEMORY, SEGMENT};
use sidestep_tests::process::{ServerProcess, tmpfs_folder};
use tempfile::TempDir;

/// The home of all keys that crowd; a window holds 16 of them.
const HOME: u64 = 9;

/// A write that the table has yet to see.
#[derive(Clone)]
pub(crate) enum Write {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
}

impl Write {
    pub(crate) fn run(&self, client: &Client) -> Result<(), Error> {
        match self {
            Self::Put(key, value) => client.put(key, value).map(|_| ()),
            Self::Delete(key) => client.delete(key).map(|there| assert!(there)),
        }
    }

    fn key(&self) -> &[u8] {
        match self {
            Self::Put(key, _) | Self::Delete(key) => key,
        }
    }
}

impl fmt::Debug for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Put(key, value) => write!(f, "put {} of {} bytes", key.escape_ascii(), value.len()),
            Self::Delete(key) => write!(f, "delete {}", key.escape_ascii()),
        }
    }
}

/// A table in a folder, what is in it, and the write that comes next.
pub(crate) struct Stage {
    folder: TempDir,
    present: BTreeMap<Vec<u8>, (u64, Vec<u8>)>,
    absent: Vec<Vec<u8>>,
    pub(crate) write: Write,
}

/// A server as it is shipped.
pub(crate) fn serve(listen: &str, data: &Path) -> ServerProcess {
    let data = data.to_str().expect("a name");
    ServerProcess::start(listen, &["--memory", MEMORY, "--segment", SEGMENT, "--workers", "1", "--data", data])
}

/// Waits until a fail server's thread that prepares memory has done so: its stores are not those of a write.
pub(crate) fn at_rest(client: &Client) {
    const SEGMENT_BYTES: u64 = 256 << 10;
    assert_eq!(SEGMENT, "256KiB");
    while client.stats().expect("its stats").server("memory_free_bytes").expect("a counter") < SEGMENT_BYTES {
        std::thread::yield_now();
    }
}

/// A copy of a table that nobody serves.
pub(crate) fn copy(data: &Path) -> TempDir {
    let folder = tmpfs_folder();
    std::fs::copy(data.join(FILE_NAME), folder.path().join(FILE_NAME)).expect("a copy");
    folder
}

/// Keys for a table.
struct Keys(u64);

impl Keys {
    fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash::of(key, self.0)
    }

    /// Keys of the crowded home whose hashes begin with these two bits.
    fn crowd(&self, bits: u64, count: usize) -> Vec<Vec<u8>> {
        let all = (0u64..).map(|i| format!("c{i:x}").into_bytes());
        let fits = |key: &Vec<u8>| {
            let hash = self.hash(key);
            hash.home() == HOME && hash.directory_index(2) == bits
        };
        all.filter(fits).take(count).collect()
    }

    /// Keys that nothing else in the table is near.
    fn others(&self, count: usize) -> Vec<Vec<u8>> {
        let all = (0u64..).map(|i| format!("other {i}").into_bytes());
        all.filter(|key| self.hash(key).home().abs_diff(HOME) > 2).take(count).collect()
    }

    /// A key that looks like another one until it is compared.
    fn double(&self, of: &[u8]) -> Vec<u8> {
        let like = self.hash(of);
        let same = |key: &Vec<u8>| {
            let hash = self.hash(key);
            hash.home() == like.home() && hash.fingerprint() == like.fingerprint()
        };
        (0u64..).map(|i| format!("d{i:x}").into_bytes()).find(same).expect("there are many")
    }
}

impl Stage {
    fn new(fill: impl FnOnce(&Keys) -> (Vec<Vec<u8>>, Write)) -> Self {
        let folder = tmpfs_folder();
        let mut server = serve("127.0.0.1:0", folder.path());
        let client = Client::connect(server.address(), Options::default()).expect("a server");
        let keys = Keys(client.server_info().expect("its info").table_id);
        let (crowd, write) = fill(&keys);
        let mut present = BTreeMap::new();
        for key in crowd.iter().chain(&keys.others(12)) {
            let value = key.repeat(1 + key.len() % 7);
            present.insert(key.clone(), (client.put(key, &value).expect("a put"), value));
        }
        // Absent: never there, there once, and alike to what is there.
        let mut absent = vec![b"never".to_vec(), keys.double(&crowd[0]), keys.double(&crowd[1])];
        let gone = keys.others(14).split_off(12);
        for key in &gone {
            client.put(key, "gone").expect("a put");
            assert!(client.delete(key).expect("a delete"));
        }
        absent.extend(gone);
        server.signal(Signal::TERM);
        assert!(server.wait().success());
        Self { folder, present, absent, write }
    }

    /// 8 keys in a window, one of which is written again.
    pub(crate) fn update() -> Self {
        Self::new(|keys| {
            let crowd = keys.crowd(0, 8);
            let write = Write::Put(crowd[3].clone(), b"a new value".to_vec());
            (crowd, write)
        })
    }

    /// The same with a value that is written to its place before the lock is taken.
    pub(crate) fn long_update() -> Self {
        Self::new(|keys| {
            let crowd = keys.crowd(0, 8);
            let write = Write::Put(crowd[3].clone(), vec![7; 4301]);
            (crowd, write)
        })
    }

    /// 8 keys in a window, and one more.
    pub(crate) fn insert() -> Self {
        Self::new(|keys| {
            let mut crowd = keys.crowd(0, 9);
            let write = Write::Put(crowd.remove(4), b"a new key's".to_vec());
            (crowd, write)
        })
    }

    /// 8 keys in a window, one of which goes.
    pub(crate) fn delete() -> Self {
        Self::new(|keys| {
            let crowd = keys.crowd(0, 8);
            let write = Write::Delete(crowd[3].clone());
            (crowd, write)
        })
    }

    /// Two subtables with a full window each, in a directory of two entries: the next key of 00 splits the first
    /// of them, for which the directory is doubled.
    pub(crate) fn doubling() -> Self {
        Self::new(|keys| {
            let (mut low, other) = (keys.crowd(0, 9), [keys.crowd(2, 8), keys.crowd(3, 8)].concat());
            let write = Write::Put(low.remove(8), b"doubles".to_vec());
            (Self::two_full(other, low, keys.crowd(1, 8)), write)
        })
    }

    /// The same after that doubling: the next key of 10 splits the second one.
    pub(crate) fn split() -> Self {
        Self::new(|keys| {
            let (low, mut high) = (keys.crowd(0, 9), keys.crowd(2, 9));
            let write = Write::Put(high.remove(8), b"splits".to_vec());
            let mut crowd = Self::two_full([high, keys.crowd(3, 8)].concat(), low[..8].to_vec(), keys.crowd(1, 8));
            crowd.push(low[8].clone());
            (crowd, write)
        })
    }

    /// In the order in which they are put: the second half's first key splits the root's subtable.
    fn two_full(upper: Vec<Vec<u8>>, lower: Vec<Vec<u8>>, lower_too: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        [upper, lower, lower_too].concat()
    }

    /// A copy of the table.
    pub(crate) fn copy(&self) -> TempDir {
        copy(self.folder.path())
    }

    /// Reads everything. Returns whether the write is there, which it must be if it was seen or acknowledged.
    pub(crate) fn read_all(&self, session: &mut Session, must_be_new: bool) -> bool {
        for key in &self.absent {
            assert!(session.get(key).expect("a get").is_none(), "{} was never there", key.escape_ascii());
        }
        for (key, (version, value)) in self.present.iter().filter(|(key, _)| *key != self.write.key()) {
            let found = session.get(key).expect("a get");
            let found = found.as_ref().map(|found| (found.version(), &found[..]));
            assert_eq!(found, Some((*version, &value[..])), "{}", key.escape_ascii());
        }
        self.read_written(session, must_be_new)
    }

    fn read_written(&self, session: &mut Session, must_be_new: bool) -> bool {
        let found = session.get(self.write.key()).expect("a get").map(|found| (found.version(), found.into_vec()));
        let old = self.present.get(self.write.key());
        if found.as_ref() == old {
            assert!(!must_be_new, "{:?} is undone", self.write);
            return false;
        }
        match (&self.write, &found) {
            (Write::Put(_, value), Some((version, read))) => {
                assert_eq!(read, value);
                assert!(old.is_none_or(|(before, _)| *version == before + 1), "{version} after {old:?}");
            }
            (Write::Delete(_), None) => {}
            _ => panic!("neither before nor after {:?}: {found:?}", self.write),
        }
        true
    }

    /// The key of the write can be written on, conditions hold, and no version comes again.
    pub(crate) fn write_on(&self, client: &Client, is_new: bool, when: &str) {
        let key = self.write.key();
        let before = client.get(key).expect("a get").map_or(0, |found| found.version());
        if let Some((old, _)) = self.present.get(key).filter(|_| is_new) {
            let refused = client.put_if(key, "late", *old);
            assert!(matches!(refused, Err(Error::VersionMismatch { found }) if found == before), "{when}: {refused:?}");
        }
        let next = client.put_if(key, "next", before).unwrap_or_else(|error| panic!("{when}: {error}"));
        let most = self.present.values().map(|(version, _)| *version).max().unwrap_or(0);
        assert!(next > before && (before > 0 || next > most), "{when}: version {next} after {before}, {most}");
        assert!(client.delete_if(key, next).expect("a delete"), "{when}");
        let last = client.put_if(key, "last", 0).unwrap_or_else(|error| panic!("{when}: {error}"));
        assert!(last > next, "{when}: version {last} after {next}");
        for key in &self.absent {
            assert!(client.put_if(key, "there now", 0).unwrap_or_else(|error| panic!("{when}: {error}")) > most);
        }
    }
}
