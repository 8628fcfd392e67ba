//! Other certificates while a server runs, and connections that are lost.

use std::fs;

use sidestep_client::Path;
use sidestep_tests::certificates::{Authority, Certificate, write_secret};
use sidestep_tests::process::tmpfs_folder;

use super::{Served, options, standing, text, tls_args};

/// Puts another certificate in the place of one.
fn replace(at: &Certificate, by: &Certificate) {
    fs::copy(&by.cert, &at.cert).unwrap();
    write_secret(&at.key, &fs::read_to_string(&by.key).unwrap());
}

#[test]
fn sighup_brings_another_certificate_and_sessions_go_on() {
    let (old, new) = (Authority::new(), Authority::new());
    let at = old.server();
    let mut server = Served::with(&at, &[]);
    let mut before = server.connect(old.tls()).unwrap();
    before.put("key", "value").unwrap();
    replace(&at, &new.server());
    server.hang_up();
    server.says("SIGHUP: new connections are encrypted with the certificate of the file now");
    before.ping().unwrap();
    assert_eq!(before.get("key").unwrap().as_deref(), Some(&b"value"[..]));
    assert_eq!(before.stats().unwrap().client("connections_lost"), Some(0));
    server.connect(new.tls()).unwrap().ping().unwrap();
    let reason = server.refused(old.tls());
    assert!(reason.contains("invalid peer certificate"), "{reason}");
}

/// A client that was let in by a CA that is gone is not let in again by resuming its session.
#[test]
fn sighup_brings_other_cas_of_clients() {
    let (ours, first, second) = (Authority::new(), Authority::new(), Authority::new());
    let folder = tempfile::tempdir().unwrap();
    let ca = folder.path().join("clients.pem");
    fs::copy(first.ca(), &ca).unwrap();
    let mut server = Served::with(&ours.server(), &["--tls-client-ca", text(&ca)]);
    let shows = |of: &Authority| {
        let shown = of.client();
        ours.tls().client_certificate(shown.cert, shown.key).unwrap()
    };
    let (of_first, of_second) = (shows(&first), shows(&second));
    let mut before = server.connect(of_first.clone()).unwrap();
    server.refused(of_second.clone());
    fs::copy(second.ca(), &ca).unwrap();
    server.hang_up();
    server.says("SIGHUP: new connections");
    server.connect(of_second).unwrap().ping().unwrap();
    server.refused(of_first);
    before.ping().unwrap();
    assert_eq!(before.stats().unwrap().client("connections_lost"), Some(0));
}

#[test]
fn a_broken_file_keeps_what_was_there_and_tokens_are_read_all_the_same() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let tokens = folder.path().join("tokens");
    write_secret(&tokens, "0123456789-first");
    let at = authority.server();
    let mut server = Served::with(&at, &["--token-file", text(&tokens)]);
    fs::write(&at.cert, "no PEM").unwrap();
    write_secret(&tokens, "0123456789-second");
    server.hang_up();
    server.says("SIGHUP: the tokens are those of the file now");
    let line = server.says("SIGHUP: the certificates stay what they were");
    assert!(line.contains("expected at least one certificate"), "{line}");
    server.connect_with(options().token("0123456789-second").tls(authority.tls())).unwrap().ping().unwrap();
    // The key of another certificate.
    replace(&at, &authority.stranger());
    let key = fs::read_to_string(authority.client().key).unwrap();
    write_secret(&at.key, &key);
    server.hang_up();
    let line = server.says("SIGHUP: the certificates stay what they were");
    assert!(line.contains("cannot use the certificate"), "{line}");
    server.connect_with(options().token("0123456789-second").tls(authority.tls())).unwrap().ping().unwrap();
}

/// The server is killed and comes back at its address: the session does, over TLS.
#[test]
fn a_lost_connection_comes_back_encrypted() {
    let (authority, folder) = (Authority::new(), tmpfs_folder());
    let certificate = authority.server();
    let args = [&tls_args(&certificate)[..], &["--data", text(folder.path())]].concat();
    let mut first = Served::start(&args);
    let mut session = first.connect(authority.tls()).unwrap();
    session.put("key", "value").unwrap();
    first.kill();
    let second = Served::start_at(&first.address, &args);
    let value = session.get("key").unwrap().expect("it is there");
    assert_eq!((&value[..], value.path()), (&b"value"[..], Path::Tcp));
    session.put("key", "goes on").unwrap();
    let stats = session.stats().unwrap();
    assert_eq!(stats.client("connections_lost"), Some(1));
    assert!(second.line.contains("tcp (TLS)"));
}

/// One that comes back with another CA's certificate is not the server that was meant.
#[test]
fn a_lost_connection_does_not_go_on_with_a_stranger() {
    let (authority, server, mut session) = standing(&[]);
    let address = server.address.clone();
    drop(server);
    let _stranger = Served::start_at(&address, &tls_args(&Authority::new().server()));
    let error = session.get("key").unwrap_err().to_string();
    assert!(error.contains("invalid peer certificate"), "{error}");
    drop(authority);
}
