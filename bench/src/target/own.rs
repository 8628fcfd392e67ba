//! A `sidestep-server` of our own, for as long as it is wanted.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::{ServerAddress, TargetError};
use crate::undo::Undo;

/// A server that was started here, and is stopped when this is dropped or this process ends.
#[derive(Debug)]
pub struct OwnServer {
    child: Child,
    /// Taken before the child is waited for, so that its process id is still its own.
    undo: Option<Undo>,
    address: String,
}

impl OwnServer {
    /// Starts the `sidestep-server` that lies beside this program, on a free port of the loopback interface, with
    /// `memory_bytes` of address space.
    ///
    /// # Errors
    /// It is not there or does not start.
    pub fn start(memory_bytes: u64) -> Result<Self, TargetError> {
        let program = beside_us()?;
        let failed = |reason: String| TargetError(format!("{}: {reason}", program.display()));
        let mut child = Command::new(&program)
            .args(["--listen", "127.0.0.1:0", "--memory", &format!("{}MiB", (memory_bytes >> 20).max(64))])
            // Its log is ours to print: warnings, unless asked for more.
            .env("RUST_LOG", std::env::var("RUST_LOG").unwrap_or_else(|_| "warn".into()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            // Ctrl-C is for us alone.
            .process_group(0)
            .spawn()
            .map_err(|error| failed(format!("cannot start it: {error} (or give --server)")))?;
        let undo = Undo::start(child.id()).map_err(TargetError::new);
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            let _ = BufReader::new(stdout).read_line(&mut line);
        }
        let mut server = Self { child, undo: None, address: String::new() };
        server.undo = Some(undo?);
        let address = line.strip_prefix("listening on ").and_then(|rest| rest.split(';').next());
        server.address = address
            .ok_or_else(|| failed(format!("expected `listening on ADDR; …`, found {line:?}")))?
            .trim()
            .to_owned();
        Ok(server)
    }

    /// How to reach it.
    #[must_use]
    pub fn address(&self) -> ServerAddress {
        ServerAddress { address: self.address.clone(), ..ServerAddress::default() }
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        drop(self.undo.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn beside_us() -> Result<PathBuf, TargetError> {
    let mut program = std::env::current_exe().map_err(TargetError::new)?;
    program.set_file_name("sidestep-server");
    if program.is_file() {
        return Ok(program);
    }
    Err(TargetError(format!("{} is not there: build it, or give --server", program.display())))
}
