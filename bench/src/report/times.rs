//! The times of each row whole, for the forms that people read.

use super::table::significant;
use super::{Latency, Report};

/// What is said of each, in µs.
pub(super) const COLUMNS: [&str; 8] = ["mean", "min", "p50", "p90", "p99", "p99.9", "p99.99", "max"];

/// One kind of time of one row.
pub(super) struct Times {
    pub(super) path: String,
    /// `service`: from submission to reply; of an open loop also `wait`, before that, and `response`, both.
    pub(super) kind: &'static str,
    pub(super) cells: [String; COLUMNS.len()],
}

impl Times {
    fn new(path: String, kind: &'static str, of: &Latency) -> Self {
        let microseconds = |ns: u64| significant(ns as f64 / 1e3);
        let [min, p50, p90, p99, p999, p9999, max] =
            [of.min_ns, of.p50_ns, of.p90_ns, of.p99_ns, of.p999_ns, of.p9999_ns, of.max_ns].map(microseconds);
        Self { path, kind, cells: [significant(of.mean_ns / 1e3), min, p50, p90, p99, p999, p9999, max] }
    }
}

/// All of a report, in its order.
pub(super) fn times(report: &Report) -> impl Iterator<Item = Times> {
    report.measured().into_iter().flat_map(|(row, of)| {
        let kinds = [("service", Some(of.latency)), ("wait", of.wait), ("response", of.response)];
        kinds.into_iter().filter_map(|(kind, latency)| Some(Times::new(row.name(), kind, &latency?)))
    })
}
