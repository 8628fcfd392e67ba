//! The log on disk: server processes are killed, their tables dropped or kept, their disks filled, their files changed.

mod disk;
mod faults;
mod pairs;
mod removals;
mod starts;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use sidestep_client::{Client, Error, Options, Path as By, PathMode};
use sidestep_tests::process::ServerProcess;

/// A folder for a log, on whatever disk temporary files are.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder") }
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn start(&self, more: &[&str]) -> ServerProcess {
        start(&self.log(), more)
    }

    fn start_with_data(&self, more: &[&str]) -> ServerProcess {
        let data = self.data();
        self.start(&[&["--data", data.to_str().expect("UTF-8")], more].concat())
    }
}

fn args<'a>(log: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
    [&["--memory", "128MiB", "--durable", log.to_str().expect("UTF-8")], more].concat()
}

fn start(log: &Path, more: &[&str]) -> ServerProcess {
    ServerProcess::start("127.0.0.1:0", &args(log, more))
}

fn client(server: &ServerProcess) -> Client {
    let options = Options::default().path(PathMode::Require(By::Tcp)).reconnect_timeout(Duration::ZERO);
    Client::connect(server.address(), options).expect("it serves")
}

fn stat(client: &Client, name: &str) -> u64 {
    client.stats().expect("statistics").server(name).unwrap_or_else(|| panic!("a counter {name}"))
}

/// Waits for something that comes by itself; a bound, not a pace.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < Duration::from_secs(20), "not in time: {what}");
        std::thread::yield_now();
    }
}

fn stop(mut server: ServerProcess) {
    server.signal(Signal::TERM);
    assert!(server.wait().success());
}

/// What a writer knows of its keys: value and version, as acknowledged, and for the last write that was not, its value.
#[derive(Default)]
struct Known {
    values: BTreeMap<String, Option<(String, u64)>>,
    unknown: Option<(String, Option<String>)>,
    highest: u64,
}

impl Known {
    /// Writes, now and then deletes, and writes to a key that others write to as well, until the server is gone.
    fn write_until_lost(&mut self, client: &Client, name: &str, acknowledged: impl Fn()) {
        for step in 0.. {
            let key = format!("{name} {}", step % 97);
            let value = (step % 7 != 6).then(|| format!("{name} {step} {}", "x".repeat(step % 300)));
            let result = match &value {
                Some(value) => client.put(&key, value),
                None => client.delete(&key).map(|_| 0),
            };
            match result {
                Ok(version) => {
                    self.highest = self.highest.max(version);
                    self.values.insert(key, value.map(|value| (value, version)));
                    acknowledged();
                }
                Err(Error::OutcomeUnknown(_) | Error::Unreachable { .. }) => {
                    self.unknown = Some((key, value));
                    return;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Everything that was acknowledged is there, with its version, and of what was not either nothing or all.
    fn check(&self, client: &Client) {
        for (key, expected) in &self.values {
            let found = client.get(key).expect("a get").map(|found| (found.to_vec(), found.version()));
            let as_before = found == expected.as_ref().map(|(value, version)| (value.clone().into_bytes(), *version));
            let as_after = self.unknown.as_ref().is_some_and(|(unknown, value)| {
                unknown == key && found.as_ref().map(|found| &found.0[..]) == value.as_ref().map(|v| v.as_bytes())
            });
            assert!(as_before || as_after, "{key}: expected {expected:?}, found {found:?}");
        }
    }

    /// No write from now on gets a version that one before may have had.
    fn check_versions(&self, client: &Client) {
        for key in self.values.keys() {
            let version = client.put(key, "after").expect("a put");
            assert!(version > self.highest, "{key}: version {version}, though {} was given before", self.highest);
        }
    }
}

/// A kill leaves what the kernel has: that the disk is waited for is `a_sync_is_waited_for`'s to see.
#[test]
fn a_killed_server_comes_back_with_every_acknowledged_write() {
    let place = Place::new();
    let mut known: Vec<Known> = (0..4).map(|_| Known::default()).collect();
    for round in 0..3 {
        let mut server = place.start(&["--sync", "always", "--workers", "2"]);
        let client = client(&server);
        known.iter().for_each(|known| known.check(&client));
        // A commit that was being written at the kill may be torn: it was acknowledged to nobody.
        assert_eq!(stat(&client, "log_lost_records"), 0);
        known.iter().for_each(|known| known.check_versions(&client));
        let (acknowledged, enough) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            for (writer, known) in known.iter_mut().enumerate() {
                *known = Known { highest: known.highest, ..Known::default() };
                let acknowledged = acknowledged.clone();
                let client = self::client(&server);
                scope.spawn(move || {
                    let name = format!("{round} {writer}");
                    known.write_until_lost(&client, &name, || acknowledged.send(()).expect("it counts"));
                });
            }
            assert_eq!(enough.iter().take(600).count(), 600);
            server.kill();
        });
    }
    let server = place.start(&["--sync", "always"]);
    known.iter().for_each(|known| known.check(&client(&server)));
}

/// Of two who write to one key, the log has the last one's value, as the table does.
#[test]
fn two_writers_of_one_key_reach_the_log_in_the_order_of_their_versions() {
    let place = Place::new();
    for round in 0..4 {
        let mut server = place.start(&["--sync", "interval", "--sync-interval-ms", "1", "--workers", "2"]);
        std::thread::scope(|scope| {
            for writer in 0..2 {
                let client = client(&server);
                scope.spawn(move || {
                    for step in 0..1500 {
                        let key = format!("key {}", step % 3);
                        match (step + writer) % 5 {
                            0 => drop(client.delete(key).expect("a delete")),
                            _ => drop(client.put(key, format!("{round} {writer} {step}")).expect("a put")),
                        }
                    }
                });
            }
        });
        let before = client(&server);
        eventually("the log has everything", || stat(&before, "log_records_waiting") == 0);
        let found = |client: &Client, key| {
            let found = client.get(format!("key {key}")).expect("a get");
            found.map(|found| (found.to_vec(), found.version()))
        };
        let expected: Vec<_> = (0..3).map(|key| found(&before, key)).collect();
        server.kill();
        let server = place.start(&[]);
        let after = client(&server);
        assert_eq!((0..3).map(|key| found(&after, key)).collect::<Vec<_>>(), expected);
    }
}

/// Each mode does what it says of the disk: the counter is raised where `fdatasync` returns.
#[test]
fn a_sync_is_waited_for() {
    let place = Place::new();
    let server = place.start(&["--sync", "always"]);
    let writer = client(&server);
    for step in 0..20 {
        let before = stat(&writer, "log_syncs");
        writer.put("key", format!("{step}")).expect("a put");
        let stats = writer.stats().expect("statistics");
        let stat = |name| stats.server(name).expect("a counter");
        assert!(stat("log_syncs") > before, "a write was acknowledged before the disk had it");
        assert_eq!((stat("log_records_waiting"), stat("log_waiting_bytes")), (0, 0));
    }
    stop(server);
    let server = place.start(&["--sync", "interval", "--sync-interval-ms", "50"]);
    let writer = client(&server);
    let before = stat(&writer, "log_syncs");
    writer.put("key", "within 50 ms").expect("a put");
    eventually("a sync by itself", || stat(&writer, "log_syncs") > before && stat(&writer, "log_records_waiting") == 0);
    stop(server);
    let server = place.start(&["--sync", "off"]);
    let writer = client(&server);
    let before = stat(&writer, "log_syncs");
    for step in 0..100 {
        writer.put("key", format!("off {step}")).expect("a put");
    }
    assert_eq!(stat(&writer, "log_syncs"), before, "nobody waits for the disk");
    assert_eq!(stat(&writer, "log_records_waiting"), 100);
    stop(server);
    // An end in order leaves nothing behind, whatever the mode.
    let server = place.start(&["--sync", "off"]);
    assert_eq!(&client(&server).get("key").expect("a get").expect("a value")[..], b"off 99");
}

/// Reads, values of all lengths, and pipelined writes wait for one another as they must, on the path with its gates.
#[test]
fn replies_that_wait_for_the_disk_keep_their_order() {
    let place = Place::new();
    let server = place.start(&["--sync", "always"]);
    let client = client(&server);
    let mut session = client.session().expect("a session");
    let value = |i: usize| vec![i as u8; [10, 5000, 40_000, 700_000][i % 4]];
    for i in 0..40 {
        session.put(format!("{i}"), value(i)).expect("a put");
        let found = session.get(format!("{i}")).expect("a get").expect("a value");
        assert_eq!(found[..], value(i)[..], "{i}");
    }
    let pairs: Vec<(String, Vec<u8>)> = (0..400).map(|i| (format!("{i}"), value(i * 4 + i % 2))).collect();
    for result in session.multi_put(&pairs).expect("a batch") {
        result.expect("a put");
    }
    for (i, (key, value)) in pairs.iter().enumerate() {
        assert_eq!(session.get(key).expect("a get").expect("a value")[..], value[..], "{i}");
    }
    assert_eq!(stat(&client, "log_records_waiting"), 0);
    let syncs = stat(&client, "log_syncs");
    assert!(syncs < 300, "440 writes, {syncs} syncs: those that came together are synced together");
}
