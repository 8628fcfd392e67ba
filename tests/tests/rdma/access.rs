//! The right to READ is the server's queue pair: it ends with the token, with the control connection, and with nothing
//! that the client does or leaves.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path as FilePath;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use sidestep_client::{Client, Error, Options, Path, PathMode, Session};
use sidestep_fabric::rdma::RdmaError;
use sidestep_tests::process::ServerProcess;

use super::raw::{Raw, status_of};
use super::{fill, options, read_all, start};

const KEPT: &str = "0123456789abcdef-kept";
const LOST: &str = "0123456789abcdef-lost";

fn write_tokens(file: &FilePath, tokens: &str) {
    fs::write(file, tokens).unwrap();
    fs::set_permissions(file, Permissions::from_mode(0o600)).unwrap();
}

fn with_token(server: &ServerProcess, token: &str, path: Path) -> Session {
    let options = Options::default().token(token).path(PathMode::Require(path));
    Client::connect(server.address(), options).expect("the token is good").session().expect("a session")
}

/// READs the root until that fails. Its NIC was told nothing: every READ until then is a right one.
fn read_until_refused(raw: &mut Raw) -> RdmaError {
    let deadline = Instant::now() + Duration::from_secs(60);
    let (address, rkey) = raw.root();
    loop {
        match raw.read(address, rkey, 64) {
            Ok(bytes) => assert_eq!(&bytes[..8], b"SIDESTEP"),
            Err(error) => return error,
        }
        assert!(Instant::now() < deadline, "the right to READ does not end");
    }
}

/// Without `look_at_passes` in the server's workers both readers read on for ever (`revoked-goes-on.patch`).
#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn a_session_whose_token_is_taken_away_cannot_read_any_more() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens");
    let kept_line = format!("kept read-write {KEPT}\n");
    write_tokens(&file, &format!("{kept_line}lost read-only {LOST}\n"));
    let server = start(&["--token-file", file.to_str().unwrap()]);
    let mut bystander = with_token(&server, KEPT, Path::Rdma);
    fill(&mut bystander, 50);
    let mut kept = Raw::connect_with(server.address(), KEPT.as_bytes());
    let mut lost = Raw::connect_with(server.address(), LOST.as_bytes());
    let mut reader = with_token(&server, LOST, Path::Rdma);
    read_all(&mut reader, 50);
    let (address, rkey) = kept.root();
    assert_eq!((address, rkey), lost.root(), "they hold the same key");
    for raw in [&mut kept, &mut lost] {
        assert_eq!(&raw.read(address, rkey, 64).unwrap()[..8], b"SIDESTEP");
    }
    write_tokens(&file, &kept_line);
    server.signal(Signal::HUP);
    println!("the reader without a token: {}", read_until_refused(&mut lost));
    assert!(lost.read(address, rkey, 64).is_err(), "and it stays so");
    // The key itself is as good as ever, for who has a queue pair.
    assert_eq!(&kept.read(address, rkey, 64).unwrap()[..8], b"SIDESTEP");
    let refused = loop {
        match reader.get(1u64.to_le_bytes()) {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::Refused { .. }), "{refused}");
    read_all(&mut bystander, 50);
    assert_eq!(bystander.stats().unwrap().client("connections_lost"), Some(0));
    assert_eq!(bystander.stats().unwrap().server("sessions_revoked"), Some(2));
}

#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn who_hangs_up_cannot_read_any_more() {
    let server = start(&[]);
    let mut bystander = Raw::connect(server.address());
    let mut raw = Raw::connect(server.address());
    let (address, rkey) = raw.root();
    raw.hang_up();
    println!("the reader that hung up: {}", read_until_refused(&mut raw));
    assert_eq!(&bystander.read(address, rkey, 64).unwrap()[..8], b"SIDESTEP");
}

/// Two servers on one device, each with a protection domain of its own.
#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn a_key_is_worth_nothing_on_another_server_s_queue_pair() {
    let (one, other) = (start(&[]), start(&[]));
    let mut holder = Raw::connect(one.address());
    let (address, rkey) = holder.root();
    assert_eq!(&holder.read(address, rkey, 64).unwrap()[..8], b"SIDESTEP");
    let mut stranger = Raw::connect(other.address());
    assert!(matches!(status_of(stranger.read(address, rkey, 64)), 9 | 10));
    assert_eq!(&holder.read(address, rkey, 64).unwrap()[..8], b"SIDESTEP");
}

#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn a_read_only_session_writes_by_no_message_either() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens");
    write_tokens(&file, &format!("kept read-write {KEPT}\nlost read-only {LOST}\n"));
    let server = start(&["--token-file", file.to_str().unwrap()]);
    with_token(&server, KEPT, Path::Rdma).put("key", "value").unwrap();
    for path in [Path::Rdma, Path::RdmaRpc] {
        let mut session = with_token(&server, LOST, path);
        for value in [vec![1; 10], vec![1; 300_000]] {
            let error = session.put("key", &value).unwrap_err();
            assert!(matches!(&error, Error::Forbidden(reason) if reason.contains("read-only")), "{error}");
        }
        assert!(matches!(session.delete("key"), Err(Error::Forbidden(_))));
        let value = session.get("key").unwrap().expect("it is there");
        assert_eq!((&value[..], value.path()), (&b"value"[..], path));
        assert!(session.stats().unwrap().server("rdma_rpc_put_forbidden").is_some_and(|count| count >= 2));
    }
    assert!(Client::connect(server.address(), options()).is_err(), "without a token");
}
