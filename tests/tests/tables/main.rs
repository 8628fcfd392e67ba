//! Table files that are not as they should be: what a server and `sidestep-server check` say of them, and what
//! `check --repair` keeps. All by real processes, on files that a real server wrote.
//!
//! `SIDESTEP_SEED=N` sets the random choices.

mod clock;
mod damage;
mod file;
mod repair;
mod root;
mod wrong;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use sidestep_client::{Client, Options, Path as By, PathMode};
use sidestep_tests::process::{ServerProcess, program, tmpfs_folder};

/// Of the tables here.
const SIZES: [&str; 4] = ["--memory", "8MiB", "--segment", "1MiB"];

/// Everything that a key ever was: values with their versions, the last one what it is; none: deleted.
type History = BTreeMap<Vec<u8>, Vec<Option<(Vec<u8>, u64)>>>;

/// A folder with a table that a server wrote and left in order.
struct Written {
    folder: tempfile::TempDir,
    history: History,
}

impl Written {
    fn new() -> Self {
        let folder = tmpfs_folder();
        let mut server = start(folder.path(), &SIZES);
        let history = write(&client(&server));
        server.signal(Signal::TERM);
        assert!(server.wait().success());
        Self { folder, history }
    }

    fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn table(&self) -> PathBuf {
        self.folder().join("table.sidestep")
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(self.table()).expect("a table")
    }

    /// What a key is, or was at last.
    fn now(&self, key: &[u8]) -> Option<&(Vec<u8>, u64)> {
        self.history[key].last().expect("it was written").as_ref()
    }
}

/// Some of everything, until subtables split.
fn write(client: &Client) -> History {
    let mut history = History::new();
    let mut session = client.session().expect("a session");
    for i in 0..1200_usize {
        // Some come again, some of these to be deleted.
        let key = format!("key {}", if i % 5 == 4 { i / 2 } else { i }).into_bytes();
        let value = format!("{i} ").repeat([0, 1, 20, 200, 1500][i * 7 % 5]).into_bytes();
        let version = session.put(&key, &value).expect("a put");
        let states = history.entry(key.clone()).or_default();
        states.push(Some((value, version)));
        if i % 15 == 14 {
            session.delete(&key).expect("a delete");
            states.push(None);
        }
    }
    history
}

fn start(folder: &Path, more: &[&str]) -> ServerProcess {
    let data = folder.to_str().expect("UTF-8");
    ServerProcess::start("127.0.0.1:0", &[&["--data", data], more].concat())
}

fn client(server: &ServerProcess) -> Client {
    let options = Options::default().path(PathMode::Require(By::Tcp)).reconnect_timeout(Duration::ZERO);
    Client::connect(server.address(), options).expect("it serves")
}

/// Exit code of `sidestep-server check`, what it printed, and what it said on standard error.
fn check(folder: &Path, more: &[&str]) -> (Option<i32>, String, String) {
    let output =
        Command::new(program("sidestep-server")).arg("check").arg(folder).args(more).output().expect("it runs");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}
