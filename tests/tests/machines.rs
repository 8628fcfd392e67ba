//! A server and its clients on two machines: guests that `scripts/guest --end` joins by a wire. One is paused, each is
//! killed. Run by `scripts/test-machines`.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sidestep_tests::linearizability::{check_or_keep, read_history};
use sidestep_tests::process::program;

const SERVER: &str = "10.77.0.1:7411";
/// Of the clients on the other machine.
const PATHS: [&str; 3] = ["tcp", "rdma", "rdma-rpc"];
/// For anything that must come at some time: machines boot and work slowly where their processors are emulated.
const PATIENCE: Duration = Duration::from_secs(120);
/// A call of `machine-client` may take its request timeout and its reconnect timeout, some seconds; this is far more.
const LONGEST_CALL_MS: u64 = 25_000;
/// Longer than a call waits.
const PAUSE: Duration = Duration::from_secs(5);

/// A guest and the lines of its command. Killed when dropped.
struct Machine {
    name: &'static str,
    caller: Child,
    pid_file: PathBuf,
    lines: Receiver<String>,
    /// What was passed over while something else was waited for.
    seen: VecDeque<String>,
}

impl Machine {
    /// Machine `end` of the wire in `folder`, and what it runs.
    fn start(name: &'static str, folder: &Path, end: u32, command: &str) -> Self {
        let guest = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/guest");
        let mut caller = Command::new(guest)
            .args(["--smp", "1", "--memory", "1G", "--timeout", "900", "--rw"])
            .arg(folder)
            .arg("--end")
            .arg(folder.join(end.to_string()))
            .args(["bash", "-euc", command])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("scripts/guest");
        let stdout = BufReader::new(caller.stdout.take().expect("a pipe"));
        let (heard, lines) = channel();
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                println!("{name}: {line}");
                if heard.send(line).is_err() {
                    return;
                }
            }
        });
        Self { name, caller, pid_file: folder.join(format!("{end}.pid")), lines, seen: VecDeque::new() }
    }

    /// The first line that begins so, of those that came since the last [`Self::forget`]: what follows.
    fn wait_for(&mut self, what: &str) -> String {
        self.wait_until(what, |line| line.strip_prefix(what).map(str::to_owned))
    }

    fn wait_until<T>(&mut self, what: &str, wanted: impl Fn(&str) -> Option<T>) -> T {
        if let Some(found) = self.seen.iter().find_map(|line| wanted(line)) {
            return found;
        }
        let until = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    assert!(!line.starts_with("WRONG"), "{}: {line}", self.name);
                    let found = wanted(&line);
                    self.seen.push_back(line);
                    if let Some(found) = found {
                        return found;
                    }
                }
                Err(RecvTimeoutError::Timeout) => panic!("{}: no {what:?} within {PATIENCE:?}", self.name),
                Err(RecvTimeoutError::Disconnected) => panic!("{}: ended before {what:?}", self.name),
            }
        }
    }

    /// What came until now does not count any more.
    fn forget(&mut self) {
        while self.lines.try_recv().is_ok() {}
        self.seen.clear();
    }

    /// Every path gets something done from now on.
    fn goes_on(&mut self, paths: &[&str]) {
        self.forget();
        paths.iter().for_each(|path| drop(self.wait_for(&format!("{path} done "))));
    }

    fn signal(&self, signal: Signal) {
        let text = std::fs::read_to_string(&self.pid_file).expect("QEMU's number");
        let pid = Pid::from_raw(text.trim().parse().expect("a number")).expect("not 0");
        kill_process(pid, signal).expect("the machine is there");
    }

    fn kill(mut self) {
        self.signal(Signal::KILL);
        assert_eq!(self.caller.wait().expect("it ends").code(), Some(70), "the guest died");
    }

    /// Waits for the end of its command, which must be a good one.
    fn end(mut self) {
        assert!(self.caller.wait().expect("it ends").success(), "{}", self.name);
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Its QEMU dies with it.
        let _ = self.caller.kill();
        let _ = self.caller.wait();
    }
}

/// What a line of `machine-client --watch` says of the server, its memory left out, and whether all memory is keys'.
fn server_state(line: &str) -> Option<(String, bool)> {
    let (state, memory) = line.strip_prefix("server ")?.split_once(" loose ")?;
    Some((state.to_owned(), memory == "0 held 0"))
}

fn clients(name: &str, end: &Path) -> String {
    let (program, paths) = (program("machine-client"), PATHS.join(","));
    format!("{} --server {SERVER} --name {name} --paths {paths} --end {}", program.display(), end.display())
}

#[test]
#[ignore = "boots two guests: scripts/test-machines"]
fn machines_that_are_paused_and_killed() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder that the guests see too");
    let path = |name: &str| folder.path().join(name);
    let history = path("history.jsonl");
    // Shorter times than the defaults, so that the death of a machine is noticed soon.
    let mut server = Machine::start(
        "server",
        folder.path(),
        1,
        &format!(
            "{} --listen {SERVER} --insecure --memory 256MiB --segment 4MiB --silence-timeout-ms 12000 --session-timeout-ms 2000 &
            {} --server {SERVER} --name bystander --paths rdma,tcp --watch --end {}
            wait",
            program("sidestep-server").display(),
            program("machine-client").display(),
            path("end-1").display()
        ),
    );
    let mut client = Machine::start(
        "client",
        folder.path(),
        2,
        &format!(
            "until [ -e {} ]; do sleep 0.2; done
            {} --server {SERVER} --sessions rdma,rdma-cached,rdma-rpc,tcp --operations 3000 --seed 1 --first-client 0 --output {} </dev/null
            echo history kept
            sync
            {}",
            path("go").display(),
            program("history-client").display(),
            history.display(),
            clients("first", &path("end-2"))
        ),
    );

    // All paths between two machines at once, checked, once it is known what the server has for the bystander.
    server.goes_on(&["rdma", "tcp"]);
    let (alone, _) = server.wait_until("what it has for the bystander", server_state);
    File::create(path("go")).expect("a file");
    client.wait_for("history kept");
    let kept = read_history(BufReader::new(File::open(&history).expect("a history"))).expect("a history");
    let report = check_or_keep("machines", &kept).unwrap_or_else(|text| panic!("{text}"));
    println!("{report:?}");
    assert!(report.operations >= 2500 && report.overlaps > 100, "{report:?}");
    client.goes_on(&PATHS);

    paused(&server, &mut client);
    killed_client(&mut server, client, &alone, &path("end-1"));

    // The machine is there again, and then the server's is not.
    let mut client = Machine::start("client again", folder.path(), 2, &clients("second", &path("end-3")));
    client.goes_on(&PATHS);
    killed_server(server, client, &path("end-3"));
}

/// The server's machine stands still: every path says so within its time, and goes on afterwards with all that was
/// acknowledged, which `machine-client` looks after.
fn paused(server: &Machine, client: &mut Machine) {
    client.forget();
    server.signal(Signal::STOP);
    let since = Instant::now();
    for path in PATHS {
        let lost = client.wait_for(&format!("{path} lost "));
        println!("{path}: {lost}");
    }
    thread::sleep(PAUSE.saturating_sub(since.elapsed()));
    server.signal(Signal::CONT);
    for path in PATHS {
        let longest_ms: u64 = client.wait_for(&format!("{path} again ")).parse().expect("a number");
        assert!(longest_ms < LONGEST_CALL_MS, "{path}: a call took {longest_ms} ms");
    }
    client.goes_on(&PATHS);
}

/// The clients' machine dies in the middle of what they do: what the server had for them comes back, and another client
/// does not notice.
fn killed_client(server: &mut Machine, client: Machine, alone: &str, end: &Path) {
    client.kill();
    server.goes_on(&["rdma", "tcp"]);
    server.wait_until(alone, |line| server_state(line).filter(|(state, _)| state == alone));
    let lost = server.seen.iter().find(|line| line.contains(" lost "));
    assert_eq!(lost, None, "the bystander");
    // While the bystander writes, something has just been replaced most of the time.
    server.forget();
    File::create(end).expect("a file");
    server.wait_until("no memory but that of keys", |line| server_state(line).filter(|&(_, is_all_keys)| is_all_keys));
}

/// The server's machine dies: every call ends with an error within its time, and the clients end with nothing left.
fn killed_server(server: Machine, mut client: Machine, end: &Path) {
    client.forget();
    server.kill();
    for path in PATHS {
        let lost = client.wait_for(&format!("{path} lost "));
        let ms: u64 = lost.split_once(' ').expect("a time and a reason").0.parse().expect("a number");
        assert!(ms < LONGEST_CALL_MS, "{path}: a call took {ms} ms");
    }
    File::create(end).expect("a file");
    assert_eq!(client.wait_for("left "), "qp 0 cq 0 pd 0");
    client.end();
}
