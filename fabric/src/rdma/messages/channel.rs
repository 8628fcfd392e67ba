//! One end of a channel: what may be sent, what is under way, what has come.
//!
//! # Credits
//!
//! A side may have as many messages under way as the other has posted receive buffers for it. It begins with that many
//! credits, spends one on each message, and is given them back in the immediate data of the other's messages: the
//! number of buffers that were posted again since the last one. Where nothing is being sent and half of the credits are
//! owed, an empty message carries them; it costs a credit like any other, and is owed in its turn.
//!
//! Bytes are sent only while at least two credits are left: the last one is kept for an empty message. So no two sides
//! wait for each other. Say that nothing is under way and one side, A, has bytes to send and at most one credit. Then
//! the other, B, owes it at least half, and has not said so, which can only be for want of a credit: B has none. B spent
//! its last one on a message that gave back all it owed by then, at least half. If A has none either, A spent
//! its last one in the same way. Of these two messages take the one that came last: whoever got it has credits now.

mod pull;
#[cfg(test)]
mod wrong;

use std::collections::VecDeque;
use std::ptr::null_mut;

use ibverbs_sys as ffi;
use sidestep_core::handshake::MessagesEnd;
use sidestep_core::memory::Memory;

use self::pull::{Owner, Pull};
use super::super::queue_pair::QueuePair;
use super::super::{Buffer, BufferPool, RdmaError};
use super::MESSAGE_BYTES;
use super::receives::Receives;
use crate::region::Region;

/// Credits that sending bytes leaves untouched.
const KEPT: u32 = 1;

/// A message that has come, from byte `at` to `end` not used yet.
struct Message {
    buffer: Buffer,
    at: usize,
    end: usize,
}

/// What takes up a place of the send queue, with the memory that it names: the device's own until the request has
/// completed or the queue pair is destroyed.
enum Place {
    Message(#[expect(dead_code, reason = "held, not used")] Option<Buffer>),
    /// A READ of so many bytes.
    Read(usize, #[expect(dead_code, reason = "held, not used")] Owner),
}

/// The state of an end.
pub(super) struct End {
    pub(super) pair: QueuePair,
    /// Who is told of what happens here.
    pub(super) tag: usize,
    /// Messages that the peer has room for, and how many that were at first.
    credits: u32,
    most_credits: u32,
    /// Requests that take up a place of the send queue, the oldest first.
    in_flight: VecDeque<Place>,
    /// Number of the first of them.
    oldest: u64,
    /// Of the last of them, how many ask for no completion.
    unsignalled: usize,
    /// Behind the last one with bytes.
    end_of_bytes: u64,
    depth: usize,
    /// Whether the peer serves READs, and this device issues them.
    may_read: bool,
    /// What is being read out of the peer's memory.
    pull: Option<Pull>,
    come: VecDeque<Message>,
    /// Messages that the peer may still send, buffers that it has not been told of, and the sum of both at rest.
    allowed: u32,
    owed: u32,
    receives: u32,
    failure: Failure,
}

enum Failure {
    None,
    /// Nobody has been told yet.
    New(RdmaError),
    Told,
}

impl End {
    /// Of a queue pair with room for `depth` requests, for which `receives` buffers are posted.
    pub(super) fn new(pair: QueuePair, tag: usize, depth: u32, receives: u32) -> Self {
        Self {
            pair,
            tag,
            credits: 0,
            most_credits: 0,
            in_flight: VecDeque::new(),
            oldest: 0,
            unsignalled: 0,
            end_of_bytes: 0,
            depth: depth as usize,
            may_read: false,
            pull: None,
            come: VecDeque::new(),
            allowed: receives,
            owed: 0,
            receives,
            failure: Failure::None,
        }
    }

    pub(super) fn connect(&mut self, peer: &MessagesEnd) -> Result<(), RdmaError> {
        if u32::from(peer.receives) <= KEPT + 1 {
            let expected = "receive buffers for more than two messages";
            return Err(RdmaError::Peer { expected, found: u64::from(peer.receives) });
        }
        self.pair.connect(&peer.end)?;
        self.may_read = peer.end.reads_served > 0 && self.pair.end().reads_issued > 0;
        (self.credits, self.most_credits) = (u32::from(peer.receives), u32::from(peer.receives));
        Ok(())
    }

    pub(super) fn receives(&self) -> u32 {
        self.receives
    }

    /// Only the first failure counts.
    pub(super) fn fail(&mut self, error: RdmaError) {
        if matches!(self.failure, Failure::None) {
            self.failure = Failure::New(error);
        }
    }

    pub(super) fn has_failed(&self) -> bool {
        !matches!(self.failure, Failure::None)
    }

    fn check(&mut self) -> Result<(), RdmaError> {
        match std::mem::replace(&mut self.failure, Failure::Told) {
            Failure::None => {
                self.failure = Failure::None;
                Ok(())
            }
            Failure::New(error) => Err(error),
            Failure::Told => Err(RdmaError::completion(ffi::ibv_wc_status::IBV_WC_WR_FLUSH_ERR)),
        }
    }

    fn has_room(&self) -> bool {
        self.credits > KEPT && self.in_flight.len() < self.depth
    }

    /// Sends as much as goes into one message. 0: there is no room for one now.
    pub(super) fn send(&mut self, bytes: &[u8], pool: &BufferPool) -> Result<usize, RdmaError> {
        self.check()?;
        if !self.has_room() || bytes.is_empty() {
            return Ok(0);
        }
        let bytes = &bytes[..bytes.len().min(MESSAGE_BYTES)];
        if bytes.len() <= self.pair.inline_bytes() {
            self.post_inline(bytes);
        } else {
            let mut buffer = pool.take(bytes.len())?;
            buffer[..bytes.len()].copy_from_slice(bytes);
            self.post_buffer(buffer, bytes.len());
        }
        self.check().map(|()| bytes.len())
    }

    /// As [`Self::send`], of `prefix` and after it `bytes` bytes of the region from `offset` on, a multiple of 8.
    /// Sends a multiple of 8 of them, or all.
    pub(super) fn send_from(
        &mut self,
        prefix: &[u8],
        region: &Region,
        (offset, bytes): (u64, usize),
        pool: &BufferPool,
    ) -> Result<usize, RdmaError> {
        self.check()?;
        if prefix.len() > MESSAGE_BYTES - 8 {
            return self.send(prefix, pool);
        }
        if !self.has_room() {
            return Ok(0);
        }
        let bytes = bytes.min((MESSAGE_BYTES - prefix.len()) / 8 * 8);
        let words = bytes.next_multiple_of(8);
        let mut buffer = pool.take(prefix.len() + words)?;
        buffer[..prefix.len()].copy_from_slice(prefix);
        region.read(offset / 8, &mut buffer[prefix.len()..prefix.len() + words]);
        self.post_buffer(buffer, prefix.len() + bytes);
        self.check().map(|()| prefix.len() + bytes)
    }

    fn post_inline(&mut self, bytes: &[u8]) {
        let target = ffi::ibv_sge { addr: bytes.as_ptr() as u64, length: bytes.len() as u32, lkey: 0 };
        // SAFETY: inline: the bytes are copied before the call returns.
        unsafe { self.post(target, ffi::ibv_send_flags::IBV_SEND_INLINE.0, None) };
    }

    fn post_buffer(&mut self, buffer: Buffer, bytes: usize) {
        let (addr, lkey) = buffer.target();
        let target = ffi::ibv_sge { addr, length: bytes as u32, lkey };
        // SAFETY: of the buffer that goes along.
        unsafe { self.post(target, 0, Some(buffer)) };
    }

    /// Posts a message, with all credits that are owed. A failure is noted.
    ///
    /// # Safety
    /// The target is of `buffer`, or inline is among the flags.
    unsafe fn post(&mut self, mut target: ffi::ibv_sge, flags: u32, buffer: Option<Buffer>) {
        // Each half of the queue is spoken for by its last request.
        let is_signalled =
            flags & ffi::ibv_send_flags::IBV_SEND_SIGNALED.0 != 0 || self.unsignalled + 1 >= self.depth / 2;
        let signalled = if is_signalled { ffi::ibv_send_flags::IBV_SEND_SIGNALED.0 } else { 0 };
        let mut request = ffi::ibv_send_wr {
            wr_id: self.oldest + self.in_flight.len() as u64,
            next: null_mut(),
            sg_list: &raw mut target,
            num_sge: i32::from(target.length > 0),
            opcode: ffi::ibv_wr_opcode::IBV_WR_SEND_WITH_IMM,
            send_flags: flags | signalled,
            ..Default::default()
        };
        request.__bindgen_anon_1.imm_data = self.owed.to_be();
        self.in_flight.push_back(Place::Message(buffer));
        if target.length > 0 {
            self.end_of_bytes = self.oldest + self.in_flight.len() as u64;
        }
        // SAFETY: one request; its buffer, if it names one, is in the in-flight table, and stays there until the request
        // has completed or the queue pair is destroyed.
        match unsafe { self.pair.post(&raw mut request) } {
            Ok(()) => {
                self.credits -= 1;
                self.allowed += std::mem::take(&mut self.owed);
                self.unsignalled = if is_signalled { 0 } else { self.unsignalled + 1 };
            }
            Err(error) => self.fail(error),
        }
    }

    /// An empty message. It may take the credit that is kept for it.
    fn post_empty(&mut self, flags: u32) {
        if self.credits > 0 && self.in_flight.len() < self.depth && !self.has_failed() {
            // SAFETY: it names no memory.
            unsafe { self.post(ffi::ibv_sge::default(), flags, None) };
        }
    }

    /// Gives credits back, if half of them are owed.
    pub(super) fn return_credits(&mut self) {
        if self.owed * 2 >= self.receives {
            self.post_empty(0);
        }
    }

    /// The requests up to this number are done.
    pub(super) fn sent(&mut self, number: u64) {
        while self.oldest <= number
            && let Some(place) = self.in_flight.pop_front()
        {
            self.oldest += 1;
            if let (Place::Read(bytes, _), Some(pull)) = (place, &mut self.pull) {
                pull.arrived(bytes);
            }
        }
        self.return_credits();
        self.post_reads();
    }

    /// Whether the peer has all bytes that were sent, or never will; asks to be told if not. Credits are not waited for:
    /// two sides that did would send them to each other for ever.
    pub(super) fn is_delivered(&mut self) -> bool {
        let first_unsignalled =
            self.oldest + (self.in_flight.len() - self.unsignalled.min(self.in_flight.len())) as u64;
        if first_unsignalled < self.end_of_bytes {
            self.post_empty(ffi::ibv_send_flags::IBV_SEND_SIGNALED.0);
        }
        self.oldest >= self.end_of_bytes || self.has_failed()
    }

    /// Takes in a message. Gives the buffer back if there is nothing in it.
    pub(super) fn arrived(&mut self, buffer: Buffer, bytes: usize, credits: Option<u32>) -> Option<Buffer> {
        let broken = |expected, found: u32| RdmaError::Peer { expected, found: u64::from(found) };
        if self.has_failed() {
            return Some(buffer);
        }
        let Some(credits) = credits else {
            self.fail(broken("credits in each message", 0));
            return Some(buffer);
        };
        if self.allowed == 0 {
            self.fail(broken("no more messages than it has credits for, one more", self.receives + 1));
            return Some(buffer);
        }
        self.allowed -= 1;
        if credits > self.most_credits.saturating_sub(self.credits) {
            self.fail(broken("no more credits than it was sent messages", credits));
            return Some(buffer);
        }
        self.credits += credits;
        if bytes > 0 {
            self.come.push_back(Message { buffer, at: 0, end: bytes.min(MESSAGE_BYTES) });
            return None;
        }
        self.owed += 1;
        Some(buffer)
    }

    /// Hands out at most `room` bytes that have come, in their order, in pieces. Returns how many.
    fn take_in(
        &mut self,
        room: usize,
        receives: &mut Receives,
        mut put: impl FnMut(usize, &[u8]),
    ) -> Result<usize, RdmaError> {
        let mut taken = 0;
        while let Some(message) = self.come.front_mut()
            && taken < room
        {
            let bytes = (message.end - message.at).min(room - taken);
            put(taken, &message.buffer[message.at..message.at + bytes]);
            message.at += bytes;
            taken += bytes;
            if message.at == message.end
                && let Some(Message { buffer, .. }) = self.come.pop_front()
            {
                receives.give_back(buffer)?;
                self.owed += 1;
            }
        }
        if taken == 0 {
            self.check()?;
        }
        self.return_credits();
        Ok(taken)
    }

    /// What has come, as far as there is room. 0: nothing.
    pub(super) fn receive(&mut self, into: &mut [u8], receives: &mut Receives) -> Result<usize, RdmaError> {
        self.take_in(into.len(), receives, |at, bytes| into[at..at + bytes.len()].copy_from_slice(bytes))
    }

    /// As [`Self::receive`], into the region from byte `offset` on, which nobody else uses yet.
    pub(super) fn receive_into(
        &mut self,
        region: &Region,
        (offset, room): (u64, usize),
        receives: &mut Receives,
    ) -> Result<usize, RdmaError> {
        self.take_in(room, receives, |at, bytes| region.write_at(offset + at as u64, bytes))
    }

    /// The buffers of messages that nobody has taken.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Buffer> + '_ {
        self.come.drain(..).map(|message| message.buffer)
    }

    /// Destroys the queue pair. False: the device may still use buffers, which are kept for ever.
    pub(super) fn destroy(&mut self) -> bool {
        let is_gone = self.pair.destroy();
        if !is_gone {
            std::mem::forget(std::mem::take(&mut self.in_flight));
        }
        is_gone
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.destroy();
    }
}
