//! The loop of a thread that keeps a window of requests in flight on each of its connections.

use std::time::Instant;

use super::checks::Checks;
use super::worker::Worker;
use crate::error::BenchError;
use crate::target::{Connection, Effort, Reply, TargetError};
use crate::workload::{Operation, Request};

/// A request of a window.
#[derive(Clone, Copy)]
struct Slot {
    operation: Operation,
    record: u64,
    floor: u64,
    /// Of a read-modify-write: what its read said, once it has ended.
    read: Option<Reply>,
}

/// One connection and its window.
pub(super) struct Lane {
    pub(super) connection: Box<dyn Connection>,
    slots: Vec<Slot>,
    started: Instant,
    outstanding: usize,
    /// Room for the key of a second half.
    key: Vec<u8>,
}

impl Lane {
    pub(super) fn new(connection: Box<dyn Connection>) -> Self {
        Self { connection, slots: Vec::new(), started: Instant::now(), outstanding: 0, key: Vec::new() }
    }
}

/// What the operations of all connections took so far.
pub(super) fn effort(lanes: &mut [Lane]) -> Effort {
    let mut sum = Effort::default();
    lanes.iter_mut().for_each(|lane| sum += lane.connection.effort());
    sum
}

impl Worker<'_> {
    /// A window of requests on each connection; in turn, each is awaited as a whole and filled anew.
    pub(super) fn windows(&mut self) -> Result<(), BenchError> {
        let mut lanes = std::mem::take(&mut self.lanes);
        for lane in &mut lanes {
            self.submit(lane)?;
        }
        while self.meter.goes_on(|| effort(&mut lanes)) {
            for lane in &mut lanes {
                self.await_all(lane)?;
                self.write_modified(lane)?;
                self.submit(lane)?;
            }
        }
        self.meter.stop(|| effort(&mut lanes));
        lanes.iter_mut().try_for_each(|lane| self.await_all(lane))
    }

    fn submit(&mut self, lane: &mut Lane) -> Result<(), BenchError> {
        lane.slots.clear();
        lane.started = Instant::now();
        for (tag, request) in self.requests.next_few(self.plan.drive.depth).enumerate() {
            let Request { operation, record, key } = request;
            lane.slots.push(Slot { operation, record, floor: self.checks.floor(record), read: None });
            let submitted = match operation {
                Operation::Read | Operation::ReadModifyWrite => lane.connection.submit_read(tag, key),
                Operation::Update | Operation::Insert => {
                    lane.connection.submit_write(tag, key, self.writer.next_value(record))
                }
            };
            submitted.map_err(|error| self.checks.failed("submit", record, error))?;
        }
        lane.outstanding = lane.slots.len();
        self.hand_out(lane, false)
    }

    fn await_all(&mut self, lane: &mut Lane) -> Result<(), BenchError> {
        while lane.outstanding > 0 {
            self.hand_out(lane, true)?;
        }
        Ok(())
    }

    /// Second half of the read-modify-writes, timed from the start of the first.
    fn write_modified(&mut self, lane: &mut Lane) -> Result<(), BenchError> {
        if self.workload.mix.read_modify_write == 0.0 {
            return Ok(());
        }
        lane.slots.retain(|slot| slot.operation == Operation::ReadModifyWrite);
        for (tag, slot) in lane.slots.iter().enumerate() {
            lane.key.clear();
            let _ = self.workload.key_shape().render(slot.record, &mut lane.key);
            lane.connection
                .submit_write(tag, &lane.key, self.writer.next_value(slot.record))
                .map_err(|error| self.checks.failed("submit", slot.record, error))?;
        }
        lane.outstanding = lane.slots.len();
        self.await_all(lane)
    }

    fn hand_out(&mut self, lane: &mut Lane, wait: bool) -> Result<(), BenchError> {
        let Self { checks, meter, .. } = self;
        let Lane { connection, slots, started, outstanding, .. } = lane;
        let (mut arrived, mut wrong) = (None, None);
        let result = connection.complete(wait, &mut |completion| {
            // What is handed out together was received together.
            let arrived = *arrived.get_or_insert_with(Instant::now);
            *outstanding = outstanding.saturating_sub(1);
            let slot = &mut slots[completion.tag];
            let Slot { operation, record, read, .. } = *slot;
            let checked = completion
                .outcome
                .map_err(|error| checks.failed(operation.name(), record, error))
                .and_then(|found| settle(checks, slot, found));
            match checked {
                // A read-modify-write is counted when its write ends.
                Ok(reply) if operation == Operation::ReadModifyWrite && read.is_none() => slot.read = Some(reply),
                Ok(reply) => {
                    meter.count(operation, read.unwrap_or(reply));
                    if meter.measuring {
                        meter.tally.service.record(operation, arrived - *started);
                    }
                }
                Err(error) => wrong = Some(error),
            }
        });
        if let Some(error) = wrong {
            return Err(error);
        }
        result
            .map_err(|error: TargetError| checks.failed("complete", slots.first().map_or(0, |slot| slot.record), error))
    }
}

/// Checks the reply to a submitted request.
fn settle(checks: &mut Checks, slot: &Slot, found: Option<(&[u8], Reply)>) -> Result<Reply, BenchError> {
    let Slot { operation, record, floor, read } = *slot;
    match operation {
        Operation::Read => checks.read(record, floor, found),
        Operation::ReadModifyWrite if read.is_none() => checks.read(record, floor, found),
        Operation::ReadModifyWrite | Operation::Update | Operation::Insert => {
            let (_, reply) =
                found.ok_or_else(|| checks.failed(operation.name(), record, "the store did not write it"))?;
            checks.note(record, reply.version);
            Ok(reply)
        }
    }
}
