//! `fail-server` processes for tests.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::process::program;

/// Bytes of a fail server's table.
pub const MEMORY: &str = "4MiB";
/// Bytes of its segments.
pub const SEGMENT: &str = "256KiB";

/// A `fail-server` process. Killed when dropped.
#[derive(Debug)]
pub struct FailServer {
    child: Child,
    stdin: Arc<Mutex<ChildStdin>>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl FailServer {
    /// Starts one, with a command that it obeys before it opens the table, but does not wait until it is ready.
    pub fn launch(listen: &str, data: &Path, first: &str) -> Self {
        Self::launch_with(listen, data, first, &[])
    }

    /// The same with more arguments.
    pub fn launch_with(listen: &str, data: &Path, first: &str, more: &[&str]) -> Self {
        let mut child = Command::new(program("fail-server"))
            .args(["--listen", listen, "--memory", MEMORY, "--segment", SEGMENT, "--first", first])
            .args(more)
            .arg("--data")
            .arg(data)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let stdin = Arc::new(Mutex::new(child.stdin.take().expect("a pipe")));
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        Self { child, stdin, lines }
    }

    /// Starts one and waits until it is ready. Returns its address.
    pub fn start(data: &Path) -> (Self, String) {
        let mut server = Self::launch("127.0.0.1:0", data, "off");
        let address = server.address().expect("it is ready");
        (server, address)
    }

    /// Waits until it is ready, and returns where it listens; none if it is killed before.
    pub fn address(&mut self) -> Option<String> {
        let line = self.next_line()?;
        let address = line.strip_prefix("listening on ").and_then(|rest| rest.split(';').next());
        Some(address.unwrap_or_else(|| panic!("expected `listening on ADDR; …`, found {line:?}")).to_owned())
    }

    /// The next line that it says; none once it is dead.
    pub fn next_line(&mut self) -> Option<String> {
        self.lines.next().and_then(Result::ok)
    }

    /// What sends it commands, for another thread too. It may be dead by then.
    pub fn commander(&self) -> impl Fn(&str) + Send + 'static {
        let stdin = self.stdin.clone();
        move |command| {
            let _ = writeln!(stdin.lock().unwrap_or_else(PoisonError::into_inner), "{command}");
        }
    }

    /// Sends a command and waits for its answer; what it may have told of stores before is dropped.
    pub fn ask(&mut self, command: &str) -> String {
        self.commander()(command);
        loop {
            let line = self.next_line().unwrap_or_else(|| panic!("no answer to {command:?}"));
            if !line.starts_with("at ") {
                return line;
            }
        }
    }

    /// Stops every thread of it, and returns when they are.
    pub fn stop(&self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::STOP).expect("the process is there");
        let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).expect("a child").expect("a status");
        assert!(status.stopped(), "{status:?}");
    }

    /// Lets its threads go on.
    pub fn go_on(&self) {
        kill_process(Pid::from_child(&self.child), Signal::CONT).expect("the process is there");
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("it ends")
    }
}

impl Drop for FailServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
