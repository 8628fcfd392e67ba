//! The receive buffer of a session: replies are read in place, and nothing is allocated per reply.

use sidestep_core::message::{REPLY_BYTES, ReplyHeader};
use zerocopy::FromBytes;

/// First size, and the least room that a receive is given.
const ROOM_BYTES: usize = 64 << 10;
/// A buffer that grew beyond this gives its memory back once it is no longer needed.
const KEPT_BYTES: usize = 1 << 20;
/// Times that a large buffer is emptied, without having been filled that far, before it is given back.
const SMALL_USES: u32 = 256;

/// Received bytes, `[start, end)` of a buffer that keeps its memory.
#[derive(Debug, Default)]
pub(crate) struct ReceiveBuffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// Since more than [`KEPT_BYTES`] were in use.
    small_uses: u32,
}

/// What lies at the front of the buffer.
#[derive(Debug)]
pub(crate) enum Front<'a> {
    /// A reply and its value; to be [consumed](ReceiveBuffer::consume).
    Reply(ReplyHeader, &'a [u8]),
    /// Not all of it.
    Partial,
    /// A length beyond the limit.
    TooLong(u32),
}

impl ReceiveBuffer {
    /// Room for what comes next. It grows with the bytes that did arrive, never by what a header claims.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        if self.start == self.end {
            self.small_uses = if self.end > KEPT_BYTES { 0 } else { self.small_uses.saturating_add(1) };
            (self.start, self.end) = (0, 0);
            if self.bytes.len() > KEPT_BYTES && self.small_uses >= SMALL_USES {
                self.bytes = Vec::new();
            }
        }
        if self.bytes.len() - self.end < ROOM_BYTES {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            let wanted = (2 * self.end).max(2 * ROOM_BYTES);
            if self.bytes.len() - self.end < ROOM_BYTES {
                self.bytes.resize(wanted.max(self.bytes.len()), 0);
            }
        }
        &mut self.bytes[self.end..]
    }

    /// The first `bytes` of [`Self::room`] have been received.
    pub(crate) fn filled(&mut self, bytes: usize) {
        self.end = (self.end + bytes).min(self.bytes.len());
    }

    /// The reply at the front, its value at most `limit` bytes.
    pub(crate) fn front(&self, limit: u32) -> Front<'_> {
        let Ok((header, rest)) = ReplyHeader::read_from_prefix(&self.bytes[self.start..self.end]) else {
            return Front::Partial;
        };
        let value_bytes = header.value_bytes.get();
        if value_bytes > limit {
            return Front::TooLong(value_bytes);
        }
        match rest.get(..value_bytes as usize) {
            Some(value) => Front::Reply(header, value),
            None => Front::Partial,
        }
    }

    /// Done with a reply at the front.
    pub(crate) fn consume(&mut self, header: &ReplyHeader) {
        self.start += REPLY_BYTES + header.value_bytes.get() as usize;
    }

    /// Forgets what a lost connection brought.
    pub(crate) fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    fn reply(id: u64, value: &[u8]) -> Vec<u8> {
        let header = ReplyHeader { value_bytes: (value.len() as u32).into(), id: id.into(), ..Default::default() };
        [header.as_bytes(), value].concat()
    }

    proptest! {
        /// Replies come out whole and in order, however the bytes are cut.
        #[test]
        fn replies_survive_any_cut(
            values in proptest::collection::vec((1usize..200_000).prop_map(|n| vec![n as u8; n]), 1..8),
            cuts in proptest::collection::vec(1usize..70_000, 1..20),
        ) {
            let stream: Vec<u8> =
                values.iter().enumerate().flat_map(|(id, value)| reply(id as u64, value)).collect();
            let (mut buffer, mut seen, mut rest) = (ReceiveBuffer::default(), 0, &stream[..]);
            let mut cuts = cuts.iter().cycle();
            while !rest.is_empty() {
                let room = buffer.room();
                let n = (*cuts.next().unwrap()).min(room.len()).min(rest.len());
                room[..n].copy_from_slice(&rest[..n]);
                rest = &rest[n..];
                buffer.filled(n);
                while let Front::Reply(header, value) = buffer.front(u32::MAX) {
                    prop_assert_eq!(header.id.get(), seen as u64);
                    prop_assert_eq!(value, &values[seen][..]);
                    seen += 1;
                    buffer.consume(&header);
                }
            }
            prop_assert_eq!(seen, values.len());
        }

        /// Garbage is a reply, a part of one, or too long; never a panic.
        #[test]
        fn garbage_is_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..300), limit: u32) {
            let mut buffer = ReceiveBuffer::default();
            buffer.room()[..bytes.len()].copy_from_slice(&bytes);
            buffer.filled(bytes.len());
            while let Front::Reply(header, value) = buffer.front(limit) {
                prop_assert!(value.len() <= limit as usize);
                buffer.consume(&header);
            }
        }
    }

    #[test]
    fn a_claimed_length_takes_no_memory() {
        let mut buffer = ReceiveBuffer::default();
        let header = ReplyHeader { value_bytes: u32::MAX.into(), ..Default::default() };
        buffer.room()[..REPLY_BYTES].copy_from_slice(header.as_bytes());
        buffer.filled(REPLY_BYTES);
        assert!(matches!(buffer.front(1 << 20), Front::TooLong(u32::MAX)));
        assert!(matches!(buffer.front(u32::MAX), Front::Partial));
        assert!(buffer.room().len() <= 2 * ROOM_BYTES);
    }
}
