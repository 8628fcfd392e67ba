//! Counters: each worker writes its own, a reader adds them up.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crossbeam_utils::CachePadded;
use sidestep_core::message::{Op, Status};

/// A count that one thread writes and any may read.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Only the thread that owns the counter may call this: a load and a store cost less than a locked add.
    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.get().wrapping_add(n), Ordering::Relaxed);
    }

    /// The same goes for this.
    pub(crate) fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

const OPS: [(Op, &str); 9] = [
    (Op::Get, "get"),
    (Op::Put, "put"),
    (Op::Delete, "delete"),
    (Op::Ping, "ping"),
    (Op::Stats, "stats"),
    (Op::Connect, "connect"),
    (Op::Scan, "scan"),
    (Op::Flush, "flush"),
    (Op::Touch, "touch"),
];
const STATUSES: [(Status, &str); 10] = [
    (Status::Ok, "ok"),
    (Status::NotFound, "not_found"),
    (Status::VersionMismatch, "version_mismatch"),
    (Status::Full, "full"),
    (Status::TooLarge, "too_large"),
    (Status::OutcomeUnknown, "outcome_unknown"),
    (Status::BadRequest, "bad_request"),
    (Status::Stopping, "stopping"),
    (Status::Unavailable, "unavailable"),
    (Status::Forbidden, "forbidden"),
];

/// What carries frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carried {
    Socket,
    Messages,
}

const CARRIED: [(Carried, &str); 2] = [(Carried::Socket, "tcp"), (Carried::Messages, "rdma_rpc")];

/// Path, operation and outcome that a counter of requests is about, if it is one. Undoes what [`Metrics::report`] does.
pub(crate) fn request_labels(name: &str) -> Option<[&'static str; 3]> {
    CARRIED.iter().find_map(|(_, path)| {
        let request = name.strip_prefix(path)?.strip_prefix('_')?;
        OPS.iter().find_map(|(_, op)| {
            let outcome = request.strip_prefix(op)?.strip_prefix('_')?;
            let (_, outcome) = STATUSES.iter().find(|(_, status)| *status == outcome)?;
            Some([*path, *op, *outcome])
        })
    })
}

/// What one worker counts of the frames that one carrier brings.
#[derive(Debug, Default)]
pub(crate) struct WorkerMetrics {
    outcomes: [[Counter; STATUSES.len()]; OPS.len()],
    pub(crate) received_bytes: Counter,
    pub(crate) sent_bytes: Counter,
    pub(crate) refused: Counter,
    pub(crate) malformed: Counter,
    pub(crate) timed_out: Counter,
    pub(crate) idle_closed: Counter,
    pub(crate) repeated_writes: Counter,
    pub(crate) uses_reported: Counter,
    pub(crate) pulls_begun: Counter,
    pub(crate) pulled_puts: Counter,
    pub(crate) pulled_bytes: Counter,
    pub(crate) channels: Counter,
    pub(crate) messages_received: Counter,
    pub(crate) messages_sent: Counter,
}

impl WorkerMetrics {
    /// One request came to its end.
    pub(crate) fn outcome(&self, op: Op, status: Status) {
        self.outcomes[op as usize - 1][status as usize].add(1);
    }
}

/// Counters of all workers and of the process.
#[derive(Debug)]
pub(crate) struct Metrics {
    started: Instant,
    opened: AtomicU64,
    closed: AtomicU64,
    buffered: AtomicU64,
    /// Of what is buffered.
    most_buffered: u64,
    workers: Vec<CachePadded<[WorkerMetrics; CARRIED.len()]>>,
}

impl Metrics {
    /// Of so many workers, whose connections may hold so many bytes.
    pub(crate) fn new(workers: usize, most_buffered: u64) -> Self {
        Self {
            started: Instant::now(),
            opened: AtomicU64::new(0),
            closed: AtomicU64::new(0),
            buffered: AtomicU64::new(0),
            most_buffered,
            workers: (0..workers).map(|_| CachePadded::default()).collect(),
        }
    }

    pub(crate) fn worker(&self, index: usize, carried: Carried) -> &WorkerMetrics {
        &self.workers[index][carried as usize]
    }

    fn sum(&self, of: impl Fn(&WorkerMetrics) -> &Counter) -> u64 {
        self.workers.iter().flat_map(|worker| worker.iter()).map(|metrics| of(metrics).get()).sum()
    }

    fn sum_of(&self, carried: Carried, of: impl Fn(&WorkerMetrics) -> &Counter) -> u64 {
        self.workers.iter().map(|worker| of(&worker[carried as usize]).get()).sum()
    }

    /// A connection was accepted.
    pub(crate) fn opened(&self) {
        self.opened.fetch_add(1, Ordering::Relaxed);
    }

    /// A connection that was accepted is over.
    pub(crate) fn closed(&self) {
        self.closed.fetch_add(1, Ordering::Relaxed);
    }

    /// Connections that are open now.
    pub(crate) fn connections(&self) -> u64 {
        // In this order, since one that ends in between must not make the difference negative.
        let closed = self.closed.load(Ordering::Relaxed);
        self.opened.load(Ordering::Relaxed).saturating_sub(closed)
    }

    /// A connection holds `now` bytes of requests and replies, and held `before`.
    pub(crate) fn buffers_changed(&self, before: usize, now: usize) {
        if before != now {
            self.buffered.fetch_add((now as u64).wrapping_sub(before as u64), Ordering::Relaxed);
        }
    }

    /// The bytes that connections may hold, if they hold as many or more.
    pub(crate) fn buffers_full(&self) -> Option<u64> {
        (self.buffered.load(Ordering::Relaxed) >= self.most_buffered).then_some(self.most_buffered)
    }

    /// Appends `(name, value)`; an outcome other than `ok` is listed once it has happened.
    pub(crate) fn report(&self, into: &mut Vec<(String, u64)>) {
        let mut put = |name: &str, value| into.push((name.to_owned(), value));
        put("uptime_ms", u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX));
        let (user_us, system_us) = process_cpu_us();
        put("process_cpu_user_us", user_us);
        put("process_cpu_system_us", system_us);
        put("connections", self.connections());
        put("connection_buffer_bytes", self.buffered.load(Ordering::Relaxed));
        put("connections_opened", self.opened.load(Ordering::Relaxed));
        put("connections_refused", self.sum(|w| &w.refused));
        put("connections_malformed", self.sum(|w| &w.malformed));
        put("connections_timed_out", self.sum(|w| &w.timed_out));
        put("connections_idle_closed", self.sum(|w| &w.idle_closed));
        for (carried, name) in CARRIED {
            put(&format!("{name}_received_bytes"), self.sum_of(carried, |w| &w.received_bytes));
            put(&format!("{name}_sent_bytes"), self.sum_of(carried, |w| &w.sent_bytes));
            put(&format!("{name}_repeated_writes"), self.sum_of(carried, |w| &w.repeated_writes));
            for (op, op_name) in OPS {
                for (status, status_name) in STATUSES {
                    let value = self.sum_of(carried, |w| &w.outcomes[op as usize - 1][status as usize]);
                    if value != 0 || (status == Status::Ok && carried == Carried::Socket) {
                        put(&format!("{name}_{op_name}_{status_name}"), value);
                    }
                }
            }
        }
        put("uses_reported", self.sum(|w| &w.uses_reported));
        put("pulls_begun", self.sum(|w| &w.pulls_begun));
        put("pulled_puts", self.sum(|w| &w.pulled_puts));
        put("pulled_bytes", self.sum(|w| &w.pulled_bytes));
        put("rdma_rpc_channels", self.sum(|w| &w.channels));
        put("rdma_rpc_messages_received", self.sum(|w| &w.messages_received));
        put("rdma_rpc_messages_sent", self.sum(|w| &w.messages_sent));
    }
}

/// CPU time of this process in user and in system mode.
///
/// The kernel gives the sum to the nanosecond (`clock_gettime(2)`) but the parts in ticks
/// (`proc_pid_stat(5)`), so the sum is divided as the ticks are, as `getrusage(2)` does inside.
fn process_cpu_us() -> (u64, u64) {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let total_us =
        u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0) / 1000;
    let (user, system) = std::fs::read_to_string("/proc/self/stat").ok().and_then(|s| ticks(&s)).unwrap_or((1, 0));
    let user_us = u128::from(total_us) * u128::from(user) / u128::from(user + system).max(1);
    let user_us = u64::try_from(user_us).unwrap_or(total_us);
    (user_us, total_us - user_us)
}

/// `utime` and `stime`, fields 14 and 15. The name before them may hold spaces, and ends with the last `)`.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_indexed_by_their_wire_numbers() {
        for (index, (op, _)) in OPS.iter().enumerate() {
            assert_eq!(*op as usize, index + 1);
        }
        for (index, (carried, _)) in CARRIED.iter().enumerate() {
            assert_eq!(*carried as usize, index);
        }
        for (index, (status, _)) in STATUSES.iter().enumerate() {
            assert_eq!(*status as usize, index);
        }
    }

    #[test]
    fn counts_of_all_workers_add_up() {
        let metrics = Metrics::new(2, 1 << 20);
        metrics.worker(0, Carried::Socket).outcome(Op::Get, Status::Ok);
        metrics.worker(1, Carried::Socket).outcome(Op::Get, Status::Ok);
        metrics.worker(1, Carried::Messages).outcome(Op::Get, Status::Ok);
        metrics.worker(1, Carried::Socket).outcome(Op::Put, Status::Full);
        let mut report = Vec::new();
        metrics.report(&mut report);
        assert!(report.contains(&("tcp_get_ok".into(), 2)));
        assert!(report.contains(&("rdma_rpc_get_ok".into(), 1)));
        assert!(report.contains(&("tcp_put_full".into(), 1)));
        assert!(!report.iter().any(|(name, _)| name == "tcp_delete_full"));
        assert_eq!(request_labels("rdma_rpc_get_not_found"), Some(["rdma_rpc", "get", "not_found"]));
        assert_eq!(request_labels("tcp_sent_bytes"), None);
    }

    #[test]
    fn cpu_ticks_are_found_behind_any_process_name() {
        let stat = "12 (a) b) c) S 1 2 3 4 5 6 7 8 9 10 31 17 0 0 20";
        assert_eq!(ticks(stat), Some((31, 17)));
        assert_eq!(ticks("12"), None);
    }
}
