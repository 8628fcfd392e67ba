//! The command line, as a shell uses it.

mod support;

use std::io::Write;
use std::process::{Command, Output, Stdio};

use sidestep_server::{Config, Server};
use support::{address, config, start};

/// Runs `sidestep --server … arguments`, with bytes on standard input.
fn sidestep_with(server: &Server, arguments: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_sidestep"))
        .args(["--server", &address(server)])
        .args(arguments)
        .env_remove("SIDESTEP_TOKEN_FILE")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that does not read its input may be gone by now.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

fn sidestep(server: &Server, arguments: &[&str]) -> Output {
    sidestep_with(server, arguments, b"")
}

/// Standard output of a command that must succeed.
fn ok(output: &Output) -> Vec<u8> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout.clone()
}

fn code(output: &Output) -> i32 {
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(output.stderr.iter().filter(|byte| **byte == b'\n').count(), 1, "one line says why: {output:?}");
    output.status.code().unwrap()
}

#[test]
fn bytes_in_bytes_out() {
    let server = start();
    let version = ok(&sidestep(&server, &["put", "key", "value"]));
    assert!(version.ends_with(b"\n") && version[0].is_ascii_digit());
    for path in ["auto", "tcp", "shm"] {
        assert_eq!(ok(&sidestep(&server, &["get", "key", "--path", path])), b"value");
    }
    let all: Vec<u8> = (0..=255).collect();
    ok(&sidestep_with(&server, &["put", "all", "-"], &all));
    assert_eq!(ok(&sidestep(&server, &["get", "all"])), all);
    ok(&sidestep_with(&server, &["put", "all2"], &all));
    assert_eq!(ok(&sidestep(&server, &["get", "all2"])), all);
    ok(&sidestep(&server, &["--hex", "put", "00ff", "0a0D"]));
    assert_eq!(ok(&sidestep(&server, &["get", "00ff", "--hex"])), b"0a0d\n");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), b"from\0file").unwrap();
    ok(&sidestep(&server, &["put", "f", &format!("@{}", file.path().display())]));
    assert_eq!(ok(&sidestep(&server, &["get", "f"])), b"from\0file");
    assert_eq!(ok(&sidestep(&server, &["mget", "key", "f"])), b"key\tvalue\nf\tfrom\0file\n");
}

/// `sidestep … | head -0`: whoever reads has gone away before the first byte.
#[test]
fn a_reader_that_has_gone_is_no_failure() {
    let server = start();
    let version = String::from_utf8(ok(&sidestep(&server, &["put", "key", "value"]))).unwrap();
    for arguments in [
        &["ping"][..],
        &["put", "key2", "value"],
        &["get", "key"],
        &["mget", "key", "key2"],
        &["stats"],
        &["stats", "--json"],
        &["cas", "key", version.trim(), "value"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = Command::new(env!("CARGO_BIN_EXE_sidestep"))
            .args(["--server", &address(&server)])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(writer)
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}: {output:?}");
    }
}

#[test]
fn exit_codes() {
    let server = start();
    assert_eq!(code(&sidestep(&server, &["get", "absent"])), 1);
    assert_eq!(code(&sidestep(&server, &["del", "absent"])), 1);
    assert_eq!(code(&sidestep(&server, &["cas", "key", "5", "v"])), 1);
    let version = ok(&sidestep(&server, &["cas", "key", "0", "v"]));
    let version = String::from_utf8(version).unwrap();
    ok(&sidestep(&server, &["cas", "key", version.trim(), "w"]));
    assert_eq!(code(&sidestep(&server, &["cas", "key", version.trim(), "x"])), 1);
    ok(&sidestep(&server, &["del", "key"]));
    assert_eq!(sidestep(&server, &["get"]).status.code(), Some(2));
    assert_eq!(code(&sidestep(&server, &["--hex", "get", "xyz"])), 2);
    assert_eq!(code(&sidestep(&server, &["put", "k", "@/no/such/file"])), 2);
    assert_eq!(code(&sidestep(&server, &["get", ""])), 2);
    assert_eq!(code(&sidestep(&server, &["get", "k", "--require"])), 2);
    assert_eq!(code(&sidestep(&server, &["get", "k", "--path", "rdma", "--require"])), 3);
    assert_eq!(code(&sidestep_with(&server, &["put", "k"], &vec![0; (16 << 20) + 1])), 5);
    let output = sidestep(&server, &["mget", "absent", "too"]);
    assert_eq!(code(&output), 1);
    let address = address(&server);
    server.stop();
    let output = Command::new(env!("CARGO_BIN_EXE_sidestep")).args(["--server", &address, "ping"]).output().unwrap();
    assert_eq!(code(&output), 3);
}

#[test]
fn a_full_table_is_code_4() {
    let server = Server::start(Config { memory_bytes: Some(64 << 20), ..config() }).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for i in 0..70 {
        std::fs::write(folder.path().join(format!("{i:03}")), vec![i; 1 << 20]).unwrap();
    }
    let output = sidestep(&server, &["load", folder.path().to_str().unwrap()]);
    assert_eq!(code(&output), 4);
    assert_eq!(ok(&sidestep(&server, &["get", "000"])).len(), 1 << 20, "what was there stays");
}

#[test]
fn tokens_come_from_a_file() {
    let tokens = Some(sidestep_server::access::Tokens::bare("secret"));
    let server = Server::start(Config { tokens, ..config() }).unwrap();
    assert_eq!(code(&sidestep(&server, &["ping"])), 3);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), b"secret\n").unwrap();
    let file = file.path().to_str().unwrap();
    let text = String::from_utf8(ok(&sidestep(&server, &["ping", "--token-file", file]))).unwrap();
    assert!(text.contains("round trip") && text.contains("path rdma: not available"), "{text}");
}

#[test]
fn load_takes_lines_and_folders() {
    let server = start();
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("sub")).unwrap();
    let tsv = folder.path().join("sub/pairs.tsv");
    let lines: String = (0..3000).map(|i| format!("user{i}\tname\\t{i}\n")).collect();
    std::fs::write(&tsv, &lines).unwrap();
    let output = sidestep(&server, &["load", tsv.to_str().unwrap()]);
    assert!(ok(&output).is_empty());
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("3,000 keys"));
    assert_eq!(ok(&sidestep(&server, &["get", "user2999"])), b"name\t2999");
    ok(&sidestep_with(&server, &["load", "-", "--format", "jsonl"], br#"{"key": "j", "value": {"a": 1}}"#));
    assert_eq!(ok(&sidestep(&server, &["get", "j"])), br#"{"a":1}"#);
    ok(&sidestep_with(&server, &["load", "-", "--hex"], b"00\tff\n"));
    assert_eq!(ok(&sidestep(&server, &["get", "00", "--hex"])), b"ff\n");
    ok(&sidestep(&server, &["load", folder.path().to_str().unwrap()]));
    assert_eq!(ok(&sidestep(&server, &["get", "sub/pairs.tsv"])), lines.as_bytes());
    assert_eq!(code(&sidestep_with(&server, &["load", "-"], b"no tab\n")), 2);
    assert_eq!(code(&sidestep(&server, &["load", "/no/such/file"])), 2);
}

#[test]
fn stats_for_people_and_programs() {
    let server = start();
    ok(&sidestep(&server, &["put", "k", "v"]));
    let text = String::from_utf8(ok(&sidestep(&server, &["stats"]))).unwrap();
    assert!(text.starts_with(&format!("version {}, commit ", env!("CARGO_PKG_VERSION"))), "{text}");
    let version = String::from_utf8(ok(&sidestep(&server, &["--version"]))).unwrap();
    assert_eq!(version, format!("sidestep {}\n", sidestep_client::BUILD.line()));
    let json = ok(&sidestep(&server, &["stats", "--json"]));
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(json["server"]["pid"], std::process::id());
    assert_eq!(json["build"]["features"], sidestep_client::BUILD.names());
    assert_eq!(json["paths"]["tcp"], "available");
    assert!(json["counters"].as_object().unwrap().len() > 5);
}
