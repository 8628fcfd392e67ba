//! Metrics and health over real HTTP, of a real server.

mod raw;

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use prometheus_parse::{Scrape, Value};
use raw::{Client, config, start};
use sidestep_core::message::Op;
use sidestep_server::{BUILD, Config, LogConfig, Server, SyncMode};

fn observed() -> Server {
    start(Config { metrics: Some("127.0.0.1:0".into()), ..config() })
}

/// Status line and body.
fn fetch(address: SocketAddr, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: */*\r\n\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).expect("a whole reply");
    let (head, body) = reply.split_once("\r\n\r\n").expect("a head");
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).expect("a length");
    assert_eq!(length.parse::<usize>().unwrap(), body.len());
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

fn scrape(address: SocketAddr) -> (String, Scrape) {
    let (status, body) = fetch(address, "/metrics");
    assert_eq!(status, "HTTP/1.1 200 OK");
    let parsed = Scrape::parse(body.lines().map(|line| Ok(line.to_owned()))).expect("the text format");
    (body, parsed)
}

fn value(scrape: &Scrape, name: &str, labels: &[(&str, &str)]) -> f64 {
    let fits = |sample: &&prometheus_parse::Sample| {
        sample.metric == name && labels.iter().all(|(name, value)| sample.labels.get(name) == Some(value))
    };
    let found: Vec<_> = scrape.samples.iter().filter(fits).collect();
    match &found[..] {
        [sample] => match sample.value {
            Value::Counter(n) | Value::Gauge(n) | Value::Untyped(n) => n,
            ref other => panic!("{name}: {other:?}"),
        },
        _ => panic!("expected one {name} {labels:?}, found {}", found.len()),
    }
}

#[test]
fn counters_arrive_under_their_names() {
    let server = observed();
    let metrics = server.metrics_addr().expect("an address");
    assert!(
        server.description().ends_with(&format!("; metrics: http://{metrics}/metrics")),
        "{}",
        server.description()
    );
    let mut client = Client::connect(server.local_addr());
    for key in [b"a", b"b", b"b"] {
        client.put(key, b"value");
    }
    client.get(b"absent");
    client.put_if(b"a", b"value", 1 << 60);
    let (_, scrape) = scrape(metrics);
    let request =
        |op, outcome| value(&scrape, "sidestep_requests_total", &[("path", "tcp"), ("op", op), ("outcome", outcome)]);
    assert_eq!(
        (request("put", "ok"), request("get", "not_found"), request("put", "version_mismatch")),
        (3.0, 1.0, 1.0)
    );
    assert_eq!(value(&scrape, "sidestep_table_writes_total", &[("kind", "insert")]), 2.0);
    assert_eq!(value(&scrape, "sidestep_keys", &[]), 2.0);
    assert_eq!(value(&scrape, "sidestep_memory_bytes", &[]), f64::from(128 << 20));
    assert_eq!(value(&scrape, "sidestep_ready", &[]), 1.0);
    let facts = BUILD.facts();
    assert_eq!(value(&scrape, "sidestep_build_info", &facts), 1.0);
    let seconds = value(&scrape, "sidestep_uptime_seconds", &[]);
    assert!(seconds < client.stat("uptime_ms") as f64, "seconds, not milliseconds");
    assert!(value(&scrape, "sidestep_received_bytes_total", &[("path", "tcp")]) > 0.0);
}

/// A counter that somebody adds to the statistics must be given a name in `exporter/names.rs`.
#[test]
fn every_counter_of_the_statistics_has_a_name() {
    let folder = tempfile::tempdir().unwrap();
    let log = LogConfig { path: folder.path().join("log"), sync: SyncMode::Always };
    let server = start(Config { metrics: Some("127.0.0.1:0".into()), durable: Some(log), ..config() });
    let mut client = Client::connect(server.local_addr());
    client.get(b"absent");
    let (page, scrape) = scrape(server.metrics_addr().unwrap());
    assert!(!page.contains("sidestep_other"), "add these to server/src/exporter/names.rs: {page}");
    let told = scrape.samples.len();
    let stats = server.stats();
    assert_eq!(told, stats.counters.len() + 2, "each once, beside the build and the readiness");
    assert_eq!(stats.facts.len(), BUILD.facts().len());
}

/// The grammar of <https://prometheus.io/docs/instrumenting/exposition_formats/> and promtool's rules for names.
#[test]
fn the_page_is_well_formed() {
    let server = observed();
    let mut client = Client::connect(server.local_addr());
    client.put(b"key", b"value");
    let (page, _) = scrape(server.metrics_addr().unwrap());
    assert!(page.ends_with('\n'));
    let (mut types, mut helped, mut seen) = (HashMap::new(), HashSet::new(), HashSet::new());
    let mut current = "";
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a help text");
            assert!(helped.insert(name) && !help.is_empty(), "{line}");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type");
            assert!(["counter", "gauge"].contains(&kind) && types.insert(name, kind).is_none(), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            assert!(helped.contains(name), "{line}");
            current = name;
        } else {
            let (sample, number) = line.rsplit_once(' ').expect("a value");
            let (name, labels) = sample.split_once('{').unwrap_or((sample, "}"));
            assert_eq!(name, current, "samples of a family stand together: {line}");
            assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'), "{line}");
            assert!(labels.ends_with('}') && number.parse::<f64>().is_ok(), "{line}");
            assert!(seen.insert(sample), "twice: {line}");
            assert!(
                name.starts_with("sidestep_") && !name.split('_').any(|part| ["ms", "us"].contains(&part)),
                "{line}"
            );
        }
    }
    assert_eq!(types.len(), helped.len());
    assert!(types.len() > 25, "{}", types.len());
}

#[test]
fn health_and_other_pages() {
    let server = observed();
    let metrics = server.metrics_addr().unwrap();
    assert_eq!(fetch(metrics, "/health"), ("HTTP/1.1 200 OK".into(), "live\n".into()));
    assert_eq!(fetch(metrics, "/ready"), ("HTTP/1.1 200 OK".into(), "ready\n".into()));
    assert_eq!(fetch(metrics, "/").0, "HTTP/1.1 404 Not Found");
    server.stop();
    assert!(TcpStream::connect(metrics).is_err(), "the address is free again");
}

/// One who connects and says nothing keeps others waiting, but not for ever.
#[test]
fn a_silent_connection_does_not_stop_the_others() {
    let server = observed();
    let metrics = server.metrics_addr().unwrap();
    let silent = TcpStream::connect(metrics).unwrap();
    assert_eq!(fetch(metrics, "/health").1, "live\n");
    drop(silent);
}

#[test]
fn an_address_in_use_is_told() {
    let server = observed();
    let metrics = server.metrics_addr().unwrap().to_string();
    let error = Server::start(Config { metrics: Some(metrics.clone()), ..config() }).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot listen on {metrics} for metrics"));
}

/// Live and not ready while replies are on their way out: what a load balancer has to know.
#[test]
fn a_server_that_stops_says_so() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_sidestep-server"))
        .args(["--listen", "127.0.0.1:0", "--memory", "128MiB", "--metrics", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.strip_prefix("listening on ").and_then(|rest| rest.split(';').next()).unwrap().parse().unwrap();
    let metrics = line.trim().rsplit_once("http://").unwrap().1.trim_end_matches("/metrics").parse().unwrap();
    let mut client = Client::connect(address);
    // A reply that nobody takes has the server wait when it is told to stop.
    client.put(b"large", &vec![1; 16 << 20]);
    let get = client.frame(Op::Get, 0, None, b"large", b"");
    client.send(&get.repeat(8));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    let mut seen = String::new();
    while seen != "stopping\n" && Instant::now() < until {
        seen = fetch(metrics, "/ready").1;
    }
    assert_eq!(seen, "stopping\n");
    assert_eq!(fetch(metrics, "/health").1, "live\n");
    drop(client);
    assert!(child.wait().unwrap().success());
}

#[test]
fn the_program_says_which_build_it_is() {
    let output = Command::new(env!("CARGO_BIN_EXE_sidestep-server")).arg("--version").output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("sidestep-server {}\n", BUILD.line()));
}
