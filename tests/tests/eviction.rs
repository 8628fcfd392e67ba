//! A server that evicts, under writers and one-sided readers, killed and started again.

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::process::Signal;
use sidestep_client::{Client, Options, Path, PathMode, Session};
use sidestep_tests::certificates::Authority;
use sidestep_tests::hot::Load;
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

const LOAD: Load = Load { hot: 1000, written: 200_000, between: 500, reads: 8, value_bytes: 100 };
const EVICTING: [&str; 4] = ["--memory", "16MiB", "--evict", "clock"];

fn session(server: &ServerProcess, options: Options, path: Path) -> Session {
    Client::connect(server.address(), options.path(PathMode::Require(path))).expect("a client").session().expect("one")
}

/// Reads by `shm` are told to the server. With `report-forgotten.patch` or `touch-forgotten.patch` next to none of the
/// keys that are read is there in the end.
#[test]
fn what_only_shm_reads_stays() {
    let authority = Authority::new();
    let certificate = authority.server();
    let [cert, key] = [&certificate.cert, &certificate.key].map(|file| file.to_str().expect("a path in UTF-8"));
    for tls in [false, true] {
        let more: &[&str] = if tls { &["--tls-cert", cert, "--tls-key", key] } else { &[] };
        let server = ServerProcess::start("127.0.0.1:0", &[&EVICTING, more].concat());
        let options = || if tls { Options::default().tls(authority.tls()) } else { Options::default() };
        let mut reader = session(&server, options(), Path::Shm);
        let kept = LOAD.run(&mut reader, &mut session(&server, options(), Path::Tcp));
        let stats = reader.stats().expect("stats");
        let (found, reported) = (stats.client("shm_get_found").unwrap(), stats.client("uses_reported").unwrap());
        println!("{kept:?} of {}, {reported} of {found} reads reported", LOAD.hot);
        assert!(kept.hot >= LOAD.hot / 2 && kept.cold <= LOAD.hot / 10, "{kept:?}");
        assert!(found > 1_000_000 && stats.server("uses_reported") == Some(reported) && reported < found / 16);
        assert_eq!(stats.server("tcp_get_ok"), Some(kept.hot + kept.cold), "nothing else was read by the server");
    }
}

/// Reports that cannot be sent, or are not answered, hold up no read.
#[test]
fn reads_go_on_beside_a_stopped_server_that_is_to_be_told_of_them() {
    let server = ServerProcess::start("127.0.0.1:0", &EVICTING);
    let mut reader = session(&server, Options::default(), Path::Shm);
    let keys: Vec<[u8; 8]> = (0..1000_u64).map(u64::to_le_bytes).collect();
    let pairs: Vec<([u8; 8], [u8; 8])> = keys.iter().map(|key| (*key, *key)).collect();
    assert!(reader.multi_put(&pairs).expect("right lengths").iter().all(Result::is_ok));
    server.signal(Signal::STOP);
    let before = server.idle_ticks();
    for _ in 0..200 {
        for key in &keys {
            assert_eq!(reader.get(key).expect("a get").as_deref(), Some(&key[..]));
        }
    }
    assert_eq!(server.idle_ticks(), before);
    server.signal(Signal::CONT);
    reader.ping().expect("it goes on");
    let stats = reader.stats().expect("stats");
    assert!(stats.server("uses_reported").is_some_and(|told| told >= 512), "{:?}", stats.server);
    assert_eq!(stats.client("connections_lost"), Some(0));
}
