//! Several processes that drive one server together, as the bench's agents.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sidestep_tests::process::{ServerProcess, program};

fn bench(arguments: &[&str]) -> Command {
    let mut command = Command::new(program("sidestep-bench"));
    command.args(arguments).env("RUST_LOG", "warn").stdin(Stdio::null()).stderr(Stdio::piped());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn server() -> ServerProcess {
    ServerProcess::start("127.0.0.1:0", &["--memory", "256MiB"])
}

/// An agent's process, stopped when dropped.
struct Agent {
    child: Child,
    address: String,
}

impl Agent {
    fn start() -> Self {
        let mut child = bench(&["agent", "--listen", "127.0.0.1:0"]).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("agent listening on ").expect("where it listens").to_owned();
        Self { child, address }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const AT: [&str; 6] = ["--workload", "a", "--records", "500", "--warm-up", "0"];
const SHORT: [&str; 2] = ["--seconds", "0.5"];

fn run(server: &ServerProcess, agents: &str, more: &[&str]) -> Output {
    let fixed = ["run", "--server", server.address(), "--clients", agents, "--path", "tcp"];
    bench(&[&fixed[..], &AT, more].concat()).output().expect("it runs")
}

fn load(server: &ServerProcess) {
    let loaded = bench(&["load", "--server", server.address(), "--workload", "a", "--records", "500"]).output();
    assert!(loaded.expect("it runs").status.success());
}

#[test]
fn two_agents_drive_as_one() {
    let (server, agents) = (server(), [Agent::start(), Agent::start()]);
    let (folder, both) =
        (tempfile::tempdir().expect("a folder"), format!("{},{}", agents[0].address, agents[1].address));
    let file = folder.path().join("r.json");
    let fixed = ["compare", "--server", server.address(), "--clients", &both, "--paths", "tcp,shm"];
    let more = ["--repetitions", "2", "--repeats", "0", "--threads", "2", "--json", file.to_str().expect("a name")];
    let output = bench(&[&fixed[..], &AT, &SHORT, &more].concat()).output().expect("it runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&file).expect("a file")).expect("JSON");
    assert_eq!(report["plan"]["clients"], serde_json::json!([agents[0].address, agents[1].address]));
    let row = |path: &str| {
        let rows = report["rows"].as_array().expect("rows");
        rows.iter().find(|row| row["path"] == path).unwrap_or_else(|| panic!("{path} in {rows:?}")).clone()
    };
    assert!(row("local")["not_available"].as_str().is_some_and(|reason| reason.contains("agents drive")));
    for path in ["tcp", "shm"] {
        let measured = &row(path)["measured"];
        let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("a number expected in {measured}"));
        assert!(number(&measured["ops_per_s"]["median"]) > 0.0);
        assert!(number(&measured["server_cpu_us_per_op"]["median"]) > 0.0, "half of it writes: {measured}");
        assert!(number(&measured["client_cpu_us_per_op"]["median"]) > 0.0);
        for run in measured["runs"].as_array().expect("runs") {
            assert!(number(&run["operations"]) > 0.0 && number(&run["ops_per_s"]) > 0.0);
        }
    }
}

#[test]
fn rate_and_operations_are_shared_out() {
    let (server, agents) = (server(), [Agent::start(), Agent::start()]);
    let both = format!("{},{}", agents[0].address, agents[1].address);
    load(&server);
    let counted = run(&server, &both, &["--operations", "2000", "--seconds", "30", "--format", "ycsb"]);
    let counted = text(&counted.stdout);
    let of = |section: &str| {
        let prefix = format!("[{section}], Operations, ");
        let line = counted.lines().find_map(|line| line.strip_prefix(&prefix));
        line.and_then(|count| count.parse::<u64>().ok()).unwrap_or_else(|| panic!("{prefix} in {counted}"))
    };
    assert_eq!(of("READ") + of("UPDATE"), 2000);
    let paced = run(&server, &both, &["--seconds", "2", "--rate", "400", "--json", "-"]);
    let report: Value = serde_json::from_slice(&paced.stdout).expect("JSON");
    let rate = report["rows"][0]["measured"]["ops_per_s"]["median"].as_f64().expect("a rate");
    assert!((200.0..800.0).contains(&rate), "{rate} of 400 operations/s asked for");
}

#[test]
fn what_goes_wrong_at_an_agent_is_told_with_its_name() {
    let (server, agents) = (server(), [Agent::start(), Agent::start()]);
    let both = format!("{},{}", agents[0].address, agents[1].address);
    // Not loaded: the first read finds nothing.
    let output = run(&server, &both, &SHORT);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let said = text(&output.stderr);
    assert!(said.contains("WRONG DATA") && agents.iter().any(|agent| said.contains(&agent.address)), "{said}");
    // They take the next run.
    load(&server);
    let output = run(&server, &both, &SHORT);
    assert!(output.status.success(), "{}", text(&output.stderr));
    // One that is gone.
    agents[1].signal(Signal::KILL);
    let output = run(&server, &both, &SHORT);
    assert!([Some(3), Some(4)].contains(&output.status.code()), "{:?}", output.status);
    assert!(text(&output.stderr).contains(&agents[1].address), "{}", text(&output.stderr));
    let output = run(&server, &agents[0].address, &SHORT);
    assert!(output.status.success(), "{}", text(&output.stderr));
    // What lives in this process has no other machine.
    let fixed = ["run", "--clients", &agents[0].address, "--path", "local"];
    let output = bench(&[&fixed[..], &AT].concat()).output().expect("it runs");
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}

#[test]
fn an_interrupted_coordinator_stops_its_agents_and_prints_what_there_is() {
    let (server, agent) = (server(), Agent::start());
    load(&server);
    let fixed = ["run", "--server", server.address(), "--clients", &agent.address, "--path", "tcp"];
    let running =
        bench(&[&fixed[..], &AT, &["--seconds", "600"]].concat()).stdout(Stdio::piped()).spawn().expect("it starts");
    let client =
        sidestep_client::Client::connect(server.address(), sidestep_client::Options::default()).expect("connected");
    let begun = || client.stats().expect("counters").server("tcp_put_ok").unwrap_or(0) > 600;
    while !begun() {
        std::thread::yield_now();
    }
    kill_process(Pid::from_child(&running), Signal::INT).expect("it runs");
    let output = running.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).starts_with("PARTIAL"), "{}", text(&output.stdout));
    let again = run(&server, &agent.address, &SHORT);
    assert!(again.status.success(), "{}", text(&again.stderr));
}
