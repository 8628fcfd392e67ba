//! A server process that is killed under readers of its memory.

mod support;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use sidestep_client::{Client, Error, Options, Path, PathMode};
use sidestep_server::{Config, Server};
use support::{config, eventually};

const LISTEN: &str = "SIDESTEP_TEST_LISTEN";
const READY: &str = "server is at ";
const ROUNDS: u64 = 10;

/// Not a test: this program again, as a server that waits to be killed.
#[test]
fn server_process() {
    let Ok(listen) = std::env::var(LISTEN) else { return };
    let mut server = None;
    eventually("the port is free", || {
        server = Server::start(Config { listen: listen.clone(), ..config() }).ok();
        server.is_some()
    });
    let server = server.expect("it was just found");
    println!("\n{READY}{}", server.local_addr());
    loop {
        std::thread::park();
    }
}

struct Process {
    child: Child,
    address: String,
}

impl Process {
    fn start(listen: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["server_process", "--exact", "--nocapture"])
            .env(LISTEN, listen)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = lines.find_map(|line| line.unwrap().strip_prefix(READY).map(str::to_owned)).unwrap();
        Self { child, address }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn number(value: &[u8]) -> u64 {
    u64::from_le_bytes(value.try_into().unwrap())
}

/// Writes a number that grows, through servers that are killed and replaced, while others read it around them.
/// A reader may fail; it must never be shown less than what was acknowledged before it looked.
#[test]
fn no_reader_stays_on_the_memory_of_a_killed_server() {
    let mut server = Process::start("127.0.0.1:0");
    let address = server.address.clone();
    let (acknowledged, killed, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let options = || Options::default().connect_timeout(Duration::from_secs(1));
    Client::connect(&address, options()).unwrap().put("k", 0u64.to_le_bytes()).unwrap();
    let reader = Client::connect(&address, options().path(PathMode::Prefer(Path::Shm))).unwrap();
    let mut session = reader.session().unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut around = 0u64;
            while !stop.load(Ordering::SeqCst) {
                let least = acknowledged.load(Ordering::SeqCst);
                match session.get("k") {
                    Ok(Some(value)) => {
                        assert!(number(&value) >= least, "{} after {least} was acknowledged", number(&value));
                        around += u64::from(value.path() == Path::Shm);
                    }
                    // A new server is empty until the number is written again.
                    Ok(None) => assert!(killed.load(Ordering::SeqCst) > least / 100, "a lost write"),
                    Err(Error::Unreachable { .. } | Error::TimedOut { .. } | Error::Stopping { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            around
        });
        for round in 1..=ROUNDS {
            killed.store(round, Ordering::SeqCst);
            server.kill();
            server = Process::start(&address);
            let writer = Client::connect(&address, options()).unwrap();
            for step in 0..20 {
                let next = round * 100 + step;
                writer.put("k", next.to_le_bytes()).unwrap();
                acknowledged.store(next, Ordering::SeqCst);
            }
        }
        stop.store(true, Ordering::SeqCst);
        assert!(reader.join().unwrap() > 0, "nothing was read around a server");
    });
}
