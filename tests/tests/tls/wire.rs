//! What can be seen between client and server.

use sidestep_client::{Client, Options, Path, PathMode};
use sidestep_tests::certificates::{Authority, write_secret};
use sidestep_tests::tap::{Tap, has_only_records};

use super::{Served, text};

const SECRET: &str = "0123456789abcdef-the-token";
const KEY: &[u8] = b"a key that can be found";
const VALUE: &[u8] = b"a value that can be found";
/// The beginning of every message of the handshake.
const MAGIC: &[u8] = b"SIDESTEP";

fn has(bytes: &[u8], what: &[u8]) -> bool {
    bytes.windows(what.len()).any(|window| window == what)
}

fn talk(address: &str, options: Options) {
    let mut session = Client::connect(address, options.token(SECRET)).unwrap().session().unwrap();
    session.put(KEY, VALUE).unwrap();
    assert_eq!(session.get(KEY).unwrap().as_deref(), Some(VALUE));
    session.stats().unwrap();
}

/// Without TLS the tap finds the handshake, key and value: it would find them.
#[test]
fn nothing_of_handshake_keys_and_values_is_seen() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let tokens = folder.path().join("tokens");
    write_secret(&tokens, SECRET);
    let args = ["--token-file", text(&tokens)];
    let tcp = || Options::default().path(PathMode::Require(Path::Tcp));

    let plain = Served::start(&args);
    let tap = Tap::before(&plain.address);
    talk(tap.address(), tcp());
    for [said, answered] in tap.heard() {
        assert!(has(&said, MAGIC) && has(&answered, MAGIC));
        assert!(has(&said, KEY) && has(&said, VALUE) && has(&answered, VALUE));
    }

    let server = Served::with(&authority.server(), &args);
    // The second time the session is resumed; `shm` sends its ticket.
    for (options, rounds) in [(tcp(), 2), (Options::default().path(PathMode::Require(Path::Shm)), 1)] {
        let options = options.tls(authority.tls());
        let tap = Tap::before(&server.address);
        for _ in 0..rounds {
            talk(tap.address(), options.clone());
        }
        let heard = tap.heard();
        assert_eq!(heard.len(), rounds);
        for [said, answered] in heard {
            for side in [&said, &answered] {
                for what in [MAGIC, KEY, VALUE, SECRET.as_bytes()] {
                    assert!(!has(side, what), "{}", String::from_utf8_lossy(what));
                }
                assert!(has_only_records(side));
            }
        }
    }
}
