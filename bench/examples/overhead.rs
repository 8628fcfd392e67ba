//! What the bench itself costs: a bare loop of reads beside the same reads driven by the bench, on the `local` ceiling
//! or, with the address of a server, on its path `shm`. The server is loaded first.
//!
//! `cargo run --release -p sidestep-bench --example overhead [ADDR]`

use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

use sidestep_bench::driver::{Arrivals, Drive, Plan, load, run};
use sidestep_bench::statistics::{Interval, median};
use sidestep_bench::target::{Local, ServerAddress, Sidestep, Target};
use sidestep_bench::workload::{Requests, Workload};

/// Rounds, interleaved: the cost of a cache miss on a shared machine changes from second to second.
const ROUNDS: usize = 11;
/// Reads of a bare round.
const READS: u32 = 2_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    let workload = Workload::preset("kv64")?;
    let target: Box<dyn Target> = match std::env::args().nth(1) {
        None => Box::new(Local::new(workload.records)),
        Some(address) => Box::new(Sidestep::connect(&ServerAddress { address, ..ServerAddress::default() }, "shm")?),
    };
    load(target.as_ref(), &workload, 0..workload.records, 1, &|_| ())?;
    let plan = Plan {
        drive: Drive::calls(1),
        warm_up: Duration::from_millis(100),
        measure: Duration::from_secs(1),
        operations: None,
        rate: None,
        arrivals: Arrivals::Poisson,
        seed: 1,
        companion: None,
    };
    let (mut bare, mut driven) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let mut requests = Requests::new(&workload, round as u64, 0, 1, 1);
        let mut connection = target.connect(1)?;
        let mut value = Vec::new();
        let start = Instant::now();
        for _ in 0..READS {
            black_box(connection.read(requests.next_request().key, &mut value)?);
        }
        bare.push(start.elapsed().as_nanos() as f64 / f64::from(READS));
        driven.push(1e9 / run(target.as_ref(), &workload, &Plan { seed: round as u64, ..plan })?.tally.rate);
    }
    for (name, times) in [("bare loop", &bare), ("driven, every value verified", &driven)] {
        if let Some(Interval { median, low, high }) = Interval::of(times) {
            println!("{}, {name}: {median:.0} ns per get ({low:.0} to {high:.0})", target.name());
        }
    }
    // Pairs of one round: what changes from second to second hits both.
    let ratios: Vec<f64> = bare.iter().zip(&driven).map(|(bare, driven)| driven / bare).collect();
    if let Some(ratio) = median(&ratios) {
        println!("driving and verifying: {:+.1} % (median of {ROUNDS} pairs)", (ratio - 1.0) * 100.0);
    }
    Ok(())
}
