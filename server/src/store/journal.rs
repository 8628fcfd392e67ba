//! What the store tells of its writes, so that they can be done again elsewhere.

use std::borrow::Cow;
use std::fmt::Debug;

/// Takes note of what becomes of each key. Called under the key's lock, after the write: so for one key in the order of
/// its versions.
pub trait Journal: Debug + Send + Sync {
    /// The key has this value now.
    fn put(&self, key: &[u8], value: Cow<'_, [u8]>, version: u64, expires_ms: u64);
    /// The key is absent now; it had this version.
    fn delete(&self, key: &[u8], version: u64);
}
