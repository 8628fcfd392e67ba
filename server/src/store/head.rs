//! What a table says of itself in its first words, and whether that can be believed.

use sidestep_core::layout::root;
use sidestep_core::limits::BLOCK_BYTES;
use sidestep_core::memory::Memory;

use super::StoreError;

/// Words that must be read before anything else can be.
pub(crate) const HEAD_WORDS: usize = 6;
const _: () = assert!(root::MEMORY_BYTES_WORD < HEAD_WORDS as u64);

/// Sizes and identity of a table, from its root.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Root {
    pub(crate) table_id: u64,
    /// The start of a server that last had it.
    pub(crate) boot_id: u64,
    pub(crate) segment_bytes: u64,
    pub(crate) memory_bytes: u64,
}

impl Root {
    /// From the first words of `bytes` bytes; words that are not there are 0.
    pub(crate) fn parse(head: [u64; HEAD_WORDS], bytes: u64) -> Result<Self, StoreError> {
        let found = Self::parse_any_length(head, bytes)?;
        found.check_length(bytes)?;
        Ok(found)
    }

    /// Whether a file of so many bytes has all of the table, and nothing more.
    pub(crate) fn check_length(&self, bytes: u64) -> Result<(), StoreError> {
        // What is behind whole segments is not used; a whole one more was not there when the table was made.
        let rest = bytes.checked_sub(self.memory_bytes);
        let is_as_made = rest.is_some_and(|rest| rest < self.segment_bytes);
        match is_as_made && bytes.is_multiple_of(BLOCK_BYTES as u64) {
            true => Ok(()),
            false => Err(StoreError::Length { expected: self.memory_bytes, found: bytes }),
        }
    }

    /// The same, of a file that may have lost its end, though not its root.
    pub(crate) fn parse_any_length(head: [u64; HEAD_WORDS], bytes: u64) -> Result<Self, StoreError> {
        let word = |word: u64| head[word as usize];
        if bytes == 0 {
            return Err(StoreError::Empty);
        }
        let (magic, there) = (word(root::MAGIC_WORD), bytes.min(8) * 8);
        if (magic ^ root::MAGIC) << (64 - there) != 0 {
            return Err(StoreError::Foreign { found: magic.to_le_bytes() });
        }
        if bytes < root::ROOT_BYTES {
            return Err(StoreError::Length {
                expected: word(root::MEMORY_BYTES_WORD).max(root::ROOT_BYTES),
                found: bytes,
            });
        }
        let (expected, found) = (root::FORMAT_VERSION, word(root::FORMAT_WORD));
        if found < expected {
            return Err(StoreError::Older { expected, found });
        }
        if found > expected {
            return Err(StoreError::Newer { expected, found });
        }
        let (table_id, boot_id) = (word(root::TABLE_ID_WORD), word(root::BOOT_ID_WORD));
        let (segment_bytes, memory_bytes) = (word(root::SEGMENT_BYTES_WORD), word(root::MEMORY_BYTES_WORD));
        let is_whole = segment_bytes.is_power_of_two()
            && segment_bytes >= root::ROOT_BYTES
            && memory_bytes > 0
            && memory_bytes.is_multiple_of(segment_bytes)
            && memory_bytes / segment_bytes <= root::MAX_SEGMENTS;
        match is_whole {
            true => Ok(Self { table_id, boot_id, segment_bytes, memory_bytes }),
            false => Err(StoreError::Root { memory_bytes, segment_bytes }),
        }
    }
}

fn head(memory: &impl Memory) -> ([u64; HEAD_WORDS], u64) {
    let there = memory.words();
    let word = |word| if word < there { memory.load(word) } else { 0 };
    (std::array::from_fn(|i| word(i as u64)), there * 8)
}

/// Reads and checks the root of a memory.
pub(super) fn read_root(memory: &impl Memory) -> Result<Root, StoreError> {
    let (head, bytes) = head(memory);
    Root::parse(head, bytes)
}

/// The same, of a file that may have lost its end.
pub(super) fn read_root_of_any_length(memory: &impl Memory) -> Result<Root, StoreError> {
    let (head, bytes) = head(memory);
    Root::parse_any_length(head, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 1 << 20;

    fn good() -> [u64; HEAD_WORDS] {
        [root::MAGIC, root::FORMAT_VERSION, 7, 8, BYTES / 4, BYTES]
    }

    fn refused(change: impl FnOnce(&mut [u64; HEAD_WORDS]), bytes: u64) -> StoreError {
        let mut head = good();
        change(&mut head);
        Root::parse(head, bytes).expect_err("a root that is wrong")
    }

    #[test]
    fn each_wrong_root_is_told_apart() {
        assert_eq!(Root::parse(good(), BYTES).expect("a root").table_id, 7);
        assert!(Root::parse(good(), BYTES + 64).is_ok(), "a rest behind whole segments");
        assert!(matches!(refused(|_| {}, 0), StoreError::Empty));
        assert!(matches!(refused(|head| head[0] ^= 1 << 40, BYTES), StoreError::Foreign { .. }));
        assert!(matches!(refused(|head| head[0] ^= 1, 3), StoreError::Foreign { .. }));
        assert!(matches!(
            refused(|head| *head = [root::MAGIC & 0xff_ffff, 0, 0, 0, 0, 0], 3),
            StoreError::Length { .. }
        ));
        assert!(matches!(refused(|_| {}, root::ROOT_BYTES - 8), StoreError::Length { expected: BYTES, .. }));
        assert!(matches!(refused(|head| head[1] = 0, BYTES), StoreError::Older { found: 0, .. }));
        assert!(matches!(refused(|head| head[1] = 9, BYTES), StoreError::Newer { found: 9, .. }));
        assert!(matches!(refused(|head| head[4] += 64, BYTES), StoreError::Root { .. }));
        assert!(matches!(refused(|head| head[5] = 0, BYTES), StoreError::Root { .. }));
        assert!(matches!(refused(|_| {}, BYTES - 64), StoreError::Length { expected: BYTES, .. }));
        assert!(Root::parse(good(), BYTES + BYTES / 4 - 64).is_ok());
        assert!(matches!(refused(|_| {}, BYTES + BYTES / 4), StoreError::Length { expected: BYTES, .. }));
        assert!(matches!(refused(|_| {}, BYTES + 1), StoreError::Length { .. }));
    }
}
