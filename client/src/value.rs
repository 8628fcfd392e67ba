//! What a read gives.

use std::fmt;
use std::ops::Deref;

use crate::options::Path;

/// What is known of a value beside its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Grows with every write to the key.
    pub version: u64,
    /// The path that served this read.
    pub path: Path,
    /// Length of the value.
    pub value_bytes: usize,
}

/// A value: its bytes, its version, and the path that served it. Derefs to the bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Value {
    pub(crate) bytes: Vec<u8>,
    pub(crate) version: u64,
    pub(crate) path: Path,
}

impl Value {
    pub(crate) fn copied(bytes: &[u8], meta: Meta) -> Self {
        Self { bytes: bytes.to_vec(), version: meta.version, path: meta.path }
    }

    /// Grows with every write to the key; what [`put_if`](crate::Session::put_if) expects.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The path that served this read.
    pub fn path(&self) -> Path {
        self.path
    }

    /// Version, path and length.
    pub fn meta(&self) -> Meta {
        Meta { version: self.version, path: self.path, value_bytes: self.bytes.len() }
    }

    /// The bytes, without a copy.
    pub fn into_vec(self) -> Vec<u8> {
        self.bytes
    }
}

impl Deref for Value {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl From<Value> for Vec<u8> {
    fn from(value: Value) -> Self {
        value.bytes
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Value")
            .field("bytes", &format_args!("{}", self.bytes.escape_ascii()))
            .field("version", &self.version)
            .field("path", &self.path)
            .finish()
    }
}

/// Names a submitted request; given back with its [`Completion`]. Unique within a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub(crate) u64);

impl Ticket {
    /// The number behind the ticket: one more for each request of the session.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// How a submitted request ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// Of a get: the value, borrowed from the receive buffer.
    Value(&'a [u8], Meta),
    /// Of a get or delete: there is no such key.
    Absent,
    /// Of a put.
    Written {
        /// The new item's version.
        version: u64,
    },
    /// Of a delete.
    Removed {
        /// The removed item's version.
        version: u64,
    },
    /// Of a ping or a request for statistics.
    Echo(&'a [u8]),
}

/// A submitted request has ended.
#[derive(Debug)]
pub struct Completion<'a> {
    /// As returned when it was submitted.
    pub ticket: Ticket,
    /// How it ended.
    pub answer: Result<Answer<'a>, crate::Error>,
}
