//! A server process that is stopped, or that does nothing: one-sided reads are not its business.

use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use sidestep_client::{Client, Options, Path, PathMode, Session};

use super::{fill, options, read_all, session, start, value_of};

/// Paths on which the server's CPU answers.
const MEDIATED: [Path; 2] = [Path::Tcp, Path::RdmaRpc];
const KEYS: u64 = 500;

fn read_batch(session: &mut Session) {
    let keys: Vec<[u8; 8]> = (0..KEYS + 20).map(u64::to_le_bytes).collect();
    let values = session.multi_get(&keys).unwrap();
    for (i, value) in (0..).zip(&values) {
        assert_eq!(value.as_deref(), (i < KEYS).then(|| value_of(i)).as_deref(), "key {i}");
        assert!(value.as_ref().is_none_or(|value| value.path() == Path::Rdma));
    }
}

/// Hits and misses by one-sided reads, while whoever needs the server waits for it; then everything goes on, and what
/// was asked for meanwhile is done.
#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn a_stopped_server_goes_on_being_read_and_loses_nothing() {
    let patient = |path| Options::default().path(PathMode::Require(path)).request_timeout(Duration::from_secs(600));
    let server = start(&[]);
    let client = Client::connect(server.address(), options()).unwrap();
    let (mut plain, mut writer) = (client.session().unwrap(), client.session().unwrap());
    let mut caching = session(&server, options().location_cache(1024));
    fill(&mut plain, KEYS);
    read_all(&mut caching, KEYS);
    let mut waiting: Vec<(Path, Session)> =
        MEDIATED.into_iter().map(|path| (path, session(&server, patient(path)))).collect();
    for (path, session) in &mut waiting {
        assert_eq!(session.get(1u64.to_le_bytes()).unwrap().unwrap().path(), *path);
    }
    server.stop();
    thread::scope(|scope| {
        let (done, answers) = channel();
        for (path, mut session) in waiting {
            let done = done.clone();
            scope.spawn(move || {
                let value = session.get(2u64.to_le_bytes()).unwrap().expect("the key is there");
                assert_eq!((&value[..], value.path()), (&value_of(2)[..], path));
                assert!(session.get("absent").unwrap().is_none());
                done.send(path).unwrap();
            });
        }
        let written = scope.spawn(move || writer.put("while stopped", "done").unwrap());
        for session in [&mut plain, &mut caching] {
            read_all(session, KEYS);
            read_batch(session);
        }
        assert!(plain.get("while stopped").unwrap().is_none());
        assert!(answers.try_recv().is_err() && !written.is_finished(), "somebody did not need the server");
        server.signal(Signal::CONT);
        let version = written.join().unwrap();
        for session in [&mut plain, &mut caching] {
            assert_eq!(session.get("while stopped").unwrap().map(|value| value.version()), Some(version));
        }
        assert_eq!(answers.iter().take(MEDIATED.len()).count(), MEDIATED.len());
    });
    read_all(&mut plain, KEYS);
    read_all(&mut caching, KEYS);
    for name in ["rdma_errors", "rdma_asks_server", "connections_lost", "outcomes_unknown", "path_fallbacks"] {
        assert_eq!(client.stats().unwrap().client(name), Some(0), "{name}");
    }
}

/// Clock ticks of the whole machine in its soft interrupts: with Soft-RoCE the kernel does what a NIC would.
fn soft_interrupt_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").expect("a kernel");
    let fields: Vec<&str> = stat.lines().next().expect("the sum of all processors").split_whitespace().collect();
    fields[7].parse().expect("softirq")
}

#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn a_hundred_thousand_reads_take_no_cpu_of_the_server() {
    const READS: u64 = 100_000;
    let server = start(&[]);
    let client = Client::connect(server.address(), options()).unwrap();
    let mut plain = client.session().unwrap();
    let mut caching = session(&server, options().location_cache(1024));
    fill(&mut plain, KEYS);
    read_all(&mut caching, KEYS);
    // The server still prepares memory for more writes: until a round of reads has seen it do nothing.
    let mut rounds = 0;
    loop {
        let before = server.cpu_ticks();
        read_all(&mut plain, KEYS);
        rounds += 1;
        if server.cpu_ticks() == before {
            break;
        }
        assert!(rounds < 50, "the server never comes to rest");
    }
    let (before, kernel_before, since) = (server.thread_ticks(), soft_interrupt_ticks(), Instant::now());
    let mut reads = 0;
    while reads < READS {
        // One by one as many as in batches, so that it takes no minutes where the processor is emulated.
        read_all(&mut plain, KEYS / 10);
        read_all(&mut caching, KEYS / 10);
        reads += 4 * (KEYS / 10);
        for session in [&mut plain, &mut caching] {
            read_batch(session);
            reads += KEYS + 20;
        }
    }
    let (after, kernel_after) = (server.thread_ticks(), soft_interrupt_ticks());
    println!(
        "{reads} GETs in {:?}: clock ticks of the server's threads before {before:?} and after {after:?}; of the kernel \
         in soft interrupts, which is where Soft-RoCE works, {} on the whole machine",
        since.elapsed(),
        kernel_after - kernel_before
    );
    assert_eq!(before, after, "clock ticks of the server's threads");
    let stats = client.stats().unwrap();
    assert_eq!(stats.server("get_ok").unwrap_or(0) + stats.server("tcp_get_ok").unwrap_or(0), 0);
    assert_eq!(stats.client("rdma_asks_server"), Some(0));
}
