//! Starting and stopping: nothing acknowledged is lost, and one server at a time has a port or a folder.

mod raw;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use raw::{Client, assert_closed, config, pattern, start};
use sidestep_core::layout::root::BOOT_ID_WORD;
use sidestep_core::memory::Memory;
use sidestep_core::message::Status;
use sidestep_fabric::region::{ReadOnlyRegion, RegionError};
use sidestep_fabric::shm::fetch_fd;
use sidestep_server::{Config, FILE_NAME, Server, ServerError, check_folder};

#[test]
fn a_stop_under_load_loses_no_acknowledged_write() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config { data: Some(folder.path().into()), ..config() };
    let server = start(config.clone());
    let address = server.local_addr();
    let (running, wait) = mpsc::channel();
    let writers: Vec<_> = (0..4_u64)
        .map(|writer| {
            let running = running.clone();
            std::thread::spawn(move || {
                let mut client = Client::try_connect(address, b"", writer, 0).unwrap();
                let mut acknowledged = 0;
                for i in 0_u64.. {
                    let large = i % 50 == 49;
                    let value = pattern(if large { 100_000 } else { 100 }, i ^ writer);
                    let burst: Vec<u8> =
                        (0..4).flat_map(|n| client.put_frame(format!("{writer}-{i}-{n}").as_bytes(), &value)).collect();
                    if std::io::Write::write_all(&mut client.stream, &burst).is_err() {
                        return acknowledged;
                    }
                    for _ in 0..4 {
                        match client.try_reply() {
                            Ok(reply) if reply.status == Status::Ok => acknowledged += 1,
                            Ok(reply) => assert_eq!(reply.status, Status::Stopping),
                            Err(_) => return acknowledged,
                        }
                    }
                    if i == 20 {
                        running.send(()).unwrap();
                    }
                    if i > 100_000 {
                        panic!("the server does not stop");
                    }
                }
                acknowledged
            })
        })
        .collect();
    (0..4).for_each(|_| wait.recv().unwrap());
    server.stop();
    let acknowledged: Vec<u64> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();

    let report = check_folder(folder.path()).unwrap();
    assert!(report.is_sound(), "{:?}", report.problems);
    let server = start(config);
    let mut client = Client::connect(server.local_addr());
    for (writer, count) in acknowledged.into_iter().enumerate() {
        assert!(count > 80, "writer {writer} wrote {count}");
        for k in 0..count {
            let (i, n) = (k / 4, k % 4);
            let got = client.get(format!("{writer}-{i}-{n}").as_bytes());
            let size = if i % 50 == 49 { 100_000 } else { 100 };
            assert!(got.value == pattern(size, i ^ writer as u64), "write {k} of writer {writer}: {:?}", got.status);
        }
    }
    server.stop();
}

#[test]
fn a_stop_answers_what_was_received_and_ends_with_idle_half_open_and_silent_clients() {
    let server = start(config());
    let mut idle = Client::connect(server.local_addr());
    let mut busy = Client::connect(server.local_addr());
    let mut half = Client::connect(server.local_addr());
    let _silent = raw::open(server.local_addr());
    let frame = half.put_frame(b"half", &pattern(100, 1));
    half.send(&frame[..60]);
    let burst: Vec<u8> = (0..1000_u32).flat_map(|i| busy.put_frame(&i.to_le_bytes(), b"value")).collect();
    busy.send(&burst);
    let first = busy.reply();
    assert_eq!(first.status, Status::Ok);
    let since = Instant::now();
    server.stop();
    assert!(since.elapsed() < Duration::from_secs(4), "took {:?}", since.elapsed());
    for _ in 1..1000 {
        assert!(matches!(busy.reply().status, Status::Ok | Status::Stopping));
    }
    assert_closed(&mut busy.stream);
    assert_closed(&mut idle.stream);
}

#[test]
fn one_server_has_a_port_and_one_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let with_data = Config { data: Some(folder.path().join("deep/er")), ..config() };
    let server = start(with_data.clone());
    let same_port = Config { listen: server.local_addr().to_string(), ..config() };
    assert!(matches!(Server::start(same_port), Err(ServerError::Listen { .. })));
    assert!(matches!(Server::start(with_data.clone()), Err(ServerError::InUse { .. })));
    assert!(matches!(check_folder(&folder.path().join("deep/er")), Err(ServerError::InUse { .. })));
    assert!(matches!(check_folder(folder.path()), Err(ServerError::NoTable { .. })));
    server.stop();
    start(with_data).stop();
}

/// Bytes, mode and time of the last change of anything about a table's file.
fn state_of(table: &Path) -> (Vec<u8>, u32, (i64, i64)) {
    let about = std::fs::metadata(table).unwrap();
    (std::fs::read(table).unwrap(), about.mode(), (about.ctime(), about.ctime_nsec()))
}

#[test]
fn a_check_changes_nothing_and_keeps_servers_out_while_it_looks() {
    let folder = tempfile::tempdir().unwrap();
    let small = Config { memory_bytes: Some(4 << 20), segment_bytes: Some(1 << 20), ..config() };
    let config = Config { data: Some(folder.path().into()), ..small };
    let server = start(config.clone());
    let mut client = Client::connect(server.local_addr());
    (0..500_u32).for_each(|i| assert_eq!(client.put(&i.to_le_bytes(), &pattern(300, 1)).status, Status::Ok));
    server.stop();
    let table = folder.path().join(FILE_NAME);
    // A mode that is not the one that a server sets.
    std::fs::set_permissions(&table, std::fs::Permissions::from_mode(0o440)).unwrap();
    let before = state_of(&table);
    let report = check_folder(folder.path()).unwrap();
    assert!(report.is_sound() && report.keys == 500, "{report:?}");
    assert!(state_of(&table) == before, "a check left a trace");

    // As it is while a check looks.
    let checking = ReadOnlyRegion::open_file(&table).unwrap();
    assert!(check_folder(folder.path()).is_ok(), "two checks do not disturb each other");
    assert!(matches!(Server::start(config.clone()), Err(ServerError::Region(RegionError::InUse { .. }))));
    drop(checking);
    start(config).stop();
    assert_eq!(std::fs::metadata(&table).unwrap().mode() & 0o777, 0o600);
}

/// The memory that the server serves, as a reader on its host has it.
fn memory_of(client: &Client) -> ReadOnlyRegion {
    let offer = client.welcome.shm.as_ref().unwrap();
    let fd = fetch_fd(&offer.socket_name, offer.ticket, Duration::from_secs(10)).unwrap();
    ReadOnlyRegion::map(fd, client.welcome.memory_bytes).unwrap()
}

#[test]
fn a_stop_makes_a_memfd_another_table_and_leaves_a_file_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    for data in [None, Some(folder.path().to_owned())] {
        let server = start(Config { data: data.clone(), ..config() });
        let client = Client::connect(server.local_addr());
        let memory = memory_of(&client);
        let boot_id = client.welcome.boot_id;
        assert_eq!(memory.load(BOOT_ID_WORD), boot_id);
        server.stop();
        assert_eq!(memory.load(BOOT_ID_WORD), if data.is_some() { boot_id } else { 0 });
    }
}

struct Program {
    child: Child,
    ready: String,
}

impl Program {
    fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_sidestep-server"))
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        Self { child, ready }
    }

    fn address(&self) -> std::net::SocketAddr {
        let rest = self.ready.strip_prefix("listening on ").unwrap();
        rest.split(';').next().unwrap().parse().unwrap()
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    fn end(self) -> (Option<i32>, String) {
        let output = self.child.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    }
}

#[test]
fn the_program_says_where_it_listens_and_ends_on_both_signals() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let program = Program::start(&["--listen", "127.0.0.1:0", "--memory", "64MiB", "--data", data]);
        assert!(program.ready.contains("paths: tcp, shm (abstract socket); rdma not available: "), "{}", program.ready);
        let mut client = Client::connect(program.address());
        assert_eq!(client.put(b"k", b"v").status, Status::Ok);
        let address = program.address().to_string();
        for (arguments, what) in [
            (vec!["--listen", &address], address.as_str()),
            (vec!["--listen", "127.0.0.1:0", "--data", data], "in use by another server"),
        ] {
            let second = Program::start(&arguments);
            assert_eq!(second.ready, "");
            let (code, stderr) = second.end();
            assert_eq!(code, Some(3));
            assert!(stderr.contains(what) && stderr.lines().count() == 1, "{stderr}");
        }
        program.signal(signal);
        assert_eq!(program.end().0, Some(0));
    }
    let check = Command::new(env!("CARGO_BIN_EXE_sidestep-server")).args(["check", data]).output().unwrap();
    assert!(check.status.success());
    assert!(String::from_utf8(check.stdout).unwrap().contains("keys 1,"));
}

#[test]
fn a_wrong_option_is_one_line_and_exit_code_2() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("server.toml");
    std::fs::write(&file, "memroy = '1GiB'\n").unwrap();
    let (code, stderr) = Program::start(&["--config", file.to_str().unwrap()]).end();
    assert_eq!(code, Some(2));
    assert!(stderr.contains("memroy") && stderr.lines().count() == 1, "{stderr}");
}
