//! A long run of everything at once: real processes on mixed paths, killed, stopped and started again, over tables that
//! split, fill up, expire and evict; and a check of all that was seen.
//!
//! A run is a sequence of tables, by turns without and with eviction, without and with a log; a table lives for some rounds, a
//! round for some seconds. In a round clients read and write and keep journals, while the events of a deck that was shuffled come one
//! after the other. At its end the clients are asked to stop, every key is read once by every path, and the history is
//! checked for linearizability; then every extent must be a key's, and what earlier rounds left is read again. At the
//! end of a table its file must be sound.

mod audit;
mod clients;
mod deck;
mod filler;
mod round;
mod server;
mod tally;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::linearizability::client::Via;
use crate::process::tmpfs_folder;
use audit::Audit;
use server::Supervised;
pub use tally::Tally;

/// Rounds that a table lives for.
const ROUNDS: u32 = 4;

/// What to do.
#[derive(Clone, Debug)]
pub struct Settings {
    /// For how long.
    pub length: Duration,
    /// Of one round.
    pub round: Duration,
    /// Decides what is asked for and what happens, not when exactly.
    pub seed: u64,
    /// How the sessions of each client process read.
    pub sessions: Vec<Via>,
    /// Where the journals of a round that fails are kept.
    pub keep: PathBuf,
}

/// Runs to the end, or to the first fault. At least one table of each kind is finished.
///
/// # Errors
/// What does not hold, and where the history is.
pub fn run(settings: &Settings) -> Result<Tally, String> {
    let mut tally = Tally::default();
    let begun = Instant::now();
    for number in 0.. {
        let left = settings.length.saturating_sub(begun.elapsed());
        if number >= 2 && left < settings.round * 2 {
            break;
        }
        // The first two share what there is, if it is little.
        let most = if number < 2 { settings.length / 2 } else { left };
        let rounds = ((most.as_secs_f64() / (settings.round.as_secs_f64() * 1.3)) as u32).clamp(2, ROUNDS);
        one_table(settings, number, rounds, &mut tally)?;
    }
    Ok(tally)
}

fn one_table(settings: &Settings, number: u32, rounds: u32, tally: &mut Tally) -> Result<(), String> {
    let may_evict = number % 2 == 1;
    // The first two are always met.
    let sync = [None, Some("interval"), Some("always"), None][number as usize % 4];
    let folder = tmpfs_folder();
    let mut random = Xoshiro256PlusPlus::seed_from_u64(settings.seed ^ u64::from(number) << 32);
    let mut server = Supervised::start(folder.path(), may_evict, sync);
    let mut audit = Audit::new(may_evict);
    for index in 0..rounds {
        let place = round::Place { table: number, index, folder: folder.path(), may_evict };
        round::play(settings, &place, &mut server, &mut audit, &mut random, tally)?;
        let (evicts, sync) = (if may_evict { "evicting" } else { "without eviction" }, sync.unwrap_or("no log"));
        println!("table {number}, {evicts}, {sync}, round {index}: {tally}");
    }
    tally.tables += 1;
    server.finish(tally)
}
