//! A server that is killed while items go without anybody's having asked for it: evicted to make room for a write, or
//! removed once they have expired.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use sidestep_client::{Client, Error, Path as By, PutOptions, Session};
use sidestep_tests::fail_server::FailServer;
use sidestep_tests::process::tmpfs_folder;
use tempfile::TempDir;

use super::stages::{copy, serve};
use super::{STRIDE, at_each, check, chosen, client, names, reader};

/// What is in a table: versions and values.
type Content = BTreeMap<Vec<u8>, (u64, Vec<u8>)>;

/// Of the write that others make room for: no extent of this length is free.
const LONG_BYTES: usize = 60_000;
/// Lives so long.
const TTL: Duration = Duration::from_millis(300);

fn key(number: usize) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

/// A table whose memory is full, by a server that evicts.
fn full_table() -> (TempDir, Content) {
    let folder = tmpfs_folder();
    let mut server = FailServer::launch_with("127.0.0.1:0", folder.path(), "off", &["--evict", "clock"]);
    let filler = client(&server.address().expect("it is ready"), By::Tcp);
    let evicted = || filler.stats().expect("its stats").server("evicted").expect("a counter");
    let (mut number, mut made_room) = (0, 0);
    while made_room < 4 {
        let before = evicted();
        // Small ones until there is no room for these, then long ones until there is none for those either.
        let bytes = if before == 0 { 200 + number % 7 * 300 } else { LONG_BYTES };
        filler.put(key(number), vec![number as u8; bytes]).expect("it evicts");
        number += 1;
        made_room = if before > 0 && evicted() > before { made_room + 1 } else { 0 };
    }
    drop(server);
    let mut server = serve("127.0.0.1:0", folder.path());
    let reader = client(server.address(), By::Tcp);
    // What was evicted last may be free by now: a server that does not evict says when nothing is.
    loop {
        match reader.put(key(number), vec![number as u8; LONG_BYTES]) {
            Ok(_) => number += 1,
            Err(Error::Full(_)) => break,
            Err(error) => panic!("expected a full table, found {error}"),
        }
    }
    let found = (0..number).filter_map(|number| {
        let found = reader.get(key(number)).expect("a get")?;
        Some((key(number), (found.version(), found.into_vec())))
    });
    let content: Content = found.collect();
    assert!(content.len() > number / 2 && content.len() < number, "{} of {number}", content.len());
    server.kill();
    (folder, content)
}

/// Reads everything; what is there is what was. Returns what is not.
fn gone(session: &mut Session, content: &Content, when: &str) -> BTreeSet<Vec<u8>> {
    let gone = content.iter().filter(|(key, (version, value))| {
        let found = session.get(key).unwrap_or_else(|error| panic!("{when}: {}: {error}", key.escape_ascii()));
        if let Some(found) = &found {
            assert_eq!((found.version(), &found[..]), (*version, &value[..]), "{when}: {}", key.escape_ascii());
        }
        found.is_none()
    });
    gone.map(|(key, _)| key.clone()).collect()
}

/// What is gone stays so, on every path, holds nothing, and can be written again with a new version.
fn verify(data: &Path, content: &Content, before: Option<&BTreeSet<Vec<u8>>>, when: &str) -> BTreeSet<Vec<u8>> {
    check(data, when);
    let mut server = serve("127.0.0.1:0", data);
    let tcp = client(server.address(), By::Tcp);
    let by_shm = gone(&mut client(server.address(), By::Shm).session().expect("a session"), content, when);
    assert_eq!(gone(&mut tcp.session().expect("a session"), content, when), by_shm, "{when}: two paths, two answers");
    assert!(before.is_none_or(|before| *before == by_shm), "{when}: {before:?} were gone, {by_shm:?} are");
    // What the new server has removed by itself is freed by whoever comes next.
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut stats = tcp.stats().expect("its stats");
    while stats.server("extents") != stats.server("keys") {
        assert!(Instant::now() < deadline, "{when}: extents that no key has: {stats:?}");
        stats = tcp.stats().expect("its stats");
    }
    for key in &by_shm {
        match tcp.put_if(key, "again", 0) {
            Ok(version) => assert!(version > content[key].0, "{when}: version {version} after {:?}", content[key].0),
            Err(Error::Full(_)) => {}
            Err(error) => panic!("{when}: {}: {error}", key.escape_ascii()),
        }
    }
    server.kill();
    check(data, when);
    by_shm
}

fn evicting(data: &Path, first: &str) -> (FailServer, Client, Session, Client) {
    let mut server = FailServer::launch_with("127.0.0.1:0", data, first, &["--evict", "clock"]);
    let address = server.address().expect("it is ready");
    let (watcher, session) = reader(&address, 64);
    let writer = client(&address, By::Tcp);
    (server, watcher, session, writer)
}

/// Another long one goes.
#[test]
fn killed_while_an_item_is_evicted_for_a_long_one() {
    killed_while_items_are_evicted(LONG_BYTES, 1);
}

/// There is none of this size: all items of a slab go.
#[test]
fn killed_while_a_slab_is_emptied() {
    killed_while_items_are_evicted(6000, 10);
}

fn killed_while_items_are_evicted(bytes: usize, at_least: usize) {
    let (table, content) = full_table();
    let value = vec![7; bytes];
    let steps = {
        let folder = copy(table.path());
        let (mut server, _watcher, _session, writer) = evicting(folder.path(), "off");
        assert_eq!(server.ask("count"), "armed");
        writer.put("new", &value).expect("it evicts");
        names(&server.ask("report"))
    };
    let evicted = steps.iter().take_while(|step| ["link", "slot"].contains(&&step[..])).count() / 2;
    assert!(evicted >= at_least, "{evicted} items evicted first: {:?}", super::shape(&steps));
    let mut points = chosen(&steps);
    if std::env::var_os("SIDESTEP_KILLS").is_none() {
        // Every eviction is two stores: each is a run of its own.
        points.retain(|point| *point < 6 || point + 4 >= 2 * evicted || point.is_multiple_of(STRIDE));
    }
    let killed = AtomicUsize::new(0);
    at_each(&points, |point| {
        let when = format!("killed before store {point} of {}, {}", steps.len(), steps[point]);
        let folder = copy(table.path());
        let (mut server, _watcher, mut session, writer) = evicting(folder.path(), "off");
        assert_eq!(server.ask(&format!("kill {point}")), "armed");
        match writer.put("new", &value) {
            // What is evicted depends on when readers have left what was evicted before.
            Ok(_) => return,
            Err(Error::OutcomeUnknown(_) | Error::Unreachable { .. }) => {}
            Err(error) => panic!("{when}: {error}"),
        }
        assert!(!server.wait().success());
        killed.fetch_add(1, Ordering::Relaxed);
        let before = gone(&mut session, &content, &when);
        assert!(point > 2 || before.len() <= 1, "{when}: {} gone", before.len());
        verify(folder.path(), &content, Some(&before), &when);
    });
    let killed = killed.into_inner();
    println!("{} stores, {evicted} items evicted first, killed at {killed} of {}", steps.len(), points.len());
    assert!(killed > points.len() / 2, "{killed} of {}", points.len());
}

/// Lasting and expiring keys of a table whose server was killed before anything had expired; by now it has.
fn expired_table(expiring: usize) -> (TempDir, Content, Content) {
    let folder = tmpfs_folder();
    let mut server = serve("127.0.0.1:0", folder.path());
    let writer = client(server.address(), By::Tcp);
    let put = |number: usize, ttl: Option<Duration>| {
        let value = vec![number as u8; 10 + number * 100];
        let version = writer.put_with(key(number), &value, PutOptions { ttl, ..PutOptions::default() });
        (key(number), (version.expect("a put"), value))
    };
    let lasting = (0..12).map(|number| put(number, None)).collect();
    let expired = (12..12 + expiring).map(|number| put(number, Some(TTL))).collect();
    let over = SystemTime::now() + TTL;
    server.kill();
    while SystemTime::now() <= over {
        std::thread::yield_now();
    }
    (folder, lasting, expired)
}

#[test]
fn killed_while_expired_items_are_removed() {
    const EXPIRING: usize = 4;
    let (table, lasting, expired) = expired_table(EXPIRING);
    let all: Content = lasting.clone().into_iter().chain(expired.clone()).collect();
    let commands: Vec<String> = (0..EXPIRING)
        .flat_map(|n| ["link", "link after", "slot", "slot after"].map(|at| format!("kill {n} {at}")))
        .collect();
    at_each(&(0..commands.len()).collect::<Vec<_>>(), |number| {
        let when = &commands[number];
        let folder = copy(table.path());
        // The sweep begins by itself.
        let mut server = FailServer::launch("127.0.0.1:0", folder.path(), when);
        assert!(!server.wait().success(), "{when}");
        let gone = verify(folder.path(), &all, None, when);
        assert!(gone.iter().eq(expired.keys()), "{when}: {gone:?}");
    });
}
