//! Requests in flight on one session, without I/O: their bytes until they are answered, their
//! sequence numbers, and what becomes of them when the connection is lost.
//!
//! The bytes of a request are kept once, from before it is sent until it is answered, so that a
//! repeat after a reconnect is the same bytes. Replies may come in any order; ids are consecutive,
//! so the table is a queue.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use sidestep_core::hash::KeyHash;
use sidestep_core::limits::MAX_WRITES_IN_FLIGHT;
use sidestep_core::message::{
    FLAG_CONDITIONAL, FLAG_LENT, LENT_BYTES, LentValue, Op, REQUEST_BYTES, ReplyHeader, RequestHeader,
};
use sidestep_core::uses::{self, HASH_BYTES};
use zerocopy::byteorder::little_endian::U64;
use zerocopy::{FromBytes, IntoBytes};

/// The id of a report: there is one at a time, and no request gets so far.
pub(crate) const REPORT_ID: u64 = u64::MAX;

/// An empty log that grew beyond this gives its memory back.
const LOG_KEPT_BYTES: usize = 1 << 20;

/// A request as the caller states it; lengths are checked by then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) op: Op,
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
    pub(crate) expect: Option<u64>,
    pub(crate) ttl_ms: u64,
}

impl<'a> Request<'a> {
    pub(crate) fn get(key: &'a [u8]) -> Self {
        Self { op: Op::Get, key, value: &[], expect: None, ttl_ms: 0 }
    }

    pub(crate) fn put(key: &'a [u8], value: &'a [u8]) -> Self {
        Self { op: Op::Put, value, ..Self::get(key) }
    }

    pub(crate) fn is_write(&self) -> bool {
        self.op.is_write()
    }
}

/// A request that is in flight, or was and waits for those before it.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    op: Op,
    answered: bool,
    /// 0 of a read.
    sequence: u64,
    /// Position of its first byte, counted from the first byte of the session.
    start: u64,
    bytes: u64,
}

/// What was asked under an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) id: u64,
    pub(crate) op: Op,
}

/// A value in memory that the server may read, for as long as this is held.
#[cfg_attr(not(feature = "rdma"), allow(dead_code))]
pub(crate) struct Lent {
    /// Where it is.
    pub(crate) at: LentValue,
    pub(crate) memory: Box<dyn AsRef<[u8]> + Send + Sync>,
}

impl Lent {
    fn bytes(&self) -> usize {
        self.at.value_bytes.get() as usize
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent").field("at", &self.at).finish_non_exhaustive()
    }
}

/// The requests in flight.
#[derive(Debug, Default)]
pub(crate) struct Pipeline {
    /// Bytes from the oldest unanswered request to the newest, and reports between them.
    log: Vec<u8>,
    /// Of the log, how much at its front is answered.
    answered: usize,
    /// Of the log, how much is sent.
    sent: usize,
    /// Position of the log's first byte.
    position: u64,
    requests: VecDeque<InFlight>,
    /// Values of requests that are in flight, by their ids, which the server reads by itself over this connection.
    lent: BTreeMap<u64, Lent>,
    lent_bytes: usize,
    /// Id of the queue's front.
    first_id: u64,
    waiting: usize,
    last_sequence: u64,
    /// Id from which on to look for the oldest write in flight.
    oldest_write_id: u64,
}

impl Pipeline {
    /// Requests without an answer.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// The id that the next request will have.
    pub(crate) fn next_id(&self) -> u64 {
        self.first_id + self.requests.len() as u64
    }

    /// Whether one more write would pass the number of replies that the server remembers.
    pub(crate) fn writes_are_full(&mut self) -> bool {
        self.oldest_write_id = self.oldest_write_id.max(self.first_id);
        while let Some(request) = self.requests.get((self.oldest_write_id - self.first_id) as usize) {
            if request.op.is_write() && !request.answered {
                return self.last_sequence + 1 - request.sequence >= MAX_WRITES_IN_FLIGHT as u64;
            }
            self.oldest_write_id += 1;
        }
        false
    }

    /// Bytes of values that the server may read now.
    pub(crate) fn lent_bytes(&self) -> usize {
        self.lent_bytes
    }

    /// Whether this request's value was lent.
    pub(crate) fn is_lent(&self, id: u64) -> bool {
        self.lent.contains_key(&id)
    }

    /// Takes in a request; a write must have been allowed by [`Self::writes_are_full`]. `lent` has its value if the server
    /// is to read that by itself. Returns its id.
    pub(crate) fn push(&mut self, request: &Request<'_>, lent: Option<Lent>) -> u64 {
        self.compact();
        let id = self.next_id();
        let sequence = if request.is_write() {
            self.last_sequence += 1;
            self.last_sequence
        } else {
            0
        };
        let value = lent.as_ref().map_or(request.value, |lent| lent.at.as_bytes());
        let conditional = if request.expect.is_some() { FLAG_CONDITIONAL } else { 0 };
        let header = RequestHeader {
            op: request.op as u8,
            flags: conditional | if lent.is_some() { FLAG_LENT } else { 0 },
            key_bytes: (request.key.len() as u16).into(),
            value_bytes: (value.len() as u32).into(),
            id: id.into(),
            sequence: sequence.into(),
            expect_version: request.expect.unwrap_or(0).into(),
            ttl_ms: request.ttl_ms.into(),
        };
        let start = self.position + self.log.len() as u64;
        self.log.extend_from_slice(header.as_bytes());
        self.log.extend_from_slice(request.key);
        self.log.extend_from_slice(value);
        let bytes = (REQUEST_BYTES + request.key.len() + value.len()) as u64;
        self.requests.push_back(InFlight { op: request.op, answered: false, sequence, start, bytes });
        if let Some(lent) = lent {
            self.lent_bytes += lent.bytes();
            self.lent.insert(id, lent);
        }
        self.waiting += 1;
        id
    }

    /// Takes in a report of use. It is no request: nobody waits for it, and it is not repeated over another connection.
    pub(crate) fn push_report(&mut self, hashes: impl ExactSizeIterator<Item = KeyHash>) {
        self.compact();
        let header = RequestHeader {
            op: Op::Touch as u8,
            value_bytes: ((hashes.len() * HASH_BYTES) as u32).into(),
            id: REPORT_ID.into(),
            ..RequestHeader::default()
        };
        self.log.extend_from_slice(header.as_bytes());
        uses::encode(hashes, &mut self.log);
    }

    /// Bytes to send.
    pub(crate) fn unsent(&self) -> &[u8] {
        &self.log[self.sent..]
    }

    /// The first `bytes` of [`Self::unsent`] are on their way.
    pub(crate) fn mark_sent(&mut self, bytes: usize) {
        self.sent += bytes;
    }

    /// Takes in a reply. `None`: nothing was asked under its id.
    pub(crate) fn answer(&mut self, reply: &ReplyHeader) -> Option<Asked> {
        let id = reply.id.get();
        let index = usize::try_from(id.checked_sub(self.first_id)?).ok()?;
        let request = self.requests.get_mut(index)?;
        let sent = self.position + self.sent as u64;
        if request.answered || request.start + request.bytes > sent {
            return None;
        }
        request.answered = true;
        let op = request.op;
        self.waiting -= 1;
        if let Some(lent) = self.lent.remove(&id) {
            self.lent_bytes -= lent.bytes();
        }
        self.drop_answered();
        Some(Asked { id, op })
    }

    fn drop_answered(&mut self) {
        while let Some(front) = self.requests.front()
            && front.answered
        {
            self.answered = (front.start + front.bytes - self.position) as usize;
            self.requests.pop_front();
            self.first_id += 1;
        }
    }

    /// Moves the log to its front when at least half of it is answered: each byte moves at most once per doubling.
    fn compact(&mut self) {
        if self.requests.is_empty() {
            // The rest of what was sent are reports.
            self.answered = self.sent;
        }
        if self.answered == 0 || self.answered * 2 < self.log.len() {
            return;
        }
        self.log.drain(..self.answered);
        self.position += self.answered as u64;
        self.sent -= self.answered;
        self.answered = 0;
        if self.log.is_empty() && self.log.capacity() > LOG_KEPT_BYTES {
            self.log = Vec::new();
        }
    }

    /// The connection is lost and another one stands: makes everything unsent again that may be repeated, and
    /// returns how much that is. A write that may have reached a server which does not remember the session is
    /// given up and goes to `lost`. A value that was lent is sent this time; its memory is nobody's to read any more, since
    /// the queue pair of the connection that was lost is gone.
    pub(crate) fn replay(&mut self, resumed: bool, mut lost: impl FnMut(Asked)) -> usize {
        let sent = self.position + self.sent as u64;
        if !resumed {
            self.last_sequence = 0;
        }
        for index in 0..self.requests.len() {
            let id = self.first_id + index as u64;
            let request = self.requests[index];
            if request.answered || resumed || !request.op.is_write() {
                continue;
            }
            // A server applies whole requests only, so one that was not sent to its last byte was not applied.
            if request.start + request.bytes <= sent {
                self.requests[index].answered = true;
                self.waiting -= 1;
                lost(Asked { id, op: request.op });
            } else {
                self.last_sequence += 1;
                self.renumber(index, self.last_sequence);
            }
        }
        self.drop_answered();
        self.keep_unanswered();
        self.waiting
    }

    fn renumber(&mut self, index: usize, sequence: u64) {
        let request = &mut self.requests[index];
        request.sequence = sequence;
        let at = (request.start - self.position) as usize;
        if let Ok((header, _)) = RequestHeader::mut_from_prefix(&mut self.log[at..]) {
            header.sequence = U64::new(sequence);
        }
    }

    /// Takes answered requests out of the middle of the log, all of which is unsent then.
    fn keep_unanswered(&mut self) {
        let mut kept = Vec::with_capacity(self.log.len());
        for (id, request) in (self.first_id..).zip(&mut self.requests) {
            let at = (request.start - self.position) as usize;
            let bytes = if request.answered { 0 } else { request.bytes };
            let start = kept.len();
            let frame = &self.log[at..at + bytes as usize];
            match self.lent.get(&id).filter(|_| !request.answered) {
                Some(lent) => put_with_value(frame, lent, &mut kept),
                None => kept.extend_from_slice(frame),
            }
            request.start = self.position + start as u64;
            request.bytes = (kept.len() - start) as u64;
        }
        self.take_back();
        self.log = kept;
        (self.answered, self.sent) = (0, 0);
    }

    fn take_back(&mut self) {
        self.lent.clear();
        self.lent_bytes = 0;
    }

    /// Gives up everything, values that were lent too: the connection is lost. `was_sent` tells of each request whether the server may have seen it whole.
    pub(crate) fn abandon(&mut self, mut lost: impl FnMut(Asked, bool)) {
        let sent = self.position + self.sent as u64;
        for (id, request) in (self.first_id..).zip(&self.requests) {
            if !request.answered {
                lost(Asked { id, op: request.op }, request.start + request.bytes <= sent);
            }
        }
        self.first_id = self.next_id();
        self.requests.clear();
        self.take_back();
        self.waiting = 0;
        self.position += self.log.len() as u64;
        self.log.clear();
        (self.answered, self.sent) = (0, 0);
    }
}

/// Appends the frame of a put whose value was lent, with the value in it.
fn put_with_value(frame: &[u8], lent: &Lent, into: &mut Vec<u8>) {
    let start = into.len();
    into.extend_from_slice(&frame[..frame.len().saturating_sub(LENT_BYTES)]);
    if let Ok((header, _)) = RequestHeader::mut_from_prefix(&mut into[start..]) {
        header.flags &= !FLAG_LENT;
        header.value_bytes = lent.at.value_bytes;
    }
    let memory = (*lent.memory).as_ref();
    into.extend_from_slice(&memory[..lent.bytes().min(memory.len())]);
}

#[cfg(test)]
#[path = "pipeline_tests.rs"]
mod tests;
