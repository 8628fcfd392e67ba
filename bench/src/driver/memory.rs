//! The loop of a thread whose operations are a matter of nanoseconds, written so that the bench stays out of the way.
//!
//! A CPU begins the next read while one waits for memory, as far as the instructions in between leave it room. Reading
//! the clock, counting and verifying between any two reads would take that room away, and the bench would cost as much
//! as half of what it measures. So reads come in short blocks, which are verified and counted as a whole while their
//! values are in the nearest cache, and only the reads of every few blocks are timed one by one.

use std::time::Instant;

use super::checks::Checks;
use super::window::Lane;
use super::worker::{Meter, Worker, call};
use crate::error::BenchError;
use crate::target::Reply;
use crate::workload::Operation;

/// Bytes of values that wait for being verified: a quarter of the nearest cache.
const BLOCK_BYTES: usize = 8 << 10;
/// Most reads of a block.
const MAX_BLOCK: usize = 64;
/// Of how many blocks one is timed.
const TIMED: u64 = 64;

/// Reads that wait for being verified and counted.
struct Block {
    values: Vec<Vec<u8>>,
    reads: Vec<(u64, Option<Reply>)>,
}

impl Block {
    fn new(value_bytes: usize) -> Self {
        let room = (BLOCK_BYTES / value_bytes.max(1)).clamp(1, MAX_BLOCK);
        let values = (0..room).map(|_| Vec::with_capacity(value_bytes)).collect();
        Self { values, reads: Vec::with_capacity(room) }
    }

    /// In the order in which they were read, so that versions are held against what was seen before.
    fn settle(&mut self, checks: &mut Checks, meter: &mut Meter<'_>) -> Result<(), BenchError> {
        for ((record, found), value) in self.reads.drain(..).zip(&self.values) {
            let reply = checks.read_last(record, found.map(|reply| (value.as_slice(), reply)))?;
            meter.count(Operation::Read, reply);
        }
        Ok(())
    }
}

impl Worker<'_> {
    /// One call after the other. Writes are done, timed and counted one by one, after the reads before them are settled.
    pub(super) fn calls_in_memory(&mut self) -> Result<(), BenchError> {
        let Self { requests, lanes, writer, checks, meter, .. } = self;
        let Some(Lane { connection, .. }) = lanes.first_mut() else { return Ok(()) };
        let connection = connection.as_mut();
        let mut block = Block::new(writer.value.len());
        let mut value = Vec::with_capacity(writer.value.len());
        let mut blocks = 0_u64;
        while meter.goes_on(|| connection.effort()) {
            let timed = blocks.is_multiple_of(TIMED);
            blocks += 1;
            let most = usize::try_from(meter.left()).map_or(block.values.len(), |left| left.min(block.values.len()));
            for request in requests.next_few(most) {
                if request.operation != Operation::Read {
                    block.settle(checks, meter)?;
                    let started = Instant::now();
                    let reply = call(connection, request, writer, checks, &mut value)?;
                    if meter.measuring {
                        meter.tally.service.record(request.operation, started.elapsed());
                    }
                    meter.count(request.operation, reply);
                    continue;
                }
                let into = &mut block.values[block.reads.len()];
                let started = if timed { Some(Instant::now()) } else { None };
                let found =
                    connection.read(request.key, into).map_err(|error| checks.failed("read", request.record, error))?;
                if let Some(started) = started
                    && meter.measuring
                {
                    meter.tally.service.record(request.operation, started.elapsed());
                }
                block.reads.push((request.record, found));
            }
            block.settle(checks, meter)?;
        }
        Ok(())
    }
}
