//! What the command line and the system allow, and what they do not.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

const SERVER: &str = env!("CARGO_BIN_EXE_sidestep-server");

/// A supervisor does not start it again for these (`RestartPreventExitStatus=2`).
#[test]
fn what_will_never_start_has_the_code_of_usage() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("server.toml");
    std::fs::write(&file, "metrics = \"nonsense\"\n").expect("a file");
    let file = file.to_str().expect("UTF-8");
    let wrong: &[(&[&str], &str)] = &[
        (&["--memory", "0"], "--memory of 256 KiB to 1 TiB"),
        (&["--memory", "100KiB"], "--memory of 256 KiB to 1 TiB"),
        (&["--memory", "2TiB"], "--memory of 256 KiB to 1 TiB"),
        (&["--segment", "3MiB"], "power of two"),
        (&["--listen", "18083"], "18083"),
        (&["--metrics", "nonsense"], "nonsense"),
        (&["--config", file], "nonsense"),
        (&["--handshake-timeout-ms", "0"], "--handshake-timeout-ms of at least 1"),
        (&["--frame-timeout-ms", "0"], "--frame-timeout-ms of at least 1"),
        (&["--send-timeout-ms", "0"], "--send-timeout-ms of at least 1"),
    ];
    for (arguments, said) in wrong {
        let listen: &[&str] = if arguments[0] == "--listen" { &[] } else { &["--listen", "127.0.0.1:0"] };
        let output = Command::new(SERVER).args(*arguments).args(listen).output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.contains(said), "{arguments:?}: expected {said:?}, found {text}");
    }
}

/// Seen to fail without the lower limit: nobody was accepted any more, and each try was a line of the log.
#[test]
fn where_descriptors_are_few_health_is_still_told() {
    let mut server = Command::new("prlimit")
        .args(["--nofile=64:64", SERVER, "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--device", "none"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut line = String::new();
    BufReader::new(server.stdout.take().expect("piped")).read_line(&mut line).expect("its line");
    let address = line.trim_start_matches("listening on ").split(';').next().expect("an address").trim().to_owned();
    let metrics =
        line.split("metrics: http://").nth(1).and_then(|rest| rest.split('/').next()).expect("metrics").to_owned();
    let silent: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(&address).expect("the kernel takes it")).collect();
    // All of them have been looked at when one more is.
    for _ in 0..3 {
        let mut asked = TcpStream::connect(&metrics).expect("the kernel takes it");
        asked.write_all(b"GET /health HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n").expect("sent");
        let mut answer = String::new();
        asked.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    drop(silent);
    server.kill().expect("ours");
    let mut said = String::new();
    server.stderr.take().expect("piped").read_to_string(&mut said).expect("its log");
    server.wait().expect("it ends");
    assert!(said.contains("the limit of open files is too low for --max-clients"), "{said}");
    assert!(!said.contains("cannot accept connections"), "{said}");
}

/// What keeps nobody from starting, and is open to more than was perhaps meant.
#[test]
fn what_others_reach_is_told() {
    let said = |folder: &std::path::Path, more: &[&str]| {
        let mut server = Command::new(SERVER)
            .args(["--listen", "127.0.0.1:0", "--memory", "8MiB", "--device", "none", "--data"])
            .arg(folder)
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs");
        let mut line = String::new();
        BufReader::new(server.stdout.take().expect("piped")).read_line(&mut line).expect("its line");
        server.kill().expect("ours");
        let mut said = String::new();
        server.stderr.take().expect("piped").read_to_string(&mut said).expect("its log");
        server.wait().expect("it ends");
        said
    };
    let folder = tempfile::tempdir().expect("a folder");
    let closed = said(folder.path(), &["--metrics", "127.0.0.1:0"]);
    assert!(!closed.contains("anyone who reaches") && !closed.contains("can open the table"), "{closed}");
    let closed = said(folder.path(), &[]);
    assert!(!closed.contains("can open the table"), "{closed}");
    let table = folder.path().join("table.sidestep");
    std::fs::set_permissions(&table, std::fs::Permissions::from_mode(0o666)).expect("a mode");
    let open = said(folder.path(), &["--metrics", "0.0.0.0:0"]);
    assert!(open.contains("told, in plain text, to anyone who reaches 0.0.0.0"), "{open}");
    assert!(open.contains("can open the table") && open.contains("mode 0666, chmod 600"), "{open}");
}
