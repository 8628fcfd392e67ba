//! Values that prove themselves: bytes made from (record, writer, sequence), so that every read is verified.
//!
//! The first 8 bytes are the record, the next 8 who wrote it and when (writer 16 bits, sequence 48), all that follows
//! is a stream of words from a seed mixed from those two. A byte of another record, another write or another place
//! in the value is a wrong byte. Values shorter than 16 bytes have no room for the writer: they depend on the record
//! alone.

/// Bytes of the record and the stamp at the front of a value.
const HEADER_BYTES: usize = 16;
/// Odd, with its bits well spread (2^64 / golden ratio).
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Who wrote a value, and with which of its writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp(u64);

impl Stamp {
    /// What `load` writes.
    pub const LOADED: Self = Self(0);

    /// Write number `sequence` of `writer`.
    #[must_use]
    pub fn new(writer: u16, sequence: u64) -> Self {
        Self(u64::from(writer) << 48 | sequence & ((1 << 48) - 1))
    }
}

/// Why a value is not one that was written for the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WrongValue {
    /// Too long or too short.
    #[error("has {found} bytes instead of {expected}")]
    Length {
        /// Bytes that every value of the workload has.
        expected: usize,
        /// Bytes that were read.
        found: usize,
    },
    /// Another record's value.
    #[error("belongs to record {found}")]
    Record {
        /// The record that the value says it is of.
        found: u64,
    },
    /// Bytes that no writer wrote.
    #[error("has a wrong byte in the word at {offset}")]
    Bytes {
        /// Offset of the first word that differs, in bytes.
        offset: usize,
    },
}

/// splitmix64's finisher.
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ bits >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ bits >> 31
}

/// Record and stamp are in the value beside what is made from them, so that one round of mixing is enough.
fn seed(record: u64, stamp: Stamp) -> u64 {
    mix(record.wrapping_mul(GOLDEN) ^ stamp.0.rotate_left(32))
}

/// Makes `value` the bytes for `record`, keeping its length.
pub fn fill(record: u64, stamp: Stamp, value: &mut [u8]) {
    let Some((header, body)) = value.split_at_mut_checked(HEADER_BYTES) else {
        let word = mix(record.wrapping_add(GOLDEN)).to_le_bytes();
        value.iter_mut().zip(word.iter().cycle()).for_each(|(byte, &made)| *byte = made);
        return;
    };
    header[..8].copy_from_slice(&record.to_le_bytes());
    header[8..].copy_from_slice(&stamp.0.to_le_bytes());
    let mut word = seed(record, stamp);
    let (words, tail) = body.as_chunks_mut::<8>();
    for bytes in words {
        *bytes = word.to_le_bytes();
        word = word.wrapping_add(GOLDEN);
    }
    tail.copy_from_slice(&word.to_le_bytes()[..tail.len()]);
}

/// Checks that `value` is one that [`fill`] makes for `record`, of `expected` bytes.
///
/// # Errors
/// What is wrong with it.
#[inline]
pub fn verify(record: u64, value: &[u8], expected: usize) -> Result<(), WrongValue> {
    if is_right(record, value, expected) { Ok(()) } else { Err(what_is_wrong(record, value, expected)) }
}

/// The quick half of [`verify`]. No early exit among the words: the differences are collected, so that the loop
/// vectorizes.
#[inline]
fn is_right(record: u64, value: &[u8], expected: usize) -> bool {
    if value.len() != expected {
        return false;
    }
    // Reads of 64 bytes are the quickest: here the compiler knows how many words there are.
    if let Ok(value) = <&[u8; 64]>::try_from(value) {
        return is_right_of(record, value);
    }
    is_right_of(record, value)
}

#[inline(always)]
fn is_right_of(record: u64, value: &[u8]) -> bool {
    let Some((header, body)) = value.split_first_chunk::<HEADER_BYTES>() else {
        return is_right_without_header(record, value);
    };
    let header = u128::from_le_bytes(*header);
    let (words, tail) = body.as_chunks::<8>();
    let mut word = seed(record, Stamp((header >> 64) as u64));
    let mut difference = header as u64 ^ record;
    for bytes in words {
        difference |= u64::from_le_bytes(*bytes) ^ word;
        word = word.wrapping_add(GOLDEN);
    }
    // Comparing nothing is a call too.
    difference == 0 && (tail.is_empty() || *tail == word.to_le_bytes()[..tail.len()])
}

fn is_right_without_header(record: u64, value: &[u8]) -> bool {
    let word = mix(record.wrapping_add(GOLDEN)).to_le_bytes();
    value.iter().zip(word.iter().cycle()).all(|(found, made)| found == made)
}

#[cold]
fn what_is_wrong(record: u64, value: &[u8], expected: usize) -> WrongValue {
    if value.len() != expected {
        return WrongValue::Length { expected, found: value.len() };
    }
    let Some((header, body)) = value.split_first_chunk::<HEADER_BYTES>() else {
        return WrongValue::Bytes { offset: 0 };
    };
    let header = u128::from_le_bytes(*header);
    if header as u64 != record {
        return WrongValue::Record { found: header as u64 };
    }
    let first = seed(record, Stamp((header >> 64) as u64));
    let words = body.as_chunks::<8>().0;
    let wrong = words
        .iter()
        .zip(0_u64..)
        .position(|(bytes, index)| u64::from_le_bytes(*bytes) != first.wrapping_add(GOLDEN.wrapping_mul(index)));
    WrongValue::Bytes { offset: HEADER_BYTES + 8 * wrong.unwrap_or(words.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(record: u64, stamp: Stamp, bytes: usize) -> Vec<u8> {
        let mut value = vec![0; bytes];
        fill(record, stamp, &mut value);
        value
    }

    #[test]
    fn what_was_made_is_verified() {
        for bytes in (0..70).chain([1000, 1024, 16 << 10]) {
            for stamp in [Stamp::LOADED, Stamp::new(3, 99)] {
                assert_eq!(verify(5, &made(5, stamp, bytes), bytes), Ok(()), "{bytes} bytes");
            }
        }
    }

    #[test]
    fn every_wrong_byte_is_seen() {
        for bytes in [1, 8, 15, 16, 17, 64, 100, 1000] {
            let good = made(5, Stamp::new(1, 2), bytes);
            for position in 0..bytes {
                let mut bad = good.clone();
                bad[position] ^= 0x10;
                // Below 24 bytes the stamp is not covered by any other byte.
                let stamp_alone = (16..24).contains(&bytes) && (8..16).contains(&position) && bytes == 16;
                assert!(stamp_alone || verify(5, &bad, bytes).is_err(), "byte {position} of {bytes}");
            }
        }
    }

    #[test]
    fn a_mix_of_two_writes_is_seen() {
        let (old, new) = (made(5, Stamp::new(1, 2), 64), made(5, Stamp::new(1, 3), 64));
        for word in 1..7 {
            let torn = [&old[..8 * word], &new[8 * word..]].concat();
            // Cut right after the record: all of it is new.
            assert_eq!(verify(5, &torn, 64).is_ok(), word == 1, "torn at word {word}");
        }
    }

    #[test]
    fn the_first_wrong_word_is_named() {
        let mut value = made(5, Stamp::LOADED, 1000);
        value[803] ^= 1;
        assert_eq!(verify(5, &value, 1000), Err(WrongValue::Bytes { offset: 800 }));
        assert_eq!(verify(6, &value, 1000), Err(WrongValue::Record { found: 5 }));
        assert_eq!(verify(5, &value[..999], 1000), Err(WrongValue::Length { expected: 1000, found: 999 }));
    }
}
