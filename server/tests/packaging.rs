//! What is packaged fits the program: the example configuration, the systemd unit, the Dockerfile.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::Args;
use sidestep_server::Config;
use sidestep_server::config::Options;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn packaged(name: &str) -> String {
    std::fs::read_to_string(root().join("packaging").join(name)).expect("a packaged file")
}

/// The example, with what is behind a # taken in.
fn whole_example() -> String {
    let is_option = |line: &str| line.split_once(" = ").is_some_and(|(name, _)| !name.contains([' ', '#']));
    let line = |line: &str| match line.strip_prefix('#') {
        Some(option) if is_option(option) => format!("{option}\n"),
        _ => format!("{line}\n"),
    };
    packaged("server.toml").lines().map(line).collect()
}

#[test]
fn the_example_configuration_has_every_option() {
    let command = Options::augment_args(clap::Command::new("sidestep-server"));
    let expected: BTreeSet<&str> =
        command.get_arguments().filter_map(|argument| argument.get_long()).filter(|name| *name != "config").collect();
    let example: toml::Table = toml::from_str(&whole_example()).expect("TOML");
    let found: BTreeSet<&str> = example.keys().map(String::as_str).collect();
    assert_eq!(found, expected, "packaging/server.toml against the options of the command line");
    assert!(expected.len() > 15, "{expected:?}");
    let _: Options = toml::from_str(&whole_example()).expect("every value is one that the server takes");
}

/// What is not behind a # is the default, as it says.
#[test]
fn the_example_configuration_changes_nothing() {
    let file = root().join("packaging/server.toml");
    let options = Options { config: Some(file), ..Options::default() }.with_file().expect("a configuration");
    let config = options.into_config().expect("a configuration");
    let memory = Some(sidestep_server::config::DEFAULT_MEMORY_BYTES);
    assert_eq!(config, Config { memory_bytes: memory, ..Config::default() });
}

/// systemd's own check of the unit, and its rating of what the unit could do to the host, where systemd is installed.
#[test]
fn systemd_takes_the_unit() {
    let Ok(version) = Command::new("systemd-analyze").arg("--version").output() else {
        println!("no systemd-analyze: the unit was not verified");
        return;
    };
    assert!(version.status.success());
    // The program is elsewhere here, and there may be no such user.
    let folder = tempfile::tempdir().unwrap();
    let unit = folder.path().join("sidestep-server.service");
    let program = env!("CARGO_BIN_EXE_sidestep-server");
    let text = packaged("sidestep-server.service").replace("/usr/bin/sidestep-server", program);
    assert!(text.contains(program));
    std::fs::write(&unit, text).unwrap();
    let output = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&unit).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let about_us: Vec<&str> = said.lines().filter(|line| line.contains("sidestep-server")).collect();
    assert!(output.status.success() && about_us.is_empty(), "{said}");
    // Unknown names are warnings to `verify`, errors nowhere: the rating reads the settings.
    let output =
        Command::new("systemd-analyze").args(["security", "--offline=true", "--threshold=25"]).arg(&unit).output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "exposure above 2.5: {said}{}", String::from_utf8_lossy(&output.stderr));
}

/// `Type=notify`: the server says when it is ready, and that it stops.
#[test]
fn the_server_tells_systemd_how_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let told = || {
        let mut bytes = [0; 4096];
        let n = socket.recv(&mut bytes).expect("a message");
        String::from_utf8(bytes[..n].to_vec()).unwrap()
    };
    let mut child = Command::new(env!("CARGO_BIN_EXE_sidestep-server"))
        .args(["--listen", "127.0.0.1:0", "--memory", "64MiB"])
        .env("NOTIFY_SOCKET", &path)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let ready = told();
    assert!(ready.lines().any(|line| line == "READY=1"), "{ready}");
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(ready.contains(&format!("STATUS={}", line.trim_end())), "{ready}");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(told().lines().any(|line| line == "STOPPING=1"));
    assert!(child.wait().unwrap().success());
}

/// No image is built here; what can be known without is that what it copies is there, and that it does not run as root.
#[test]
fn the_dockerfile_copies_what_is_there() {
    let text = packaged("Dockerfile").replace("\\\n", "");
    let lines = || text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let mut copied = BTreeSet::new();
    for line in lines().filter(|line| line.starts_with("COPY ") && !line.contains("--from=")) {
        let words: Vec<&str> = line.split_whitespace().skip(1).collect();
        let (_, sources) = words.split_last().expect("a target");
        for source in sources {
            assert!(root().join(source).exists(), "{source} is not there");
            copied.insert((*source).to_owned());
        }
    }
    let manifest: toml::Table = std::fs::read_to_string(root().join("Cargo.toml")).unwrap().parse().unwrap();
    for member in manifest["workspace"]["members"].as_array().unwrap() {
        let member = member.as_str().unwrap();
        let top = member.split('/').next().unwrap();
        assert!(copied.contains(top), "the workspace needs {member}");
    }
    let toolchain = std::fs::read_to_string(root().join("rust-toolchain.toml")).unwrap();
    let image = lines().find_map(|line| line.strip_prefix("FROM rust:")).expect("a build stage");
    let version = image.split('-').next().unwrap();
    assert!(toolchain.contains(&format!("\"{version}\"")), "{version} is not the toolchain of the repository");
    let user = lines().filter_map(|line| line.strip_prefix("USER ")).next_back().expect("a user");
    assert_ne!(user.parse::<u32>(), Ok(0));
    for program in ["sidestep-server", "sidestep"] {
        assert!(text.contains(&format!("/src/target/release/{program} ")), "{program}");
    }
}
