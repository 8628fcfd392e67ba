//! The store and the lookup machine under thousands of seeds.
//!
//! A failing seed is printed; `SIDESTEP_SIM_SEED=N cargo test -p sidestep-tests --test simulation` runs it
//! alone, `SIDESTEP_SIM_SEEDS=N` sets how many are run.

use sidestep_core::lookup::Trace;
use sidestep_tests::simulation::{Outcome, Plan, run};

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}: expected a number, found {text:?}")))
}

/// Runs a plan under every seed asked for; returns what all of them saw together.
fn under_seeds(kills: bool) -> Outcome {
    let seeds = match number("SIDESTEP_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SIDESTEP_SIM_SEEDS").unwrap_or(1000),
    };
    let mut all = Outcome::default();
    for seed in seeds {
        match run(Plan { seed, operations: 120, readers: 3, kills }) {
            Ok(outcome) => {
                all.reads += outcome.reads;
                all.hits += outcome.hits;
                all.kills += outcome.kills;
                all.splits += outcome.splits;
                all.trace += outcome.trace;
            }
            Err(failure) => panic!("SIDESTEP_SIM_SEED={seed}: {failure}"),
        }
    }
    println!("{all:?}");
    all
}

/// A run that meets nothing proves nothing.
fn met_everything(outcome: Outcome) {
    if number("SIDESTEP_SIM_SEED").is_some() {
        return;
    }
    let Trace { stale_directory, torn, hops, second_looks, stale_locations, .. } = outcome.trace;
    assert!(outcome.splits > 0 && stale_directory > 0, "{outcome:?}");
    assert!(torn > 0 && hops > 0 && second_looks > 0 && stale_locations > 0, "{outcome:?}");
    assert!(outcome.hits > 1000 && outcome.reads > 2 * outcome.hits / 2, "{outcome:?}");
}

#[test]
fn readers_between_any_two_stores() {
    met_everything(under_seeds(false));
}

#[test]
fn kills_at_any_store_and_recovery_under_readers() {
    let outcome = under_seeds(true);
    met_everything(outcome);
    assert!(outcome.kills > 0 || number("SIDESTEP_SIM_SEED").is_some(), "{outcome:?}");
}
