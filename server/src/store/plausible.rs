//! Words of the root that have no checksum: what they cannot be, by the rest of the table and by the clock.

use sidestep_core::layout::root::{self, SegmentWord};
use sidestep_core::limits::BLOCK_BYTES;
use sidestep_core::memory::Memory;

use super::head::Root;
use super::time::clock_problem;

/// No version is above this, and no ceiling: it rises by some 2^40 at most with each start, and by 2^48 with a repair.
pub(crate) const LAST_VERSION: u64 = 1 << 62;

/// What is wrong with the root alone.
pub(super) fn root_problems(memory: &impl Memory, root: &Root, system_ms: u64) -> Vec<String> {
    let (ceiling, floor) = (memory.load(root::VERSION_CEILING_WORD), memory.load(root::VERSION_FLOOR_WORD));
    let mut problems = Vec::new();
    if ceiling > LAST_VERSION {
        problems.push(format!("the version ceiling is {ceiling:#x}, expected at most {LAST_VERSION:#x}"));
    }
    if floor > ceiling {
        problems.push(format!("the version floor, {floor:#x}, is above the version ceiling, {ceiling:#x}"));
    }
    let (used, there) = (segments_in_use(memory), root.memory_bytes / root.segment_bytes);
    if used > there {
        let bytes = root.segment_bytes;
        problems.push(format!("{used} segments are in use, expected at most {there}, which are of {bytes} bytes"));
    }
    problems.extend(clock_problem(memory, system_ms));
    problems
}

/// Whether something that ends at this block lies in no segment: each is in the segment table before anything is in it.
pub(super) fn segments_problem(memory: &impl Memory, root: &Root, end: u64) -> Option<String> {
    let (used, bytes) = (segments_in_use(memory), root.segment_bytes);
    (end > used * (bytes / BLOCK_BYTES as u64))
        .then(|| format!("something ends at block {end:#x}, past the {used} segments of {bytes} bytes that are in use"))
}

fn segments_in_use(memory: &impl Memory) -> u64 {
    let is_in_use = |&segment: &u64| SegmentWord(memory.load(root::SEGMENTS_WORD + 2 * segment + 1)).is_in_use();
    (0..root::MAX_SEGMENTS).rev().find(is_in_use).map_or(0, |last| last + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Store, StoreError, StoreOptions, WriteError, check, system_ms};
    use sidestep_core::memory::MemoryMut;
    use sidestep_fabric::region::Region;

    /// Of what a sound table has in each of these words, and of what it cannot have.
    #[test]
    fn words_that_cannot_be_are_problems() {
        let store = Store::create(Region::memfd(64 << 20).unwrap(), &StoreOptions::default()).unwrap();
        let version = store.put(b"key", b"value", None, 0).unwrap();
        let (memory, year_ms) = (store.memory(), 366 * 24 * 3_600_000);
        let problems = |word, value| {
            let before = memory.load(word);
            memory.store(word, value);
            let problems = check(memory).problem_count;
            memory.store(word, before);
            problems
        };
        let (ceiling, floor, clock) = (root::VERSION_CEILING_WORD, root::VERSION_FLOOR_WORD, root::CLOCK_FLOOR_WORD);
        let (second, now_ms) = (root::SEGMENTS_WORD + 2, system_ms());
        for (word, good, bad) in [
            (ceiling, version, version - 1),
            (ceiling, LAST_VERSION, LAST_VERSION + 1),
            (floor, store.version_ceiling(), store.version_ceiling() + 1),
            (clock, now_ms + year_ms, now_ms + year_ms + 600_000),
            (second + 1, 0, SegmentWord::in_use(0).0),
            (root::SEGMENTS_WORD + 1, SegmentWord::in_use(7).0, 0),
        ] {
            assert_eq!((problems(word, good), problems(word, bad)), (0, 1), "word {word}: {good:#x} and {bad:#x}");
        }
    }

    #[test]
    fn after_the_last_version_there_is_none() {
        let options = StoreOptions { version_floor: LAST_VERSION - 2, ..StoreOptions::default() };
        let store = Store::create(Region::memfd(64 << 20).unwrap(), &options).unwrap();
        assert_eq!(store.put(b"key", b"1", None, 0), Ok(LAST_VERSION - 1));
        assert_eq!(store.put(b"key", b"2", None, 0), Ok(LAST_VERSION));
        let refused = Err(WriteError::NoVersion(LAST_VERSION));
        assert_eq!(store.put(b"key", b"3", None, 0), refused);
        assert_eq!(store.put(b"another key", b"1", None, 0), Ok(LAST_VERSION));
        assert_eq!(store.put(b"a third key", b"1", None, 0), refused);
        assert_eq!(store.put(b"a third key", &[7; 9000], None, 0), refused);
        assert_eq!(store.put(b"key", b"3", Some(0), 0), Err(WriteError::VersionMismatch { found: LAST_VERSION }));
        assert_eq!((store.delete(b"key", None), store.version_ceiling()), (Ok(Some(LAST_VERSION)), LAST_VERSION));
        let options = StoreOptions { version_floor: LAST_VERSION + 1, ..StoreOptions::default() };
        let store = Store::create(Region::memfd(64 << 20).unwrap(), &options);
        assert!(matches!(store, Err(StoreError::Words(_))));
    }
}
