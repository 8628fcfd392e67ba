//! What a read gives.

use std::fmt;
use std::ops::Deref;

use crate::options::Path;
use crate::rdma::Item;

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
///
/// On `rdma` the bytes are where the NIC wrote them; dropping the value gives that buffer back. A clone is a copy.
pub struct Value {
    bytes: Bytes,
    version: u64,
    path: Path,
}

enum Bytes {
    Own(Vec<u8>),
    /// In a registered buffer.
    Received(Item),
}

impl Value {
    pub(crate) fn copied(bytes: &[u8], meta: Meta) -> Self {
        Self { bytes: Bytes::Own(bytes.to_vec()), version: meta.version, path: meta.path }
    }

    /// Without a copy, unless so many buffers are out that it must go back at once.
    pub(crate) fn received(item: Item) -> Self {
        let meta = item.meta();
        if item.is_scarce() {
            return Self::copied(item.bytes(), meta);
        }
        Self { bytes: Bytes::Received(item), version: meta.version, path: meta.path }
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
        Meta { version: self.version, path: self.path, value_bytes: self.len() }
    }

    /// The bytes, without a copy unless they are in a registered buffer.
    pub fn into_vec(self) -> Vec<u8> {
        match self.bytes {
            Bytes::Own(bytes) => bytes,
            Bytes::Received(item) => item.bytes().to_vec(),
        }
    }
}

impl Clone for Value {
    fn clone(&self) -> Self {
        Self::copied(self, self.meta())
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        self.meta() == other.meta() && **self == **other
    }
}

impl Eq for Value {}

impl Deref for Value {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Own(bytes) => bytes,
            Bytes::Received(item) => item.bytes(),
        }
    }
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Value> for Vec<u8> {
    fn from(value: Value) -> Self {
        value.into_vec()
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Value")
            .field("bytes", &format_args!("{}", self.escape_ascii()))
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
