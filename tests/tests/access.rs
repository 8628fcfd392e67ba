//! Who is let in, by whom, and for how long: server processes with token files.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use rustix::process::{Pid, Signal, kill_process};
use sidestep_client::{Client, Error, Options, Path, PathMode, Session};
use sidestep_core::handshake::{
    Challenge, HandshakeError, Hello, Message, PREAMBLE_BYTES, Preamble, Proof, Role, Welcome, decode, encode, prove,
};
use sidestep_tests::process::{ServerProcess, program};
use zerocopy::FromBytes;

const TOKENS: &str = "# NAME RIGHT SECRET EXPIRES\n\
    app read-write 0123456789abcdef-app\n\
    probe read-only 0123456789abcdef-probe\n\
    old read-write 0123456789abcdef-old 2020-12-31\n";
const APP: &str = "0123456789abcdef-app";
const PROBE: &str = "0123456789abcdef-probe";
const OLD: &str = "0123456789abcdef-old";

/// A server with a token file, and what it says in its log.
struct Guarded {
    child: Child,
    address: String,
    log: Lines<BufReader<ChildStderr>>,
    folder: tempfile::TempDir,
}

impl Guarded {
    fn start(tokens: &str, more: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        write_tokens(&folder, tokens, 0o600);
        let mut child = Command::new(program("sidestep-server"))
            .args(["--listen", "127.0.0.1:0", "--memory", "64MiB", "--token-file"])
            .arg(file_in(&folder))
            .args(more)
            .env("RUST_LOG", "info")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let log = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("the server's line");
        let address = line.strip_prefix("listening on ").and_then(|rest| rest.split(';').next());
        let address = address.unwrap_or_else(|| panic!("expected `listening on ADDR; …`, found {line:?}")).to_owned();
        Self { child, address, log, folder }
    }

    /// Gives the file another content and waits until the server has said `answer`.
    fn rotate(&mut self, tokens: &str, mode: u32, answer: &str) {
        write_tokens(&self.folder, tokens, mode);
        kill_process(Pid::from_child(&self.child), Signal::HUP).expect("it lives");
        let line = self.log.by_ref().map(|line| line.expect("its log")).find(|line| line.contains("SIGHUP"));
        let line = line.expect("it says what came of it");
        assert!(line.contains(answer), "{line}");
    }

    fn connect(&self, token: &str, path: Path) -> Result<Session, Error> {
        let options = Options::default().token(token).path(PathMode::Require(path));
        Client::connect(&self.address, options)?.session()
    }

    fn refused(&self, token: &str) -> String {
        match self.connect(token, Path::Tcp) {
            Err(Error::Refused { reason, .. }) => reason,
            other => panic!("expected a refusal, found {other:?}"),
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn file_in(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().join("tokens")
}

fn write_tokens(folder: &tempfile::TempDir, tokens: &str, mode: u32) {
    fs::write(file_in(folder), tokens).unwrap();
    fs::set_permissions(file_in(folder), Permissions::from_mode(mode)).unwrap();
}

/// Until it holds; the time only bounds a test that has failed.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::yield_now();
    }
}

#[test]
fn wrong_missing_and_expired_tokens_are_refused_each_with_its_reason() {
    let server = Guarded::start(TOKENS, &[]);
    assert!(server.refused("").contains("requires a token"), "{}", server.refused(""));
    assert!(server.refused("0123456789abcdef").contains("expected a proof"));
    assert!(server.refused(OLD).contains("old has expired"));
    for token in [APP, PROBE] {
        server.connect(token, Path::Tcp).unwrap().ping().unwrap();
    }
}

/// With the check in `connection/requests.rs` taken out the writes are done (`read-only-unchecked.patch`).
#[test]
fn a_read_only_session_reads_on_every_path_and_writes_on_none() {
    let server = Guarded::start(TOKENS, &[]);
    server.connect(APP, Path::Tcp).unwrap().put("key", "value").unwrap();
    for path in [Path::Tcp, Path::Shm] {
        let mut session = server.connect(PROBE, path).unwrap();
        let version = session.get("key").unwrap().expect("it is there").version();
        let large = vec![7; 3 << 20];
        let attempts: [Result<_, Error>; 5] = [
            session.put("key", "other").map(|_| ()),
            session.put("large", &large).map(|_| ()),
            session.put_if("key", "other", version).map(|_| ()),
            session.delete("key").map(|_| ()),
            session.delete_if("key", version).map(|_| ()),
        ];
        for attempt in attempts {
            let Err(Error::Forbidden(reason)) = attempt else { panic!("expected a refusal, found {attempt:?}") };
            assert!(reason.contains("probe, which is read-only"), "{reason}");
        }
        for written in session.multi_put(&[("key", "a"), ("new", "b")]).unwrap() {
            assert!(matches!(written, Err(Error::Forbidden(_))), "{written:?}");
        }
        let value = session.get("key").unwrap().expect("it is there");
        assert_eq!((&value[..], value.version(), value.path()), (&b"value"[..], version, path));
        assert!(session.get("new").unwrap().is_none() && session.get("large").unwrap().is_none());
        let stats = session.stats().unwrap();
        assert_eq!(stats.client("connections_lost"), Some(0), "what is forbidden costs no connection");
        assert!(stats.server("tcp_put_forbidden").is_some_and(|count| count >= 5));
    }
}

/// With `look_at_passes` taken out of the worker the session goes on (`revoked-goes-on.patch`).
#[test]
fn who_loses_the_token_is_out_at_once_and_the_others_notice_nothing() {
    let mut server = Guarded::start(TOKENS, &[]);
    let mut kept = server.connect(APP, Path::Tcp).unwrap();
    kept.put("key", "value").unwrap();
    let mut lost: Vec<Session> =
        [Path::Tcp, Path::Shm].map(|path| server.connect(PROBE, path).unwrap()).into_iter().collect();
    for session in &mut lost {
        assert!(session.get("key").unwrap().is_some());
    }
    server.rotate(&format!("app read-write {APP}\nnew read-only fedcba9876543210"), 0o600, "those of the file now");
    eventually("both sessions have ended", || {
        kept.stats().unwrap().server("sessions_revoked").is_some_and(|ended| ended == 2)
    });
    for session in &mut lost {
        // The watch thread of a shm reader may need a moment to see that the connection has ended.
        eventually("reads end", || match session.get("key") {
            Ok(value) => {
                assert!(value.is_some_and(|value| value.path() == Path::Shm));
                false
            }
            Err(Error::Refused { reason, .. }) => reason.contains("expected a proof"),
            Err(error) => panic!("expected a refusal, found {error}"),
        });
    }
    server.connect("fedcba9876543210", Path::Shm).unwrap().ping().unwrap();
    assert_eq!(kept.get("key").unwrap().as_deref(), Some(&b"value"[..]));
    assert_eq!(kept.stats().unwrap().client("connections_lost"), Some(0));
}

#[test]
fn a_broken_file_changes_nothing() {
    let mut server = Guarded::start(TOKENS, &[]);
    let mut session = server.connect(PROBE, Path::Tcp).unwrap();
    server.rotate("app read-write", 0o600, "line 1: expected NAME RIGHT SECRET");
    server.rotate("", 0o600, "expected a token, found none");
    server.rotate("app read-write other-secret", 0o644, "found mode 0644");
    session.ping().unwrap();
    assert_eq!(session.stats().unwrap().client("connections_lost"), Some(0));
    server.connect(APP, Path::Tcp).unwrap().ping().unwrap();
    assert!(server.refused("other-secret").contains("expected a proof"));
}

#[test]
fn a_session_ends_with_the_time_of_its_token() {
    let in_two_seconds = Command::new("date").args(["-u", "-d", "+2 seconds", "+%FT%TZ"]).output().unwrap().stdout;
    let until = String::from_utf8(in_two_seconds).unwrap();
    let tokens = format!("app read-write {APP}\nguest read-write 0123456789-guest {until}");
    // The time is looked at once in an eighth of it.
    let server = Guarded::start(&tokens, &["--session-timeout-ms", "400"]);
    let mut app = server.connect(APP, Path::Tcp).unwrap();
    let mut guest = server.connect("0123456789-guest", Path::Tcp).unwrap();
    eventually("the guest is out", || match guest.ping() {
        Ok(_) => false,
        Err(Error::Refused { reason, .. }) => reason.contains("guest has expired"),
        Err(error) => panic!("expected a refusal, found {error}"),
    });
    assert_eq!(app.stats().unwrap().server("sessions_revoked"), Some(1));
    assert_eq!(app.stats().unwrap().client("connections_lost"), Some(0));
}

fn say<M: Message>(stream: &mut TcpStream, message: &M) -> Vec<u8> {
    let bytes = encode(message).unwrap();
    stream.write_all(&bytes).unwrap();
    bytes
}

fn hear<M: Message>(stream: &mut TcpStream) -> Result<M, HandshakeError> {
    let mut head = [0; PREAMBLE_BYTES];
    stream.read_exact(&mut head).unwrap();
    let (kind, bytes) = Preamble::read_from_bytes(&head).unwrap().check()?;
    let mut body = vec![0; bytes];
    stream.read_exact(&mut body).unwrap();
    decode(kind, &body)
}

/// Tries to get in. Returns every byte that the client said.
fn shake_hands(stream: &mut TcpStream, token: &str) -> (Vec<Vec<u8>>, Result<Welcome, HandshakeError>) {
    let nonce = [3; 32];
    let hello = say(stream, &Hello { nonce, client_id: 77, resume_boot_id: 0 });
    let challenge: Challenge = hear(stream).unwrap();
    let proof = say(stream, &Proof { mac: prove(token.as_bytes(), Role::Client, &nonce, &challenge.nonce) });
    (vec![hello, proof], hear(stream))
}

#[test]
fn what_a_client_said_opens_nothing_when_it_is_said_again() {
    let server = Guarded::start(TOKENS, &[]);
    let (said, welcome) = shake_hands(&mut TcpStream::connect(&server.address).unwrap(), APP);
    welcome.unwrap();
    for _ in 0..3 {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        stream.write_all(&said[0]).unwrap();
        hear::<Challenge>(&mut stream).unwrap();
        stream.write_all(&said[1]).unwrap();
        let answer = hear::<Welcome>(&mut stream);
        assert!(matches!(&answer, Err(HandshakeError::Refused(reason)) if reason.contains("proof")), "{answer:?}");
    }
}

/// From another address of this machine.
fn from_elsewhere(server: &str) -> TcpStream {
    let fd = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&fd, &"127.0.0.2:0".parse::<SocketAddrV4>().unwrap()).unwrap();
    connect(&fd, &server.parse::<SocketAddrV4>().unwrap()).unwrap();
    TcpStream::from(fd)
}

/// With the failures not counted everyone may go on guessing (`tries-without-end.patch`).
#[test]
fn who_guesses_is_held_back_and_nobody_else() {
    let server = Guarded::start(TOKENS, &[]);
    let mut inside = server.connect(APP, Path::Tcp).unwrap();
    let reasons: Vec<String> = (0..100).map(|i| server.refused(&format!("guess {i}"))).collect();
    assert!(reasons[..10].iter().all(|reason| reason.contains("expected a proof")), "{reasons:?}");
    assert!(reasons[10].contains("too many failed tries from 127.0.0.1: the next one is taken in"), "{reasons:?}");
    assert!(reasons.iter().filter(|reason| reason.contains("too many")).count() > 50, "{reasons:?}");
    let stats = inside.stats().unwrap();
    assert!(stats.server("tries_held_back").is_some_and(|count| count > 50));
    assert!(server.refused(APP).contains("too many failed tries"), "also the right one, or it could be told");
    shake_hands(&mut from_elsewhere(&server.address), APP).1.unwrap();
    inside.ping().unwrap();
}

#[test]
fn token_files_that_others_can_read_and_open_doors_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    write_tokens(&folder, APP, 0o644);
    let file = file_in(&folder);
    let file = file.to_str().unwrap();
    let small = ["--memory", "64MiB", "--device", "none"];
    let refused = |args: &[&str]| ServerProcess::refused(&[&small[..], args].concat());
    let (code, text) = refused(&["--listen", "127.0.0.1:0", "--token-file", file]);
    assert!(code == Some(2) && text.contains("mode 0644: chmod 600"), "{code:?} {text}");
    let (code, text) = refused(&["--listen", "0.0.0.0:0"]);
    assert!(code == Some(2) && text.contains("--token-file") && text.contains("--insecure"), "{code:?} {text}");
    write_tokens(&folder, APP, 0o600);
    for door in [&["--token-file", file][..], &["--insecure"]] {
        let server = ServerProcess::start("0.0.0.0:0", &[&small[..], door].concat());
        assert!(server.line().contains("listening on 0.0.0.0:"), "{}", server.line());
    }
}
