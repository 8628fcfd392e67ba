//! Reading a whole table page by page, and emptying it, over a connection.
//!
//! A scan goes through the keys in the order of their hashes, which neither splits nor doublings change: a page begins
//! where the one before ended, whatever became of the index in between. Nothing is remembered on the server.
//!
//! A request of [`Op::Scan`](crate::message::Op::Scan) has a [`ScanRequest`] as its value, and as its key the last key of
//! the page before, if that had any. The reply is a [`PageHeader`] and so many records: [`RecordHeader`], key, value.
//!
//! A request of [`Op::Flush`](crate::message::Op::Flush) is a write without a key; its value is the hash, 8 bytes, from
//! which on to remove. The reply's version is a [`Flushed`].

use thiserror::Error;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::limits::MAX_KEY_BYTES;

/// Value of a scan's request, 16 bytes.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ScanRequest {
    /// 0 at first, then [`PageHeader::next`].
    pub from: U64,
    /// The page ends with the record that passes this; at most [`PAGE_LIMIT_BYTES`].
    pub limit_bytes: U32,
    /// 0.
    pub reserved: U32,
}

/// Head of a page, 16 bytes.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PageHeader {
    /// Where the next page begins.
    pub next: U64,
    /// How many follow; 0 is no sign of the end.
    pub records: U32,
    /// 1: there is no next page.
    pub is_last: u8,
    /// 0.
    pub reserved: [u8; 3],
}

/// Head of a record, 24 bytes; key and value follow, without padding.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RecordHeader {
    /// Of the item.
    pub version: U64,
    /// Milliseconds since the Unix epoch; 0 = never.
    pub expires_ms: U64,
    /// Length of the value.
    pub value_bytes: U32,
    /// Length of the key.
    pub key_bytes: U16,
    /// 0.
    pub reserved: U16,
}

/// Bytes of a [`ScanRequest`].
pub const SCAN_REQUEST_BYTES: usize = size_of::<ScanRequest>();
/// Bytes of a [`PageHeader`].
pub const PAGE_HEADER_BYTES: usize = size_of::<PageHeader>();
/// Bytes of a [`RecordHeader`].
pub const RECORD_HEADER_BYTES: usize = size_of::<RecordHeader>();
/// Value of a flush's request.
pub const FLUSH_REQUEST_BYTES: usize = 8;
const _: () = assert!(SCAN_REQUEST_BYTES == 16 && PAGE_HEADER_BYTES == 16 && RECORD_HEADER_BYTES == 24);

/// Most bytes of records before the last one of a page.
pub const PAGE_LIMIT_BYTES: u32 = 128 << 10;
/// What a page may be longer than the largest value.
pub const PAGE_OVERHEAD_BYTES: u32 =
    PAGE_LIMIT_BYTES + (PAGE_HEADER_BYTES + RECORD_HEADER_BYTES + MAX_KEY_BYTES) as u32;

/// What a flush did, in 64 bits: `| hash from which on to go on 34 | removed 30 |`. A hash of 0: it is done.
///
/// 34 bits are enough, since it goes on at the beginning of a subtable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flushed(pub u64);

impl Flushed {
    const REMOVED: u64 = (1 << 30) - 1;

    /// Of a hash whose low 30 bits are 0, none at the end.
    pub const fn new(next: Option<u64>, removed: u32) -> Self {
        let next = match next {
            Some(next) => next & !Self::REMOVED,
            None => 0,
        };
        Self(next | (removed as u64 & Self::REMOVED))
    }

    /// Where to go on.
    pub const fn next(self) -> Option<u64> {
        match self.0 & !Self::REMOVED {
            0 => None,
            next => Some(next),
        }
    }

    /// Keys that are gone.
    pub const fn removed(self) -> u64 {
        self.0 & Self::REMOVED
    }
}

/// A key with all that is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// Of the item.
    pub version: u64,
    /// Milliseconds since the Unix epoch; 0 = never.
    pub expires_ms: u64,
}

/// Bytes that are no records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RecordError {
    /// The bytes end within a header, key or value.
    #[error("expected {expected} bytes of a record, found {found}")]
    Short {
        /// What the record needs.
        expected: usize,
        /// What is left.
        found: usize,
    },
    /// A key that no table can hold.
    #[error("expected a key of 1 to {MAX_KEY_BYTES} bytes, found {0}")]
    Key(usize),
    /// Bytes after the last record.
    #[error("expected the end after {records} records, found {left} bytes")]
    Left {
        /// How many there should be.
        records: u32,
        /// What follows them.
        left: usize,
    },
}

/// Reads `count` records that must fill the bytes.
pub fn records(bytes: &[u8], count: u32) -> Result<Vec<Record<'_>>, RecordError> {
    // No more room than the bytes can have records.
    let mut records = Vec::with_capacity((count as usize).min(bytes.len() / RECORD_HEADER_BYTES));
    let mut rest = bytes;
    for _ in 0..count {
        let (header, body) = RecordHeader::ref_from_prefix(rest)
            .map_err(|_| RecordError::Short { expected: RECORD_HEADER_BYTES, found: rest.len() })?;
        let (key_bytes, value_bytes) = (usize::from(header.key_bytes.get()), header.value_bytes.get() as usize);
        if !(1..=MAX_KEY_BYTES).contains(&key_bytes) {
            return Err(RecordError::Key(key_bytes));
        }
        let short = RecordError::Short { expected: key_bytes + value_bytes, found: body.len() };
        let (key, after) = body.split_at_checked(key_bytes).ok_or(short)?;
        let (value, after) = after.split_at_checked(value_bytes).ok_or(short)?;
        records.push(Record { key, value, version: header.version.get(), expires_ms: header.expires_ms.get() });
        rest = after;
    }
    if rest.is_empty() { Ok(records) } else { Err(RecordError::Left { records: count, left: rest.len() }) }
}

impl Record<'_> {
    /// The header of this record.
    pub fn header(&self) -> RecordHeader {
        RecordHeader {
            version: self.version.into(),
            expires_ms: self.expires_ms.into(),
            value_bytes: (self.value.len() as u32).into(),
            key_bytes: (self.key.len() as u16).into(),
            reserved: 0.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(record: &Record<'_>) -> Vec<u8> {
        [record.header().as_bytes(), record.key, record.value].concat()
    }

    #[test]
    fn golden_bytes() {
        let record = Record { key: b"k", value: b"vw", version: 0x0102, expires_ms: 0x0304 };
        let golden = [2, 1, 0, 0, 0, 0, 0, 0, 4, 3, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, b'k', b'v', b'w'];
        assert_eq!(bytes(&record), golden);
        assert_eq!(records(&golden, 1), Ok(vec![record]));
        let page = PageHeader { next: 0x0102.into(), records: 3.into(), is_last: 1, reserved: [0; 3] };
        assert_eq!(page.as_bytes(), [2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0]);
        let request = ScanRequest { from: 0x0102.into(), limit_bytes: 3.into(), reserved: 0.into() };
        assert_eq!(request.as_bytes(), [2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn what_was_flushed_is_packed() {
        let flushed = Flushed::new(Some(3 << 62), 504);
        assert_eq!((flushed.0, flushed.next(), flushed.removed()), ((3 << 62) | 504, Some(3 << 62), 504));
        assert_eq!((Flushed::new(None, 7).next(), Flushed::new(None, 7).removed()), (None, 7));
    }

    #[test]
    fn faults_are_told() {
        let good = bytes(&Record { key: b"key", value: b"value", version: 1, expires_ms: 0 });
        assert_eq!(records(&good, 2), Err(RecordError::Short { expected: 24, found: 0 }));
        assert_eq!(records(&good[..31], 1), Err(RecordError::Short { expected: 8, found: 7 }));
        assert_eq!(records(&good, 0), Err(RecordError::Left { records: 0, left: 32 }));
        let mut long = good;
        long[20..22].copy_from_slice(&4097u16.to_le_bytes());
        assert_eq!(records(&long, 1), Err(RecordError::Key(4097)));
    }

    /// Every cut and every changed byte of good ones, under every count: records or an error.
    #[test]
    fn damaged_bytes_are_borne() {
        let good = bytes(&Record { key: b"key", value: b"value", version: 1, expires_ms: 0 }).repeat(2);
        for at in 0..good.len() {
            for change in [1, 0x80, 0xff] {
                let mut changed = good.clone();
                changed[at] ^= change;
                for count in [0, 1, 2, 3, u32::MAX] {
                    for bytes in [&good[..at], &changed, &changed[at..]] {
                        if let Ok(found) = records(bytes, count) {
                            assert_eq!(found.len(), count as usize);
                        }
                    }
                }
            }
        }
    }
}
