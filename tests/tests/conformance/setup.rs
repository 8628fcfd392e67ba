//! A server and a client of it, one way or another.

use sidestep_client::{Client, Options, Path, PathMode, Session};
use sidestep_server::tls::Tls;
use sidestep_server::{Config, Server};
use sidestep_tests::certificates::Authority;

/// How clients reach the server.
#[derive(Clone, Copy)]
pub(super) struct Way {
    pub(super) path: Path,
    /// Whether control connections are encrypted.
    pub(super) has_tls: bool,
}

pub(super) const fn plain(path: Path) -> Way {
    Way { path, has_tls: false }
}

pub(super) const fn tls(path: Path) -> Way {
    Way { path, has_tls: true }
}

/// A server and a client that reads by one path or not at all.
pub(super) struct Setup {
    pub(super) server: Server,
    pub(super) client: Client,
    way: Way,
}

impl Setup {
    pub(super) fn new(way: Way, memory_bytes: u64) -> Self {
        Self::with_cache(way, memory_bytes, 0)
    }

    pub(super) fn with_cache(Way { path, has_tls }: Way, memory_bytes: u64, cache: usize) -> Self {
        let authority = has_tls.then(Authority::new);
        let config = Config {
            listen: "127.0.0.1:0".into(),
            memory_bytes: Some(memory_bytes),
            segment_bytes: Some(1 << 20),
            workers: 2,
            tls: authority.as_ref().map(|authority| Tls::read(&authority.server().files()).expect("certificates")),
            ..Config::default()
        };
        let server = Server::start(config).expect("the server starts");
        let mut options = Options::default().path(PathMode::Require(path)).location_cache(cache);
        if let Some(authority) = &authority {
            options = options.tls(authority.tls());
        }
        let client = Client::connect(server.local_addr().to_string(), options).expect("the path can be had");
        Self { server, client, way: Way { path, has_tls } }
    }

    pub(super) fn session(&self) -> Session {
        self.client.session().expect("a session")
    }

    pub(super) fn get(&self, session: &mut Session, key: &[u8]) -> Option<Vec<u8>> {
        session.get(key).expect("a get").map(|value| {
            assert_eq!(value.path(), self.way.path, "a value came by another path");
            value.into_vec()
        })
    }
}
