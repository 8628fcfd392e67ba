//! Sizes and limits of the format. Each has its one home here.

/// Bytes of a block, the unit of every address.
pub const BLOCK_BYTES: usize = 64;
/// Words (8 bytes) of a block.
pub const BLOCK_WORDS: u64 = 8;
/// Bits of a block address: 2^34 blocks of 64 B are 1 TiB.
pub const ADDRESS_BITS: u32 = 34;
/// Longest key in bytes; the shortest is 1.
pub const MAX_KEY_BYTES: usize = 4096;
/// Largest value in bytes unless the server is configured otherwise.
pub const DEFAULT_MAX_VALUE_BYTES: u32 = 16 << 20;
/// Largest control message in bytes.
pub const MAX_CONTROL_BYTES: u32 = 64 << 10;
/// Deepest directory: 2^34 entries.
pub const MAX_DEPTH: u8 = 34;
/// Writes that one session may have in flight; the server remembers as many replies.
pub const MAX_WRITES_IN_FLIGHT: usize = 256;
/// TCP port that server and clients use unless told otherwise.
pub const DEFAULT_PORT: u16 = 7411;
