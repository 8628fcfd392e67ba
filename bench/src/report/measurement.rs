//! What was measured of one path in one way of driving it, gathered run by run.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::driver::{Run, Tally, new_histogram};
use crate::statistics::Interval;
use crate::target::Route;

/// Times of operations, in nanoseconds, over all repetitions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// How many operations were timed; in memory 1 of 64 is.
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
    /// 99.9 % of them.
    #[serde(default)]
    pub p999_ns: u64,
    /// CPU time of the server's process in that time, µs; none if it has no process or it cannot be known.
    pub server_cpu_us: Option<f64>,
    /// CPU time of this process in that time, µs.
    pub client_cpu_us: f64,
    /// Lookups that had to look again, and requests that were sent again.
    #[serde(default)]
    pub retries: u64,
    /// Reads that another route served than the one that was asked for.
    #[serde(default)]
    pub fallbacks: u64,
    /// Lost connections that were got back.
    #[serde(default)]
    pub reconnects: u64,
    /// Bytes of requests on the wire.
    #[serde(default)]
    pub bytes_sent: u64,
    /// Bytes of replies on the wire, and of one-sided READs.
    #[serde(default)]
    pub bytes_received: u64,
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
    /// Of an open loop: from the intended start to the submission.
    pub wait: Option<Latency>,
    /// Of an open loop: from the intended start to the reply.
    pub response: Option<Latency>,
    /// CPU of the server's process per operation, µs.
    pub server_cpu_us_per_op: Option<Interval>,
    /// CPU of this process per operation, µs: the driving and verifying are in it, the same for all.
    pub client_cpu_us_per_op: Interval,
    /// Reads by who served them.
    pub reads_served_by: BTreeMap<&'static str, u64>,
    /// Lookups that had to look again, and requests that were sent again, over all repetitions.
    pub retries: u64,
    /// Reads that another route served than the one that was asked for, over all repetitions.
    pub fallbacks: u64,
    /// Lost connections that were got back, over all repetitions.
    pub reconnects: u64,
    /// Bytes sent and received per operation; 0 where nothing crosses a wire.
    pub wire_bytes_per_op: f64,
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

/// Runs of one path in one way of driving it, without what only their sum is wanted of.
#[derive(Clone, Debug)]
pub struct Gathering {
    service: Histogram<u64>,
    wait: Histogram<u64>,
    response: Histogram<u64>,
    routes: [u64; Route::ALL.len()],
    runs: Vec<RunLine>,
}

impl Default for Gathering {
    fn default() -> Self {
        let [service, wait, response] = std::array::from_fn(|_| new_histogram());
        Self { service, wait, response, routes: [0; Route::ALL.len()], runs: Vec::new() }
    }
}

impl Gathering {
    /// Adds a run; `disturbed` if it should have been repeated but was not.
    pub fn add(&mut self, run: &Run, disturbed: bool) {
        run.tally.service.add_to(&mut self.service);
        run.tally.wait.add_to(&mut self.wait);
        run.tally.response.add_to(&mut self.response);
        self.routes.iter_mut().zip(run.tally.routes).for_each(|(sum, count)| *sum += count);
        self.runs.push(run_line(run, disturbed));
    }

    /// What came of the runs; `None` of none.
    #[must_use]
    pub fn measurement(self, dropped: usize) -> Option<Measurement> {
        let Self { service, wait, response, routes, runs } = self;
        let each = |of: fn(&RunLine) -> f64| runs.iter().map(of).collect::<Vec<_>>();
        let server: Option<Vec<f64>> = runs.iter().map(RunLine::server_cpu_us_per_op).collect();
        let mut reads_served_by = BTreeMap::new();
        for (route, count) in Route::ALL.iter().zip(routes).filter(|(_, count)| *count > 0) {
            *reads_served_by.entry(route.served_by()).or_default() += count;
        }
        let sum = |of: fn(&RunLine) -> u64| runs.iter().map(of).sum::<u64>();
        let bytes = sum(|run| run.bytes_sent + run.bytes_received) as f64;
        Some(Measurement {
            ops_per_s: Interval::of(&each(|run| run.ops_per_s))?,
            latency: Latency::of(&service),
            wait: (!wait.is_empty()).then(|| Latency::of(&wait)),
            response: (!response.is_empty()).then(|| Latency::of(&response)),
            server_cpu_us_per_op: server.and_then(|values| Interval::of(&values)),
            client_cpu_us_per_op: Interval::of(&each(RunLine::client_cpu_us_per_op))?,
            reads_served_by,
            retries: sum(|run| run.retries),
            fallbacks: sum(|run| run.fallbacks),
            reconnects: sum(|run| run.reconnects),
            wire_bytes_per_op: bytes / sum(|run| run.operations).max(1) as f64,
            rate_to_local: None,
            dropped,
            runs,
            histogram: service,
            responses: (!response.is_empty()).then_some(response),
        })
    }
}

impl RunLine {
    /// CPU of the server's process per operation, if it is known.
    #[must_use]
    pub fn server_cpu_us_per_op(&self) -> Option<f64> {
        self.server_cpu_us.map(|cpu| cpu / self.operations.max(1) as f64)
    }

    /// CPU of this process per operation.
    #[must_use]
    pub fn client_cpu_us_per_op(&self) -> f64 {
        self.client_cpu_us / self.operations.max(1) as f64
    }
}

impl Measurement {
    /// From the repetitions; `None` of none.
    #[must_use]
    pub fn of(runs: &[(Run, bool)], dropped: usize) -> Option<Self> {
        let mut gathering = Gathering::default();
        runs.iter().for_each(|(run, disturbed)| gathering.add(run, *disturbed));
        gathering.measurement(dropped)
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
    let Tally { service, response, fallbacks, effort, .. } = &run.tally;
    let times = if response.is_empty() { service.all() } else { response.all() };
    RunLine {
        ops_per_s: run.tally.rate,
        operations: run.tally.operations,
        writes: run.tally.writes(),
        seconds: run.elapsed.as_secs_f64(),
        p50_ns: times.value_at_quantile(0.5),
        p99_ns: times.value_at_quantile(0.99),
        p999_ns: times.value_at_quantile(0.999),
        server_cpu_us: run.server_cpu.map(microseconds),
        client_cpu_us: microseconds(run.client_cpu),
        retries: effort.retries,
        fallbacks: *fallbacks,
        reconnects: effort.reconnects,
        bytes_sent: effort.bytes_sent,
        bytes_received: effort.bytes_received,
        other_cores: run.other_cores,
        steal_cores: run.steal_cores,
        disturbed,
    }
}
