//! What came of a comparison, and its forms: terminal table, JSON, CSV, one HTML page.

mod chart;
mod csv;
mod hdr;
mod html;
mod reading;
mod table;

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

pub use csv::csv;
pub use hdr::hdr;
pub use html::{html, svg};
pub use reading::reading;
pub use table::{grouped, significant, table};

use crate::driver::{Drive, Run, Tally, new_histogram};
use crate::environment::Environment;
use crate::statistics::Interval;
use crate::target::Route;
use crate::workload::Workload;

/// Name and version of the JSON form.
pub const SCHEMA: &str = "sidestep-bench/compare/1";

/// Times of operations, in nanoseconds, over all repetitions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// How many operations were timed; in memory 1 of 32 is.
    pub timed: u64,
    /// Mean.
    pub mean_ns: f64,
    /// Shortest.
    pub min_ns: u64,
    /// Median.
    pub p50_ns: u64,
    /// 90 % took no longer.
    pub p90_ns: u64,
    /// 99 %.
    pub p99_ns: u64,
    /// 99.9 %.
    pub p999_ns: u64,
    /// 99.99 %.
    pub p9999_ns: u64,
    /// Longest.
    pub max_ns: u64,
}

impl Latency {
    /// Of a histogram in nanoseconds.
    #[must_use]
    pub fn of(histogram: &Histogram<u64>) -> Self {
        let at = |share| histogram.value_at_quantile(share);
        Self {
            timed: histogram.len(),
            mean_ns: histogram.mean(),
            min_ns: histogram.min(),
            p50_ns: at(0.5),
            p90_ns: at(0.9),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            p9999_ns: at(0.9999),
            max_ns: histogram.max(),
        }
    }
}

/// One repetition.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunLine {
    /// Operations per second.
    pub ops_per_s: f64,
    /// Operations in the measured time.
    pub operations: u64,
    /// Writes among them.
    pub writes: u64,
    /// Measured time.
    pub seconds: f64,
    /// Median time of its operations; of an open loop, from the intended start.
    pub p50_ns: u64,
    /// 99 % of them took no longer.
    pub p99_ns: u64,
    /// CPU time of the server's process in that time, µs; none if it has no process or it cannot be known.
    pub server_cpu_us: Option<f64>,
    /// CPU time of this process in that time, µs.
    pub client_cpu_us: f64,
    /// CPU that others used, in cores.
    pub other_cores: f64,
    /// CPU that the hypervisor took, in cores.
    pub steal_cores: f64,
    /// Whether others used so much that the run should have been repeated, but had been repeated often enough.
    pub disturbed: bool,
}

/// What was measured of one path in one way of driving it.
#[derive(Clone, Debug, Serialize)]
pub struct Measurement {
    /// Operations per second, verified.
    pub ops_per_s: Interval,
    /// From submission to reply.
    pub latency: Latency,
    /// Of an open loop: from the intended start to the reply.
    pub response: Option<Latency>,
    /// CPU of the server's process per operation, µs.
    pub server_cpu_us_per_op: Option<Interval>,
    /// CPU of this process per operation, µs: the driving and verifying are in it, the same for all.
    pub client_cpu_us_per_op: Interval,
    /// Reads by who served them.
    pub reads_served_by: BTreeMap<&'static str, u64>,
    /// Rate as a multiple of `local`'s one-key calls on as many threads; for paths in memory.
    pub rate_to_local: Option<f64>,
    /// Repetitions that were dropped because others used the machine.
    pub dropped: usize,
    /// The repetitions.
    pub runs: Vec<RunLine>,
    /// All times, for charts and logs.
    #[serde(skip)]
    pub histogram: Histogram<u64>,
    /// Of an open loop: all times from the intended start.
    #[serde(skip)]
    pub responses: Option<Histogram<u64>>,
}

impl Measurement {
    /// From the repetitions; `None` of none.
    #[must_use]
    pub fn of(runs: &[(Run, bool)], dropped: usize) -> Option<Self> {
        let (mut service, mut response) = (new_histogram(), new_histogram());
        let mut routes = [0; Route::ALL.len()];
        for (run, _) in runs {
            run.tally.service.add_to(&mut service);
            run.tally.response.add_to(&mut response);
            routes.iter_mut().zip(run.tally.routes).for_each(|(sum, count)| *sum += count);
        }
        let each = |of: &dyn Fn(&Run) -> f64| runs.iter().map(|(run, _)| of(run)).collect::<Vec<_>>();
        let server: Option<Vec<f64>> =
            runs.iter().map(|(run, _)| run.server_cpu.map(|cpu| run.per_operation(cpu))).collect();
        let mut reads_served_by = BTreeMap::new();
        for (route, count) in Route::ALL.iter().zip(routes).filter(|(_, count)| *count > 0) {
            *reads_served_by.entry(route.served_by()).or_default() += count;
        }
        Some(Self {
            ops_per_s: Interval::of(&each(&|run| run.tally.rate))?,
            latency: Latency::of(&service),
            response: (!response.is_empty()).then(|| Latency::of(&response)),
            server_cpu_us_per_op: server.and_then(|values| Interval::of(&values)),
            client_cpu_us_per_op: Interval::of(&each(&|run| run.per_operation(run.client_cpu)))?,
            reads_served_by,
            rate_to_local: None,
            dropped,
            runs: runs.iter().map(|(run, disturbed)| run_line(run, *disturbed)).collect(),
            histogram: service,
            responses: (!response.is_empty()).then_some(response),
        })
    }

    /// What the column "served by" says.
    #[must_use]
    pub fn served_by(&self) -> String {
        let all: u64 = self.reads_served_by.values().sum();
        // Writes go through the server's CPU on every path; on those around it, say that this is of the reads.
        let writes = self.runs.iter().any(|run| run.writes > 0);
        let around = [Route::Shm.served_by(), Route::Rdma.served_by()];
        let reads = self.reads_by(all);
        if writes && around.iter().any(|name| self.reads_served_by.contains_key(name)) {
            return format!("reads {reads}, writes {}", Route::Tcp.served_by());
        }
        reads
    }

    fn reads_by(&self, all: u64) -> String {
        match self.reads_served_by.len() {
            0 => "server CPU".into(),
            1 => self.reads_served_by.keys().copied().collect(),
            _ => {
                let share = |count: u64| count as f64 * 100.0 / all as f64;
                let parts = self.reads_served_by.iter().map(|(name, &count)| format!("{name} {:.2} %", share(count)));
                parts.collect::<Vec<_>>().join(", ")
            }
        }
    }
}

fn run_line(run: &Run, disturbed: bool) -> RunLine {
    let microseconds = |time: std::time::Duration| time.as_secs_f64() * 1e6;
    let Tally { service, response, .. } = &run.tally;
    let times = if response.is_empty() { service.all() } else { response.all() };
    RunLine {
        ops_per_s: run.tally.rate,
        operations: run.tally.operations,
        writes: run.tally.writes(),
        seconds: run.elapsed.as_secs_f64(),
        p50_ns: times.value_at_quantile(0.5),
        p99_ns: times.value_at_quantile(0.99),
        server_cpu_us: run.server_cpu.map(microseconds),
        client_cpu_us: microseconds(run.client_cpu),
        other_cores: run.other_cores,
        steal_cores: run.steal_cores,
        disturbed,
    }
}

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
    /// Seed of the requests.
    pub seed: u64,
    /// Agents that drove, each as the rows say; none: this process did.
    pub clients: Vec<String>,
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
        let PlanLine { warm_up_s, measure_s, repetitions, rate, seed, ref clients } = self.plan;
        let loop_kind = match rate {
            Some(rate) => format!("open loop at {rate} operations/s (Poisson)"),
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
