//! What a disk may have of the last commit when the machine goes down in it: each sector as before, as after, torn, or with
//! a flipped bit. Made of two copies of a live server's folder, before and after one write.

use std::path::{Path, PathBuf};

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use rustix::process::Signal;

use super::{Place, client, start, stat};

const SECTOR: usize = 512;
/// What the engine writes once and for all at the front of a file; its two commit slots, with their checksums, follow.
const FIXED_BYTES: usize = 64;

/// The files of a folder.
fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry"));
    entries.map(|entry| (entry.file_name().into(), std::fs::read(entry.path()).expect("a file"))).collect()
}

/// What the disk may have of a file between two syncs.
fn between(random: &mut impl Rng, before: &[u8], after: &[u8]) -> Vec<u8> {
    // The length is one of the two; what is new and was not written is zero.
    let length = if random.random_bool(0.8) { after.len() } else { before.len().min(after.len()) };
    let mut file = before.to_vec();
    file.resize(length, 0);
    let fate = random.random_range(0..5);
    for (number, sector) in after.chunks(SECTOR).enumerate() {
        let at = number * SECTOR;
        let end = (at + sector.len()).min(length);
        if at >= end || file[at..end] == sector[..end - at] {
            continue;
        }
        let this = if fate < 4 { fate } else { random.random_range(0..4) };
        match this {
            0 => {}
            1 => file[at..end].copy_from_slice(&sector[..end - at]),
            2 => {
                let torn = random.random_range(0..=end - at) & !7;
                file[at..at + torn].copy_from_slice(&sector[..torn]);
            }
            _ => {
                let old = file[at..end].to_vec();
                file[at..end].copy_from_slice(&sector[..end - at]);
                // Of the first sector, what has changed: its two commit slots are what the engine builds on.
                let can_flip = |byte: &usize| at > 0 || (*byte >= FIXED_BYTES && old[*byte] != sector[*byte]);
                let bytes: Vec<usize> = (0..end - at).filter(can_flip).collect();
                if let Some(byte) = bytes.choose(random) {
                    file[at + byte] ^= 1 << random.random_range(0..8);
                }
            }
        }
    }
    file
}

/// Nothing that was acknowledged is lost, nothing appears that was never written, and what was torn is counted. A failure is
/// repeated with `SIDESTEP_SEED` as printed.
#[test]
fn a_torn_last_commit_costs_that_commit_alone() {
    let seed = std::env::var("SIDESTEP_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("SIDESTEP_SEED={seed}");
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let place = Place::new();
    let server = place.start(&["--sync", "always"]);
    let writer = client(&server);
    let value = |key: usize| format!("{key} ").repeat(1 + 997 * key % 30_000);
    for key in 0..20 {
        writer.put(format!("{key}"), value(key)).expect("a put");
    }
    let before = files(&place.log());
    writer.put("0", value(2000)).expect("a put");
    server.signal(Signal::STOP);
    let after = files(&place.log());
    server.signal(Signal::CONT);
    assert_eq!(before.len(), after.len());
    let (mut old, mut new, mut torn) = (0, 0, 0);
    for round in 0..24 {
        let crashed = Place::new();
        std::fs::create_dir(crashed.log()).expect("a folder");
        for ((name, before), (_, after)) in before.iter().zip(&after) {
            // That the commit is synced is noted when it is, so not before the machine goes down in it.
            let after = if name == Path::new("tail") { before } else { after };
            std::fs::write(crashed.log().join(name), between(&mut random, before, after)).expect("a write");
        }
        let server = start(&crashed.log(), &["--sync", "always"]);
        let reader = client(&server);
        for key in 1..20 {
            let found = reader.get(format!("{key}")).expect("a get").expect("what was acknowledged");
            assert_eq!(found[..], *value(key).as_bytes(), "round {round}, key {key}");
        }
        let found = reader.get("0").expect("a get").expect("what was acknowledged");
        let is_old = found[..] == *value(0).as_bytes();
        assert!(is_old || found[..] == *value(2000).as_bytes(), "round {round}: neither before nor after");
        (old, new) = (old + u32::from(is_old), new + u32::from(!is_old));
        torn += u32::from(stat(&reader, "log_torn_commits") > 0);
        assert_eq!((stat(&reader, "keys"), stat(&reader, "log_lost_records")), (20, 0), "round {round}");
    }
    println!("{old} times as before, {new} as after, {torn} reported torn");
    assert!(old > 0 && torn > 0, "no commit was torn");
}
