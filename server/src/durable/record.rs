//! What the log has of a write, and how writes that were synced together lie in it.
//!
//! ```text
//! batch   | header 32: magic 4, records 4, number of the first 8, bytes 8, clock 8 | record | record | …
//! record  | kind 1 | reserved 1 | key bytes 2 | value bytes 4 | version 8 | expires 8 | key | value |
//! ```
//!
//! A batch is cut into cells, each with a checksum ([`super::segment`]). All numbers are little-endian.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: u32 = u32::from_le_bytes(*b"SLOG");
const PUT: u8 = 1;
const DELETE: u8 = 2;

/// Before the records of a batch.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct BatchHeader {
    magic: U32,
    /// Records in it.
    pub(super) records: U32,
    /// Number of the first one: they are counted from the log's beginning on.
    pub(super) first: U64,
    /// Length of all of them.
    pub(super) bytes: U64,
    /// The server's clock when it was written, in milliseconds since the Unix epoch.
    pub(super) clock_ms: U64,
}

pub(super) const BATCH_HEADER_BYTES: usize = size_of::<BatchHeader>();
const _: () = assert!(BATCH_HEADER_BYTES == 32);

impl BatchHeader {
    pub(super) fn new(first: u64, records: u32, bytes: u64, clock_ms: u64) -> Self {
        Self {
            magic: MAGIC.into(),
            records: records.into(),
            first: first.into(),
            bytes: bytes.into(),
            clock_ms: clock_ms.into(),
        }
    }

    /// Reads it off the beginning of a batch.
    pub(super) fn read(batch: &[u8]) -> Option<Self> {
        Self::read_from_prefix(batch).ok().map(|(header, _)| header).filter(|header| header.magic.get() == MAGIC)
    }
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    kind: u8,
    reserved: u8,
    key_bytes: U16,
    value_bytes: U32,
    version: U64,
    expires_ms: U64,
}

pub(super) const HEADER_BYTES: usize = size_of::<Header>();
const _: () = assert!(HEADER_BYTES == 24);

/// What became of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record<'a> {
    pub(super) key: &'a [u8],
    pub(super) version: u64,
    /// None: the key is absent.
    pub(super) value: Option<&'a [u8]>,
    pub(super) expires_ms: u64,
}

/// Appends all of a put's record but its value.
pub(super) fn begin_put(into: &mut Vec<u8>, key: &[u8], value_bytes: usize, version: u64, expires_ms: u64) {
    append(into, PUT, key, value_bytes, version, expires_ms);
}

/// Appends a delete's record.
pub(super) fn delete(into: &mut Vec<u8>, key: &[u8], version: u64) {
    append(into, DELETE, key, 0, version, 0);
}

fn append(into: &mut Vec<u8>, kind: u8, key: &[u8], value_bytes: usize, version: u64, expires_ms: u64) {
    let header = Header {
        kind,
        reserved: 0,
        // The store has checked both.
        key_bytes: (key.len() as u16).into(),
        value_bytes: (value_bytes as u32).into(),
        version: version.into(),
        expires_ms: expires_ms.into(),
    };
    into.extend_from_slice(header.as_bytes());
    into.extend_from_slice(key);
}

/// The records of a batch, after its header. An error: the bytes are no records.
pub(super) fn records(bytes: &[u8]) -> impl Iterator<Item = Result<Record<'_>, &'static str>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let next = split(rest);
        rest = next.as_ref().map_or(&[], |(_, rest)| rest);
        Some(next.map(|(record, _)| record))
    })
}

fn split(bytes: &[u8]) -> Result<(Record<'_>, &[u8]), &'static str> {
    let (header, rest) = Header::ref_from_prefix(bytes).map_err(|_| "a record is cut off in its header")?;
    let (key, rest) = rest.split_at_checked(header.key_bytes.get().into()).ok_or("a record is cut off in its key")?;
    let value_bytes = header.value_bytes.get() as usize;
    let (value, rest) = rest.split_at_checked(value_bytes).ok_or("a record is cut off in its value")?;
    let value = match header.kind {
        PUT => Some(value),
        DELETE if value.is_empty() => None,
        _ => return Err("a record is of a kind that is not known"),
    };
    let (version, expires_ms) = (header.version.get(), header.expires_ms.get());
    Ok((Record { key, version, value, expires_ms }, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes() -> Vec<u8> {
        let mut bytes = Vec::new();
        begin_put(&mut bytes, b"key", 5, 7, 9);
        bytes.extend_from_slice(b"value");
        delete(&mut bytes, b"gone", 8);
        bytes
    }

    #[test]
    fn records_come_back() {
        let bytes = bytes();
        let found: Result<Vec<_>, _> = records(&bytes).collect();
        let put = Record { key: b"key", version: 7, value: Some(b"value"), expires_ms: 9 };
        let delete = Record { key: b"gone", version: 8, value: None, expires_ms: 0 };
        assert_eq!(found, Ok(vec![put, delete]));
    }

    #[test]
    fn what_is_cut_off_or_unknown_is_an_error() {
        let whole = bytes();
        let first = HEADER_BYTES + 8;
        for end in (1..whole.len()).filter(|&end| end != first) {
            assert!(records(&whole[..end]).any(|record| record.is_err()), "{end}");
        }
        let mut unknown = whole;
        unknown[0] = 3;
        assert!(records(&unknown).next().is_some_and(|record| record.is_err()));
    }

    #[test]
    fn golden_bytes() {
        assert_eq!(bytes()[..HEADER_BYTES + 3], *b"\x01\0\x03\0\x05\0\0\0\x07\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0key");
        let header = BatchHeader::new(1, 2, 3, 4);
        assert_eq!(header.as_bytes()[..16], *b"SLOG\x02\0\0\0\x01\0\0\0\0\0\0\0");
        assert!(BatchHeader::read(header.as_bytes()).is_some());
        assert!(BatchHeader::read(&[0; 32]).is_none());
    }
}
