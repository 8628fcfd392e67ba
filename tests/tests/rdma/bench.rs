//! The bench on all four paths, with the floor of each.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use sidestep_tests::process::{ServerProcess, program};

/// Few records and no time to speak of: what comes out is tested, not how fast it was.
const TINY: [&str; 10] =
    ["--records", "300", "--warm-up", "0", "--seconds", "0.5", "--repetitions", "1", "--repeats", "0"];
const STAMP: &str = "software RDMA: functional only";
/// Of a READ, nothing but the value crosses the wire.
const VALUE_BYTES: f64 = 64.0;

/// What it prints.
fn bench(arguments: &[&str]) -> String {
    let mut command = Command::new(program("sidestep-bench"));
    let output = command.args(arguments).args(TINY).env("RUST_LOG", "warn").stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

/// The row or point of a path, one call at a time.
fn of<'a>(report: &'a Value, list: &str, path: &str) -> &'a Value {
    let all = report[list].as_array().unwrap();
    let found = all.iter().find(|row| row["path"] == path && row["drive"]["depth"] == 1);
    let measured = &found.unwrap_or_else(|| panic!("{path} in {report}"))["measured"];
    assert!(measured["ops_per_s"]["median"].as_f64().unwrap() > 0.0, "{path}: {measured}");
    measured
}

fn wire(measured: &Value) -> f64 {
    measured["wire_bytes_per_op"].as_f64().unwrap()
}

#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn every_path_is_compared_beside_its_floor_and_stamped() {
    let server = ServerProcess::start("127.0.0.1:0", &["--memory", "64MiB"]);
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let forms = [("--json", file("r.json")), ("--csv", file("r.csv")), ("--html", file("r.html"))];
    let mut arguments = vec!["compare", "--server", server.address(), "--workload", "kv64", "--threads", "1"];
    for (option, path) in &forms {
        arguments.extend([*option, path]);
    }
    let table = bench(&arguments);
    assert!(table.contains(&STAMP.to_uppercase()), "{table}");
    for (_, form) in &forms {
        assert!(read(form.as_ref()).contains(STAMP), "{form}");
    }
    let report: Value = serde_json::from_str(&read(forms[0].1.as_ref())).unwrap();
    assert!(!report["environment"]["rdma_devices"].as_array().unwrap().is_empty(), "{report}");
    let rdma = of(&report, "rows", "rdma");
    let served_by = rdma["reads_served_by"].as_object().unwrap();
    assert_eq!(served_by.keys().collect::<Vec<_>>(), ["client NIC"], "{rdma}");
    for count in ["retries", "fallbacks", "reconnects"] {
        assert_eq!(rdma[count], 0, "nobody wrote meanwhile, and nothing broke: {rdma}");
    }
    // A window, then an item with its header and key.
    assert!(wire(rdma) > 128.0 + VALUE_BYTES, "{rdma}");
    assert!(of(&report, "rows", "rdma-rpc")["reads_served_by"]["server CPU (queue pair)"].as_u64().unwrap() > 0);
    assert!((wire(of(&report, "rows", "bare READ")) - VALUE_BYTES).abs() < 1.0, "{report}");
}

#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn the_figure_of_floors_has_that_of_rdma() {
    let folder = tempfile::tempdir().unwrap();
    let table = bench(&["fig", "floor", "--workload", "kv64", "--out", folder.path().to_str().unwrap()]);
    assert!(table.contains("rdma did ") && table.contains("what bare READ did"), "{table}");
    let report: Value = serde_json::from_str(&read(&folder.path().join("floor.json"))).unwrap();
    assert_eq!(report["stamp"], STAMP, "{report}");
    for path in ["bare READ", "rdma", "rdma-rpc"] {
        of(&report, "points", path);
    }
}
