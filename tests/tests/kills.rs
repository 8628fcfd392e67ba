//! A server process is killed, or stopped, at every store: one real process for each kill.
//!
//! The table is in a file on tmpfs. A kill comes before a store of the operation that is chosen by its number;
//! then a reader that was there before looks without any server, `sidestep-server check` looks, a new server
//! recovers, and everything that was acknowledged must be there. By default each kind of store is met at the
//! first and last ones of every run of its kind and now and then in between; `SIDESTEP_KILLS=all` meets each.

mod removals;
mod stages;
mod stops;

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sidestep_client::{Client, Error, Options, Path as By, PathMode, Session};
use sidestep_tests::fail_server::FailServer;
use sidestep_tests::process::{program, tmpfs_folder};
use stages::{Stage, Write, at_rest, copy, serve};

/// Of a long run of stores of one kind, one in so many is met.
const STRIDE: usize = 61;

fn options(path: By) -> Options {
    Options::default().path(PathMode::Require(path)).reconnect_timeout(Duration::ZERO)
}

fn client(address: &str, path: By) -> Client {
    Client::connect(address, options(path)).expect("the path can be had")
}

/// A session that reads around the server, with a location cache.
fn reader(address: &str, cache: usize) -> (Client, Session) {
    let client = Client::connect(address, options(By::Shm).location_cache(cache)).expect("shm can be had");
    let session = client.session().expect("a session");
    (client, session)
}

/// Which stores of a sequence are met.
fn chosen(steps: &[String]) -> Vec<usize> {
    if std::env::var("SIDESTEP_KILLS").is_ok_and(|which| which == "all") {
        return (0..steps.len()).collect();
    }
    let mut points = Vec::new();
    let mut start = 0;
    for run in steps.chunk_by(|a, b| a == b) {
        let met = |i: &usize| *i < 2 || *i + 2 >= run.len() || i.is_multiple_of(STRIDE);
        points.extend((0..run.len()).filter(met).map(|i| start + i));
        start += run.len();
    }
    points
}

/// Calls `meet` with each point, from two threads; the first failure ends it.
fn at_each(points: &[usize], meet: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(&point) = points.get(next.fetch_add(1, Ordering::Relaxed)) {
                    meet(point);
                }
            });
        }
    });
}

/// The steps of a stage's write, by name.
fn count(stage: &Stage) -> Vec<String> {
    let folder = stage.copy();
    let (mut server, address) = FailServer::start(folder.path());
    let client = client(&address, By::Tcp);
    at_rest(&client);
    assert_eq!(server.ask("count"), "armed");
    stage.write.run(&client).expect("nobody is killed");
    names(&server.ask("report"))
}

fn names(report: &str) -> Vec<String> {
    report.strip_prefix("steps ").unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

/// The kinds of a sequence of steps, repetitions left out.
fn shape(steps: &[String]) -> Vec<&str> {
    steps.chunk_by(|a, b| a == b).map(|run| run[0].as_str()).collect()
}

fn check(data: &Path, when: &str) {
    let checked = Command::new(program("sidestep-server")).arg("check").arg(data).output().expect("it runs");
    assert!(checked.status.success(), "{when}: {}", String::from_utf8_lossy(&checked.stdout));
}

/// Kills a server at a store of the stage's write. Returns whether a reader saw the write although it was not
/// acknowledged; None if it was acknowledged before that store came.
fn kill_in_write(stage: &Stage, data: &Path, kill: &str) -> Option<bool> {
    let (mut server, address) = FailServer::start(data);
    let (_client, mut reader) = reader(&address, 64);
    stage.read_all(&mut reader, false);
    let client = client(&address, By::Tcp);
    at_rest(&client);
    assert_eq!(server.ask(kill), "armed");
    match stage.write.run(&client) {
        Ok(()) => return None,
        Err(Error::OutcomeUnknown(_) | Error::Unreachable { .. }) => {}
        Err(error) => panic!("{error}"),
    }
    assert!(!server.wait().success());
    Some(stage.read_all(&mut reader, false))
}

/// What was acknowledged is there, by every path; the key of the write is as before or as after it, and goes on.
fn verify(stage: &Stage, data: &Path, must_be_new: bool, when: &str) {
    check(data, when);
    let mut server = serve("127.0.0.1:0", data);
    let shm = client(server.address(), By::Shm);
    let is_new = stage.read_all(&mut shm.session().expect("a session"), must_be_new);
    let tcp = client(server.address(), By::Tcp);
    let by_tcp = stage.read_all(&mut tcp.session().expect("a session"), must_be_new);
    assert_eq!(is_new, by_tcp, "{when}: two paths, two answers");
    stage.write_on(&tcp, is_new, when);
    server.kill();
    check(data, when);
}

fn killed_at_every_store(stage: &Stage, expected: &[&str]) {
    let steps = count(stage);
    assert_eq!(shape(&steps), expected, "the stores of {:?}", stage.write);
    let points = chosen(&steps);
    let (seen, killed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    at_each(&points, |point| {
        let when = format!("{:?} killed before store {point} of {}, {}", stage.write, steps.len(), steps[point]);
        let folder = stage.copy();
        let saw_new = kill_in_write(stage, folder.path(), &format!("kill {point}"));
        killed.fetch_add(usize::from(saw_new.is_some()), Ordering::Relaxed);
        seen.fetch_add(usize::from(saw_new == Some(true)), Ordering::Relaxed);
        verify(stage, folder.path(), saw_new != Some(false), &when);
    });
    let (seen, killed) = (seen.into_inner(), killed.into_inner());
    println!("{:?}: {} stores, killed at {killed}, {seen} writes seen before the kill", stage.write, steps.len());
    assert_eq!(killed, points.len());
    // Everything is stored, nothing is acknowledged.
    let folder = stage.copy();
    let saw_new = kill_in_write(stage, folder.path(), &format!("kill {} any after", steps.len() - 1));
    assert_eq!(saw_new, Some(true));
    verify(stage, folder.path(), true, &format!("{:?} killed after its last store", stage.write));
}

#[test]
fn killed_in_an_update() {
    killed_at_every_store(&Stage::update(), &["item", "link", "slot"]);
}

#[test]
fn killed_in_an_update_of_a_long_value() {
    killed_at_every_store(&Stage::long_update(), &["item", "fresh", "link", "slot"]);
}

#[test]
fn killed_in_an_insert() {
    killed_at_every_store(&Stage::insert(), &["ceiling", "item", "slot", "link"]);
}

#[test]
fn killed_in_a_delete() {
    killed_at_every_store(&Stage::delete(), &["link", "slot"]);
}

#[test]
fn killed_in_a_split() {
    let shape = ["sibling", "intent", "entry", "slot", "intent", "ceiling", "item", "slot", "link"];
    killed_at_every_store(&Stage::split(), &shape);
}

#[test]
fn killed_in_a_doubling() {
    let shape =
        ["fresh", "directory", "sibling", "intent", "entry", "slot", "intent", "ceiling", "item", "slot", "link"];
    killed_at_every_store(&Stage::doubling(), &shape);
}

/// A write is killed at one store, its recovery at each, the recovery after that is left alone.
fn killed_in_recovery(stage: &Stage, point: usize, must_finish: &[&str]) {
    let dead = stage.copy();
    let saw_new = kill_in_write(stage, dead.path(), &format!("kill {point}")).expect("it was killed");
    let steps = {
        let folder = copy(dead.path());
        let mut server = FailServer::launch("127.0.0.1:0", folder.path(), "count");
        assert!(server.next_line().is_some_and(|line| line.starts_with("listening on ")));
        names(&server.ask("report"))
    };
    assert!(must_finish.iter().all(|step| steps.iter().any(|name| name == step)), "{:?}", shape(&steps));
    let points = chosen(&steps);
    at_each(&points, |again| {
        let when = format!("{:?} killed at {point}, its recovery at {again}, {}", stage.write, steps[again]);
        let folder = copy(dead.path());
        let mut server = FailServer::launch("127.0.0.1:0", folder.path(), &format!("kill {again}"));
        assert!(!server.wait().success(), "{when}");
        verify(stage, folder.path(), saw_new, &when);
    });
    println!("{:?}: recovery of {} stores killed at {}", stage.write, steps.len(), points.len());
}

/// The number of the store of this kind, counted from 0.
fn nth(steps: &[String], kind: &str, n: usize) -> usize {
    let mut of_kind = steps.iter().enumerate().filter(|(_, step)| *step == kind);
    of_kind.nth(n).map(|(i, _)| i).unwrap_or_else(|| panic!("no {kind} {n} in {:?}", shape(steps)))
}

#[test]
fn killed_in_the_recovery_of_an_update() {
    let stage = Stage::update();
    // FORWARD is stored, CURRENT is not.
    let point = nth(&count(&stage), "link", 1);
    killed_in_recovery(&stage, point, &["link", "slot"]);
    // Both are, the slot leads to the old item still.
    let point = nth(&count(&stage), "slot", 0);
    killed_in_recovery(&stage, point, &["slot"]);
}

#[test]
fn killed_in_the_recovery_of_an_insert_and_of_a_delete() {
    let stage = Stage::insert();
    let point = nth(&count(&stage), "link", 0);
    killed_in_recovery(&stage, point, &["slot"]);
    let stage = Stage::delete();
    let point = nth(&count(&stage), "slot", 0);
    killed_in_recovery(&stage, point, &["slot"]);
}

#[test]
fn killed_in_the_recovery_of_a_split() {
    let stage = Stage::split();
    let steps = count(&stage);
    // Nothing of the directory is published; half of it is; half of the old subtable is rewritten.
    for point in [nth(&steps, "entry", 0), nth(&steps, "entry", 1), nth(&steps, "slot", 256)] {
        killed_in_recovery(&stage, point, &["entry", "slot", "intent"]);
    }
}

#[test]
fn killed_while_a_table_is_made() {
    let steps = {
        let folder = tmpfs_folder();
        let mut server = FailServer::launch("127.0.0.1:0", folder.path(), "count");
        assert!(server.next_line().is_some_and(|line| line.starts_with("listening on ")));
        names(&server.ask("report"))
    };
    let points = chosen(&steps);
    at_each(&points, |point| {
        let folder = tmpfs_folder();
        let mut server = FailServer::launch("127.0.0.1:0", folder.path(), &format!("kill {point}"));
        assert!(!server.wait().success(), "store {point}");
        let mut server = serve("127.0.0.1:0", folder.path());
        client(server.address(), By::Tcp).put("key", "value").expect("a table");
        server.kill();
        check(folder.path(), &format!("killed before store {point} of a new table"));
    });
}

/// Values until the memory is full, whose segments are added by writers or ahead of them.
#[test]
fn killed_in_the_addition_of_a_segment() {
    let points = Mutex::new(0);
    let commands: Vec<String> = (0..6)
        .flat_map(|n| [format!("kill {n} pages"), format!("kill {n} segment"), format!("kill {n} segment after")])
        .collect();
    let numbers: Vec<usize> = (0..commands.len()).collect();
    at_each(&numbers, |number| {
        let when = &commands[number];
        let folder = tmpfs_folder();
        let mut server = serve("127.0.0.1:0", folder.path());
        client(server.address(), By::Tcp).put("first", "value").expect("a table");
        server.kill();
        let mut server = FailServer::launch("127.0.0.1:0", folder.path(), when);
        let mut acknowledged = 0;
        // It may come before anybody is served: segments are added ahead of writers.
        let address = server.address();
        let writer = address.and_then(|address| Client::connect(address, options(By::Tcp)).ok());
        let value = |i: usize| vec![i as u8; 3000];
        if let Some(writer) = writer {
            let error = loop {
                match writer.put(format!("{acknowledged}"), value(acknowledged)) {
                    Ok(_) => acknowledged += 1,
                    Err(error) => break error,
                }
            };
            assert!(matches!(error, Error::OutcomeUnknown(_) | Error::Unreachable { .. }), "{when}: {error}");
        }
        assert!(!server.wait().success());
        *points.lock().expect("no panic") += 1;
        check(folder.path(), when);
        let mut server = serve("127.0.0.1:0", folder.path());
        let reader = client(server.address(), By::Shm);
        for i in 0..acknowledged {
            let found = reader.get(format!("{i}")).expect("a get");
            assert!(found.is_some_and(|found| found[..] == value(i)), "{when}: acknowledged key {i} of {acknowledged}");
        }
        assert!(reader.get("first").expect("a get").is_some());
        server.kill();
        check(folder.path(), when);
    });
    assert_eq!(points.into_inner().expect("no panic"), commands.len());
}

#[test]
fn writes_are_what_they_seem() {
    let stage = Stage::insert();
    assert!(matches!(stage.write, Write::Put(..)));
    let folder = stage.copy();
    let mut server = serve("127.0.0.1:0", folder.path());
    let client = client(server.address(), By::Tcp);
    assert!(!stage.read_all(&mut client.session().expect("a session"), false));
    stage.write.run(&client).expect("a write");
    assert!(stage.read_all(&mut client.session().expect("a session"), true));
    server.kill();
}
