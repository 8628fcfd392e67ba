//! YCSB's keys: `user` and the decimal of a hash of the record number.

use std::ops::Range;

/// Where YCSB's 64-bit FNV starts.
const FNV_OFFSET: u64 = 0xCBF2_9CE4_8422_2325;
/// What it multiplies by.
const FNV_PRIME: u64 = 1_099_511_628_211;
/// What every key begins with.
const PREFIX: &[u8; 4] = b"user";
/// Digits of the largest `u64`.
const MAX_DIGITS: usize = 20;
/// Most digits a key may be padded to; with the prefix it stays below the store's longest key.
pub const MAX_ZERO_PADDING: usize = 4000;

/// YCSB's `fnvhash64`: FNV over the 8 bytes of `number`, low byte first, then Java's absolute value.
#[must_use]
pub fn fnv64(number: u64) -> u64 {
    let hash =
        number.to_le_bytes().iter().fold(FNV_OFFSET, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME));
    hash.cast_signed().unsigned_abs()
}

/// How a record number becomes a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyShape {
    /// `insertorder=ordered`: the number itself instead of its hash.
    pub ordered: bool,
    /// `zeropadding`: the digits are filled with zeros from the left to this many.
    pub zero_padding: usize,
}

impl KeyShape {
    /// Longest key of this shape, in bytes.
    #[must_use]
    pub fn max_bytes(self) -> usize {
        PREFIX.len() + self.zero_padding.max(MAX_DIGITS)
    }

    /// Appends the key of `record` and returns where it lies in `arena`.
    pub fn render(self, record: u64, arena: &mut Vec<u8>) -> Range<usize> {
        let start = arena.len();
        arena.extend_from_slice(PREFIX);
        let mut rest = if self.ordered { record } else { fnv64(record) };
        let mut digits = [b'0'; MAX_DIGITS];
        let mut first = MAX_DIGITS;
        loop {
            first -= 1;
            digits[first] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        let padding = self.zero_padding.saturating_sub(MAX_DIGITS - first);
        arena.resize(arena.len() + padding, b'0');
        arena.extend_from_slice(&digits[first..]);
        start..arena.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(shape: KeyShape, record: u64) -> String {
        let mut arena = Vec::new();
        let _ = shape.render(record, &mut arena);
        String::from_utf8(arena).expect("keys are ASCII")
    }

    #[test]
    fn the_hash_is_ycsbs() {
        let expected = [
            6_284_781_860_667_377_211,
            8_517_097_267_634_966_620,
            1_820_151_046_732_198_393,
            4_052_466_453_699_787_802,
        ];
        for (record, hash) in (0..).zip(expected) {
            assert_eq!(fnv64(record), hash);
        }
    }

    #[test]
    fn keys_are_ycsbs() {
        let hashed = KeyShape { ordered: false, zero_padding: 1 };
        assert_eq!(key(hashed, 0), "user6284781860667377211");
        let ordered = KeyShape { ordered: true, zero_padding: 1 };
        assert_eq!(key(ordered, 0), "user0");
        assert_eq!(key(KeyShape { zero_padding: 5, ..ordered }, 42), "user00042");
    }

    #[test]
    fn padded_keys_have_one_length() {
        let shape = KeyShape { ordered: false, zero_padding: 20 };
        assert!((0..10_000).all(|record| key(shape, record).len() == 24));
        assert_eq!(shape.max_bytes(), 24);
    }
}
