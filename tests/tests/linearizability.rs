//! A million operations from threads and processes on mixed paths, checked for linearizability.
//!
//! `SIDESTEP_SEED=N` sets what the clients ask for (not when), `SIDESTEP_HISTORY_OPERATIONS=N` how much. A history
//! that fails is kept as a file, which `cargo run -p sidestep-tests --bin check-history FILE` checks again.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use sidestep_tests::linearizability::{Operation, Report, check_or_keep, read_history};
use sidestep_tests::process::{ServerProcess, tmpfs_folder};
use sidestep_tests::simulation::{Plan, run_recorded};

/// Sessions of each client process: all paths beside each other in every one.
const SESSIONS: &str = "shm-cached,shm-cached,shm,tcp,tcp";
const PROCESSES: u32 = 3;

fn number(name: &str, default: u64) -> u64 {
    let Ok(text) = std::env::var(name) else { return default };
    text.parse().unwrap_or_else(|_| panic!("{name}: expected a number, found {text:?}"))
}

/// A `history-client` process. Killed when dropped.
struct HistoryClient {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    output: PathBuf,
}

impl HistoryClient {
    fn start(server: &str, folder: &Path, index: u32, operations: u64, seed: u64, more: &[&str]) -> Self {
        Self::start_with(SESSIONS, server, folder, index, operations, seed, more)
    }

    fn start_with(
        sessions: &str,
        server: &str,
        folder: &Path,
        index: u32,
        operations: u64,
        seed: u64,
        more: &[&str],
    ) -> Self {
        let output = folder.join(format!("{index}.jsonl"));
        let first_client = (index * 100).to_string();
        let mut child = Command::new(env!("CARGO_BIN_EXE_history-client"))
            .args(["--server", server, "--sessions", sessions, "--first-client", &first_client])
            .args(["--operations", &operations.to_string(), "--seed", &seed.to_string()])
            .arg("--output")
            .arg(&output)
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the client starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        assert_eq!(lines.next().expect("a line").expect("a line"), "ready");
        Self { child, lines, output }
    }

    fn begin(&mut self) {
        self.child.stdin.take().expect("a pipe").write_all(b"go\n").expect("it listens");
    }

    /// Waits until it has begun so many operations, or ended.
    fn wait_for(&mut self, operations: u64) {
        for line in self.lines.by_ref() {
            if line.expect("a line").parse::<u64>().is_ok_and(|begun| begun >= operations) {
                return;
            }
        }
    }

    /// Waits for its end. Its history, its counters added to `counters`.
    fn end(mut self, counters: &mut HashMap<String, u64>) -> Vec<Operation> {
        for line in self.lines.by_ref() {
            let line = line.expect("a line");
            if let Some((name, count)) = line.split_once(' ') {
                *counters.entry(name.to_owned()).or_default() += count.parse::<u64>().expect("a count");
            }
        }
        assert!(self.child.wait().expect("it ends").success());
        read_history(BufReader::new(File::open(&self.output).expect("a history"))).expect("a history")
    }
}

impl Drop for HistoryClient {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn explained(name: &str, history: &[Operation], seed: u64) -> Report {
    let report = check_or_keep(name, history).unwrap_or_else(|text| panic!("SIDESTEP_SEED={seed}: {text}"));
    println!("{report:?}");
    report
}

#[test]
fn a_million_operations_from_processes_on_mixed_paths() {
    let operations = number("SIDESTEP_HISTORY_OPERATIONS", 1_000_000);
    let seed = number("SIDESTEP_SEED", 1);
    let folder = tmpfs_folder();
    let server = ServerProcess::start("127.0.0.1:0", &["--memory", "256MiB", "--segment", "1MiB", "--workers", "2"]);
    let each = operations / u64::from(PROCESSES) + 1;
    let mut clients: Vec<HistoryClient> = (0..PROCESSES)
        .map(|index| HistoryClient::start(server.address(), folder.path(), index, each, seed, &[]))
        .collect();
    clients.iter_mut().for_each(HistoryClient::begin);
    let mut counters = HashMap::new();
    let history: Vec<Operation> = clients.into_iter().flat_map(|client| client.end(&mut counters)).collect();
    let report = explained("million", &history, seed);
    assert!(report.operations as u64 >= operations, "{report:?}");
    assert!(report.overlaps as u64 > operations / 10, "hardly anything met anything: {report:?}");
    let stats = sidestep_client::Client::connect(server.address(), sidestep_client::Options::default())
        .and_then(|client| client.stats())
        .expect("the server's counters");
    let server = |name: &str| stats.server(name).unwrap_or_else(|| panic!("no counter {name}"));
    println!("{counters:?}, {} splits, {} doublings", server("splits"), server("directory_doublings"));
    assert!(server("splits") > 30 && server("directory_doublings") > 3);
    if operations >= 1_000_000 {
        for name in ["location_cache_hits", "location_cache_dropped", "shm_forward_hops", "tcp_version_mismatch"] {
            assert!(counters[name] > 0, "{name}: {counters:?}");
        }
    }
}

/// The server is killed in the middle of it, and started again on the same file.
#[test]
fn histories_across_kills_of_the_server() {
    const KILLS: u64 = 5;
    let operations = number("SIDESTEP_HISTORY_OPERATIONS", 1_000_000) / 10;
    let seed = number("SIDESTEP_SEED", 1);
    let folder = tmpfs_folder();
    let data = folder.path().join("table");
    let arguments = ["--memory", "64MiB", "--segment", "1MiB", "--data", data.to_str().expect("a name")];
    let mut server = ServerProcess::start("127.0.0.1:0", &arguments);
    let address = server.address().to_owned();
    let mut clients: Vec<HistoryClient> = (0..2)
        .map(|index| HistoryClient::start(&address, folder.path(), index, operations / 2, seed, &["--may-lose-server"]))
        .collect();
    clients.iter_mut().for_each(HistoryClient::begin);
    for kill in 1..=KILLS {
        clients[0].wait_for(kill * operations / 2 / (KILLS + 1));
        server.kill();
        server = ServerProcess::start(&address, &arguments);
    }
    let mut counters = HashMap::new();
    let history: Vec<Operation> = clients.into_iter().flat_map(|client| client.end(&mut counters)).collect();
    let report = explained("kills", &history, seed);
    println!("{counters:?}");
    assert!(report.operations as u64 > operations / 2, "{report:?}");
    assert!(report.unknown > 0, "no kill met a write: {report:?}");
}

/// The simulator's readers and writes, kills and recoveries, before the same judge.
#[test]
fn simulated_histories() {
    let mut reads = 0;
    for seed in 0..number("SIDESTEP_SIM_SEEDS", 300) {
        let plan = Plan { seed, operations: 120, readers: 5, kills: seed % 2 == 0, evictions: false };
        let (outcome, history) =
            run_recorded(plan).unwrap_or_else(|failure| panic!("SIDESTEP_SIM_SEED={seed}: {failure}"));
        reads += outcome.reads;
        check_or_keep("simulated", &history).unwrap_or_else(|text| panic!("SIDESTEP_SIM_SEED={seed}: {text}"));
    }
    assert!(reads > 10_000, "{reads}");
}

/// On real verbs, all paths beside each other. Needs a device: `scripts/guest`.
mod rdma {
    use super::*;

    /// Of each client process: a writer by every path, and every way to read.
    const SESSIONS: &str = "rdma-cached,rdma,shm-cached,tcp,rdma-rpc";

    /// Less than elsewhere: a guest's processor is slow.
    fn operations() -> u64 {
        number("SIDESTEP_HISTORY_OPERATIONS", 16_000)
    }

    #[test]
    #[ignore = "needs an RDMA device: scripts/guest"]
    fn operations_on_all_paths_at_once() {
        let (operations, seed) = (operations(), number("SIDESTEP_SEED", 1));
        let folder = tmpfs_folder();
        let server = ServerProcess::start("127.0.0.1:0", &["--memory", "64MiB", "--segment", "1MiB", "--workers", "2"]);
        let mut clients: Vec<HistoryClient> = (0..2)
            .map(|index| {
                HistoryClient::start_with(SESSIONS, server.address(), folder.path(), index, operations / 2, seed, &[])
            })
            .collect();
        clients.iter_mut().for_each(HistoryClient::begin);
        let mut counters = HashMap::new();
        let history: Vec<Operation> = clients.into_iter().flat_map(|client| client.end(&mut counters)).collect();
        let report = explained("rdma", &history, seed);
        println!("{counters:?}");
        assert!(report.operations as u64 >= operations, "{report:?}");
        assert!(report.overlaps as u64 > operations / 20, "hardly anything met anything: {report:?}");
        for name in
            ["rdma_get_found", "shm_get_found", "tcp_get_found", "location_cache_hits", "location_cache_dropped"]
        {
            assert!(counters[name] > 0, "{name}: {counters:?}");
        }
        assert_eq!((counters["path_fallbacks"], counters["rdma_errors"]), (0, 0));
    }

    /// Readers by `rdma` must not answer from the memory of a server that is dead, nor from what they remember of it.
    #[test]
    #[ignore = "needs an RDMA device: scripts/guest"]
    fn histories_across_kills() {
        const KILLS: u64 = 3;
        let (operations, seed) = (operations() / 4, number("SIDESTEP_SEED", 1));
        let folder = tmpfs_folder();
        let data = folder.path().join("table");
        let arguments = ["--memory", "64MiB", "--segment", "1MiB", "--data", data.to_str().expect("a name")];
        let mut server = ServerProcess::start("127.0.0.1:0", &arguments);
        let address = server.address().to_owned();
        let mut client =
            HistoryClient::start_with(SESSIONS, &address, folder.path(), 0, operations, seed, &["--may-lose-server"]);
        client.begin();
        for kill in 1..=KILLS {
            client.wait_for(kill * operations / (KILLS + 1));
            server.kill();
            server = ServerProcess::start(&address, &arguments);
        }
        let mut counters = HashMap::new();
        let report = explained("rdma-kills", &client.end(&mut counters), seed);
        println!("{counters:?}");
        assert!(report.operations as u64 > operations / 4, "{report:?}");
        assert!(counters["rdma_get_found"] > 0 && counters["connections_lost"] > 0, "{counters:?}");
    }
}
