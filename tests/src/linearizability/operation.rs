//! One operation of a history, and the file of many.

use std::io::{self, BufRead, Write};

use serde::{Deserialize, Serialize};

/// The value of a read whose bytes no writer can have written.
pub const MALFORMED: u64 = u64::MAX;

/// What an operation did. Values are named by numbers that no two writes share; version 0 means absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Did {
    /// A read found this.
    Found {
        /// The item's version.
        version: u64,
        /// The value's number, or [`MALFORMED`].
        value: u64,
    },
    /// A read found nothing.
    Absent,
    /// A write was acknowledged.
    Put {
        /// The value's number.
        value: u64,
        /// The version that it was to replace; 0 = only if absent; none = any.
        expect: Option<u64>,
        /// The version that it got.
        version: u64,
    },
    /// A write may have taken effect, at any time after its start, or not.
    PutUnknown {
        /// The value's number.
        value: u64,
        /// As in [`Did::Put`].
        expect: Option<u64>,
    },
    /// A conditional write or delete was refused.
    Mismatch {
        /// What was expected.
        expect: u64,
        /// What was found.
        found: u64,
    },
    /// A delete removed an item.
    Deleted {
        /// The version that it was to remove; none = any.
        expect: Option<u64>,
    },
    /// A delete found nothing to remove.
    DeletedNothing,
    /// A delete may have taken effect, at any time after its start, or not.
    DeleteUnknown {
        /// As in [`Did::Deleted`].
        expect: Option<u64>,
    },
}

impl Did {
    /// Whether it cannot have changed anything.
    pub(crate) fn is_observation(&self) -> bool {
        matches!(self, Self::Found { .. } | Self::Absent | Self::Mismatch { .. } | Self::DeletedNothing)
    }

    /// Whether it is certain that it was done, and done by its end.
    pub(crate) fn is_certain(&self) -> bool {
        !matches!(self, Self::PutUnknown { .. } | Self::DeleteUnknown { .. })
    }
}

/// One operation on one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// Who; one does one operation at a time, but for batches.
    pub client: u32,
    /// The key's number.
    pub key: u64,
    /// Not done before, in nanoseconds.
    pub start: u64,
    /// Done by then, unless its outcome is unknown, in nanoseconds.
    pub end: u64,
    /// What was done.
    pub did: Did,
    /// Of a write: the value expires so many nanoseconds after a moment between start and end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<u64>,
}

/// Writes a history, one line an operation.
pub fn write_history(operations: &[Operation], mut to: impl Write) -> io::Result<()> {
    for operation in operations {
        serde_json::to_writer(&mut to, operation)?;
        to.write_all(b"\n")?;
    }
    to.flush()
}

/// Reads a history. An error names the line.
pub fn read_history(mut from: impl BufRead) -> io::Result<Vec<Operation>> {
    let mut operations = Vec::new();
    let (mut line, mut number) = (Vec::new(), 0);
    while from.read_until(b'\n', &mut line)? > 0 {
        number += 1;
        let text = line.trim_ascii();
        if !text.is_empty() && !text.starts_with(b"#") {
            let operation = serde_json::from_slice(text)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("line {number}: {error}")))?;
            operations.push(operation);
        }
        line.clear();
    }
    Ok(operations)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_as_documented() {
        let text = br#"# two clients
{"client":3,"key":17,"start":1000,"end":2500,"did":{"put":{"value":4294967296,"expect":null,"version":12}}}

{"client":5,"key":17,"start":2600,"end":2700,"did":"absent"}
"#;
        let history = read_history(&text[..]).unwrap();
        assert_eq!(history.len(), 2);
        assert_eq!(history[0].did, Did::Put { value: 1 << 32, expect: None, version: 12 });
        let mut written = Vec::new();
        write_history(&history, &mut written).unwrap();
        assert_eq!(read_history(&written[..]).unwrap(), history);
        assert_eq!(written.iter().filter(|byte| **byte == b'\n').count(), 2);
        let error = read_history(&b"\n{\"client\":3}\n"[..]).unwrap_err();
        assert!(error.to_string().starts_with("line 2: "), "{error}");
    }
}
