//! Damage at known places, and at random ones.

use std::ops::Range;

use rand::Rng;
use rand::seq::IndexedRandom;
use rand_xoshiro::Xoshiro256PlusPlus;
use sidestep_core::hash::KeyHash;
use sidestep_core::layout::bucket::SlotWord;
use sidestep_core::layout::directory::DirectoryWord;
use sidestep_core::layout::item::{self, ComposeHeader, LinkState};
use sidestep_core::layout::root;
use sidestep_core::limits::BLOCK_WORDS;
use sidestep_core::location::Location;

use super::file::{Found, TableFile};

/// The last byte of a key's value, or where there is none, of its key.
pub(crate) fn tear(file: &mut TableFile, found: &Found) {
    file.bytes[found.bytes.end - 1] ^= 0x10;
}

/// A slot that leads elsewhere.
pub(crate) fn lead_to(file: &mut TableFile, found: &Found, block: u64) {
    let word = file.slot(found.slot);
    file.store(found.slot, SlotWord::new(word.depth(), word.fingerprint(), Location::new(block, 1)).0);
}

/// An older value of a key in another slot of its window. True if there was an empty one.
pub(crate) fn add_older_value(file: &mut TableFile, key: &[u8], found: &Found, version: u64) -> bool {
    let Some(empty) = file.window(key).find(|&slot| file.slot(slot).is_empty()) else { return false };
    let mut item = Vec::new();
    let header = ComposeHeader { state: LinkState::Current, version, expires_ms: 0 };
    item::compose(&mut item, key, b"an older value", header, file.table_id());
    let location = file.write(file.free_block(item.len()), &item);
    let word = file.slot(found.slot);
    file.store(empty, SlotWord::new(word.depth(), KeyHash::of(key, file.table_id()).fingerprint(), location).0);
    true
}

/// The link of a key's item, by a function of it and the checksum.
pub(crate) fn relink(file: &mut TableFile, found: &Found, link: impl Fn(u64, u64) -> u64) {
    let first = found.address * BLOCK_WORDS;
    let (old, checksum) = (file.load(first), file.load(first + item::CHECKSUM));
    file.store(first, link(old, checksum));
}

/// The entry of a key leads out of the space.
pub(crate) fn lose_entry(file: &mut TableFile, key: &[u8]) {
    let (word, entry) = file.entry(key);
    file.store(word, DirectoryWord::new(entry.depth(), (1 << 34) - 64).0);
}

/// Bits, bytes or sectors of what is in use; now and then of the root, though not of the words without which a table is
/// none. Returns the bytes that are others now.
pub(crate) fn at_random(file: &mut TableFile, random: &mut Xoshiro256PlusPlus) -> Vec<Range<usize>> {
    let used = file.bytes.iter().rposition(|&byte| byte != 0).expect("a root") + 1;
    let needed = (root::MEMORY_BYTES_WORD as usize + 1) * 8;
    let mut changed = Vec::new();
    for _ in 0..random.random_range(1..30) {
        let at = match random.random_range(0..10) {
            0 => random.random_range(needed..root::SEGMENTS_WORD as usize * 8),
            _ => random.random_range(root::ROOT_BYTES as usize..used),
        };
        let bytes = match random.random_range(0..4) {
            // A sector that was not written, or with another's bytes.
            0 => {
                let sector = (at & !511).max(needed)..(at & !511) + 512;
                let from = *[None, Some(random.random_range(root::ROOT_BYTES as usize..used - 512) & !63)]
                    .choose(random)
                    .expect("two");
                let other = from.map_or(vec![0; sector.len()], |from| file.bytes[from..from + sector.len()].to_vec());
                file.bytes[sector.clone()].copy_from_slice(&other);
                sector
            }
            1 => {
                let some = at..at + random.random_range(1..9);
                file.bytes[some.clone()].iter_mut().for_each(|byte| *byte = random.random());
                some
            }
            _ => {
                file.bytes[at] ^= 1 << random.random_range(0..8);
                at..at + 1
            }
        };
        changed.push(bytes);
    }
    changed
}
