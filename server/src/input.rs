//! The buffer that a worker receives into, lent to one connection at a time.

use sidestep_core::handshake::PREAMBLE_BYTES;
use sidestep_core::limits::{MAX_CONTROL_BYTES, MAX_KEY_BYTES};
use sidestep_core::message::REQUEST_BYTES;

use crate::frame::LARGE_VALUE_BYTES;

/// Bytes of the buffer: a wake-up's worth of small requests.
const BUFFER_BYTES: usize = 128 << 10;
/// The largest unit that is parsed from the buffer must fit.
const _: () = assert!(PREAMBLE_BYTES + (MAX_CONTROL_BYTES as usize) < BUFFER_BYTES);
const _: () = assert!(REQUEST_BYTES + MAX_KEY_BYTES + (LARGE_VALUE_BYTES as usize) < BUFFER_BYTES);

/// Received bytes that are not used up yet, at the start of free room.
#[derive(Debug)]
pub(crate) struct Input {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Input {
    pub(crate) fn new() -> Self {
        Self { buffer: vec![0; BUFFER_BYTES].into_boxed_slice(), start: 0, end: 0 }
    }

    /// Takes up what a connection kept from its last turn.
    pub(crate) fn load(&mut self, kept: &mut Vec<u8>) {
        self.start = 0;
        self.end = kept.len();
        self.buffer[..self.end].copy_from_slice(kept);
        kept.clear();
    }

    /// Gives the connection what is not used up. Idle connections keep no memory.
    pub(crate) fn save(&mut self, kept: &mut Vec<u8>) {
        if self.start < self.end {
            kept.extend_from_slice(self.unread());
        } else if kept.capacity() > 0 {
            *kept = Vec::new();
        }
        self.start = 0;
        self.end = 0;
    }

    pub(crate) fn unread(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Where in the buffer the unread bytes begin; good until there is room to be made.
    pub(crate) fn position(&self) -> usize {
        self.start
    }

    /// The first `bytes` of what is unread are used.
    pub(crate) fn advance(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.end - self.start, "no more is used than was there");
        self.start += bytes;
    }

    /// Everything unread is used.
    pub(crate) fn clear(&mut self) {
        self.start = self.end;
    }

    /// Free room to receive into. What is unread moves to the front if there is little left behind it.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.buffer.len() - self.end < self.buffer.len() / 2 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        &mut self.buffer[self.end..]
    }

    /// `bytes` came into the room.
    pub(crate) fn received(&mut self, bytes: usize) {
        self.end += bytes;
        debug_assert!(self.end <= self.buffer.len(), "no more comes than there was room for");
    }
}
