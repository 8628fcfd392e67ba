//! The store and the lookup machine under thousands of seeds.
//!
//! A failing seed is printed; `SIDESTEP_SIM_SEED=N cargo test -p sidestep-tests --test simulation` runs it
//! alone, `SIDESTEP_SIM_SEEDS=N` sets how many are run.

use std::panic::catch_unwind;

use sidestep_core::lookup::Trace;
use sidestep_tests::simulation::{Meeting, Outcome, Plan, meet, run};

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}: expected a number, found {text:?}")))
}

/// Runs a plan under every seed asked for; returns what all of them saw together. A table that is filled first takes its
/// time: then under one seed in eight.
fn under_seeds(kills: bool, evictions: bool) -> Outcome {
    let seeds = match number("SIDESTEP_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SIDESTEP_SIM_SEEDS").unwrap_or(1000) / if evictions { 8 } else { 1 },
    };
    let mut all = Outcome::default();
    for seed in seeds {
        let plan = Plan { seed, operations: 120, readers: 5, kills, evictions };
        // A server that panics is found as much as one that lies; its message is printed where it happens.
        let ended = catch_unwind(|| run(plan)).unwrap_or_else(|_| Err("a panic".to_owned()));
        match ended {
            Ok(outcome) => {
                all.reads += outcome.reads;
                all.hits += outcome.hits;
                all.kills += outcome.kills;
                all.splits += outcome.splits;
                all.evictions += outcome.evictions;
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
    assert!(stale_directory > 0, "{outcome:?}");
    assert!(torn > 0 && hops > 0 && second_looks > 0 && stale_locations > 0, "{outcome:?}");
    assert!(outcome.hits > 1000 && outcome.reads > outcome.hits, "{outcome:?}");
}

#[test]
fn readers_between_any_two_stores() {
    let outcome = under_seeds(false, false);
    met_everything(outcome);
    assert!(outcome.splits > 0 || number("SIDESTEP_SIM_SEED").is_some(), "{outcome:?}");
}

#[test]
fn kills_at_any_store_and_recovery_under_readers() {
    let outcome = under_seeds(true, false);
    met_everything(outcome);
    assert!(outcome.kills > 0 && outcome.splits > 0 || number("SIDESTEP_SIM_SEED").is_some(), "{outcome:?}");
}

#[test]
fn evictions_under_readers() {
    let outcome = under_seeds(false, true);
    met_everything(outcome);
    assert!(outcome.evictions > 100 || number("SIDESTEP_SIM_SEED").is_some(), "{outcome:?}");
}

#[test]
fn kills_at_any_store_of_evictions_under_readers() {
    let outcome = under_seeds(true, true);
    met_everything(outcome);
    assert!(outcome.evictions > 100 && outcome.kills > 0 || number("SIDESTEP_SIM_SEED").is_some(), "{outcome:?}");
}

#[test]
fn a_second_writer_beside_a_doubling() {
    // In between lies the rewriting of whole subtables, under no lock that both want.
    let tried =
        meet(Meeting::DoublingAndSplit, |point, _| point < 40 || point % 16 == 0).unwrap_or_else(|e| panic!("{e}"));
    assert!(tried > 40, "{tried}");
    meet(Meeting::SplitAndDoubling, |point, _| point % 8 == 0 || (505..560).contains(&point))
        .unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn an_insert_into_a_sibling_before_a_kill() {
    // The second waits for a lock nearly everywhere, so that each point takes its time.
    let tried = meet(Meeting::SplitAndSiblingKilled, |point, stores| point % 64 == 0 || point + 24 > stores)
        .unwrap_or_else(|e| panic!("{e}"));
    assert!(tried > 24, "{tried}");
}
