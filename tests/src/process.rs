//! Server processes for tests.

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// A program of this workspace, built beside the test that runs.
pub fn program(name: &str) -> PathBuf {
    let mut folder = std::env::current_exe().expect("the test's own path");
    folder.pop();
    if folder.ends_with("deps") {
        folder.pop();
    }
    let program = folder.join(name);
    assert!(program.exists(), "{} is not built: cargo build --workspace --bins", program.display());
    program
}

/// A `history-client` that reads and writes until it is killed.
#[derive(Debug)]
pub struct EndlessClient {
    child: Child,
    // What it would write to is there for as long as it lives.
    _stdout: Lines<BufReader<ChildStdout>>,
    _folder: tempfile::TempDir,
}

impl EndlessClient {
    /// Starts one with these sessions (see `history-client --help`) and waits until it is under way.
    pub fn start(server: &str, sessions: &str, seed: u32, more: &[&str]) -> Self {
        let folder = tmpfs_folder();
        let mut child = Command::new(program("history-client"))
            .args(["--server", server, "--sessions", sessions, "--seed", &seed.to_string()])
            .args(["--operations", "1000000000", "--first-client", "0"])
            .args(more)
            .arg("--output")
            .arg(folder.path().join("never"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the client starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        child.stdin.take().expect("a pipe").write_all(b"go\n").expect("it listens");
        assert_eq!(stdout.by_ref().take(2).count(), 2, "it is under way");
        Self { child, _stdout: stdout, _folder: folder }
    }

    /// Kills it, wherever it is.
    pub fn kill(mut self) {
        self.child.kill().expect("it lives");
        self.child.wait().expect("it ends");
    }
}

impl Drop for EndlessClient {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A `sidestep-server` process. Killed when dropped.
#[derive(Debug)]
pub struct ServerProcess {
    child: Child,
    address: String,
    line: String,
    _stderr: Option<ChildStderr>,
}

impl ServerProcess {
    /// Starts one and waits for its line. The arguments come after `--listen`.
    pub fn start(listen: &str, args: &[&str]) -> Self {
        Self::start_with(listen, args, &[])
    }

    /// One that may pin only so many bytes, even if it is root's.
    pub fn start_pinning(bytes: u64, listen: &str, args: &[&str]) -> Self {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock", "prlimit"]);
        command.arg(format!("--memlock={bytes}:{bytes}")).arg(program("sidestep-server"));
        Self::start_by(command, listen, args, &[])
    }

    /// The same with more in its environment.
    pub fn start_with(listen: &str, args: &[&str], environment: &[(&str, &Path)]) -> Self {
        Self::start_by(Command::new(program("sidestep-server")), listen, args, environment)
    }

    /// The same by another command, to which the arguments are given.
    pub fn start_by(mut command: Command, listen: &str, args: &[&str], environment: &[(&str, &Path)]) -> Self {
        let mut child = command
            .args(["--listen", listen])
            .args(args)
            .envs(environment.iter().copied())
            .env("RUST_LOG", "warn")
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("the server starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("the server's line");
        let address = line
            .strip_prefix("listening on ")
            .and_then(|rest| rest.split(';').next())
            .unwrap_or_else(|| panic!("expected `listening on ADDR; …`, found {line:?}"))
            .trim()
            .to_owned();
        Self { child, address, line, _stderr: None }
    }

    /// Runs one that must not come up; its exit code and what it said on stderr.
    pub fn refused(args: &[&str]) -> (Option<i32>, String) {
        let mut child = Command::new(program("sidestep-server"))
            .args(args)
            .env("RUST_LOG", "error")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the server starts");
        // Its first line, or its end.
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        if !line.is_empty() {
            child.kill().expect("ours");
            child.wait().expect("it ends");
            panic!("expected {args:?} to be refused, found {line:?}");
        }
        let mut text = String::new();
        if let Some(mut stderr) = child.stderr.take() {
            stderr.read_to_string(&mut text).expect("stderr");
        }
        (child.wait().expect("it ends").code(), text)
    }

    /// Where it listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The line that it printed when it was ready.
    pub fn line(&self) -> &str {
        &self.line
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("the process is there");
    }

    /// Stops every thread of it, and returns when they are. `Signal::CONT` lets them go on.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let waited = waitpid(Some(Pid::from_child(&self.child)), WaitOptions::UNTRACED);
        let (_, status) = waited.expect("a child").expect("a status");
        assert!(status.stopped(), "{status:?}");
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("it ends")
    }

    /// SIGKILL, and its end.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.wait();
    }

    /// User and system time so far, in clock ticks, of `/proc/PID/stat`.
    pub fn cpu_ticks(&self) -> u64 {
        ticks(&format!("/proc/{}/stat", self.child.id())).1
    }

    /// The same of each of its threads, with their names: to say which one did what.
    pub fn thread_ticks(&self) -> Vec<(String, u64)> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("a live process");
        threads.map(|thread| ticks(&format!("{}/stat", thread.expect("a thread").path().display()))).collect()
    }

    /// The ticks once they stand still. After a start and after writes the server prepares memory for the next ones.
    pub fn idle_ticks(&self) -> u64 {
        let deadline = Instant::now() + Duration::from_secs(20);
        let (mut ticks, mut looks) = (self.cpu_ticks(), 0);
        while looks < 10 {
            assert!(Instant::now() < deadline, "the server is never idle");
            std::thread::sleep(Duration::from_millis(20));
            let now = self.cpu_ticks();
            looks = if now == ticks { looks + 1 } else { 0 };
            ticks = now;
        }
        ticks
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Name and ticks of a process or a thread.
fn ticks(stat: &str) -> (String, u64) {
    let stat = std::fs::read_to_string(stat).expect("it lives");
    let (name, rest) = stat.rsplit_once(')').expect("a name in parentheses");
    // Behind the name: state is field 3, utime 14, stime 15.
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let name = name.split_once('(').map_or("", |(_, name)| name);
    (name.to_owned(), fields[11].parse::<u64>().expect("utime") + fields[12].parse::<u64>().expect("stime"))
}

/// A folder on tmpfs, where a table's file is memory and outlives its server.
pub fn tmpfs_folder() -> tempfile::TempDir {
    tempfile::tempdir_in(Path::new("/dev/shm")).expect("a folder on tmpfs")
}

/// Objects of a kind (`qp`, `mr`, `cq`, `pd`) that processes have made on the RDMA devices: the kernel's lines of them.
pub fn verbs_objects(kind: &str) -> Vec<String> {
    let shown = Command::new("rdma").args(["resource", "show", kind]).output().expect("iproute2");
    assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
    // The kernel's own have no number of a process.
    let text = String::from_utf8_lossy(&shown.stdout);
    text.lines().filter(|line| line.contains(" pid ")).map(str::to_owned).collect()
}
