//! What `sidestep-server check` prints.

use std::collections::BTreeMap;
use std::process::ExitCode;

use sidestep_server::store::{CheckReport, Loss, LossReason, SalvageReport};
use sidestep_server::{Checked, Repair};

use crate::exit;

/// Keys that were not kept are listed up to this many.
const LISTED: usize = 100;

/// The report; the exit code.
pub(crate) fn print(report: &CheckReport) -> ExitCode {
    let problems = report.problem_count;
    println!("table {:#018x}, directory depth {}", report.table_id, report.directory_depth);
    println!("keys {}, payload {} bytes, subtables {}", report.keys, report.payload_bytes, report.subtables);
    println!("to be finished by a recovery: splits {}, writes {}", report.open_splits, report.open_writes);
    println!("problems {problems}");
    for problem in &report.problems {
        println!("  {problem}");
    }
    if report.is_sound() { ExitCode::SUCCESS } else { ExitCode::from(exit::DAMAGED) }
}

/// The same, and what a repair did.
pub(crate) fn print_repair(checked: &Checked) -> ExitCode {
    print(&checked.report);
    let Some(Repair { report, damaged, had_log }) = &checked.repair else {
        println!("nothing to repair");
        return ExitCode::SUCCESS;
    };
    println!("repaired: kept {} keys, payload {} bytes", report.keys, report.payload_bytes);
    print_details(report);
    print_losses(&report.losses);
    if let Some(damaged) = damaged {
        println!("the damaged table is {}", damaged.display());
    }
    if *had_log {
        println!(
            "the table has a log, which may have all of it: to take that instead, move the table away and start with \
             --durable; to go on with this table, give it an empty folder as its log"
        );
    }
    ExitCode::from(exit::DAMAGED)
}

fn print_details(report: &SalvageReport) {
    let counts = [
        (report.keys_without_slot, "keys of these to which no slot led any more"),
        (report.older_values, "older values of keys that were there twice, not kept"),
        (report.expired, "items that had expired, not kept"),
        (report.made_good, "slots without an item, whose keys were found elsewhere"),
        (report.index_problems, "directories, directory entries and subtables that made no sense"),
    ];
    for (count, what) in counts {
        if count > 0 {
            println!("  {count} {what}");
        }
    }
    if report.ceiling_is_wrong {
        println!("  the version ceiling in the root was wrong");
    }
    println!("  new versions are above {}", report.version_floor);
}

fn print_losses(losses: &[Loss]) {
    println!("not kept: {}", losses.len());
    let mut counts = BTreeMap::<LossReason, u64>::new();
    for loss in losses {
        *counts.entry(loss.reason).or_default() += 1;
    }
    for (reason, count) in counts {
        println!("  {count}: {reason}");
    }
    let mut keys: Vec<&[u8]> = losses.iter().filter_map(|loss| loss.key.as_deref()).collect();
    keys.sort_unstable();
    keys.dedup();
    println!("keys of these, as far as they can be told: {}", keys.len());
    for key in keys.iter().take(LISTED) {
        println!("  {}", key.escape_ascii());
    }
    if keys.len() > LISTED {
        println!("  and {} more", keys.len() - LISTED);
    }
}
