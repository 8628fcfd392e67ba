//! What `sidestep-server check` prints.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::ExitCode;

use sidestep_server::store::{CheckReport, Loss, LossReason, SalvageReport};
use sidestep_server::{Checked, Repair};

use crate::exit;

/// Keys that were not kept are listed up to this many.
const LISTED: usize = 100;

/// Prints the report. Returns the exit code.
pub(crate) fn print(report: &CheckReport) -> ExitCode {
    let mut text = Vec::new();
    say(write_report(&mut text, report).map(|()| text));
    if report.is_sound() { ExitCode::SUCCESS } else { ExitCode::from(exit::DAMAGED) }
}

/// The same, and what a repair did.
pub(crate) fn print_repair(checked: &Checked) -> ExitCode {
    let mut text = Vec::new();
    let written = write_report(&mut text, &checked.report).and_then(|()| match &checked.repair {
        None => writeln!(text, "nothing to repair"),
        Some(repair) => write_repair(&mut text, repair),
    });
    say(written.map(|()| text));
    if checked.repair.is_none() { ExitCode::SUCCESS } else { ExitCode::from(exit::DAMAGED) }
}

/// Whoever reads it may have seen enough and gone, as `head` does: what was found and done is so all the same.
fn say(text: io::Result<Vec<u8>>) {
    match text.and_then(|text| io::stdout().write_all(&text)) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            eprintln!("sidestep-server: cannot print the report: {error}");
        }
        _ => {}
    }
}

fn write_report(out: &mut Vec<u8>, report: &CheckReport) -> io::Result<()> {
    writeln!(out, "table {:#018x}, directory depth {}", report.table_id, report.directory_depth)?;
    writeln!(out, "keys {}, payload {} bytes, subtables {}", report.keys, report.payload_bytes, report.subtables)?;
    writeln!(out, "to be finished by a recovery: splits {}, writes {}", report.open_splits, report.open_writes)?;
    writeln!(out, "problems {}", report.problem_count)?;
    report.problems.iter().try_for_each(|problem| writeln!(out, "  {problem}"))
}

fn write_repair(out: &mut Vec<u8>, Repair { report, damaged, had_log }: &Repair) -> io::Result<()> {
    writeln!(out, "repaired: kept {} keys, payload {} bytes", report.keys, report.payload_bytes)?;
    write_details(out, report)?;
    write_losses(out, &report.losses)?;
    if let Some(damaged) = damaged {
        writeln!(out, "the damaged table is {}", damaged.display())?;
    }
    if *had_log {
        writeln!(
            out,
            "the table has a log, which may have all of it: to take that instead, move the table away and start with \
             --durable; to go on with this table, give it an empty folder as its log"
        )?;
    }
    Ok(())
}

fn write_details(out: &mut Vec<u8>, report: &SalvageReport) -> io::Result<()> {
    let counts = [
        (report.keys_without_slot, "keys of these to which no slot led any more"),
        (report.older_values, "older values of keys that were there twice, not kept"),
        (report.expired, "items that had expired, not kept"),
        (report.made_good, "slots without an item, whose keys were found elsewhere"),
        (report.index_problems, "directories, directory entries and subtables that made no sense"),
    ];
    for (count, what) in counts {
        if count > 0 {
            writeln!(out, "  {count} {what}")?;
        }
    }
    if report.ceiling_is_wrong {
        writeln!(out, "  the version ceiling in the root was wrong")?;
    }
    writeln!(out, "  new versions are above {}", report.version_floor)
}

fn write_losses(out: &mut Vec<u8>, losses: &[Loss]) -> io::Result<()> {
    writeln!(out, "not kept: {}", losses.len())?;
    let mut counts = BTreeMap::<LossReason, u64>::new();
    for loss in losses {
        *counts.entry(loss.reason).or_default() += 1;
    }
    for (reason, count) in counts {
        writeln!(out, "  {count}: {reason}")?;
    }
    let mut keys: Vec<&[u8]> = losses.iter().filter_map(|loss| loss.key.as_deref()).collect();
    keys.sort_unstable();
    keys.dedup();
    writeln!(out, "keys of these, as far as they can be told: {}", keys.len())?;
    for key in keys.iter().take(LISTED) {
        writeln!(out, "  {}", key.escape_ascii())?;
    }
    if keys.len() > LISTED {
        writeln!(out, "  and {} more", keys.len() - LISTED)?;
    }
    Ok(())
}
