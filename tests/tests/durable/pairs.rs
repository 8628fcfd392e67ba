//! Tables and logs of which one alone has everything, or that just belong together: a log whose files may not grow, kills
//! between the steps that tie the two.

use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use sidestep_client::Error;
use sidestep_tests::fail_server::FailServer;
use sidestep_tests::process::{ServerProcess, program};

use super::starts::{get, put_all, start_machine_anew};
use super::{Place, args, client, eventually, stat, stop};

/// A copy of a folder, as an operator makes one, in place of what is there.
fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    let done = Command::new("cp").args(["-a", "--sparse=always"]).arg(from).arg(to).status().expect("cp runs");
    assert!(done.success());
}

impl Place {
    fn put(&self, key: &str, value: &str) -> ServerProcess {
        let server = self.start_with_data(&["--sync", "always"]);
        client(&server).put(key, value).expect("a put");
        server
    }

    fn start_is_refused(&self, more: &[&str], says: &str) {
        let log = self.log();
        let (code, said) = ServerProcess::refused(&args(&log, &[more, &["--listen", "127.0.0.1:0"]].concat()));
        assert!(code == Some(3) && said.contains(says), "expected {says:?}, found {said}");
    }
}

/// Copies of both of one time belong together.
#[test]
fn copies_of_both_are_taken_up() {
    let place = Place::new();
    let (table, log) = (place.folder.path().join("table"), place.folder.path().join("its log"));
    stop(place.put("before", "the copies"));
    copy(&place.data(), &table);
    copy(&place.log(), &log);
    stop(place.put("after", "the copies"));
    copy(&table, &place.data());
    copy(&log, &place.log());
    let server = place.start_with_data(&[]);
    let found = ["before", "after"].map(|key| get(&client(&server), key));
    assert_eq!(found, [Some("the copies".to_owned()), None]);
}

/// The table's root gets the start's number between two notes beside the log: real kills on both sides of that,
/// one start after the other.
#[test]
fn a_kill_while_table_and_log_are_tied_leaves_a_pair() {
    let place = Place::new();
    let (data, log) = (place.data(), place.log());
    let more = ["--durable", log.to_str().expect("UTF-8")];
    let mut server = FailServer::launch_with("127.0.0.1:0", &data, "off", &more);
    let address = server.address().expect("it is ready");
    let options = sidestep_client::Options::default();
    sidestep_client::Client::connect(address, options).expect("it serves").put("key", "1").expect("a put");
    drop(server);
    for kill in ["kill 0 root", "kill 0 root after", "kill 0 root", "kill 0 root after"] {
        let mut server = FailServer::launch_with("127.0.0.1:0", &data, kill, &more);
        assert_eq!(server.address(), None, "{kill}: it is killed before it is ready");
    }
    let server = ServerProcess::start("127.0.0.1:0", &[&["--data", data.to_str().expect("UTF-8")], &more[..]].concat());
    assert_eq!(get(&client(&server), "key").as_deref(), Some("1"));
}

/// A server whose writes to files beyond 4 KiB fail from now on: the log's, not those through a mapping.
fn refuse_files(server: &ServerProcess) {
    let limit = Rlimit { current: Some(4096), maximum: None };
    prlimit(Pid::from_raw(server.pid().cast_signed()), Resource::Fsize, limit).expect("a limit");
}

/// A command that does not die of a file that may not grow, with a limit of so many KiB. What it says is not written to such a
/// file either.
fn limited(kib: &str) -> Command {
    let mut command = Command::new("bash");
    command
        .args(["-c", "trap '' XFSZ; exec 2> >(cat >&2); ulimit -S -f $0; exec \"$@\"", kib])
        .arg(program("sidestep-server"));
    command
}

/// The table alone has what the log's disk has refused, and says so, also to the next life of the machine.
#[test]
fn a_table_whose_log_was_refused_is_believed_after_the_machine_was_started_anew() {
    let place = Place::new();
    let (data, log) = (place.data(), place.log());
    let more = ["--data", data.to_str().expect("UTF-8"), "--sync", "interval", "--sync-interval-ms", "1"];
    stop(place.start_with_data(&[]));
    let mut server = ServerProcess::start_by(limited("unlimited"), "127.0.0.1:0", &args(&log, &more), &[]);
    let writer = client(&server);
    writer.put("in both", "1").expect("a put");
    eventually("the log has it", || stat(&writer, "log_records_waiting") == 0);
    refuse_files(&server);
    writer.put("in the table alone", "1").expect("acknowledged before the disk has it");
    eventually("the disk refuses", || stat(&writer, "log_failing") == 1);
    assert!(matches!(writer.put("refused", "1"), Err(Error::Full(_))));
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(4));
    start_machine_anew(&data);
    // A start whose log is refused again changes nothing of that.
    let refused =
        limited("4").args(args(&log, &more[..2])).args(["--listen", "127.0.0.1:0"]).output().expect("it runs");
    assert_eq!(refused.status.code(), Some(3), "{}", String::from_utf8_lossy(&refused.stderr));
    start_machine_anew(&data);
    let mut server = place.start_with_data(&["--sync", "always"]);
    let reader = client(&server);
    for key in ["in both", "in the table alone"] {
        assert_eq!(get(&reader, key).as_deref(), Some("1"), "{key}");
    }
    // From here on the log has everything, and the table is of this life alone.
    reader.put("later", "1").expect("a put");
    server.kill();
    start_machine_anew(&data);
    std::fs::write(data.join("table.sidestep"), "of no use").expect("a write");
    let server = place.start_with_data(&[]);
    for key in ["in both", "in the table alone", "later"] {
        assert_eq!(get(&client(&server), key).as_deref(), Some("1"), "{key}");
    }
}

/// A table that was written without a log.
fn table_alone(place: &Place) {
    let data = place.data();
    let with_data = ["--memory", "128MiB", "--data", data.to_str().expect("UTF-8")];
    let server = ServerProcess::start("127.0.0.1:0", &with_data);
    let writer = client(&server);
    let pairs: Vec<(String, Vec<u8>)> = (0..100).map(|key| (format!("{key}"), vec![7; 100_000])).collect();
    put_all(&mut writer.session().expect("a session"), &pairs);
    stop(server);
}

/// A log that was begun beside a table, and has not all of it, is begun again. Seen to fail where that is noted beside the
/// table alone: a server without the log took the note away, and the next one with it bade to move the table away.
#[test]
fn a_first_start_that_fails_half_way_is_begun_again() {
    let place = Place::new();
    let (data, log) = (place.data(), place.log());
    table_alone(&place);
    let more = ["--data", data.to_str().expect("UTF-8")];
    let run = || {
        let done = limited("4096").args(args(&log, &more)).args(["--listen", "127.0.0.1:0"]).output().expect("it runs");
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.code() == Some(3) && said.contains("cannot put the table into the log"), "{said}");
    };
    run();
    run();
    // A server without the log in between: what it writes is the table's, and the log begins with it.
    let without = ServerProcess::start("127.0.0.1:0", &more);
    client(&without).put("without", "the log").expect("a put");
    stop(without);
    run();
    // The log has a part of the table: nothing is made of it alone, nor of another table.
    std::fs::rename(&data, place.folder.path().join("away")).expect("a folder");
    place.start_is_refused(&[], "has a part only of the table");
    place.start_is_refused(&more, "has a part only of the table");
    std::fs::remove_dir_all(&data).expect("a folder");
    std::fs::rename(place.folder.path().join("away"), &data).expect("a folder");
    let mut server = place.start_with_data(&[]);
    let expected = |server: &ServerProcess| {
        let reader = client(server);
        assert_eq!((stat(&reader, "keys"), get(&reader, "without").as_deref()), (101, Some("the log")));
    };
    expected(&server);
    server.kill();
    start_machine_anew(&data);
    std::fs::write(data.join("table.sidestep"), "of no use").expect("a write");
    expected(&place.start_with_data(&[]));
}
