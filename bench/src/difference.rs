//! Two reports of the same workload side by side: what changed, by how much, and whether that is more than noise.

use std::collections::BTreeMap;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use serde::Deserialize;
use serde_json::Value;

use crate::driver::Drive;
use crate::error::BenchError;
use crate::report::{RunLine, SCHEMA, row_name, significant};
use crate::statistics::Change;

/// What is read of a report's JSON form.
#[derive(Debug, Deserialize)]
pub struct Saved {
    schema: String,
    environment: BTreeMap<String, Value>,
    workload: Value,
    plan: Value,
    rows: Vec<SavedRow>,
    partial: bool,
}

#[derive(Debug, Deserialize)]
struct SavedRow {
    path: String,
    drive: Option<Drive>,
    measured: Option<SavedMeasurement>,
}

#[derive(Debug, Deserialize)]
struct SavedMeasurement {
    runs: Vec<RunLine>,
}

/// What is compared: a name, and its value in one repetition, if it has one there.
type Measure = (&'static str, fn(&RunLine) -> Option<f64>);

const MEASURES: [Measure; 5] = [
    ("ops/s", |run| Some(run.ops_per_s)),
    ("p50 µs", |run| Some(run.p50_ns as f64 / 1e3)),
    ("p99 µs", |run| Some(run.p99_ns as f64 / 1e3)),
    ("server CPU µs/op", RunLine::server_cpu_us_per_op),
    ("client CPU µs/op", |run| Some(run.client_cpu_us_per_op())),
];

impl Saved {
    /// From the text of a file that `--json` wrote; `name` is what to call it when it is none.
    ///
    /// # Errors
    /// It is not a report of this version of the schema.
    pub fn parse(name: &str, text: &str) -> Result<Self, BenchError> {
        let usage = |reason: String| BenchError::Usage(format!("{name}: {reason}"));
        let saved: Self = serde_json::from_str(text).map_err(|error| usage(format!("not a report: {error}")))?;
        if saved.schema != SCHEMA {
            return Err(usage(format!("expected schema {SCHEMA}, found {}", saved.schema)));
        }
        Ok(saved)
    }

    fn name(row: &SavedRow) -> String {
        row_name(&row.path, row.drive)
    }
}

/// The table of what changed from `before` to `after`, and what to know about it.
///
/// # Errors
/// The reports are of different workloads or plans: their numbers mean different things.
pub fn difference(before: &Saved, after: &Saved) -> Result<String, BenchError> {
    for (what, one, other) in [
        ("workload", &before.workload, &after.workload),
        ("load", &before.plan["rate"], &after.plan["rate"]),
        ("arrivals", &before.plan["arrivals"], &after.plan["arrivals"]),
    ] {
        if one != other {
            return Err(BenchError::Usage(format!("the reports differ in their {what}: {one} and {other}")));
        }
    }
    let mut table = Table::new();
    table.load_preset(NOTHING);
    table.set_header(["path", "measure", "before", "after", "change"]);
    let mut lines = Vec::new();
    for row in &before.rows {
        let name = Saved::name(row);
        let other = after.rows.iter().find(|other| Saved::name(other) == name);
        let (Some(one), Some(other)) = (&row.measured, other.and_then(|row| row.measured.as_ref())) else {
            if row.measured.is_some() {
                lines.push(format!("{name}: measured in the first report alone"));
            }
            continue;
        };
        for (measure, of) in MEASURES {
            let values = |runs: &[RunLine]| runs.iter().filter_map(of).collect::<Vec<f64>>();
            if let Some(change) = Change::between(&values(&one.runs), &values(&other.runs)) {
                let (before, after) = (significant(change.before), significant(change.after));
                table.add_row([name.as_str(), measure, &before, &after, &described(&change)]);
            }
        }
    }
    let measured_before = |name: &str| before.rows.iter().any(|row| row.measured.is_some() && Saved::name(row) == name);
    let new = after.rows.iter().filter(|row| row.measured.is_some()).map(Saved::name);
    lines.extend(new.filter(|name| !measured_before(name)).map(|name| format!("{name}: measured in the second alone")));
    for index in [2, 3] {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut text: String = table.lines().map(|line| format!("{}\n", line.trim_end())).collect();
    lines.extend(notes(before, after));
    text.extend(lines.into_iter().map(|line| format!("{line}\n")));
    Ok(text)
}

fn described(change: &Change) -> String {
    let percent = |ratio: f64| format!("{:+.1} %", (ratio - 1.0) * 100.0);
    match change.ratio {
        None if change.before == change.after => "none".into(),
        None => "from or to nothing: no ratio".into(),
        Some(_) if change.too_few => "too few repetitions to tell (at least 4 of each)".into(),
        Some(ratio) if ratio.low <= 1.0 && 1.0 <= ratio.high => {
            format!("no difference beyond noise ({} to {})", percent(ratio.low), percent(ratio.high))
        }
        Some(ratio) => {
            format!("{} ({} to {})", percent(ratio.median), percent(ratio.low), percent(ratio.high))
        }
    }
}

/// What may explain a change that is not one of the software.
fn notes(before: &Saved, after: &Saved) -> Vec<String> {
    let mut notes = vec!["change of the median and its 95 % interval (bootstrap of the repetitions)".to_owned()];
    for (name, one) in &before.environment {
        let said_anyway = ["started_at_s", "clock_ns", "command", "stores"].contains(&name.as_str());
        let other = after.environment.get(name).unwrap_or(&Value::Null);
        if !said_anyway && one != other {
            notes.push(format!("the environments differ: {name}: {one}, then {other}"));
        }
    }
    for (which, report) in [("first", before), ("second", after)] {
        let runs = || report.rows.iter().filter_map(|row| row.measured.as_ref()).flat_map(|row| &row.runs);
        let disturbed = runs().filter(|run| run.disturbed).count();
        if disturbed > 0 {
            notes.push(format!("DISTURBED: {disturbed} of the {} runs of the {which} report", runs().count()));
        }
        if report.partial {
            notes.push(format!("PARTIAL: the {which} report was cut short"));
        }
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Arrivals;
    use crate::report::PlanLine;
    use crate::report::samples::{measurement, report};

    fn saved(report: &crate::report::Report) -> Saved {
        Saved::parse("r.json", &report.json().expect("JSON")).expect("parsed")
    }

    fn line<'t>(text: &'t str, row: &str, measure: &str) -> &'t str {
        text.lines().find(|line| line.trim_start().starts_with(row) && line.contains(measure)).expect("a line")
    }

    #[test]
    fn a_report_does_not_differ_from_itself() {
        let text = difference(&saved(&report()), &saved(&report())).expect("the same workload");
        assert!(text.contains("no difference beyond noise"), "{text}");
        let changed = text.lines().filter(|line| line.contains('%') && !line.contains("noise")).count();
        assert_eq!(changed, 1, "the note alone: {text}");
        assert!(line(&text, "shm", "server CPU").contains("none"), "{text}");
    }

    #[test]
    fn a_change_is_told() {
        let mut after = report();
        after.rows[1].measured = Some(measurement(8e6, Some(0.0)));
        after.rows.remove(3);
        let text = difference(&saved(&report()), &saved(&after)).expect("the same workload");
        assert!(line(&text, "shm", "ops/s").contains("+100.0 %"), "{text}");
        assert!(text.contains("tcp, 64 connections × 16: measured in the first report alone"), "{text}");
    }

    #[test]
    fn what_cannot_be_compared_is_refused() {
        let mut other = report();
        other.workload.value_bytes = 100;
        assert!(difference(&saved(&report()), &saved(&other)).is_err());
        let mut open = report();
        open.plan.rate = Some(1000.0);
        assert!(difference(&saved(&report()), &saved(&open)).is_err());
        open.plan.arrivals = Some(Arrivals::Poisson);
        let fixed = PlanLine { arrivals: Some(Arrivals::Fixed), ..open.plan.clone() };
        let fixed = crate::report::Report { plan: fixed, ..open.clone() };
        assert!(difference(&saved(&open), &saved(&open)).is_ok());
        assert!(difference(&saved(&open), &saved(&fixed)).is_err());
        assert!(Saved::parse("x", "{}").is_err());
        let old = report().json().expect("JSON").replace(SCHEMA, "sidestep-bench/compare/0");
        assert!(Saved::parse("x", &old).expect_err("another version").to_string().contains("compare/0"));
    }
}
