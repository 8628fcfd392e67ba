//! The bench as processes: what it prints and writes of real servers, and that it fails where it must.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sidestep_client::{Client, Options};
use sidestep_tests::process::{ServerProcess, program};

/// Key of YCSB's record 0.
const FIRST_KEY: &str = "user6284781860667377211";
/// Few records and no time to speak of: what is tested is what comes out, not how fast it was.
const TINY: [&str; 6] = ["--records", "500", "--warm-up", "0", "--seconds", "0.3"];

fn bench(arguments: &[&str]) -> Command {
    let mut command = Command::new(program("sidestep-bench"));
    command.args(arguments).env("RUST_LOG", "warn").stdin(Stdio::null());
    command
}

fn finished(arguments: &[&str]) -> Output {
    bench(arguments).output().expect("it runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn succeeds(arguments: &[&str]) -> String {
    let output = finished(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn server() -> ServerProcess {
    ServerProcess::start("127.0.0.1:0", &["--memory", "256MiB"])
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).expect("a file")).expect("JSON")
}

#[test]
fn compare_measures_every_path_and_a_peer() {
    let (server, folder) = (server(), tempfile::tempdir().expect("a folder"));
    let file = |name: &str| folder.path().join(name);
    let (json_file, csv_file, html_file, svg_file) = (file("r.json"), file("r.csv"), file("r.html"), file("r.svg"));
    let mut arguments = vec!["compare", "--server", server.address(), "--workload", "c", "--peer", "memcached"];
    arguments.extend(TINY);
    arguments.extend(["--repetitions", "2", "--repeats", "0", "--commit", "abc123"]);
    for (option, path) in [("--json", &json_file), ("--csv", &csv_file), ("--html", &html_file), ("--svg", &svg_file)] {
        arguments.extend([option, path.to_str().expect("a name")]);
    }
    let table = succeeds(&arguments);

    let report = json(&json_file);
    assert_eq!(report["schema"], "sidestep-bench/compare/1");
    assert_eq!(report["environment"]["commit"], "abc123");
    assert_eq!(report["partial"], false);
    assert!(report["plan"]["rate"].is_null(), "a closed loop offers no rate");
    assert!(report["plan"]["arrivals"].is_null(), "{}", report["plan"]);
    let rows = report["rows"].as_array().expect("rows");
    for path in ["local", "shm", "tcp", "memcached", "memcpy", "tcp echo"] {
        let of_path: Vec<&Value> = rows.iter().filter(|row| row["path"] == path).collect();
        assert!(!of_path.is_empty(), "{path}: {table}");
        for row in of_path {
            check_row(path, row);
        }
        let line = table.lines().find(|line| line.trim_start().starts_with(path)).expect("a line");
        assert!(!line.contains("not "), "{line}");
    }
    for path in ["rdma", "rdma-rpc"] {
        let row = rows.iter().find(|row| row["path"] == path).expect("listed");
        let reason = row["not_available"].as_str().expect("a reason");
        assert!(!reason.is_empty() && table.contains(&format!("{path}  not available: {reason}")), "{table}");
    }

    let csv = std::fs::read_to_string(csv_file).expect("a file");
    assert_eq!(csv.lines().count(), rows.len() + 1, "{csv}");
    assert!(csv.starts_with("path,threads,") && csv.contains("\nshm,1,1,1,64,"), "{csv}");
    let svg = std::fs::read_to_string(svg_file).expect("a file");
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && svg.matches("<svg ").count() == 1);
    assert!(svg.contains("memcached, 64 connections × 16"));
    let html = std::fs::read_to_string(html_file).expect("a file");
    assert!(html.starts_with("<!doctype html>") && html.matches("<svg ").count() == 6);
    assert!(html.contains("memcached, 64 connections × 16"));
}

/// Rates, times and CPU of a measured row are there and make sense.
fn check_row(path: &str, row: &Value) {
    let measured = &row["measured"];
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{path}: a number expected in {row}"));
    let rate = &measured["ops_per_s"];
    assert!(0.0 < number(&rate["median"]) && number(&rate["low"]) <= number(&rate["median"]), "{row}");
    assert!(number(&rate["median"]) <= number(&rate["high"]), "{row}");
    let times = ["min_ns", "p50_ns", "p90_ns", "p99_ns", "p999_ns", "p9999_ns", "max_ns"];
    let times = times.map(|name| number(&measured["latency"][name]));
    // The histogram keeps three digits.
    assert!(times.is_sorted_by(|one, next| *one <= next * 1.01), "{path}: {times:?}");
    assert!(times[0] > 0.0 && number(&measured["latency"]["mean_ns"]) > 0.0, "{row}");
    assert!(number(&measured["client_cpu_us_per_op"]["median"]) > 0.0, "{row}");
    if ["local", "memcpy", "tcp echo"].contains(&path) {
        assert!(measured["server_cpu_us_per_op"].is_null(), "{row}");
    } else {
        assert!(number(&measured["server_cpu_us_per_op"]["median"]) >= 0.0, "{row}");
    }
    let served_by = match path {
        "local" | "memcpy" => "this process",
        "shm" => "client CPU",
        _ => "server CPU",
    };
    for count in ["retries", "fallbacks", "reconnects"] {
        assert_eq!(measured[count], 0, "{path}: nobody wrote meanwhile, and nothing broke: {row}");
    }
    // A value of 1000 bytes with its key and what frames both; no wire in memory.
    let wire = number(&measured["wire_bytes_per_op"]);
    match path {
        "local" | "shm" | "memcpy" => assert_eq!(wire, 0.0, "{row}"),
        _ => assert!((1010.0..1150.0).contains(&wire), "{row}"),
    }
    let runs = measured["runs"].as_array().expect("runs");
    let operations: f64 = runs.iter().map(|run| number(&run["operations"])).sum();
    assert_eq!(number(&measured["reads_served_by"][served_by]), operations, "{row}");
    assert_eq!(runs.len(), 2, "{row}");
}

/// A store that does not hold what was written fails the run: exit code 1, nothing on standard output.
#[test]
fn wrong_data_is_loud() {
    let server = server();
    let at = ["--server", server.address(), "--workload", "c", "--records", "500"];
    succeeds(&[&["load"], &at[..]].concat());
    let run = |path: &str| {
        let more = ["--path", path, "--warm-up", "0", "--seconds", "30", "--operations", "20000"];
        finished(&[&["run"], &at[..], &more].concat())
    };
    assert!(run("tcp").status.success());
    let client = Client::connect(server.address(), Options::default()).expect("connected");
    let value = client.get(FIRST_KEY).expect("asked").expect("YCSB's first key").to_vec();
    for change in ["one bit", "another length", "gone"] {
        let mut other = value.clone();
        match change {
            "one bit" => other[500] ^= 1,
            "another length" => other.truncate(999),
            _ => other.clear(),
        }
        if other.is_empty() {
            assert!(client.delete(FIRST_KEY).expect("deleted"));
        } else {
            client.put(FIRST_KEY, &other).expect("written");
        }
        for path in ["tcp", "shm"] {
            let output = run(path);
            assert_eq!(output.status.code(), Some(1), "{change}, {path}: {}", text(&output.stderr));
            assert!(text(&output.stderr).contains("WRONG DATA"), "{change}, {path}: {}", text(&output.stderr));
            assert!(output.stdout.is_empty(), "{change}, {path}");
        }
    }
}

/// A server that stands still for a known time: an open loop counts the wait of everyone who came meanwhile, the
/// service time only that of whoever was being served.
#[test]
fn a_stalled_server_shows_in_the_response_time() {
    let stall = Duration::from_millis(600);
    let (server, folder) = (server(), tempfile::tempdir().expect("a folder"));
    let file = folder.path().join("r.json");
    let at = ["--server", server.address(), "--workload", "c", "--records", "500"];
    succeeds(&[&["load"], &at[..]].concat());
    // By count, so that the stall ends within the run however late it begins on a busy machine.
    let more =
        ["--path", "tcp", "--rate", "1000", "--warm-up", "0", "--operations", "2000", "--seconds", "60", "--json"];
    let running = [&["run"], &at[..], &more, &[file.to_str().expect("a name")]].concat();
    let running = bench(&running).stdout(Stdio::null()).spawn().expect("it starts");
    let client = Client::connect(server.address(), Options::default()).expect("connected");
    eventually("it reads", || client.stats().expect("counters").server("tcp_get_ok").is_some_and(|gets| gets > 20));
    server.signal(Signal::STOP);
    std::thread::sleep(stall);
    server.signal(Signal::CONT);
    assert!(running.wait_with_output().expect("it ends").status.success());

    let report = json(&file);
    let measured = &report["rows"][0]["measured"];
    let ms = |times: &str, name: &str| measured[times][name].as_f64().expect("a number") / 1e6;
    assert_eq!(report["plan"]["rate"], 1000.0);
    // Of 2000 operations 600 were due in the stall: a tenth of all waited for two thirds of it or longer.
    assert!(ms("response", "p90_ns") > 200.0, "{measured}");
    assert!(ms("response", "max_ns") >= 0.9 * stall.as_secs_f64() * 1e3, "{measured}");
    assert!(ms("latency", "max_ns") >= 0.9 * stall.as_secs_f64() * 1e3, "{measured}");
    assert!(ms("latency", "p99_ns") < 200.0, "{measured}");
    assert!(ms("wait", "p90_ns") > 200.0, "{measured}");
}

#[test]
fn an_open_loop_says_how_it_arrives() {
    let fixed =
        ["run", "--path", "local", "--records", "500", "--warm-up", "0", "--rate", "2000", "--operations", "200"];
    for (more, arrivals) in [(&[][..], "poisson"), (&["--arrivals", "fixed"][..], "fixed")] {
        let report = succeeds(&[&fixed[..], more, &["--json", "-"]].concat());
        let report: Value = serde_json::from_str(&report).expect("JSON");
        assert_eq!(report["plan"]["arrivals"], arrivals);
        assert_eq!(report["rows"][0]["measured"]["response"]["timed"], 200);
    }
    assert!(succeeds(&[&fixed[..], &["--arrivals", "fixed"]].concat()).contains("(fixed arrivals)"));
    let refused = finished(&[&fixed[..], &["--arrivals", "uniform"]].concat());
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("expected poisson or fixed"), "{}", text(&refused.stderr));
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn ctrl_c_prints_what_there_is() {
    let arguments = ["compare", "--no-server", "--records", "500", "--warm-up", "0", "--seconds", "0.1"];
    let mut running = bench(&[&arguments[..], &["--repetitions", "60000", "--repeats", "0"]].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(running.stderr.take().expect("piped")).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.starts_with("3/60000 local")));
    kill_process(Pid::from_child(&running), Signal::INT).expect("it runs");
    let rest = std::thread::spawn(move || lines.count());
    let mut table = String::new();
    running.stdout.take().expect("piped").read_to_string(&mut table).expect("text");
    assert!(running.wait().expect("it ends").success());
    rest.join().expect("read");
    assert!(table.starts_with("PARTIAL") && table.contains("local"), "{table}");
}

/// A quick figure of 500 records; what it printed, and its JSON.
fn figure(name: &str, folder: &Path, more: &[&str]) -> (String, Value) {
    let out = folder.to_str().expect("a name");
    let fixed = ["fig", name, "--out", out, "--repetitions", "1", "--repeats", "0"];
    let table = succeeds(&[&fixed[..], &TINY, more].concat());
    for form in [".svg", "-phone.svg"] {
        let svg = std::fs::read_to_string(folder.join(format!("{name}{form}"))).expect("a picture");
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && svg.contains("prefers-color-scheme: dark"));
    }
    let report = json(&folder.join(format!("{name}.json")));
    assert_eq!(report["schema"], "sidestep-bench/figure/1");
    assert_eq!(report["figure"], name);
    let reading = report["reading"].as_str().expect("a reading");
    assert!(reading.ends_with('.') && table.contains(&format!("Reading: {reading}")), "{table}");
    assert!(!report["environment"]["kernel"].as_str().expect("an environment").is_empty());
    (table, report)
}

/// It starts a server of its own and leaves none behind.
#[test]
fn a_figure_needs_no_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_, report) = figure("floor", folder.path(), &[]);
    let points = report["points"].as_array().expect("points");
    for path in ["memcpy", "local", "tcp echo", "shm", "tcp"] {
        let point = points.iter().find(|point| point["path"] == path).unwrap_or_else(|| panic!("{path}"));
        assert!(point["measured"]["ops_per_s"]["median"].as_f64().expect("a rate") > 0.0, "{point}");
    }
    let csv = std::fs::read_to_string(folder.path().join("floor.csv")).expect("a file");
    assert!(csv.starts_with("at,x,offered_per_s,overloaded,path,") && csv.contains("memcpy"), "{csv}");
    let store = report["environment"]["stores"][0].as_str().expect("a store");
    let address = store.split("at ").nth(1).and_then(|rest| rest.split(',').next()).expect("its address");
    assert!(std::net::TcpStream::connect(address).is_err(), "{address} still listens");
}

/// The paths around a stopped server go on, those through it do not, and it goes on afterwards.
#[test]
fn a_frozen_server_is_thawed() {
    let (server, folder) = (server(), tempfile::tempdir().expect("a folder"));
    let (_, report) = figure("freeze", folder.path(), &["--server", server.address()]);
    let line = |path: &str| {
        let lines = report["timelines"].as_array().expect("lines");
        lines.iter().find(|line| line["path"] == path).unwrap_or_else(|| panic!("{path}")).clone()
    };
    assert!(line("shm")["completed_while_stopped"][0].as_u64().expect("a count") > 0);
    assert_eq!(line("tcp")["completed_while_stopped"][0], 0);
    assert_eq!(line("tcp")["completed"].as_array().expect("bins").len(), 80);
    assert!(!stopped(&server), "the server still stands still");
    let client = Client::connect(server.address(), Options::default()).expect("connected");
    client.put("after", "wards").expect("it answers");
}

/// A bench that is killed in the middle of a freeze does not leave the server stopped.
#[test]
fn a_server_is_thawed_whatever_happens() {
    let (server, folder) = (server(), tempfile::tempdir().expect("a folder"));
    let out = folder.path().to_str().expect("a name");
    let fixed = ["fig", "freeze", "--server", server.address(), "--out", out, "--repetitions", "50"];
    let mut running =
        bench(&[&fixed[..], &TINY].concat()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    eventually("it is stopped", || stopped(&server));
    running.kill().expect("it runs");
    running.wait().expect("it ends");
    eventually("it goes on", || !stopped(&server));
}

#[test]
fn a_starved_server_is_set_free() {
    let (server, folder) = (server(), tempfile::tempdir().expect("a folder"));
    let before = affinities(&server);
    let (_, report) = figure("starve", folder.path(), &["--server", server.address(), "--rate", "500"]);
    assert_eq!(report["points"].as_array().expect("points").len(), 4, "two paths, alone and beside the neighbour");
    assert_eq!(affinities(&server), before);
}

fn stopped(server: &ServerProcess) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("it lives");
    status.lines().any(|line| line.starts_with("State:") && line.contains("stopped"))
}

fn affinities(server: &ServerProcess) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.pid())).expect("it lives").flatten();
    let of = |status: String| status.lines().find(|line| line.starts_with("Cpus_allowed:")).map(str::to_owned);
    let mut all: Vec<String> =
        tasks.filter_map(|task| of(std::fs::read_to_string(task.path().join("status")).ok()?)).collect();
    all.sort();
    all.dedup();
    all
}

#[test]
fn a_reader_that_has_gone_is_no_failure() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("r.json");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let arguments = ["compare", "--no-server", "--repetitions", "1", "--repeats", "0", "--json"];
    let arguments = [&arguments[..], &[file.to_str().expect("a name")], &TINY].concat();
    let output = bench(&arguments).stdout(writer).stderr(Stdio::piped()).output().expect("it runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(!text(&output.stderr).contains("panicked"));
    assert_eq!(json(&file)["rows"][0]["path"], "local");
}
