//! Sizes as people write them: `64MiB`, `1GiB`, `4096`.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

/// A number of bytes, written as a whole number with an optional binary unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "Written")]
pub struct ByteSize(pub u64);

/// What stands in a configuration file: a number of bytes or text with a unit.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Bytes(u64),
    Text(String),
}

const UNITS: [(&str, u32); 5] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("expected a size such as 64MiB or 1GiB, found {text:?}");
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let number: u64 = number.parse().map_err(|_| expected())?;
        let shift = match unit.trim() {
            "" => 0,
            unit => {
                UNITS
                    .iter()
                    .find(|(name, _)| name.eq_ignore_ascii_case(unit) || short(name).eq_ignore_ascii_case(unit))
                    .ok_or_else(expected)?
                    .1
            }
        };
        number
            .checked_mul(1 << shift)
            .map(ByteSize)
            .ok_or_else(|| format!("expected less than 2^64 bytes, found {text}"))
    }
}

/// `G` for `GiB`: the short form means the same unit.
fn short(name: &str) -> &str {
    name.strip_suffix("iB").unwrap_or(name)
}

impl TryFrom<Written> for ByteSize {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        match written {
            Written::Bytes(bytes) => Ok(Self(bytes)),
            Written::Text(text) => text.parse(),
        }
    }
}

impl fmt::Display for ByteSize {
    /// In the largest unit that gives a whole number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, shift) = UNITS
            .into_iter()
            .find(|(_, shift)| self.0 >> shift != 0 && self.0.trailing_zeros() >= *shift)
            .unwrap_or(("B", 0));
        write!(f, "{} {name}", self.0 >> shift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_numbers_and_units() {
        for (text, bytes) in
            [("4096", 4096), ("1GiB", 1 << 30), ("64 MiB", 64 << 20), ("2k", 2048), ("3TiB", 3 << 40), ("7B", 7)]
        {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_not_a_size() {
        for text in ["", "GiB", "-1", "1.5GiB", "1XB", "99999999999999999999", "16777216TiB"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn prints_whole_units() {
        assert_eq!(ByteSize(1 << 30).to_string(), "1 GiB");
        assert_eq!(ByteSize((1 << 30) + 1024).to_string(), "1048577 KiB");
        assert_eq!(ByteSize(0).to_string(), "0 B");
    }
}
