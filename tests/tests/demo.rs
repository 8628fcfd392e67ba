//! `scripts/demo` as a user runs it. It builds in release, so that these tests run when asked for:
//! `cargo test -p sidestep-tests --test demo -- --ignored`, as `scripts/test` does.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::SystemTime;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// All write to one folder.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace").to_owned()
}

/// The script in a process group of its own, as a shell starts it, with a folder for whatever it may leave behind.
/// Whoever started this test in the background may have it ignore Ctrl-C, and a script cannot trap what it was told to
/// ignore.
fn demo(temporary: &Path, arguments: &[&str]) -> Child {
    Command::new("env")
        .arg("--default-signal=INT")
        .arg(root().join("scripts/demo"))
        .args(["--records", "2000"])
        .args(arguments)
        .current_dir(temporary)
        .env("TMPDIR", temporary)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .expect("scripts/demo starts")
}

/// Where the script's server listened, from what the script printed.
fn address(stdout: &str) -> &str {
    let line = stdout.lines().find_map(|line| line.strip_prefix("listening on ")).expect("the server's line");
    line.split(';').next().expect("an address")
}

/// Everything that it started has ended, and nothing is left outside `target/`.
fn nothing_is_left(stdout: &str, group: Pid, temporary: &Path) {
    let address = address(stdout);
    assert!(TcpStream::connect(address).is_err(), "the server at {address} is still there");
    assert!(kill_process_group(group, Signal::CONT).is_err(), "there are still processes in the script's group");
    let left: Vec<_> = std::fs::read_dir(temporary).expect("the folder").map_while(Result::ok).collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

#[test]
#[ignore = "builds in release"]
fn the_demo_prints_the_table_and_leaves_a_report() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let temporary = tempfile::tempdir().expect("a folder");
    let started = SystemTime::now();
    let child = demo(temporary.path(), &["--", "--seconds", "0.2", "--warm-up", "0"]);
    let group = Pid::from_child(&child);
    let output = child.wait_with_output().expect("it ends");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stderr}");

    let header = stdout.lines().find(|line| line.contains("ops/s") && line.contains("path")).expect("a header");
    let mut rest = header;
    for column in ["path", "ops/s", "p50 µs", "p99 µs", "server CPU µs/op", "client CPU µs/op", "served by"] {
        rest = rest.split_once(column).unwrap_or_else(|| panic!("{column} in its place in {header}")).1;
    }
    for (path, served_by) in [("shm", "client CPU"), ("tcp", "server CPU")] {
        let line = stdout.lines().find(|line| line.trim_start().starts_with(&format!("{path} "))).expect("a row");
        assert!(line.contains(served_by), "{line}");
    }
    assert!(stdout.contains("rdma  not available: "), "{stdout}");
    let report = root().join("target/demo/report.html");
    assert!(stdout.contains(&format!("report: {}", report.display())), "{stdout}");
    let written = std::fs::metadata(&report).and_then(|report| report.modified()).expect("a report");
    assert!(written >= started, "the report is from before");
    assert!(std::fs::read_to_string(&report).expect("text").contains("<svg "));
    nothing_is_left(&stdout, group, temporary.path());
}

/// Ends the script while the bench measures, and looks at what remains.
fn ended_by(end: impl Fn(Pid), code: i32) {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let temporary = tempfile::tempdir().expect("a folder");
    let mut child = demo(temporary.path(), &[]);
    let group = Pid::from_child(&child);
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.starts_with("1/3 ")), "it never measured");
    end(group);
    let rest = std::thread::spawn(move || lines.count());
    let mut stdout = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut stdout).expect("text");
    assert_eq!(child.wait().expect("it ends").code(), Some(code));
    rest.join().expect("read");
    assert!(stdout.contains("PARTIAL"), "what was measured is printed: {stdout}");
    nothing_is_left(&stdout, group, temporary.path());
}

#[test]
#[ignore = "builds in release"]
fn ctrl_c_cleans_up() {
    ended_by(|group| kill_process_group(group, Signal::INT).expect("it runs"), 130);
}

#[test]
#[ignore = "builds in release"]
fn sigterm_to_the_script_alone_cleans_up() {
    ended_by(|script| kill_process(script, Signal::TERM).expect("it runs"), 143);
}
