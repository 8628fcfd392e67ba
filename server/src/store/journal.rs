//! What the store tells of its writes, so that they can be done again elsewhere.

use std::borrow::Cow;
use std::fmt::Debug;

/// Takes note of what becomes of each key. Called under the key's lock, so for one key in the order of its versions; when
/// nothing can refuse the write any more, and before any reader sees it, so of two writes of which one rests on the other in
/// their order.
pub trait Journal: Debug + Send + Sync {
    /// The key is about to have this value.
    fn put(&self, key: &[u8], value: Cow<'_, [u8]>, version: u64, expires_ms: u64);
    /// The key is about to be absent; it has this version.
    fn delete(&self, key: &[u8], version: u64);
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
