//! One program for machines with RDMA and without: the server's line, a client's error and `sidestep doctor` say which of
//! library, kernel support and device is missing. The last three need a guest: `scripts/test-rdma`.

use std::path::Path;
use std::process::{Command, Output};

use sidestep_tests::process::{ServerProcess, program};

const MEMORY: [&str; 2] = ["--memory", "64MiB"];

/// What makes a program find no library, whatever is installed: the loader meets this file first, and it is none.
struct NoLibrary(tempfile::TempDir);

impl NoLibrary {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("libibverbs.so.1"), "").expect("a file");
        Self(folder)
    }

    fn environment(&self) -> [(&str, &Path); 1] {
        [("LD_LIBRARY_PATH", self.0.path())]
    }
}

fn sidestep(environment: &[(&str, &Path)], arguments: &[&str]) -> Output {
    let mut command = Command::new(program("sidestep"));
    command.env_remove("SIDESTEP_SERVER").env_remove("SIDESTEP_TOKEN_FILE");
    command.envs(environment.iter().copied()).args(arguments).output().expect("it runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Doctor's exit code and its JSON.
fn doctor(environment: &[(&str, &Path)], arguments: &[&str]) -> (Option<i32>, serde_json::Value) {
    let output = sidestep(environment, &[&["doctor", "--json"], arguments].concat());
    let found = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    (output.status.code(), found)
}

/// All three say so, with what to do, and everything else works.
fn all_say(environment: &[(&str, &Path)], beginning: &str, remedy: &str) {
    let server = ServerProcess::start_with("127.0.0.1:0", &MEMORY, environment);
    let reason = format!("rdma not available: {beginning}");
    assert!(server.line().contains(&reason) && server.line().contains(remedy), "{}", server.line());

    let at_server = |arguments: &[&str]| sidestep(environment, &[&["--server", server.address()], arguments].concat());
    let put = at_server(&["put", "key", "value"]);
    assert!(put.status.success(), "{put:?}");
    let refused = at_server(&["--path", "rdma", "--require", "get", "key"]);
    let error = text(&refused.stderr);
    assert!(error.contains(beginning) && error.contains(remedy), "{error}");
    assert_eq!(refused.status.code(), Some(3), "{error}");
    assert_eq!(text(&at_server(&["--path", "auto", "get", "key"]).stdout), "value");

    let alone = sidestep(environment, &["doctor"]);
    let report = text(&alone.stdout);
    let problem = report.lines().find(|line| line.contains("fatal: ")).unwrap_or_else(|| panic!("{report}"));
    assert!(problem.contains(beginning), "{report}");
    assert!(report.lines().any(|line| line.contains("remedy: ") && line.contains(remedy)), "{report}");
    assert!(report.ends_with("RDMA would not work\n"), "{report}");
    assert_eq!(alone.status.code(), Some(7));

    let (code, found) = doctor(environment, &["--server", server.address()]);
    assert_eq!((code, &found["works"]), (Some(7), &false.into()), "{found}");
    assert!(found["problems"][0]["what"].as_str().is_some_and(|what| what.starts_with(beginning)), "{found}");
    assert_eq!(found["server"]["auto"], "shm", "{found}");
    assert!(found["server"]["proof"].is_null(), "{found}");
}

#[test]
fn without_the_library() {
    let nothing = NoLibrary::new();
    all_say(&nothing.environment(), "no library", "libibverbs1");
}

#[test]
#[ignore = "needs a kernel without ib_uverbs: scripts/test-rdma"]
fn without_kernel_support() {
    all_say(&[], "no kernel support", "modprobe ib_uverbs");
}

#[test]
#[ignore = "needs a kernel with ib_uverbs and no device: scripts/test-rdma"]
fn without_a_device() {
    all_say(&[], "no device", "rdma link add");
}

#[test]
fn a_server_out_of_reach_is_another_matter() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its number");
    let (code, found) = doctor(&[], &["--server", &nobody.to_string()]);
    assert_eq!((code, &found["works"]), (Some(3), &false.into()), "{found}");
    assert!(found["host"]["kernel"].is_string(), "what the host has is told all the same: {found}");
}

#[test]
#[ignore = "needs an RDMA device: scripts/test-rdma"]
fn with_a_device_a_read_proves_it() {
    let server = ServerProcess::start("127.0.0.1:0", &MEMORY);
    for arguments in [&[][..], &["--server", server.address()]] {
        let (code, found) = doctor(&[], arguments);
        assert_eq!((code, &found["works"]), (Some(0), &true.into()), "{found}");
        let port = &found["host"]["devices"][0]["ports"][0];
        assert_eq!(port["state"], "active", "{found}");
        let gids = port["gids"].as_array().expect("a list");
        assert!(gids.iter().any(|gid| gid["type"] == "RoCE v2" || gid["type"] == "InfiniBand"), "{found}");
    }
    let (_, found) = doctor(&[], &["--server", server.address()]);
    let proof = &found["server"]["proof"];
    assert!(proof["reads"].as_u64() >= Some(2) && proof["bytes"].as_u64() >= Some(64), "{found}");
    assert_eq!(proof["port"], found["server"]["client_port"]["port"], "{found}");
    assert!(server.line().contains(found["server"]["server_port"].as_str().expect("a port")), "{}", server.line());

    // A client of its own, on a host without the library.
    let nothing = NoLibrary::new();
    let get = ["--server", server.address(), "--path", "rdma", "--require", "get", "key"];
    let error = text(&sidestep(&nothing.environment(), &get).stderr);
    assert!(error.contains("this host: no library"), "{error}");
    let (code, found) = doctor(&nothing.environment(), &["--server", server.address()]);
    assert_eq!((code, &found["host"]["library"]), (Some(7), &false.into()), "{found}");
}
