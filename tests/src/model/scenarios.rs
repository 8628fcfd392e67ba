//! The scenarios: each small enough to be searched to its end.

use super::Bounds;
use super::keys::{Key, colliding, with_prefix};
use super::scenario::Scenario;
use super::server::Op::{Delete, Put};
use super::writers::Second;

const READ: Bounds = Bounds { kills: 0, stale: true, coarse: false, rivals: false };

/// One key written again and again, its two extents in turn.
pub fn updates() -> Scenario {
    let key = with_prefix(0, 0, 1)[0];
    Scenario {
        name: "updates",
        filled: vec![key],
        ops: vec![Put(key); 3],
        afterwards: vec![Put(key)],
        read: vec![key],
        bounds: Bounds { kills: 3, ..READ },
        second: None,
    }
}

/// A key deleted and inserted again, twice, at the same place.
pub fn reinserts() -> Scenario {
    let key = with_prefix(0, 0, 1)[0];
    Scenario {
        name: "re-inserts",
        filled: vec![],
        ops: vec![Put(key), Delete(key), Put(key), Delete(key), Put(key)],
        afterwards: vec![Put(key)],
        read: vec![key],
        bounds: Bounds { kills: 2, ..READ },
        second: None,
    }
}

/// A miss beside keys with its fingerprint that come, change and go.
pub fn collisions() -> Scenario {
    let keys = colliding(3);
    let (missed, a, b) = (keys[0], keys[1], keys[2]);
    Scenario {
        name: "collisions",
        filled: vec![a],
        ops: vec![Put(b), Delete(a), Put(missed), Delete(missed), Put(a)],
        afterwards: vec![Put(b)],
        read: vec![missed, a],
        bounds: Bounds { kills: 1, ..READ },
        second: None,
    }
}

/// A split with a doubling, under readers of what stays, what moves, what is missing, what is inserted.
pub fn split() -> Scenario {
    let (low, high) = (with_prefix(1, 0, 10), with_prefix(1, 1, 10));
    let filled: Vec<Key> = [&low[..8], &high[..8]].concat();
    Scenario {
        name: "split",
        filled,
        ops: vec![Put(high[8]), Put(low[0])],
        afterwards: vec![Put(high[8])],
        read: vec![high[8], low[0], high[0], high[9]],
        bounds: Bounds { kills: 1, coarse: true, ..READ },
        second: None,
    }
}

/// A key that moves from place to place while others with its fingerprint take the places that it left.
pub fn moves() -> Scenario {
    let keys = colliding(3);
    let (key, other) = (keys[0], keys[1]);
    Scenario {
        name: "moves",
        filled: vec![key],
        ops: vec![Put(key), Put(other), Delete(other), Put(key)],
        afterwards: vec![Put(other)],
        read: vec![key, other],
        bounds: Bounds { kills: 1, ..READ },
        second: None,
    }
}

/// Versions across a split.
pub fn floors() -> Scenario {
    let (low, high) = (with_prefix(1, 0, 10), with_prefix(1, 1, 10));
    let filled: Vec<Key> = [&low[..8], &high[..7]].concat();
    Scenario {
        name: "floors",
        filled,
        ops: vec![Put(high[7]), Delete(high[7]), Put(low[8]), Put(low[9]), Put(high[7])],
        afterwards: vec![Put(high[7])],
        read: vec![high[7]],
        bounds: Bounds { kills: 1, coarse: true, ..READ },
        second: None,
    }
}

/// Two writers of one key.
pub fn rivals() -> Scenario {
    let key = with_prefix(0, 0, 1)[0];
    Scenario {
        name: "rivals",
        filled: vec![key],
        ops: vec![Put(key)],
        afterwards: vec![Put(key)],
        read: vec![key],
        bounds: Bounds { kills: 1, rivals: true, ..READ },
        second: Some(Second { ops: vec![Delete(key), Put(key)], joins: false }),
    }
}

/// Two writers whose splits meet: one doubles the directory.
pub fn splits_meet() -> Scenario {
    let of = |prefix, count| with_prefix(3, prefix, count);
    let filled: Vec<Key> = [&of(0, 8)[..], &of(1, 8), &of(2, 1), &of(4, 4), &of(5, 4), &of(6, 4), &of(7, 4)].concat();
    Scenario {
        name: "splits meet",
        filled,
        ops: vec![Put(of(0, 9)[8])],
        afterwards: vec![],
        read: vec![of(0, 9)[8], of(4, 5)[4]],
        bounds: Bounds { kills: 1, coarse: true, ..READ },
        second: Some(Second { ops: vec![Put(of(4, 5)[4])], joins: true }),
    }
}

/// A writer inserts into the sibling that another one's split makes.
pub fn sibling() -> Scenario {
    let of = |prefix, count| with_prefix(3, prefix, count);
    let filled: Vec<Key> = [&of(0, 8)[..], &of(1, 8), &of(2, 1), &of(4, 4), &of(5, 4), &of(6, 4), &of(7, 4)].concat();
    Scenario {
        name: "sibling",
        filled,
        ops: vec![Put(of(0, 9)[8])],
        afterwards: vec![],
        read: vec![of(0, 9)[8], of(1, 9)[8]],
        bounds: Bounds { kills: 1, coarse: true, ..READ },
        second: Some(Second { ops: vec![Put(of(1, 9)[8])], joins: true }),
    }
}
