//! RDMA that begins with a control connection in TLS.

use sidestep_client::{Client, Options, Path, PathMode};
use sidestep_tests::certificates::Authority;
use sidestep_tests::tap::{Tap, has_only_records};

use super::start;

/// Tokens, queue pairs and rkeys are exchanged in records; values travel by the path, which encrypts nothing.
#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn queue_pairs_and_keys_are_exchanged_in_tls() {
    let authority = Authority::new();
    let certificate = authority.server();
    let [cert, key] = [&certificate.cert, &certificate.key].map(|file| file.to_str().unwrap());
    let server = start(&["--tls-cert", cert, "--tls-key", key]);
    let tap = Tap::before(server.address());
    let large = vec![5; 3 << 20];
    for path in [Path::Rdma, Path::RdmaRpc] {
        let options = Options::default().path(PathMode::Require(path)).tls(authority.tls());
        let mut session = Client::connect(tap.address(), options).unwrap().session().unwrap();
        for (name, value) in [("small", &b"value"[..]), ("large", &large)] {
            session.put(name, value).unwrap();
            let read = session.get(name).unwrap().expect("it is there");
            assert!(read[..] == *value && read.path() == path, "{name} by {path}");
        }
        assert!(session.get("absent").unwrap().is_none());
        let stats = session.stats().unwrap();
        assert_eq!((stats.client("connections_lost"), stats.client("path_fallbacks")), (Some(0), Some(0)));
    }
    let heard = tap.heard();
    assert_eq!(heard.len(), 2);
    for side in heard.iter().flatten() {
        assert!(has_only_records(side));
        assert!(side.len() < large.len(), "values do not travel here");
    }
}

/// The certificate of a server decides on every path.
#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn who_does_not_trust_the_server_gets_no_queue_pair() {
    let authority = Authority::new();
    let certificate = authority.server();
    let [cert, key] = [&certificate.cert, &certificate.key].map(|file| file.to_str().unwrap());
    let server = start(&["--tls-cert", cert, "--tls-key", key]);
    let connect = |options: Options| Client::connect(server.address(), options.path(PathMode::Require(Path::Rdma)));
    for options in [Options::default(), Options::default().tls(Authority::new().tls())] {
        let error = connect(options).expect_err("a refusal").to_string();
        assert!(error.contains("encrypted connections only") || error.contains("peer certificate"), "{error}");
    }
    connect(Options::default().tls(authority.tls())).unwrap();
}
