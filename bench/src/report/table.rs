//! The terminal table.

use comfy_table::presets::NOTHING;
use comfy_table::{Cell, CellAlignment, Table};

use super::times::{self, Times, times};
use super::{Report, Row};
use crate::statistics::Interval;

pub(crate) const COLUMNS: [&str; 12] = [
    "path",
    "ops/s",
    "p50 µs",
    "p99 µs",
    "server CPU µs/op",
    "client CPU µs/op",
    "served by",
    "retries",
    "fallbacks",
    "reconnects",
    "wire B/op",
    "× local",
];
/// Those of a figure, without the last one.
pub(crate) const OF_FIGURES: usize = COLUMNS.len() - 1;

/// The report for a terminal: workload, table, what to know about it, environment.
#[must_use]
pub fn table(report: &Report) -> String {
    let mut table = Table::new();
    table.load_preset(NOTHING);
    table.set_header(COLUMNS);
    for row in report.rows.iter().filter(|row| row.not_available.is_none()) {
        table.add_row(cells(row));
    }
    align(&mut table, &[0, 6]);
    let mut lines = Vec::new();
    if report.partial {
        lines.push("PARTIAL: interrupted before all repetitions were done".to_owned());
    }
    lines.extend(report.environment.stamp.iter().map(|stamp| stamp.to_uppercase()));
    lines.push(format!("workload {}", report.workload.describe()));
    lines.push(report.describe_plan());
    lines.push(String::new());
    lines.extend(table.lines().map(|line| line.trim_end().to_owned()));
    lines.extend(not_available(report));
    lines.push(String::new());
    lines.extend(all_times(report).lines().map(|line| line.trim_end().to_owned()));
    lines.push(String::new());
    lines.push(super::reading(report));
    lines.extend(notes(report));
    lines.push(String::new());
    lines.extend(report.environment.lines().into_iter().map(|(name, text)| format!("{name}: {text}")));
    lines.join("\n") + "\n"
}

fn align(table: &mut Table, to_the_left: &[usize]) {
    for (index, column) in table.column_iter_mut().enumerate() {
        let is_left = to_the_left.contains(&index);
        column.set_cell_alignment(if is_left { CellAlignment::Left } else { CellAlignment::Right });
    }
}

/// The second table: every time of every row.
fn all_times(report: &Report) -> Table {
    let mut table = Table::new();
    table.load_preset(NOTHING);
    table.set_header([&["path", "time, µs"][..], &times::COLUMNS].concat());
    for Times { path, kind, cells } in times(report) {
        table.add_row([path, kind.to_owned()].into_iter().chain(cells));
    }
    align(&mut table, &[0, 1]);
    table
}

/// One line for each path that cannot run, under the column of the paths.
fn not_available(report: &Report) -> impl Iterator<Item = String> {
    let rows = report.rows.iter().filter_map(|row| Some((row.name(), row.not_available.as_ref()?)));
    rows.map(|(name, reason)| format!(" {name}  not available: {reason}"))
}

/// A row's cells.
pub(crate) fn cells(row: &Row) -> Vec<Cell> {
    let Some(measured) = &row.measured else {
        return vec![Cell::new(row.name()), Cell::new("not measured")];
    };
    let microseconds = |ns: u64| significant(ns as f64 / 1e3);
    let latency = measured.response.unwrap_or(measured.latency);
    vec![
        Cell::new(row.name()),
        Cell::new(rate(measured.ops_per_s)),
        Cell::new(microseconds(latency.p50_ns)),
        Cell::new(microseconds(latency.p99_ns)),
        Cell::new(measured.server_cpu_us_per_op.map_or("-".into(), |cpu| significant(cpu.median))),
        Cell::new(significant(measured.client_cpu_us_per_op.median)),
        Cell::new(measured.served_by()),
        Cell::new(grouped(measured.retries as f64)),
        Cell::new(grouped(measured.fallbacks as f64)),
        Cell::new(grouped(measured.reconnects as f64)),
        Cell::new(significant(measured.wire_bytes_per_op)),
        Cell::new(measured.rate_to_local.map_or(String::new(), |ratio| format!("{ratio:.2}"))),
    ]
}

/// Median and half the width of its interval, in per cent.
fn rate(interval: Interval) -> String {
    let half = (interval.high - interval.low) / 2.0 / interval.median.max(f64::MIN_POSITIVE) * 100.0;
    format!("{} ±{half:.0}%", grouped(interval.median))
}

/// A whole number with thin groups of three: 1,234,567.
#[must_use]
pub fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Three significant digits, without an exponent.
#[must_use]
pub fn significant(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        small if small < 1.0 => format!("{value:.3}"),
        small if small < 10.0 => format!("{value:.2}"),
        small if small < 100.0 => format!("{value:.1}"),
        _ => grouped(value),
    }
}

fn notes(report: &Report) -> Vec<String> {
    let measured = || report.rows.iter().filter_map(|row| Some((row.name(), row.measured.as_ref()?)));
    let mut notes = Vec::new();
    let dropped: usize = measured().map(|(_, row)| row.dropped).sum();
    if dropped > 0 {
        notes.push(format!("{dropped} runs were dropped and repeated: others used the machine"));
    }
    let kept = || measured().flat_map(|(_, row)| &row.runs);
    let disturbed = kept().filter(|run| run.disturbed).count();
    if disturbed > 0 {
        notes.push(format!("DISTURBED: in {disturbed} of the {} runs kept others used the machine", kept().count()));
    }
    for (name, row) in measured() {
        if let Some(asked) = report.plan.rate
            && row.ops_per_s.median < 0.99 * asked
        {
            notes.push(format!("{name}: OVERLOADED: {} of {asked} operations/s", grouped(row.ops_per_s.median)));
        }
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::super::samples::report;
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!(grouped(1_234_567.4), "1,234,567");
        assert_eq!(grouped(999.0), "999");
        assert_eq!(significant(0.0), "0");
        assert_eq!(significant(0.1234), "0.123");
        assert_eq!(significant(54.32), "54.3");
        assert_eq!(significant(5432.1), "5,432");
    }

    #[test]
    fn the_table_has_the_columns_and_the_reasons() {
        let text = table(&report());
        let header = text.lines().find(|line| line.contains("ops/s") && line.contains("path")).expect("a header");
        let mut from = 0;
        for column in COLUMNS {
            from += header[from..].find(column).unwrap_or_else(|| panic!("{column} in {header}"));
        }
        let times = text.lines().find(|line| line.contains("p99.99")).expect("a header of times");
        assert!(["mean", "min", "p90", "p99.9", "max"].iter().all(|column| times.contains(column)), "{times}");
        assert_eq!(text.lines().filter(|line| line.contains(" service ")).count(), 4, "{text}");
        assert!(text.contains("rdma  not available: no verbs device"), "{text}");
        assert!(text.contains("shm, batches of 64"), "{text}");
        assert!(text.contains("CPU: "), "{text}");
    }
}
