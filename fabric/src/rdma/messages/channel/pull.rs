//! Values read out of the peer's memory, one-sided, beside the messages and by the same queue pair.
//!
//! # Whose memory is it
//!
//! **What a READ fills is nobody else's until that READ has completed, or the queue pair is destroyed.** An error, the
//! end of the channel, or the error state of the queue pair say nothing about when the device stops writing: a response
//! that was late would land in memory that has another owner by then. So each READ takes a share of its memory's owner
//! along into the in-flight table, and that gives it back in two ways only: a completion without error, of the READ or
//! of a later request; or with the [`End`](super::End), whose drop destroys the queue pair first, and keeps the table
//! for ever if that fails.

use std::ptr::null_mut;
use std::sync::Arc;

use ibverbs_sys as ffi;

use super::super::super::{LocalRange, RdmaError, RemoteRange};
use super::super::READS;
use super::{End, Place};

/// Owner of the memory that is read into: it has no other use while this is held.
pub(super) type Owner = Arc<dyn Send + Sync>;

/// A READ is cut into pieces of this many bytes, a multiple of every MTU: the first are checked while others travel.
const PIECE_BYTES: usize = 256 << 10;

/// A value on its way.
pub(super) struct Pull {
    /// What no READ was posted for yet.
    from: RemoteRange,
    into: LocalRange,
    memory: Owner,
    /// READs under way.
    reads: usize,
    /// Bytes that have arrived and were not told of, and those that have not arrived.
    arrived: usize,
    missing: usize,
}

impl Pull {
    /// One of its READs has completed.
    pub(super) fn arrived(&mut self, bytes: usize) {
        self.reads -= 1;
        self.arrived += bytes;
        self.missing -= bytes;
    }

    /// Cuts off the next piece. None: everything is posted.
    fn next(&mut self, most: usize) -> Option<(ffi::ibv_sge, RemoteRange)> {
        let bytes = most.min(self.from.bytes);
        if bytes == 0 {
            return None;
        }
        let target = ffi::ibv_sge { addr: self.into.address, length: bytes as u32, lkey: self.into.lkey };
        let from = RemoteRange { bytes, ..self.from };
        self.from.address = self.from.address.wrapping_add(bytes as u64);
        self.from.bytes -= bytes;
        self.into.address += bytes as u64;
        self.reads += 1;
        Some((target, from))
    }
}

impl End {
    /// Begins to read `from` into `into`, which is as long, and not empty.
    pub(in super::super) fn pull(
        &mut self,
        from: RemoteRange,
        into: LocalRange,
        memory: Owner,
    ) -> Result<(), RdmaError> {
        self.check()?;
        let wrong = |expected, found: usize| Err(RdmaError::Peer { expected, found: found as u64 });
        if from.bytes != into.bytes || from.bytes == 0 {
            return wrong("as many bytes to read as there is room for, and at least 1", from.bytes);
        }
        if !self.may_read {
            return wrong("that it serves READs", 0);
        }
        if let Some(pull) = &self.pull {
            return wrong("one value at a time to be read, one is still on its way", pull.missing);
        }
        self.pull = Some(Pull { from, into, memory, reads: 0, arrived: 0, missing: from.bytes });
        self.post_reads();
        self.check()
    }

    /// Bytes that have arrived since the last call.
    pub(in super::super) fn pulled(&mut self) -> Result<usize, RdmaError> {
        let (arrived, missing) =
            self.pull.as_mut().map_or((0, 0), |pull| (std::mem::take(&mut pull.arrived), pull.missing));
        if arrived == 0 {
            self.check()?;
        }
        if missing == 0 {
            self.pull = None;
        }
        Ok(arrived)
    }

    /// Posts READs for what is left, as far as there are places for them.
    pub(super) fn post_reads(&mut self) {
        let most_reads = (self.depth / 4).clamp(1, READS as usize);
        let most_bytes = (self.pair.port().message_bytes as usize / 4096 * 4096).clamp(4096, PIECE_BYTES);
        while !self.has_failed()
            && self.in_flight.len() < self.depth
            && let Some(pull) = self.pull.as_mut().filter(|pull| pull.reads < most_reads)
            && let Some((target, from)) = pull.next(most_bytes)
        {
            let memory = pull.memory.clone();
            self.post_read(target, from, memory);
        }
    }

    /// Posts one READ, which asks for its completion. A failure is noted.
    fn post_read(&mut self, mut target: ffi::ibv_sge, from: RemoteRange, memory: Owner) {
        let mut request = ffi::ibv_send_wr {
            wr_id: self.oldest + self.in_flight.len() as u64,
            next: null_mut(),
            sg_list: &raw mut target,
            num_sge: 1,
            opcode: ffi::ibv_wr_opcode::IBV_WR_RDMA_READ,
            send_flags: ffi::ibv_send_flags::IBV_SEND_SIGNALED.0,
            ..Default::default()
        };
        request.wr.rdma = ffi::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: from.address, rkey: from.rkey };
        self.in_flight.push_back(Place::Read(from.bytes, memory));
        // SAFETY: one request, of a range of registered memory whose owner is in the in-flight table, and stays there
        // until the request has completed or the queue pair is destroyed.
        match unsafe { self.pair.post(&raw mut request) } {
            Ok(()) => self.unsignalled = 0,
            Err(error) => self.fail(error),
        }
    }
}
