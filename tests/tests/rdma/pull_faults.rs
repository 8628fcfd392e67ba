//! Large values whose reading is cut short: by a client's death, its lies, a wire that breaks, or the clock.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use sidestep_client::{Path, PathMode};
use sidestep_core::message::LentValue;
use sidestep_tests::process::{ServerProcess, program, tmpfs_folder};

use super::leaks::eventually;
use super::pull::{by, not_whole, of_server, unaccounted, value};
use super::raw::Lender;
use super::wire::{across, down, netem};
use super::{fill, options, read_all, session, start};

/// At moments spread over what a put takes, until enough were killed before their value was whole.
#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn a_client_killed_while_its_value_is_read_leaves_no_trace() {
    const WANTED: u64 = 5;
    const ROUNDS: u32 = 100;
    let folder = tmpfs_folder();
    let data = folder.path().to_str().unwrap();
    let mut server = ServerProcess::start("127.0.0.1:0", &["--memory", "256MiB", "--data", data, "--workers", "1"]);
    let mut watcher = session(&server, by(Path::Tcp));
    let mut bystander = session(&server, options());
    fill(&mut bystander, 100);
    let old = value(1 << 20, 9);
    bystander.put("old", &old).unwrap();
    let connections = of_server(&mut watcher, "connections");
    let of_client = tmpfs_folder();
    let long = of_client.path().join("long");
    std::fs::write(&long, value(8 << 20, 3)).unwrap();
    let long = format!("@{}", long.display());
    let put = ["--server", server.address(), "--path", "rdma", "--require", "put", "long", &long];
    let start = || Command::new(program("sidestep")).args(put).stdout(Stdio::null()).spawn().unwrap();
    let since = Instant::now();
    assert!(start().wait().unwrap().success());
    let takes = since.elapsed();
    let mut killed = 0;
    for round in 0..ROUNDS {
        let mut client = start();
        thread::sleep(takes * (round * 23 % ROUNDS) / ROUNDS);
        client.kill().unwrap();
        client.wait().unwrap();
        eventually("its connections end", &connections, || of_server(&mut watcher, "connections"));
        eventually("its extents are free", &0, || unaccounted(&mut watcher));
        killed = not_whole(&mut watcher);
        read_all(&mut bystander, 100);
        if killed >= WANTED {
            break;
        }
    }
    println!("{killed} values whose client was killed while they were read");
    assert!(killed >= WANTED, "only {killed} were under way");
    assert!(bystander.get("old").unwrap().as_deref() == Some(&old[..]));
    server.kill();
    let checked = Command::new(program("sidestep-server")).args(["check", data]).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}

/// What a client that lies about its memory gets: an end of its connection, and nothing of its value anywhere.
#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn a_value_that_cannot_be_read_changes_nothing() {
    let server = start(&["--workers", "1"]);
    let mut watcher = session(&server, by(Path::Tcp));
    let mut bystander = session(&server, options());
    fill(&mut bystander, 50);
    let old = value(50_000, 3);
    bystander.put("key", &old).unwrap();
    let connections = of_server(&mut watcher, "connections");
    type Wrong = fn(LentValue) -> LentValue;
    let wrongs: [(&str, Wrong); 4] = [
        ("another key", |lent| LentValue { rkey: (lent.rkey.get() ^ 0x5a00).into(), ..lent }),
        ("the first pieces can be read, the others not", |lent| LentValue { value_bytes: (3 << 20).into(), ..lent }),
        ("an address of nothing", |lent| LentValue { address: 0.into(), ..lent }),
        ("an address at the very end", |lent| LentValue { address: u64::MAX.into(), ..lent }),
    ];
    for (number, (what, wrong)) in (1..).zip(wrongs) {
        let mut lender = Lender::connect(server.address(), 100 + number, 0);
        let (_buffer, lent) = lender.lend(&value(1 << 20, 4));
        lender.send(1, b"key", &wrong(lent));
        assert_eq!(lender.hear(), None, "{what}");
        eventually("its connection ends", &connections, || of_server(&mut watcher, "connections"));
        eventually("its extent is free", &0, || unaccounted(&mut watcher));
        assert_eq!(not_whole(&mut watcher), number, "{what}");
        assert!(bystander.get("key").unwrap().as_deref() == Some(&old[..]), "{what}");
    }
    read_all(&mut bystander, 50);
    assert_eq!(bystander.stats().unwrap().client("rdma_errors"), Some(0));
}

/// Sets it when dropped: whoever waits for it does not outlive a failure.
struct Set<'a>(&'a AtomicBool);

impl Drop for Set<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A wire that is cut while values are read: each is written once, whichever connection had it.
#[test]
#[ignore = "needs the two devices of scripts/guest"]
fn values_are_applied_once_over_connections_that_break() {
    const BREAKS: u64 = 2;
    let server = ServerProcess::start("127.0.0.1:0", &["--memory", "256MiB", "--device", "rxe0", "--workers", "1"]);
    let mut writer =
        session(&server, across().path(PathMode::Prefer(Path::Rdma)).path_pause(Duration::from_millis(50)));
    let mut watcher = session(&server, by(Path::Tcp));
    let is_enough = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut last = writer.put("key", value(1 << 20, 0)).unwrap();
            let mut writes = 1;
            while !is_enough.load(Ordering::SeqCst) {
                let version = writer.put("key", value(1 << 20, writes)).unwrap();
                assert_eq!(version, last + 1, "write {writes} was done twice, or not at all");
                (last, writes) = (version, writes + 1);
            }
            (writes, writer.stats().unwrap())
        });
        let end = Set(&is_enough);
        let deadline = Instant::now() + Duration::from_secs(120);
        // One of them may be under way, and become whole.
        while not_whole(&mut watcher) <= BREAKS && !writer.is_finished() {
            assert!(Instant::now() < deadline, "no value was under way when the wire was cut");
            let enough = of_server(&mut watcher, "pulled_puts") + 2;
            eventually("it writes by rdma", &true, || of_server(&mut watcher, "pulled_puts") >= enough);
            // Before the cut: it may be noticed at once.
            let lost = of_server(&mut watcher, "connections_opened") + 1;
            let cut = down();
            eventually("it comes another way", &true, || of_server(&mut watcher, "connections_opened") >= lost);
            drop(cut);
        }
        drop(end);
        let (writes, stats) = writer.join().unwrap();
        let (replayed, broken) = (stats.client("requests_replayed"), not_whole(&mut watcher));
        println!("{writes} writes, {replayed:?} repeated, {broken} broken while they were read");
        assert!(broken >= BREAKS);
        assert!(replayed.is_some_and(|count| count >= 1));
        let found = watcher.get("key").unwrap().expect("it is there");
        assert!(found[..] == value(1 << 20, writes - 1)[..]);
    });
    eventually("all extents are items", &0, || unaccounted(&mut watcher));
}

/// READs that take longer than they may: the server looks at deadlines ten times a second.
#[test]
#[ignore = "needs the two devices of scripts/guest"]
fn a_value_that_does_not_arrive_in_time_is_given_up_and_sent_another_way() {
    let arguments = ["--memory", "64MiB", "--device", "rxe0", "--pull-timeout-ms", "0"];
    let server = ServerProcess::start("127.0.0.1:0", &arguments);
    let mut watcher = session(&server, by(Path::Tcp));
    let mut far = session(&server, across().path(PathMode::Prefer(Path::Rdma)));
    let first = far.put("key", "small").unwrap();
    let slow = netem(&["delay", "300ms"]);
    let version = far.put("key", value(3 << 20, 2)).unwrap();
    drop(slow);
    assert_eq!(version, first + 1, "it is written once");
    assert!(of_server(&mut watcher, "pulls_begun") >= 1 && of_server(&mut watcher, "connections_timed_out") >= 1);
    assert_eq!(of_server(&mut watcher, "pulled_puts"), 0);
    let found = watcher.get("key").unwrap().expect("it was written");
    assert!(found.version() == version && found[..] == value(3 << 20, 2)[..]);
    eventually("all extents are items", &0, || unaccounted(&mut watcher));
}
