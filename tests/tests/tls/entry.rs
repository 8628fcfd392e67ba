//! Who is let in and who is told that not, on both sides.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use sidestep_client::{Client, Path, PathMode, Tls};
use sidestep_core::handshake::{HandshakeError, PREAMBLE_BYTES, Preamble, Welcome, decode};
use sidestep_tests::certificates::{Authority, write_secret};
use sidestep_tests::process::{ServerProcess, program};
use zerocopy::FromBytes;

use super::raw::{Raw, connect, hello};
use super::{Served, options, refusal, standing, text, tls_args};

/// A ClientHello of TLS 1.2: no `supported_versions`, one cipher suite and the extensions that go with it (RFC 5246).
fn hello_of_tls_1_2() -> Vec<u8> {
    let head = b"\x16\x03\x01\x00\x45\x01\x00\x00\x41\x03\x03";
    // No session, ECDHE-ECDSA with AES-128-GCM, no compression.
    let tail = b"\x00\x00\x02\xc0\x2b\x01\x00\x00\x16";
    let extensions = b"\x00\x0a\x00\x04\x00\x02\x00\x17\x00\x0b\x00\x02\x01\x00\x00\x0d\x00\x04\x00\x02\x04\x03";
    [&head[..], &[0; 32], tail, extensions].concat()
}

#[test]
fn who_trusts_the_server_is_let_in_and_the_first_line_says_tls() {
    let (authority, server, mut session) = standing(&[]);
    assert!(server.line.contains("paths: tcp (TLS)"), "{}", server.line);
    session.put("key", "value").unwrap();
    let shown = Command::new(program("sidestep"))
        .args(["--server", &server.address, "--tls-ca", text(&authority.ca()), "--path", "tcp", "get", "key"])
        .output()
        .unwrap();
    assert_eq!((shown.status.code(), &shown.stdout[..]), (Some(0), &b"value"[..]), "{shown:?}");
    let by_name = authority.tls().server_name("localhost").unwrap();
    assert_eq!(server.connect(by_name).unwrap().get("key").unwrap().as_deref(), Some(&b"value"[..]));
}

#[test]
fn a_server_of_another_name_ca_or_time_is_not_talked_to() {
    let (authority, other) = (Authority::new(), Authority::new());
    let mut stranger = Served::with(&authority.stranger(), &[]);
    let reason = stranger.refused(authority.tls());
    assert!(reason.contains("not valid for name"), "{reason}");
    stranger.says("TLS has failed");
    // It is that server by its own name.
    stranger.connect(authority.tls().server_name("db.example.org").unwrap()).unwrap().ping().unwrap();

    let mut expired = Served::with(&authority.expired(), &[]);
    let reason = expired.refused(authority.tls());
    assert!(reason.contains("expired"), "{reason}");
    assert!(expired.says("TLS has failed").contains("127.0.0.1"));

    let mut server = Served::with(&authority.server(), &[]);
    for tls in [other.tls(), Tls::with_ca(other.server().cert).unwrap()] {
        let reason = server.refused(tls);
        assert!(reason.contains("invalid peer certificate"), "{reason}");
        server.says("TLS has failed");
    }
    server.connect(authority.tls()).unwrap().ping().unwrap();
}

#[test]
fn where_certificates_are_asked_for_only_theirs_enter() {
    let (ours, theirs, others) = (Authority::new(), Authority::new(), Authority::new());
    let ca = theirs.ca();
    let mut server = Served::with(&ours.server(), &["--tls-client-ca", text(&ca)]);
    let shows = |of: &Authority, expired: bool| {
        let certificate = if expired { of.expired_client() } else { of.client() };
        ours.tls().client_certificate(certificate.cert, certificate.key).unwrap()
    };
    for (tls, told, logged) in [
        (ours.tls(), "CertificateRequired", "peer sent no certificates"),
        (shows(&others, false), "the server ended TLS", "invalid peer certificate"),
        (shows(&theirs, true), "CertificateExpired", "expired"),
    ] {
        let reason = server.refused(tls);
        assert!(reason.contains(told), "{reason}");
        let line = server.says("TLS has failed");
        assert!(line.contains(logged), "{line}");
    }
    // Every time: nothing is resumed where a certificate is asked for.
    let tls = shows(&theirs, false);
    for _ in 0..3 {
        server.connect(tls.clone()).unwrap().ping().unwrap();
    }
}

#[test]
fn a_token_is_asked_for_beside_a_certificate() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let tokens = folder.path().join("tokens");
    write_secret(&tokens, "0123456789abcdef");
    let ca = authority.ca();
    let args = ["--token-file", text(&tokens), "--tls-client-ca", text(&ca)];
    let server = Served::with(&authority.server(), &args);
    let shown = authority.client();
    let tls = authority.tls().client_certificate(&shown.cert, &shown.key).unwrap();
    assert!(server.refused(tls.clone()).contains("requires a token"));
    let wrong = server.connect_with(options().token("fedcba9876543210").tls(tls.clone()));
    assert!(refusal(wrong).contains("expected a proof"));
    server.connect_with(options().token("0123456789abcdef").tls(tls)).unwrap().ping().unwrap();
}

#[test]
fn plain_and_tls_tell_each_other_at_once() {
    let authority = Authority::new();
    let mut server = Served::with(&authority.server(), &[]);
    let reason = refusal(server.connect_with(options()));
    assert!(reason.contains("encrypted connections only"), "{reason}");
    assert!(server.says("a client without TLS").contains("127.0.0.1"));
    server.connect(authority.tls()).unwrap().ping().unwrap();

    let mut plain = Served::start(&[]);
    let reason = plain.refused(authority.tls());
    assert!(reason.contains("expected TLS, found a server that does not speak it"), "{reason}");
    assert!(plain.says("a client with TLS").contains("127.0.0.1"));
    plain.connect_with(options()).unwrap().ping().unwrap();
}

/// A peer that accepts and says nothing, or hangs up, is no server.
#[test]
fn a_client_waits_for_tls_no_longer_than_for_a_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let within = std::time::Duration::from_millis(200);
    let connected = Client::connect(&address, options().tls(Authority::new().tls()).connect_timeout(within));
    let error = connected.expect_err("nobody answered").to_string();
    assert!(error.contains("took too long") || error.contains("timeout passed"), "{error}");
}

#[test]
fn tls_1_2_is_refused() {
    let authority = Authority::new();
    let mut server = Served::with(&authority.server(), &[]);
    let mut stream = connect(&server.address);
    stream.write_all(&hello_of_tls_1_2()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    // A fatal alert: protocol_version (RFC 8446 §6).
    assert_eq!(answer, [21, 3, 3, 0, 2, 2, 70]);
    assert!(server.says("TLS has failed").contains("SupportedVersions"));
    server.connect(authority.tls()).unwrap().ping().unwrap();
}

#[test]
fn garbage_in_place_of_a_client_hello_is_answered_and_closed() {
    let authority = Authority::new();
    let mut server = Served::with(&authority.server(), &[]);
    for garbage in [&b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00"[..], b"\x16\xff\xff\xff\xff", b"\x16\x03\x01\x00\x00"]
    {
        let mut stream = connect(&server.address);
        stream.write_all(garbage).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert_eq!((answer.len(), answer[0], answer[5]), (7, 21, 2), "a fatal alert: {answer:?}");
        server.says("TLS has failed");
    }
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"\0", b"\x80\x2e\x01\x03\x01"] {
        let mut stream = connect(&server.address);
        stream.write_all(garbage).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let (preamble, body) = Preamble::ref_from_prefix(&answer).unwrap();
        let (kind, bytes) = preamble.check().unwrap();
        assert_eq!(answer.len(), PREAMBLE_BYTES + bytes);
        let told = decode::<Welcome>(kind, body);
        assert!(matches!(&told, Err(HandshakeError::Refused(reason)) if reason.contains("expected TLS")), "{told:?}");
        server.says("a client without TLS");
    }
    server.connect(authority.tls()).unwrap().ping().unwrap();
}

/// Whatever it says of TLS, it has the time of everyone who wants to be let in.
#[test]
fn a_handshake_that_never_ends_ends_at_its_deadline() {
    let (authority, server, mut other) = standing(&["--handshake-timeout-ms", "300"]);
    let hello = hello(&authority);
    // Nothing; a record's header; a part of a hello; a hello, and nothing after the server's flight.
    for said in [0, 5, 40, hello.len()] {
        let mut stream = connect(&server.address);
        stream.write_all(&hello[..said]).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert_eq!(!answer.is_empty(), said == hello.len(), "{answer:?}");
    }
    // TLS is there, the hello of Sidestep never comes: it is told in TLS, and TLS is closed.
    let mut raw = Raw::connect(&server.address, &authority);
    let (told, is_told) = raw.rest();
    assert!(is_told && String::from_utf8_lossy(&told).contains("within 300 ms"), "{told:?}");
    other.ping().unwrap();
    assert_eq!(other.stats().unwrap().server("connections_timed_out"), Some(5));
}

/// One too many is told so as soon as it can be told anything.
#[test]
fn a_full_server_says_so_in_tls() {
    let (authority, server, mut session) = standing(&["--max-connections", "1"]);
    let reason = server.refused(authority.tls());
    assert!(reason.contains("all 1 connections that it may have"), "{reason}");
    session.ping().unwrap();
}

#[test]
fn files_that_others_can_read_or_do_not_fit_are_refused() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let (good, other) = (authority.server(), authority.stranger());
    let refused = |args: &[&str]| {
        let (code, text) = ServerProcess::refused(&[&["--listen", "127.0.0.1:0", "--memory", "64MiB"], args].concat());
        assert_eq!(code, Some(2), "{text}");
        text
    };
    let told = refused(&["--tls-cert", text(&good.cert)]);
    assert!(told.contains("--tls-key FILE") && told.contains("a certificate alone"), "{told}");
    let told = refused(&["--tls-cert", text(&good.cert), "--tls-key", text(&other.key)]);
    assert!(told.contains("cannot use the certificate") && told.contains("stranger.key"), "{told}");
    let told = refused(&["--tls-cert", text(&good.key), "--tls-key", text(&good.key)]);
    assert!(told.contains("expected at least one certificate"), "{told}");
    let told = refused(&[&tls_args(&good)[..], &["--tls-client-ca", text(&folder.path().join("absent"))]].concat());
    assert!(told.contains("absent"), "{told}");
    let broken = folder.path().join("broken.key");
    write_secret(&broken, "-----BEGIN PRIVATE KEY-----\nsecret words\n");
    let told = refused(&["--tls-cert", text(&good.cert), "--tls-key", text(&broken)]);
    assert!(told.contains("expected a private key") && !told.contains("secret words"), "{told}");
    fs::set_permissions(&good.key, Permissions::from_mode(0o640)).unwrap();
    let told = refused(&tls_args(&good));
    assert!(told.contains("mode 0640: chmod 600"), "{told}");
}

/// TLS counts as a door: nobody is overheard. That anyone may enter is said.
#[test]
fn beyond_loopback_tls_is_enough_and_says_what_it_leaves_open() {
    let authority = Authority::new();
    let (certificate, ca) = (authority.server(), authority.ca());
    let mut open = Served::start_at("0.0.0.0:0", &tls_args(&certificate));
    open.says("anyone who reaches 0.0.0.0");
    let args = [&tls_args(&certificate)[..], &["--tls-client-ca", text(&ca)]].concat();
    let mut closed = Served::start_at("0.0.0.0:0", &args);
    closed.hang_up();
    let lines: Vec<String> = std::iter::from_fn(|| closed.log.next())
        .map(Result::unwrap)
        .take_while(|line| !line.contains("SIGHUP"))
        .collect();
    assert!(!lines.iter().any(|line| line.contains("anyone")), "{lines:?}");
}

#[test]
fn memory_is_mapped_by_a_ticket_that_came_in_tls() {
    let (authority, server, mut session) = standing(&[]);
    session.put("key", "value").unwrap();
    let options = sidestep_client::Options::default().tls(authority.tls());
    for mode in [PathMode::Auto, PathMode::Require(Path::Shm)] {
        let mut session = server.connect_with(options.clone().path(mode)).unwrap();
        let value = session.get("key").unwrap().expect("it is there");
        assert_eq!((&value[..], value.path()), (&b"value"[..], Path::Shm));
        session.put("other", "by TLS").unwrap();
    }
}
