//! A server that evicts, under writers and one-sided readers, killed and started again.

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sidestep_client::{Client, Options, Path, PathMode};
use sidestep_tests::process::{ServerProcess, program, tmpfs_folder};

/// A value that says whose it is, of a length of its own.
fn value(key: u64) -> Vec<u8> {
    let length = [40, 300, 2000][key as usize % 3] + key as usize % 50;
    key.to_le_bytes().into_iter().cycle().take(length).collect()
}

fn connect(server: &ServerProcess, mode: PathMode) -> Client {
    Client::connect(server.address(), Options::default().path(mode)).expect("a client")
}

/// Writes keys from `first` on beside readers on both paths, who must never see another key's value.
fn fill(server: &ServerProcess, first: u64, count: u64) {
    let (written, done, hits) = (AtomicU64::new(first), AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for path in [Path::Shm, Path::Tcp] {
            let client = connect(server, PathMode::Require(path));
            let (written, done, hits) = (&written, &done, &hits);
            scope.spawn(move || {
                let mut random = 1_u64;
                while !done.load(Ordering::Relaxed) {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let key = random % written.load(Ordering::Relaxed).max(1);
                    if let Some(found) = client.get(key.to_le_bytes()).expect("a get") {
                        assert_eq!(&*found, value(key), "key {key} by {path}");
                        hits.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let client = connect(server, PathMode::Auto);
        for key in first..first + count {
            client.put(key.to_le_bytes(), value(key)).unwrap_or_else(|error| panic!("key {key}: {error}"));
            written.store(key + 1, Ordering::Relaxed);
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(hits.load(Ordering::Relaxed) > 0, "nobody found anything");
}

#[test]
fn a_server_that_evicts_never_refuses_nor_mixes_up_and_survives_a_kill() {
    const KEYS: u64 = 60_000;
    let folder = tmpfs_folder();
    let data = folder.path().to_str().expect("a path in UTF-8");
    let args = ["--data", data, "--memory", "16MiB", "--evict", "clock"];
    let mut server = ServerProcess::start("127.0.0.1:0", &args);
    fill(&server, 0, KEYS);
    let stats = connect(&server, PathMode::Auto).stats().expect("stats");
    let stat = |name: &str| stats.server.iter().find(|stat| stat.0 == name).expect("a counter").1;
    assert!(stat("evicted") > KEYS / 4, "{:?}", stats.server);
    assert_eq!((stat("keys") + stat("evicted"), stat("writes_refused_full")), (KEYS, 0));

    server.kill();
    let checked = Command::new(program("sidestep-server")).args(["check", data]).output().expect("it runs");
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
    let server = ServerProcess::start("127.0.0.1:0", &args);
    let client = connect(&server, PathMode::Auto);
    let found = (0..KEYS).filter(|key| {
        let found = client.get(key.to_le_bytes()).expect("a get");
        found.is_some_and(|found| {
            assert_eq!(&*found, value(*key));
            true
        })
    });
    let keys = stat("keys");
    assert_eq!(found.count() as u64, keys, "what was there before the kill is there after it");
    fill(&server, KEYS, KEYS / 3);
}
