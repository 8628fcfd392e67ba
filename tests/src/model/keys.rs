//! Keys by the parts of their hashes, and the table they are in.

use sidestep_core::hash::KeyHash;
use sidestep_core::lookup::Geometry;
use sidestep_server::store::StoreOptions;

/// A key of a scenario.
pub(crate) type Key = &'static [u8];

/// Root, a slab of subtables, some directories, a slab of items.
pub(crate) const MEMORY_BYTES: u64 = 256 << 10;
pub(crate) const TABLE_ID: u64 = 0x51de_57e9;
/// The window that all keys share.
const HOME: u64 = 9;

/// One segment, hashes known beforehand, extents reused at once.
pub(crate) fn options() -> StoreOptions {
    StoreOptions {
        segment_bytes: Some(MEMORY_BYTES),
        table_id: Some(TABLE_ID),
        reuse_at_once: true,
        ..StoreOptions::default()
    }
}

/// What readers know of it.
pub(crate) fn geometry() -> Geometry {
    Geometry { table_id: TABLE_ID, memory_bytes: MEMORY_BYTES, max_value_bytes: 1 << 16 }
}

/// Keys of one window whose hashes are `good`, always the same ones.
fn search(good: impl Fn(KeyHash) -> bool, count: usize) -> Vec<Key> {
    (0u64..)
        .map(|i| format!("{i:x}"))
        .filter(|key| {
            let hash = KeyHash::of(key.as_bytes(), TABLE_ID);
            hash.home() == HOME && good(hash)
        })
        .take(count)
        .map(|key| &*key.into_bytes().leak())
        .collect()
}

/// Keys whose hashes begin with these bits (the last `depth` bits of `prefix`), all with different fingerprints.
pub(crate) fn with_prefix(depth: u8, prefix: u64, count: usize) -> Vec<Key> {
    let mut keys: Vec<Key> = Vec::new();
    for key in search(|hash| hash.directory_index(depth) == prefix, 4 * count) {
        let fingerprint = |key: &[u8]| KeyHash::of(key, TABLE_ID).fingerprint();
        if keys.len() < count && keys.iter().all(|other| fingerprint(other) != fingerprint(key)) {
            keys.push(key);
        }
    }
    keys
}

/// Keys of one window with one fingerprint.
pub(crate) fn colliding(count: usize) -> Vec<Key> {
    search(|hash| hash.fingerprint() == 77, count)
}
