//! Data frames of `tcp` and `rdma-rpc`: a fixed little-endian header read in place, then key and
//! value bytes.
//!
//! A request is [`RequestHeader`], `key_bytes` of key, `value_bytes` of value. A reply is
//! [`ReplyHeader`], then `value_bytes` of value (or of UTF-8 text that explains an error).
//! Many requests may be in flight; replies carry the request's `id` and come in any order.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    /// Read a value. Key, no value.
    Get = 1,
    /// Write a value. With [`FLAG_CONDITIONAL`], only if the version is the expected one.
    Put = 2,
    /// Remove a key. With [`FLAG_CONDITIONAL`], only if the version is the expected one.
    Delete = 3,
    /// Answer, nothing else. The value is echoed.
    Ping = 4,
    /// Statistics. No key; the reply's value is a bincode [`crate::handshake::Stats`].
    Stats = 5,
    /// Connect a queue pair. No key; the value is a bincode [`crate::handshake::QueuePairRequest`], the reply's a
    /// [`crate::handshake::QueuePairReply`].
    Connect = 6,
    /// Read the next page of all keys; see [`crate::scan`].
    Scan = 7,
    /// Remove all keys from a hash on; see [`crate::scan`].
    Flush = 8,
    /// Tell which keys were read around the server's CPU; see [`crate::uses`].
    Touch = 9,
}

impl Op {
    /// The operation of a wire byte.
    pub fn from_wire(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Get,
            2 => Self::Put,
            3 => Self::Delete,
            4 => Self::Ping,
            5 => Self::Stats,
            6 => Self::Connect,
            7 => Self::Scan,
            8 => Self::Flush,
            9 => Self::Touch,
            _ => return None,
        })
    }

    /// Whether it changes the table: it has a sequence number, and a reply that is remembered.
    pub fn is_write(self) -> bool {
        matches!(self, Self::Put | Self::Delete | Self::Flush)
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Done; `version` is the item's (of a delete: the removed item's).
    Ok = 0,
    /// The key is absent.
    NotFound = 1,
    /// A conditional write found another version; `version` is the one found, 0 if absent.
    VersionMismatch = 2,
    /// No memory for this write; nothing was changed.
    Full = 3,
    /// Key or value beyond the limits; nothing was changed.
    TooLarge = 4,
    /// Addressed to an earlier boot or an expired session: whether it was applied is not known.
    OutcomeUnknown = 5,
    /// Not a valid request; the connection is closed after this reply, unless it was an [`Op::Touch`] of a wrong length.
    BadRequest = 6,
    /// The server is stopping and did not take the request.
    Stopping = 7,
    /// The path that was asked for cannot be had; the text says why.
    Unavailable = 8,
    /// The session's token does not allow it; nothing was changed. The text says what it allows.
    Forbidden = 9,
}

impl Status {
    /// The status of a wire byte.
    pub fn from_wire(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Ok,
            1 => Self::NotFound,
            2 => Self::VersionMismatch,
            3 => Self::Full,
            4 => Self::TooLarge,
            5 => Self::OutcomeUnknown,
            6 => Self::BadRequest,
            7 => Self::Stopping,
            8 => Self::Unavailable,
            9 => Self::Forbidden,
            _ => return None,
        })
    }
}

/// Request flag: `expect_version` holds; 0 means "must be absent".
pub const FLAG_CONDITIONAL: u8 = 1;
/// Request flag of a put: in place of the value there is a [`LentValue`], where the server reads it by itself.
pub const FLAG_LENT: u8 = 2;

/// Header of a request, 40 bytes.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RequestHeader {
    /// An [`Op`].
    pub op: u8,
    /// [`FLAG_CONDITIONAL`], [`FLAG_LENT`]; other bits must be 0.
    pub flags: u8,
    /// Length of the key.
    pub key_bytes: U16,
    /// Length of the value.
    pub value_bytes: U32,
    /// Chosen by the client, repeated in the reply.
    pub id: U64,
    /// Of a write: the session's sequence number, from 1 on, one more for each new write. Of a read: 0.
    pub sequence: U64,
    /// See [`FLAG_CONDITIONAL`].
    pub expect_version: U64,
    /// Of a put: milliseconds after which the item expires, by the server's clock from the moment at which it has this
    /// header; 0 = never.
    pub ttl_ms: U64,
}

/// Where a value is in its client's memory, 16 bytes: that of a request with [`FLAG_LENT`], over a message channel by
/// whose queue pair the server reads it. The client leaves it there until it has the reply, or its queue pair is gone.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LentValue {
    /// First byte, as the client's device counts.
    pub address: U64,
    /// Key to the memory.
    pub rkey: U32,
    /// Length of the value.
    pub value_bytes: U32,
}

/// Header of a reply, 24 bytes.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ReplyHeader {
    /// A [`Status`].
    pub status: u8,
    /// 0.
    pub flags: u8,
    /// 0.
    pub reserved: U16,
    /// Length of what follows.
    pub value_bytes: U32,
    /// Of the request.
    pub id: U64,
    /// See [`Status`].
    pub version: U64,
}

/// Bytes of a [`RequestHeader`].
pub const REQUEST_BYTES: usize = size_of::<RequestHeader>();
/// Bytes of a [`ReplyHeader`].
pub const REPLY_BYTES: usize = size_of::<ReplyHeader>();
/// Bytes of a [`LentValue`].
pub const LENT_BYTES: usize = size_of::<LentValue>();
const _: () = assert!(REQUEST_BYTES == 40 && REPLY_BYTES == 24 && LENT_BYTES == 16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let request = RequestHeader {
            op: Op::Put as u8,
            flags: FLAG_CONDITIONAL,
            key_bytes: 0x0102.into(),
            value_bytes: 0x0304_0506.into(),
            id: 0x0708_090a_0b0c_0d0e.into(),
            sequence: 0x0f10.into(),
            expect_version: 0x1112.into(),
            ttl_ms: 0x1314.into(),
        };
        let bytes = [
            2, 1, 2, 1, 6, 5, 4, 3, 0xe, 0xd, 0xc, 0xb, 0xa, 9, 8, 7, 0x10, 0xf, 0, 0, 0, 0, 0, 0, 0x12, 0x11, 0, 0, 0,
            0, 0, 0, 0x14, 0x13, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(request.as_bytes(), bytes);
        let lent = LentValue { address: 0x0102.into(), rkey: 0x0304.into(), value_bytes: 0x0506.into() };
        assert_eq!(lent.as_bytes(), [2, 1, 0, 0, 0, 0, 0, 0, 4, 3, 0, 0, 6, 5, 0, 0]);
        let reply = ReplyHeader {
            status: Status::VersionMismatch as u8,
            flags: 0,
            reserved: 0.into(),
            value_bytes: 0x0102.into(),
            id: 0x0304.into(),
            version: 0x0506.into(),
        };
        let bytes = [2, 0, 0, 0, 2, 1, 0, 0, 4, 3, 0, 0, 0, 0, 0, 0, 6, 5, 0, 0, 0, 0, 0, 0];
        assert_eq!(reply.as_bytes(), bytes);
    }

    #[test]
    fn wire_bytes_are_what_they_were() {
        let ops = [Op::Get, Op::Put, Op::Delete, Op::Ping, Op::Stats, Op::Connect, Op::Scan, Op::Flush, Op::Touch];
        for (byte, op) in (1..).zip(ops) {
            assert_eq!((op as u8, Op::from_wire(byte)), (byte, Some(op)));
        }
        use Status::{
            BadRequest, Forbidden, Full, NotFound, Ok, OutcomeUnknown, Stopping, TooLarge, Unavailable, VersionMismatch,
        };
        let all = [
            Ok,
            NotFound,
            VersionMismatch,
            Full,
            TooLarge,
            OutcomeUnknown,
            BadRequest,
            Stopping,
            Unavailable,
            Forbidden,
        ];
        for (byte, status) in (0..).zip(all) {
            assert_eq!((status as u8, Status::from_wire(byte)), (byte, Some(status)));
        }
        assert_eq!((Op::from_wire(0), Op::from_wire(10), Status::from_wire(255)), (None, None, None));
    }
}
