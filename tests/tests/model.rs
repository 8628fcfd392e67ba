//! The exhaustive model: every scenario searched to its end, and every defence missed when it is taken away.
//!
//! A search prints what it came to. `SIDESTEP_MODEL_KILLS=N` sets how often a server is killed in a row,
//! `scripts/model` runs all with larger bounds.

use std::time::Instant;

use sidestep_tests::model::{Defence, Scenario, run, scenarios};

/// Searches a scenario with the protocol as it is.
fn holds(mut scenario: Scenario) {
    if let Ok(kills) = std::env::var("SIDESTEP_MODEL_KILLS") {
        scenario.set_kills(kills.parse().unwrap_or_else(|_| panic!("SIDESTEP_MODEL_KILLS={kills}: expected a number")));
    }
    let start = Instant::now();
    let report = run(&scenario, None).unwrap_or_else(|violation| panic!("{}: {violation}", scenario.name));
    println!("{}: {report} ({:.1} s)", scenario.name, start.elapsed().as_secs_f32());
    assert!(report.exhausted, "{}: the search was cut off", scenario.name);
    assert!(report.lookups > 0 && report.states > 0, "{}: nothing was searched", scenario.name);
}

/// Searches a scenario without a defence: there must be a violation, and it must be of this kind.
fn bites(without: Defence, scenario: &Scenario, kind: &str) {
    match run(scenario, Some(without)) {
        Ok(report) => panic!("{}: {without:?} is not missed ({report})", scenario.name),
        Err(violation) => {
            println!("{}: without {without:?}: {violation}", scenario.name);
            assert!(violation.contains(kind), "expected {kind:?}, found: {violation}");
        }
    }
}

macro_rules! holds {
    ($($name:ident)*) => {
        mod holds {
            $(#[test] fn $name() { super::holds(super::scenarios::$name()); })*
        }
    };
}

macro_rules! bites {
    ($($name:ident: $defence:ident, $scenario:ident, $kind:expr;)*) => {
        mod bites {
            $(#[test] fn $name() {
                super::bites(super::Defence::$defence, &super::scenarios::$scenario(), $kind);
            })*
        }
    };
}

holds! { updates reinserts collisions moves floors split rivals splits_meet sibling }

bites! {
    link_checksum: LinkChecksum, updates, "older than what was seen before";
    insert_born_dead: InsertBornDead, reinserts, "older than what was seen before";
    insert_slot_before_current: InsertSlotBeforeCurrent, reinserts, "older than what was seen before";
    pending_rule: PendingRule, updates, "older than what was seen before";
    pending_version: PendingVersion, updates, "older than what was seen before";
    forward_before_current: ForwardBeforeCurrent, updates, "older than what was seen before";
    dead_before_empty: DeadBeforeEmpty, reinserts, "older than what was seen before";
    depth_stamp: DepthStamp, split, "ended as Absent";
    root_after_deeper: RootAfterDeeper, split, "has to ask";
    second_look_at_window: SecondLookAtWindow, moves, "ended as Absent";
    second_look_at_items: SecondLookAtItems, moves, "ended as Absent";
    persisted_ceiling: PersistedCeiling, reinserts, "version";
    floor_inheritance: FloorInheritance, floors, "version";
    sibling_lock: SiblingLock, sibling, "expected one of";
    directory_lock_of_doubling: DirectoryLockOfDoubling, splits_meet, "has to ask";
    directory_lock_of_entries: DirectoryLockOfEntries, splits_meet, "has to ask";
}
