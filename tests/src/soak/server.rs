//! The server of a table, killed and started again.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use sidestep_client::{Client, Options, Path, PathMode};

use super::Tally;
use crate::process::{ServerProcess, program};

/// What must come to pass does so within this, however slow the machine is.
const PATIENCE: Duration = Duration::from_secs(120);

/// A server on a file.
#[derive(Debug)]
pub(super) struct Supervised {
    process: ServerProcess,
    data: PathBuf,
    arguments: Vec<String>,
    address: String,
}

impl Supervised {
    /// In a folder; `sync`: with a log, synced so.
    pub(super) fn start(folder: &std::path::Path, may_evict: bool, sync: Option<&str>) -> Self {
        let (data, log) = (folder.join("table"), folder.join("log"));
        let mut arguments: Vec<String> =
            ["--memory", "48MiB", "--segment", "1MiB", "--workers", "2", "--session-timeout-ms", "1000", "--data"]
                .map(str::to_owned)
                .to_vec();
        arguments.push(data.to_str().expect("a name in UTF-8").to_owned());
        if may_evict {
            arguments.extend(["--evict", "clock"].map(str::to_owned));
        }
        if let Some(sync) = sync {
            let log = log.to_str().expect("a name in UTF-8");
            arguments.extend(["--durable", log, "--sync", sync].map(str::to_owned));
        }
        let process = start("127.0.0.1:0", &arguments);
        let address = process.address().to_owned();
        Self { process, data, arguments, address }
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    pub(super) fn process(&self) -> &ServerProcess {
        &self.process
    }

    /// Kills it wherever it is, and starts it again.
    pub(super) fn kill(&mut self, tally: &mut Tally) {
        self.count(tally);
        self.process.kill();
        tally.server_kills += 1;
        self.process = start(&self.address, &self.arguments);
    }

    /// Asks it to end, and starts it again.
    pub(super) fn restart(&mut self, tally: &mut Tally) -> Result<(), String> {
        self.count(tally);
        self.process.signal(Signal::TERM);
        let status = self.process.wait();
        if !status.success() {
            return Err(format!("a server that was asked to end: {status}"));
        }
        tally.server_restarts += 1;
        self.process = start(&self.address, &self.arguments);
        Ok(())
    }

    /// A client for looking on, by the server's CPU.
    pub(super) fn client(&self) -> Result<Client, String> {
        let options = Options::default().path(PathMode::Require(Path::Tcp));
        Client::connect(&self.address, options).map_err(|error| format!("cannot look at the server: {error}"))
    }

    fn counters(&self) -> Result<Vec<(String, u64)>, String> {
        self.client()?.stats().map(|stats| stats.server).map_err(|error| format!("no statistics: {error}"))
    }

    /// Adds what this start of the server has counted; it forgets that when it ends.
    fn count(&self, tally: &mut Tally) {
        if let Ok(counters) = self.counters() {
            tally.add_counters(&counters);
        }
    }

    /// Waits until every extent is a key's and nobody but the one who looks has a session.
    pub(super) fn settle(&self) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        let client = self.client()?;
        loop {
            let stats = client.stats().map_err(|error| format!("no statistics: {error}"))?;
            let counters = stats.server;
            let counter = |name: &str| counters.iter().find(|other| other.0 == name).map_or(0, |other| other.1);
            let is_clean = counter("extents") == counter("keys") && counter("extents_held") == 0;
            if is_clean && counter("sessions") == 1 {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("something is left that no key and no client has: {counters:?}"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Ends it for good and looks at its file.
    pub(super) fn finish(mut self, tally: &mut Tally) -> Result<(), String> {
        let counters = self.counters()?;
        tally.add_counters(&counters);
        self.process.kill();
        let mut check = Command::new(program("sidestep-server"));
        let checked = check.arg("check").arg(&self.data).output().map_err(|error| format!("no check: {error}"))?;
        match checked.status.success() {
            true => Ok(()),
            false => Err(format!("the table is not sound: {}", String::from_utf8_lossy(&checked.stdout))),
        }
    }
}

fn start(listen: &str, arguments: &[String]) -> ServerProcess {
    ServerProcess::start(listen, &arguments.iter().map(String::as_str).collect::<Vec<_>>())
}
