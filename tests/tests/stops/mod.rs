//! The whole server is stopped before each of its stores, and readers of its memory go on without asking it.

use std::time::Duration;

use sidestep_client::{Client, Path as By, Session};
use sidestep_tests::fail_server::FailServer;

use super::stages::{Stage, at_rest};
use super::{client, count, nth, options, reader};

/// Readers of one client and what they saw.
struct Watchers {
    clients: [Client; 2],
    sessions: [Session; 2],
    saw_new: bool,
}

impl Watchers {
    fn new(address: &str, stage: &Stage) -> Self {
        let ((one, cached), (two, plain)) = (reader(address, 1024), reader(address, 0));
        let mut watchers = Self { clients: [one, two], sessions: [cached, plain], saw_new: false };
        watchers.look(stage);
        watchers
    }

    /// Every key there is and some that are not: what one has seen the others see from then on.
    fn look(&mut self, stage: &Stage) {
        for session in &mut self.sessions {
            self.saw_new = stage.read_all(session, self.saw_new);
        }
    }

    /// None of all this took the server's time.
    fn never_asked(&self) {
        for (name, count) in self.clients.iter().flat_map(|client| client.stats().expect("counters").client) {
            let is_ask = ["shm_asks_server", "tcp_get_found", "tcp_get_absent", "path_fallbacks"].contains(&&name[..]);
            assert!(!is_ask || count == 0, "{name} {count}");
        }
    }
}

/// Stops the whole server before each of its stores and looks, until it says something that is not a step.
fn look_at_every_stop(server: &mut FailServer, watchers: &mut Watchers, stage: &Stage) -> (usize, String) {
    let mut stops = 0;
    let command = server.commander();
    loop {
        let line = server.next_line().expect("it lives");
        if !line.starts_with("at ") {
            return (stops, line);
        }
        server.stop();
        watchers.look(stage);
        server.go_on();
        command("go");
        stops += 1;
    }
}

fn stopped_at_every_store(stage: &Stage) {
    let folder = stage.copy();
    let (mut server, address) = FailServer::start(folder.path());
    let mut watchers = Watchers::new(&address, stage);
    let patient = options(By::Tcp).request_timeout(Duration::from_secs(600));
    let writer = Client::connect(&address, patient).expect("tcp can be had");
    at_rest(&writer);
    assert_eq!(server.ask("halt"), "armed");
    let command = server.commander();
    let stops = std::thread::scope(|scope| {
        let writing = scope.spawn(move || {
            let written = stage.write.run(&writer);
            command("off");
            written
        });
        let (stops, _) = look_at_every_stop(&mut server, &mut watchers, stage);
        writing.join().expect("no panic").expect("it is done in the end");
        stops
    });
    watchers.saw_new = true;
    watchers.look(stage);
    watchers.never_asked();
    println!("{:?}: readers at {stops} stops", stage.write);
    assert!(stops >= 2);
}

#[test]
fn readers_beside_a_server_stopped_in_writes() {
    for stage in [Stage::update(), Stage::long_update(), Stage::insert(), Stage::delete()] {
        stopped_at_every_store(&stage);
    }
}

#[test]
fn readers_beside_a_server_stopped_in_a_split() {
    stopped_at_every_store(&Stage::split());
}

#[test]
fn readers_beside_a_server_stopped_in_a_doubling() {
    stopped_at_every_store(&Stage::doubling());
}

/// The readers' server was killed in a write; the next one is stopped before each store of its recovery.
#[test]
fn readers_beside_a_server_stopped_in_recovery() {
    for (stage, kind, n) in [
        (Stage::update(), "link", 1),
        (Stage::insert(), "link", 0),
        (Stage::delete(), "slot", 0),
        (Stage::split(), "slot", 256),
    ] {
        let point = nth(&count(&stage), kind, n);
        let folder = stage.copy();
        let (mut server, address) = FailServer::start(folder.path());
        let mut watchers = Watchers::new(&address, &stage);
        let writer = client(&address, By::Tcp);
        at_rest(&writer);
        assert_eq!(server.ask(&format!("kill {point}")), "armed");
        assert!(stage.write.run(&writer).is_err());
        assert!(!server.wait().success());
        watchers.look(&stage);
        let mut server = FailServer::launch(&address, folder.path(), "halt");
        let (stops, line) = look_at_every_stop(&mut server, &mut watchers, &stage);
        assert!(stops > 0 && line.starts_with("listening on "), "{line}");
        assert_eq!(server.ask("off"), "armed");
        watchers.look(&stage);
        watchers.never_asked();
        println!("{:?}: readers at {stops} stops of a recovery", stage.write);
    }
}
