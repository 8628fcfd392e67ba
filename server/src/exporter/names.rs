//! What each counter of the statistics is called in Prometheus: the one table of them.
//!
//! Names follow <https://prometheus.io/docs/practices/naming/>: base units, the unit last, `_total` for what only grows.
//! `text` puts `sidestep_` in front, and unit and `_total` behind.

/// Whether a value only grows, from the start of the process on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
}
use Kind::{Counter, Gauge};

/// The unit in the name, and what the statistics count in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Measure {
    Number,
    Bytes,
    /// Counted in so many a second; told in seconds.
    Seconds(u32),
}
use Measure::{Bytes, Number, Seconds};

/// A family of metrics that differ by labels.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) measure: Measure,
    pub(super) help: &'static str,
    /// The label's name, empty if there is none.
    pub(super) label: &'static str,
    /// Names in the statistics, each with the label's value.
    pub(super) from: &'static [(&'static str, &'static str)],
}

const fn family(
    name: &'static str,
    kind: Kind,
    measure: Measure,
    help: &'static str,
    label: &'static str,
    from: &'static [(&'static str, &'static str)],
) -> Family {
    Family { name, kind, measure, help, label, from }
}

/// Every family but those of requests, which have three labels, and of the build.
pub(super) const FAMILIES: &[Family] = &[
    family("uptime", Gauge, Seconds(1000), "Time since the start", "", &[("uptime_ms", "")]),
    family(
        "cpu",
        Counter,
        Seconds(1_000_000),
        "CPU time of all threads",
        "mode",
        &[("process_cpu_user_us", "user"), ("process_cpu_system_us", "system")],
    ),
    family("connections", Gauge, Number, "Connections open now", "", &[("connections", "")]),
    family(
        "connection_buffers",
        Gauge,
        Bytes,
        "Replies that wait for their clients, and requests that are not whole",
        "",
        &[("connection_buffer_bytes", "")],
    ),
    family("connections_opened", Counter, Number, "Connections accepted", "", &[("connections_opened", "")]),
    family(
        "connections_failed",
        Counter,
        Number,
        "Connections that the server ended, by cause",
        "cause",
        &[
            ("connections_refused", "refused"),
            ("connections_malformed", "malformed"),
            ("connections_timed_out", "timed_out"),
        ],
    ),
    family(
        "connections_idle_closed",
        Counter,
        Number,
        "Connections closed since they asked nothing for --idle-timeout-ms",
        "",
        &[("connections_idle_closed", "")],
    ),
    family("tries_failed", Counter, Number, "Proofs of no token", "", &[("tries_failed", "")]),
    family(
        "tries_held_back",
        Counter,
        Number,
        "Tries refused unseen, too many had failed",
        "",
        &[("tries_held_back", "")],
    ),
    family(
        "sessions_revoked",
        Counter,
        Number,
        "Sessions that ended with their token",
        "",
        &[("sessions_revoked", "")],
    ),
    family("sessions", Gauge, Number, "Sessions, with those that wait for their client", "", &[("sessions", "")]),
    family(
        "received",
        Counter,
        Bytes,
        "Bytes of requests",
        "path",
        &[("tcp_received_bytes", "tcp"), ("rdma_rpc_received_bytes", "rdma_rpc")],
    ),
    family(
        "sent",
        Counter,
        Bytes,
        "Bytes of replies",
        "path",
        &[("tcp_sent_bytes", "tcp"), ("rdma_rpc_sent_bytes", "rdma_rpc")],
    ),
    family(
        "repeated_writes",
        Counter,
        Number,
        "Writes that came again and were not done again",
        "path",
        &[("tcp_repeated_writes", "tcp"), ("rdma_rpc_repeated_writes", "rdma_rpc")],
    ),
    family("rdma_rpc_channels", Gauge, Number, "Message channels open now", "", &[("rdma_rpc_channels", "")]),
    family(
        "rdma_rpc_messages",
        Counter,
        Number,
        "Messages of all channels",
        "direction",
        &[("rdma_rpc_messages_received", "received"), ("rdma_rpc_messages_sent", "sent")],
    ),
    family("uses_reported", Counter, Number, "Keys that clients said they had read", "", &[("uses_reported", "")]),
    family("pulls_begun", Counter, Number, "Large values begun to be read from clients", "", &[("pulls_begun", "")]),
    family("pulled_puts", Counter, Number, "Large values so read, whole", "", &[("pulled_puts", "")]),
    family("pulled", Counter, Bytes, "Bytes so read", "", &[("pulled_bytes", "")]),
    family(
        "clock_ahead",
        Gauge,
        Seconds(1000),
        "Time until this machine's clock has caught up with the table's",
        "",
        &[("clock_ahead_ms", "")],
    ),
    family("keys", Gauge, Number, "Keys, with expired ones that nobody has met", "", &[("keys", "")]),
    family("subtables", Gauge, Number, "Subtables of the index", "", &[("subtables", "")]),
    family("directory_depth", Gauge, Number, "Levels of the directory", "", &[("directory_depth", "")]),
    family("memory", Gauge, Bytes, "Size of the address space", "", &[("memory_bytes", "")]),
    family("memory_usable", Gauge, Bytes, "Of the space, what is in use", "", &[("memory_usable_bytes", "")]),
    family("memory_free", Gauge, Bytes, "Of that, free outside of slabs", "", &[("memory_free_bytes", "")]),
    family("segment", Gauge, Bytes, "Size of a segment", "", &[("segment_bytes", "")]),
    family("segments", Gauge, Number, "Segments in use", "", &[("segments", "")]),
    family("extents", Gauge, Number, "Extents in use", "", &[("extents", "")]),
    family("extent", Gauge, Bytes, "Bytes of extents in use", "", &[("extent_bytes", "")]),
    family("extents_held", Gauge, Number, "Extents that replies are sent from", "", &[("extents_held", "")]),
    family("slabs", Gauge, Number, "Slabs in use", "", &[("slabs", "")]),
    family("version_ceiling", Gauge, Number, "No item ever had a version above it", "", &[("version_ceiling", "")]),
    family(
        "table_writes",
        Counter,
        Number,
        "Writes to the table",
        "kind",
        &[("inserts", "insert"), ("updates", "update"), ("deletes", "delete")],
    ),
    family("evicted", Counter, Number, "Keys that made room for others", "", &[("evicted", "")]),
    family(
        "evictions_for_space",
        Counter,
        Number,
        "Slabs or rows emptied for another size or the index",
        "",
        &[("evictions_for_space", "")],
    ),
    family("expired_removed", Counter, Number, "Expired keys that the sweep removed", "", &[("expired_removed", "")]),
    family("expiry_sweeps", Counter, Number, "Sweeps for expired keys", "", &[("expiry_sweeps", "")]),
    family("splits", Counter, Number, "Subtables that were split", "", &[("splits", "")]),
    family("directory_doublings", Counter, Number, "Times the directory doubled", "", &[("directory_doublings", "")]),
    family(
        "writes_refused_full",
        Counter,
        Number,
        "Writes refused for want of memory",
        "",
        &[("writes_refused_full", "")],
    ),
    family(
        "version_mismatches",
        Counter,
        Number,
        "Conditional writes that met another version",
        "",
        &[("version_mismatches", "")],
    ),
    family(
        "large_values_hashed_again",
        Counter,
        Number,
        "Large values whose key was written while they arrived",
        "",
        &[("large_values_hashed_again", "")],
    ),
    family("log", Gauge, Bytes, "Bytes of the log's files", "", &[("log_bytes", "")]),
    family("log_segments", Gauge, Number, "Files of the log", "", &[("log_segments", "")]),
    family("log_records", Counter, Number, "Writes in the log, from its beginning on", "", &[("log_records", "")]),
    family("log_records_waiting", Gauge, Number, "Writes that are not synced yet", "", &[("log_records_waiting", "")]),
    family("log_waiting", Gauge, Bytes, "Bytes of those", "", &[("log_waiting_bytes", "")]),
    family("log_written", Counter, Bytes, "Bytes written to the log's files", "", &[("log_written_bytes", "")]),
    family("log_syncs", Counter, Number, "Times that the disk was waited for", "", &[("log_syncs", "")]),
    family("log_last_sync_age", Gauge, Seconds(1000), "Time since the last one", "", &[("log_last_sync_age_ms", "")]),
    family(
        "log_write_stalls",
        Counter,
        Number,
        "Times that requests waited for the log",
        "",
        &[("log_write_stalls", "")],
    ),
    family("log_failing", Gauge, Number, "1 while the log cannot be written", "", &[("log_failing", "")]),
    family("log_failures", Counter, Number, "Times that the log could not be written", "", &[("log_failures", "")]),
    family("log_writes_refused", Counter, Number, "Writes refused meanwhile", "", &[("log_writes_refused", "")]),
    family(
        "log_compactions",
        Counter,
        Number,
        "Compactions of the log",
        "outcome",
        &[("log_compactions", "done"), ("log_compactions_failed", "failed")],
    ),
    family(
        "log_lost_records",
        Gauge,
        Number,
        "Synced writes that the disk did not have at the start",
        "",
        &[("log_lost_records", "")],
    ),
    family(
        "log_torn_commits",
        Gauge,
        Number,
        "Batches that were not whole at the start",
        "",
        &[("log_torn_commits", "")],
    ),
    family("growth_waits", Counter, Number, "Writes that waited for memory", "", &[("growth_waits", "")]),
    family("reclaim_waits", Counter, Number, "Waits of writes for readers to leave", "", &[("reclaim_waits", "")]),
    family("growth_failures", Counter, Number, "Times that the storage refused", "", &[("growth_failures", "")]),
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_once_and_without_the_unit() {
        let mut seen = HashSet::new();
        for family in FAMILIES {
            assert!(seen.insert((family.name, family.measure)), "{} twice", family.name);
            assert!(!family.name.ends_with("_bytes") && !family.name.ends_with("_total"), "{}", family.name);
            assert_eq!(family.label.is_empty(), family.from.len() == 1, "{}", family.name);
        }
        let from: Vec<_> = FAMILIES.iter().flat_map(|family| family.from).map(|(name, _)| name).collect();
        assert_eq!(from.iter().collect::<HashSet<_>>().len(), from.len(), "a counter in two families");
    }
}
