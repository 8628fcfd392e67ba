//! A short run of every target: good inputs and its corpus, and changed copies of these.
//!
//! `SIDESTEP_SEED=N` sets the changes.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use sidestep_fuzz::{TARGETS, Target, seeds};

/// Longest input.
const MOST_BYTES: usize = 8 << 10;

/// One at a time: memory is counted for the whole process.
static ONE: Mutex<()> = Mutex::new(());

/// Seeds, and the files of the corpus in the order of their names.
fn corpus(target: &Target) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    let files = files.into_iter().map(|file| std::fs::read(file).expect("a file"));
    seeds(target.name).into_iter().chain(files).collect()
}

fn run(name: &str) {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let target = Target::named(name).expect("its name");
    let corpus = corpus(&target);
    corpus.iter().for_each(|bytes| check(&target, bytes));
    let seed = std::env::var("SIDESTEP_SEED").map_or(1, |text| text.parse().expect("a number"));
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    for _ in 0..target.test_runs {
        check(&target, &changed(&corpus, &mut random));
    }
}

fn check(target: &Target, bytes: &[u8]) {
    let shown = Shown(target.name, bytes);
    target.check(bytes);
    std::mem::forget(shown);
}

/// Prints the bytes if it is dropped.
struct Shown<'b>(&'b str, &'b [u8]);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        println!("{} fails on b\"{}\"", self.0, self.1.escape_ascii());
    }
}

/// One of the corpus with some changes: bits, bytes, lengths, parts of others.
fn changed(corpus: &[Vec<u8>], random: &mut Xoshiro256PlusPlus) -> Vec<u8> {
    let any = |random: &mut Xoshiro256PlusPlus| &corpus[random.random_range(0..corpus.len())];
    let mut bytes = any(random).clone();
    for _ in 0..random.random_range(1..6) {
        let at = random.random_range(0..=bytes.len());
        let end = (at + random.random_range(0..16)).min(bytes.len());
        match random.random_range(0..8) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..end)),
            2 => drop(bytes.splice(at..at, (0..end - at).map(|_| 0xff).collect::<Vec<u8>>())),
            3 => {
                let other = any(random);
                let from = random.random_range(0..=other.len());
                let until = random.random_range(from..=other.len());
                drop(bytes.splice(at..end, other[from..until].iter().copied()));
            }
            4 => bytes[at..end].fill(random.random()),
            5 => bytes[at..end].iter_mut().for_each(|byte| *byte = random.random()),
            _ if at < bytes.len() => bytes[at] ^= 1 << random.random_range(0..8),
            _ => bytes.push(random.random()),
        }
    }
    bytes.truncate(MOST_BYTES);
    bytes
}

macro_rules! targets {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            run(stringify!($name));
        })*

        #[test]
        fn none_is_left_out() {
            let names = [$(stringify!($name)),*];
            assert!(TARGETS.iter().all(|target| names.contains(&target.name)));
        }
    };
}

targets! { handshake frames connection replies scan item http dump files properties log table }
