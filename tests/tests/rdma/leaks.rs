//! Clients that are killed: what the server and the kernel held for them is given back.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use sidestep_client::{Client, Options, Path, PathMode, Session};
use sidestep_tests::process::{EndlessClient, verbs_objects};

use super::{fill, options, read_all, session, start};

/// Rounds of killing.
const ROUNDS: u32 = 10;

/// Objects of a kind (`qp`, `mr`, `cq`, `pd`) that the living threads of a process have made, on all devices.
fn objects(kind: &str, process: u32) -> usize {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("a live process");
    // What is called `pid` there is the thread's number.
    let owners: Vec<String> =
        threads.map(|thread| format!(" pid {} ", thread.expect("a thread").file_name().display())).collect();
    verbs_objects(kind).iter().filter(|line| owners.iter().any(|owner| line.contains(owner))).count()
}

/// Waits until `count` gives what it must, however slow the machine is.
pub(crate) fn eventually<T: PartialEq + Debug>(what: &str, wanted: &T, mut count: impl FnMut() -> T) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let found = count();
        if found == *wanted {
            return;
        }
        assert!(Instant::now() < deadline, "{what}: {found:?} for ever, not {wanted:?}");
        std::thread::yield_now();
    }
}

/// In the middle of reads and writes, at moments that `SIDESTEP_SEED` decides.
#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn killed_readers_leave_no_queue_pair() {
    let seed = std::env::var("SIDESTEP_SEED").map_or(1, |text| text.parse().expect("a number"));
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let server = start(&["--workers", "1"]);
    let tcp = Options::default().path(PathMode::Require(Path::Tcp));
    let watcher = Client::connect(server.address(), tcp).unwrap();
    let mut bystander = session(&server, options());
    fill(&mut bystander, 100);
    let counter = |name: &str| watcher.stats().unwrap().server(name).unwrap_or_else(|| panic!("no counter {name}"));
    let counts = || ["qp", "cq", "pd"].map(|kind| objects(kind, server.id()));
    let (before, connections) = (counts(), counter("connections"));
    assert!(before[0] > 0, "the bystander's queue pair is not seen");
    for round in 0..ROUNDS {
        let client = EndlessClient::start(server.address(), "rdma,rdma-cached,rdma", round, &[]);
        if round == 0 {
            eventually("its queue pairs are there", &true, || counts()[0] >= before[0] + 3);
        }
        std::thread::sleep(Duration::from_micros(random.random_range(0..30_000)));
        client.kill();
    }
    // Asking is an event for the worker, with which it destroys the queue pairs that it has given up.
    eventually("connections and what they had", &(connections, before), || (counter("connections"), counts()));
    read_all(&mut bystander, 100);
    assert_eq!(bystander.stats().unwrap().client("rdma_errors"), Some(0));
}

/// Sessions that end as they should, and readers that lose and regain their queue pair with their connection.
#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn sessions_that_end_leave_nothing_on_either_side() {
    let server = start(&["--workers", "1"]);
    let ours = std::process::id();
    let mut bystander: Session = session(&server, options());
    fill(&mut bystander, 50);
    let counts = || ["qp", "cq", "pd"].map(|kind| (objects(kind, ours), objects(kind, server.id())));
    let before = counts();
    assert!(before[0].0 > 0 && before[0].1 > 0, "the bystander's queue pair is not seen");
    for _ in 0..10 {
        let client = Client::connect(server.address(), options().location_cache(64)).unwrap();
        let mut sessions: Vec<Session> = (0..3).map(|_| client.session().unwrap()).collect();
        sessions.iter_mut().for_each(|session| read_all(session, 10));
    }
    // The server may take a segment into use meanwhile: its regions are left out.
    eventually("what both sides have", &before, || {
        drop(bystander.stats());
        counts()
    });
    read_all(&mut bystander, 50);
}
