//! One thread of a run, and its loops of calls and of batches.

use std::time::Instant;

use super::arrivals::Intended;
use super::checks::Checks;
use super::window::{Lane, effort};
use super::{MAX_BATCH, Phase, Plan, Tally};
use crate::error::BenchError;
use crate::target::{Connection, Effort, Reply, Route, Target};
use crate::workload::{Operation, Request, Requests, Stamp, Workload, fill};

/// Makes the values that a thread writes: no two alike.
pub(super) struct Writer {
    id: u16,
    sequence: u64,
    pub(super) value: Vec<u8>,
}

impl Writer {
    pub(super) fn next_value(&mut self, record: u64) -> &[u8] {
        self.sequence += 1;
        fill(record, Stamp::new(self.id, self.sequence), &mut self.value);
        &self.value
    }
}

/// Counts and phase of a thread.
pub(super) struct Meter<'r> {
    phase: &'r Phase,
    pub(super) measuring: bool,
    start: Instant,
    /// Operations after which this thread ends the run.
    share: u64,
    /// Who is to serve reads.
    route: Route,
    /// What the operations before the measured ones took.
    before: Effort,
    pub(super) tally: Tally,
}

impl Meter<'_> {
    /// Whether to go on. Notices the change from warm-up to measuring, and asks then what was done so far.
    #[inline]
    pub(super) fn goes_on(&mut self, effort: impl FnOnce() -> Effort) -> bool {
        let phase = self.phase.get();
        if phase == Phase::MEASURED && !self.measuring {
            self.measuring = true;
            self.before = effort();
            self.start = Instant::now();
        }
        phase != Phase::OVER && self.tally.operations < self.share
    }

    #[inline]
    pub(super) fn count(&mut self, operation: Operation, reply: Reply) {
        if self.measuring {
            self.tally.operations += 1;
            self.tally.by_operation[operation as usize] += 1;
            if matches!(operation, Operation::Read | Operation::ReadModifyWrite) {
                self.tally.routes[reply.route as usize] += 1;
            }
        }
    }

    /// Operations left of this thread's share.
    pub(super) fn left(&self) -> u64 {
        self.share - self.tally.operations
    }

    /// Nothing is counted from here on.
    pub(super) fn stop(&mut self, effort: impl FnOnce() -> Effort) {
        if !self.measuring {
            return;
        }
        self.measuring = false;
        let seconds = self.start.elapsed().as_secs_f64();
        if seconds > 0.0 {
            self.tally.rate = self.tally.operations as f64 / seconds;
        }
        self.tally.effort = effort() - self.before;
        let reads: u64 = self.tally.routes.iter().sum();
        self.tally.fallbacks = reads - self.tally.routes[self.route as usize];
    }
}

/// A thread of a run.
pub(super) struct Worker<'r> {
    pub(super) workload: &'r Workload,
    pub(super) plan: &'r Plan,
    pub(super) requests: Requests,
    pub(super) lanes: Vec<Lane>,
    /// Whether an operation is a matter of nanoseconds.
    in_memory: bool,
    pub(super) writer: Writer,
    pub(super) checks: Checks,
    pub(super) meter: Meter<'r>,
    intended: Option<Intended>,
}

impl<'r> Worker<'r> {
    #[expect(clippy::too_many_arguments, reason = "called once, each a different thing")]
    pub(super) fn new(
        store: &dyn Target,
        workload: &'r Workload,
        plan: &'r Plan,
        (place, of): (usize, usize),
        requests: Requests,
        connections: Vec<Box<dyn Connection>>,
        in_memory: bool,
        phase: &'r Phase,
    ) -> Self {
        let threads = plan.drive.threads;
        Self {
            workload,
            plan,
            requests,
            lanes: connections.into_iter().map(Lane::new).collect(),
            in_memory,
            writer: Writer { id: place as u16 + 1, sequence: 0, value: vec![0; workload.value_bytes] },
            checks: Checks::new(store.name(), workload.value_bytes),
            meter: Meter {
                phase,
                measuring: false,
                start: Instant::now(),
                share: plan.operations.map_or(u64::MAX, |all| all.div_ceil(threads as u64)),
                route: store.route(),
                before: Effort::default(),
                tally: Tally::default(),
            },
            intended: plan.rate.map(|rate| Intended::new(plan.arrivals, rate / threads as f64, plan.seed, (place, of))),
        }
    }

    /// Works until the run is over.
    pub(super) fn drive(mut self) -> Result<Tally, BenchError> {
        if let Some(intended) = &mut self.intended {
            intended.begin();
        }
        if self.plan.drive.pipelines() {
            self.windows()?;
        } else if self.plan.drive.batch > 1 {
            self.batches()?;
        } else if self.in_memory {
            self.calls_in_memory()?;
        } else {
            self.calls()?;
        }
        self.meter.stop(|| effort(&mut self.lanes));
        Ok(self.meter.tally)
    }

    /// One call after the other, each timed and verified before the next.
    fn calls(&mut self) -> Result<(), BenchError> {
        let Self { requests, lanes, writer, checks, meter, intended, .. } = self;
        let Some(Lane { connection, .. }) = lanes.first_mut() else { return Ok(()) };
        let mut value = Vec::with_capacity(writer.value.len());
        while meter.goes_on(|| connection.effort()) {
            let request = requests.next_request();
            let due = intended.as_mut().map(Intended::wait_for_next);
            let started = Instant::now();
            let reply = call(connection.as_mut(), request, writer, checks, &mut value)?;
            let ended = Instant::now();
            if meter.measuring {
                meter.tally.service.record(request.operation, ended - started);
                if let Some(due) = due {
                    meter.tally.wait.record(request.operation, started - due);
                    meter.tally.response.record(request.operation, ended - due);
                }
            }
            meter.count(request.operation, reply);
        }
        Ok(())
    }

    /// Reads gathered into multi-gets, each timed as a whole; writes one by one in between.
    fn batches(&mut self) -> Result<(), BenchError> {
        let Self { requests, lanes, writer, checks, meter, plan, .. } = self;
        let Some(Lane { connection, .. }) = lanes.first_mut() else { return Ok(()) };
        let mut value = Vec::with_capacity(writer.value.len());
        while meter.goes_on(|| connection.effort()) {
            let mut keys: [&[u8]; MAX_BATCH] = [&[]; MAX_BATCH];
            let mut reads = [(0, 0); MAX_BATCH];
            let mut count = 0;
            for request in requests.next_few(plan.drive.batch) {
                if request.operation == Operation::Read {
                    keys[count] = request.key;
                    reads[count] = (request.record, checks.floor(request.record));
                    count += 1;
                    continue;
                }
                let started = Instant::now();
                let reply = call(connection.as_mut(), request, writer, checks, &mut value)?;
                if meter.measuring {
                    meter.tally.service.record(request.operation, started.elapsed());
                }
                meter.count(request.operation, reply);
            }
            let started = Instant::now();
            let (mut handed_over, mut wrong) = (0, None);
            connection
                .read_batch(&keys[..count], &mut |index, found| {
                    let (record, floor) = reads[index];
                    handed_over += 1;
                    match checks.read(record, floor, found) {
                        Ok(reply) => meter.count(Operation::Read, reply),
                        Err(error) => wrong = Some(error),
                    }
                })
                .map_err(|error| checks.failed("multi-get", reads[0].0, error))?;
            let took = started.elapsed();
            if let Some(error) = wrong {
                return Err(error);
            }
            if handed_over != count {
                return Err(checks.failed("multi-get", reads[0].0, format!("{handed_over} of {count} keys answered")));
            }
            if meter.measuring {
                meter.tally.service.record_n(Operation::Read, took, count as u64);
            }
        }
        Ok(())
    }
}

#[inline]
pub(super) fn call(
    connection: &mut dyn Connection,
    request: Request<'_>,
    writer: &mut Writer,
    checks: &mut Checks,
    value: &mut Vec<u8>,
) -> Result<Reply, BenchError> {
    let Request { operation, record, key } = request;
    let mut reply = None;
    if matches!(operation, Operation::Read | Operation::ReadModifyWrite) {
        let floor = checks.floor(record);
        let found = connection.read(key, value).map_err(|error| checks.failed("read", record, error))?;
        reply = Some(checks.read(record, floor, found.map(|reply| (value.as_slice(), reply)))?);
    }
    if operation != Operation::Read {
        let written = connection
            .write(key, writer.next_value(record))
            .map_err(|error| checks.failed(operation.name(), record, error))?;
        checks.note(record, written.version);
        reply = reply.or(Some(written));
    }
    reply.ok_or_else(|| checks.failed(operation.name(), record, "nothing was done"))
}
