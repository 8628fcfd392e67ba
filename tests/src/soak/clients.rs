//! Client processes that are killed and started again, and what they have done.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::linearizability::client::Via;
use crate::process::program;

/// Client numbers of each process.
pub(super) const CLIENTS: u32 = 100;

/// A `history-client` that goes on until it is told to end, or killed.
#[derive(Debug)]
pub(super) struct SoakClient {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

/// What the clients of a round have in common.
#[derive(Clone, Debug)]
pub(super) struct Order<'a> {
    pub(super) server: &'a str,
    pub(super) sessions: &'a [Via],
    pub(super) prefix: &'a str,
    pub(super) journals: &'a Path,
    pub(super) seed: u64,
}

impl SoakClient {
    /// Starts the one of this number.
    pub(super) fn start(order: &Order<'_>, number: u32) -> Self {
        let sessions: Vec<&str> = order.sessions.iter().map(|via| via.name()).collect();
        let seed = order.seed ^ u64::from(number) << 40;
        let mut child = Command::new(program("history-client"))
            .args(["--server", order.server, "--sessions", &sessions.join(","), "--prefix", order.prefix])
            .args(["--operations", &u64::MAX.to_string(), "--seed", &seed.to_string()])
            .args(["--first-client", &(number * CLIENTS).to_string()])
            .args(["--may-lose-server", "--expiring", "--journals"])
            .arg(order.journals)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the client starts");
        let mut stdin = child.stdin.take().expect("a pipe");
        stdin.write_all(b"go\n").expect("it listens");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        Self { child, stdin: Some(stdin), lines }
    }

    /// Kills it, wherever it is.
    pub(super) fn kill(mut self) {
        self.child.kill().expect("it lives");
        self.child.wait().expect("it ends");
    }

    /// Tells it to end.
    pub(super) fn tell(&mut self) {
        self.stdin = None;
    }

    /// Waits for its end.
    pub(super) fn end(mut self) -> Result<(), String> {
        self.lines.by_ref().for_each(drop);
        let status = self.child.wait().map_err(|error| error.to_string())?;
        if status.success() { Ok(()) } else { Err(format!("a client process: {status}")) }
    }
}

impl Drop for SoakClient {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
