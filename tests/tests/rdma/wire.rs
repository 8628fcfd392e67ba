//! The wire between the two devices: down, lossy, slow. Packets from one device to the other cross a veth pair.

use std::process::Command;
use std::time::{Duration, Instant};

use sidestep_client::{Error, Options, Path, PathMode, Session};

use super::{fill, read_all, session, start, value_of};

const KEYS: u64 = 200;

/// Ends a state of the wire, whatever becomes of the test.
pub(crate) struct Until(&'static [&'static str]);

impl Drop for Until {
    fn drop(&mut self) {
        run(self.0);
    }
}

fn run(command: &[&str]) -> String {
    let done = Command::new(command[0]).args(&command[1..]).output().expect("iproute2");
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).into_owned()
}

pub(crate) fn down() -> Until {
    run(&["ip", "link", "set", "rdma0", "down"]);
    Until(&["ip", "link", "set", "rdma0", "up"])
}

/// What the server's device sends is lost or delayed.
pub(crate) fn netem(how: &[&str]) -> Until {
    run(&[&["tc", "qdisc", "add", "dev", "rdma0", "root", "netem"], how].concat());
    Until(&["tc", "qdisc", "del", "dev", "rdma0", "root"])
}

/// A number of what netem has counted.
fn counted(after: &str) -> u64 {
    let text = run(&["tc", "-s", "qdisc", "show", "dev", "rdma0"]);
    let rest = text.split_once(after).unwrap_or_else(|| panic!("no {after:?} in {text}")).1;
    rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default().parse().expect("a number")
}

pub(crate) fn across() -> Options {
    Options::default().device("rxe1").path_pause(Duration::from_secs(1))
}

/// Reads until it is by `rdma` again: right whatever the path.
fn until_it_is_back(session: &mut Session) {
    const PATIENCE: Duration = Duration::from_secs(60);
    let since = Instant::now();
    loop {
        match session.get(5u64.to_le_bytes()) {
            Ok(Some(value)) if value.path() == Path::Rdma => return,
            Ok(Some(value)) => assert_eq!(value[..], value_of(5)[..]),
            Ok(None) => panic!("the key is there"),
            Err(error) => assert!(matches!(error, Error::PathUnavailable { .. }), "{error}"),
        }
        assert!(since.elapsed() < PATIENCE, "rdma does not come back");
    }
}

/// What befalls sessions while nothing comes through: one that may uses `tcp`, one that may not says why not; both are
/// back by themselves. `cut` ends what comes through until it is dropped.
fn falls_back_and_comes_back(cut: impl FnOnce() -> Until) {
    let server = start(&["--device", "rxe0"]);
    let mut preferring = session(&server, across().path(PathMode::Prefer(Path::Rdma)));
    let mut requiring = session(&server, across().path(PathMode::Require(Path::Rdma)));
    fill(&mut preferring, KEYS);
    read_all(&mut preferring, 5);
    read_all(&mut requiring, 5);
    let cut = cut();
    let value = preferring.get(5u64.to_le_bytes()).unwrap().unwrap();
    assert_eq!((&value[..], value.path()), (&value_of(5)[..], Path::Tcp));
    let error = requiring.get(5u64.to_le_bytes()).unwrap_err();
    assert!(matches!(error, Error::PathUnavailable { path: Path::Rdma, .. }), "{error}");
    println!("{error}");
    drop(cut);
    until_it_is_back(&mut preferring);
    until_it_is_back(&mut requiring);
    read_all(&mut preferring, KEYS);
    let stats = preferring.stats().unwrap();
    assert_eq!((stats.client("path_fallbacks"), stats.client("paths_regained")), (Some(1), Some(1)));
    assert!(stats.client("rdma_errors").is_some_and(|errors| errors >= 1));
}

#[test]
#[ignore = "needs the two devices of scripts/guest"]
fn a_dead_link_is_left_for_tcp_and_come_back_to() {
    falls_back_and_comes_back(down);
}

#[test]
#[ignore = "needs the two devices of scripts/guest"]
fn a_wire_that_loses_all_is_left_for_tcp_and_come_back_to() {
    falls_back_and_comes_back(|| netem(&["loss", "100%"]));
}

#[test]
#[ignore = "needs the two devices of scripts/guest"]
fn a_wire_that_loses_one_of_a_hundred_is_read_over() {
    let server = start(&["--device", "rxe0"]);
    let mut session = session(&server, across().path(PathMode::Require(Path::Rdma)));
    fill(&mut session, KEYS);
    let _lossy = netem(&["loss", "1%"]);
    let mut rounds = 0;
    // Until enough was lost that it was not by luck.
    while counted("dropped ") < 5 {
        read_all(&mut session, KEYS);
        rounds += 1;
        assert!(rounds < 100, "nothing is lost");
    }
    assert_eq!(session.stats().unwrap().client("rdma_errors"), Some(0), "a lost packet is sent again");
}

#[test]
#[ignore = "needs the two devices of scripts/guest"]
fn a_slow_wire_is_read_over() {
    let server = start(&["--device", "rxe0"]);
    let mut session = session(&server, across().path(PathMode::Require(Path::Rdma)));
    fill(&mut session, KEYS);
    let _slow = netem(&["delay", "5ms"]);
    read_all(&mut session, KEYS / 4);
    let keys: Vec<[u8; 8]> = (0..KEYS).map(u64::to_le_bytes).collect();
    let values = session.multi_get(&keys).unwrap();
    assert!(values.iter().zip(0..).all(|(value, i)| value.as_deref() == Some(&value_of(i)[..])));
    assert!(counted(" bytes ") > KEYS, "the packets went another way");
    assert_eq!(session.stats().unwrap().client("rdma_errors"), Some(0));
}
