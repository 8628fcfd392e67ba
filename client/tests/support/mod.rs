//! Servers in this process, for the tests of the client.
#![allow(dead_code, reason = "each test crate uses a part")]

pub(crate) mod proxy;

use std::path::Path;
use std::time::{Duration, Instant};

use sidestep_client::{Client, Options, PathMode};
use sidestep_server::{Config, Server};

pub(crate) const MEMORY_BYTES: u64 = 256 << 20;

pub(crate) fn config() -> Config {
    Config { listen: "127.0.0.1:0".to_owned(), memory_bytes: Some(MEMORY_BYTES), workers: 1, ..Config::default() }
}

/// A server on a free port, its table in a memfd.
pub(crate) fn start() -> Server {
    Server::start(config()).expect("a server starts")
}

/// A server with its table in a folder.
pub(crate) fn start_in(folder: &Path) -> Server {
    Server::start(Config { data: Some(folder.to_owned()), ..config() }).expect("a server starts")
}

/// Another server on the address of one that was stopped. Its port may take a moment to be free.
pub(crate) fn start_again(address: &str, config: Config) -> Server {
    let mut last = None;
    eventually("the port is free", || {
        last = Server::start(Config { listen: address.to_owned(), ..config.clone() }).ok();
        last.is_some()
    });
    last.expect("it was just found")
}

pub(crate) fn address(server: &Server) -> String {
    server.local_addr().to_string()
}

pub(crate) fn connect(server: &Server, mode: PathMode) -> Client {
    Client::connect(address(server), Options::default().path(mode)).expect("the client connects")
}

/// Waits for a condition; a bound, not a pace.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
