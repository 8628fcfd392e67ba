//! A server that stops under readers of its memory.

mod support;

use std::time::Duration;

use sidestep_client::{Client, Options, Path, PathMode};
use support::{address, connect, start, start_in};

/// The port is another server's right after, and its table another one: nothing of the old one may be shown.
#[test]
fn nothing_is_read_from_the_memfd_of_a_server_that_has_stopped() {
    for round in 0..5 {
        let server = start();
        // No wait for a server that will not come back.
        let options = Options::default().reconnect_timeout(Duration::ZERO).path(PathMode::Prefer(Path::Shm));
        let client = Client::connect(address(&server), options).unwrap();
        let mut session = client.session().unwrap();
        session.put("key", "old").unwrap();
        assert_eq!(session.get("key").unwrap().unwrap().path(), Path::Shm);
        server.stop();
        let found = session.get("key");
        assert!(found.is_err(), "round {round}: {found:?} from a table that is gone");
        let batch = session.multi_get(&["key"]);
        assert!(batch.is_err(), "round {round}: {batch:?} from a table that is gone");
    }
}

/// A file is the table, whoever serves it.
#[test]
fn the_file_of_a_server_that_has_stopped_is_read_on() {
    let folder = tempfile::tempdir().unwrap();
    let server = start_in(folder.path());
    let client = connect(&server, PathMode::Prefer(Path::Shm));
    let mut session = client.session().unwrap();
    session.put("key", "value").unwrap();
    session.get("key").unwrap();
    server.stop();
    let value = session.get("key").unwrap().unwrap();
    assert_eq!((&value[..], value.path()), (&b"value"[..], Path::Shm));
}
