//! Reports of use: what clients read around the server's CPU, told to a server that evicts.
//!
//! A request of [`Op::Touch`](crate::message::Op::Touch) has the hashes of keys that were read as its value, 8 bytes each,
//! little-endian, up to [`MAX_REPORTED`] of them, and no key. They are a sample: see
//! [`Welcome::report_one_in`](crate::handshake::Welcome). The reply says nothing but ok.

use thiserror::Error;
use zerocopy::byteorder::little_endian::U64;
use zerocopy::{FromBytes, IntoBytes};

use crate::hash::KeyHash;

/// Most hashes in one report.
pub const MAX_REPORTED: usize = 512;

/// Bytes of a hash in a report.
pub const HASH_BYTES: usize = size_of::<U64>();

/// Why a value is no report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("expected at most {MAX_REPORTED} hashes of {HASH_BYTES} bytes each, found {0} bytes")]
pub struct NotAReport(pub usize);

/// Appends a report of these to `into`.
pub fn encode(hashes: impl Iterator<Item = KeyHash>, into: &mut Vec<u8>) {
    hashes.for_each(|hash| into.extend_from_slice(U64::new(hash.0).as_bytes()));
}

/// The hashes of a report.
pub fn decode(value: &[u8]) -> Result<impl ExactSizeIterator<Item = KeyHash> + Clone, NotAReport> {
    match <[U64]>::ref_from_bytes(value) {
        Ok(hashes) if hashes.len() <= MAX_REPORTED => Ok(hashes.iter().map(|hash| KeyHash(hash.get()))),
        _ => Err(NotAReport(value.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(hashes: &[u64]) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(hashes.iter().map(|&hash| KeyHash(hash)), &mut bytes);
        bytes
    }

    #[test]
    fn golden_bytes() {
        let bytes = [8, 7, 6, 5, 4, 3, 2, 1, 1, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(encoded(&[0x0102_0304_0506_0708, 1]), bytes);
        let decoded: Vec<KeyHash> = decode(&bytes).unwrap().collect();
        assert_eq!(decoded, [KeyHash(0x0102_0304_0506_0708), KeyHash(1)]);
        assert_eq!(decode(&[]).unwrap().len(), 0);
    }

    #[test]
    fn what_is_no_report_is_refused() {
        let most = encoded(&[7; MAX_REPORTED]);
        assert_eq!(decode(&most).unwrap().len(), MAX_REPORTED);
        for bytes in [1, HASH_BYTES - 1, HASH_BYTES + 1, most.len() - 1, most.len() + 1, most.len() + HASH_BYTES] {
            let value = vec![0; bytes];
            assert_eq!(decode(&value).err(), Some(NotAReport(bytes)));
        }
        assert_eq!(NotAReport(9).to_string(), "expected at most 512 hashes of 8 bytes each, found 9 bytes");
    }
}
