//! What came of a comparison, and its forms: terminal table, JSON, CSV, one HTML page.

pub(crate) mod chart;
pub(crate) mod csv;
mod hdr;
mod html;
mod measurement;
pub(crate) mod plot;
mod reading;
pub(crate) mod table;
mod times;

use serde::Serialize;

pub use csv::csv;
pub use hdr::hdr;
pub use html::{html, svg};
pub use measurement::{Gathering, Latency, Measurement, RunLine};
pub use reading::reading;
pub use table::{grouped, significant, table};

use crate::driver::{Arrivals, Drive};
use crate::environment::Environment;
use crate::interleave::Schedule;
use crate::workload::Workload;

/// Name and version of the JSON form.
pub const SCHEMA: &str = "sidestep-bench/compare/1";

/// A row: a path in one way of driving it, measured, or why not.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// `shm`, `tcp`, `local`, `memcached` …
    pub path: String,
    /// How it was driven; none if it was not.
    pub drive: Option<Drive>,
    /// The result.
    pub measured: Option<Measurement>,
    /// Why there is none.
    pub not_available: Option<String>,
}

impl Row {
    /// A path that cannot run here.
    #[must_use]
    pub fn not_available(path: &str, reason: impl Into<String>) -> Self {
        Self { path: path.to_owned(), drive: None, measured: None, not_available: Some(reason.into()) }
    }

    /// What the column "path" says.
    #[must_use]
    pub fn name(&self) -> String {
        row_name(&self.path, self.drive)
    }
}

/// A path and what makes its drive differ from one thread that calls.
#[must_use]
pub(crate) fn row_name(path: &str, drive: Option<Drive>) -> String {
    match drive.map(Drive::label) {
        Some(label) if !label.is_empty() => format!("{path}, {label}"),
        _ => path.to_owned(),
    }
}

/// A comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// Where it was measured.
    pub environment: Environment,
    /// What was asked.
    pub workload: Workload,
    /// Seconds of warm-up and of measuring, and repetitions asked for.
    pub plan: PlanLine,
    /// The rows.
    pub rows: Vec<Row>,
    /// Whether it was cut short.
    pub partial: bool,
}

/// How it was measured.
#[derive(Clone, Debug, Serialize)]
pub struct PlanLine {
    /// Warm-up before each repetition.
    pub warm_up_s: f64,
    /// Measured part of each.
    pub measure_s: f64,
    /// Repetitions, interleaved.
    pub repetitions: usize,
    /// Operations per second asked of an open loop; none in a closed one.
    pub rate: Option<f64>,
    /// How those of an open loop lie in time; none in a closed one.
    pub arrivals: Option<Arrivals>,
    /// Seed of the requests.
    pub seed: u64,
    /// Agents that drove, each as the rows say; none: this process did.
    pub clients: Vec<String>,
}

impl PlanLine {
    /// Of a schedule, with the rate of an open loop.
    #[must_use]
    pub fn of(schedule: &Schedule, rate: Option<f64>) -> Self {
        Self {
            warm_up_s: schedule.warm_up.as_secs_f64(),
            measure_s: schedule.measure.as_secs_f64(),
            repetitions: schedule.repetitions,
            rate,
            arrivals: rate.map(|_| schedule.arrivals),
            seed: schedule.seed,
            clients: Vec::new(),
        }
    }
}

impl Report {
    /// Relates the paths in memory to `local`.
    pub fn relate_to_local(&mut self) {
        let local: Vec<(Drive, f64)> = self
            .rows
            .iter()
            .filter(|row| row.path == "local")
            .filter_map(|row| Some((row.drive?, row.measured.as_ref()?.ops_per_s.median)))
            .filter(|(drive, _)| drive.batch == 1)
            .collect();
        for row in self.rows.iter_mut().filter(|row| row.path == "local" || row.path == "shm") {
            let Some((drive, measured)) = row.drive.zip(row.measured.as_mut()) else { continue };
            let same = local.iter().find(|(other, _)| other.threads == drive.threads);
            measured.rate_to_local =
                same.filter(|(_, rate)| *rate > 0.0).map(|(_, rate)| measured.ops_per_s.median / rate);
        }
    }

    /// The rows that were measured.
    pub(crate) fn measured(&self) -> Vec<(&Row, &Measurement)> {
        self.rows.iter().filter_map(|row| Some((row, row.measured.as_ref()?))).collect()
    }

    /// One line on how it was measured.
    #[must_use]
    pub fn describe_plan(&self) -> String {
        let PlanLine { warm_up_s, measure_s, repetitions, rate, arrivals, seed, ref clients } = self.plan;
        let loop_kind = match rate {
            Some(rate) => format!("open loop at {rate} operations/s ({})", arrivals.unwrap_or_default()),
            None => "closed loop".into(),
        };
        let drivers = match clients.len() {
            0 => String::new(),
            count => format!("driven by {count} agents, each as the rows say ({}); ", clients.join(", ")),
        };
        format!(
            "{drivers}{loop_kind}; {repetitions} repetitions of {measure_s} s after {warm_up_s} s of warm-up, paths interleaved; \
             medians; every read verified; seed {seed}"
        )
    }

    /// The JSON form, as documented at the fields of this type.
    ///
    /// # Errors
    /// A number that JSON cannot hold.
    pub fn json(&self) -> Result<String, crate::error::BenchError> {
        serde_json::to_string_pretty(self)
            .map_err(|error| crate::error::BenchError::System { attempted: "write JSON", reason: error.to_string() })
    }
}

#[cfg(test)]
pub(crate) mod samples;

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::samples::report;

    const DOCUMENT: &str = include_str!("../../../docs/BENCHMARKS.md");

    /// Names of all fields, but not those of a map whose keys are what was measured.
    fn names(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    found.push(name.clone());
                    if name != "reads_served_by" {
                        names(value, found);
                    }
                }
            }
            Value::Array(values) => values.iter().for_each(|value| names(value, found)),
            _ => {}
        }
    }

    #[test]
    fn every_field_is_documented() {
        let mut report = report();
        if let Some(measured) = &mut report.rows[1].measured {
            (measured.wait, measured.response) = (Some(measured.latency), Some(measured.latency));
        }
        let json: Value = serde_json::from_str(&report.json().expect("JSON")).expect("JSON");
        let mut found = Vec::new();
        names(&json, &mut found);
        assert!(found.len() > 100 && json["schema"] == super::SCHEMA);
        for name in found.iter().map(|name| format!("`{name}`")) {
            assert!(DOCUMENT.contains(&name), "{name} is not in docs/BENCHMARKS.md");
        }
        assert!(DOCUMENT.contains(super::SCHEMA));
    }

    #[test]
    fn rows_show_what_the_runs_counted() {
        let measured = report().rows[3].measured.clone().expect("measured");
        // Each of five runs, as the sample has it.
        assert_eq!((measured.retries, measured.fallbacks, measured.reconnects), (10, 15, 5));
        assert!((measured.wire_bytes_per_op - 150.0).abs() < 1e-9);
        let report = report();
        let csv = super::csv(&report);
        let columns = csv.lines().next().expect("a header");
        assert!(columns.contains(",retries,fallbacks,reconnects,wire_bytes_per_op,"), "{columns}");
        let line = csv.lines().find(|line| line.starts_with("tcp")).expect("a line");
        assert!(line.contains(",10,15,5,150.0,"), "{line}");
        let table = super::table(&report);
        let line = table.lines().find(|line| line.trim_start().starts_with("tcp")).expect("a line");
        let cells: Vec<&str> = line.split_whitespace().collect();
        assert!(cells.ends_with(&["10", "15", "5", "150"]), "{line}");
        let html = super::html(&report).expect("a page");
        assert!(html.contains("<td data-column=\"wire B/op\">150</td>"));
    }
}
