//! Items: a link word, a checksum, and what the checksum covers.

use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

use crate::limits::{BLOCK_BYTES, MAX_KEY_BYTES};
use crate::location::Location;

/// Bytes before the key.
pub const HEADER_BYTES: usize = 40;
/// First byte that the checksum covers: it ends with the value's last.
pub const CHECKED_FROM: usize = 16;
/// Word of the link, from the item's first.
pub const LINK: u64 = 0;
/// Word of the checksum.
pub const CHECKSUM: u64 = 1;
/// Word of the version.
pub const VERSION: u64 = 2;
/// Word of `key_len | flags | value_len`.
pub const LENGTHS: u64 = 3;
/// Word of the expiry time.
pub const EXPIRES: u64 = 4;

/// What a link says of its item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LinkState {
    /// Removed, or not yet inserted.
    Dead = 0,
    /// Written by an update that is not linearized yet.
    Pending = 1,
    /// The value of its key.
    Current = 2,
    /// Replaced by the item at the location that follows.
    Forward = 3,
}

/// The link word.
///
/// ```text
///     DEAD, PENDING, CURRENT   | state 2 | low 62 bits of this item's checksum |
///     FORWARD                  | state 2 | low 14 bits of this item's checksum | location 48 of the successor |
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Link(pub u64);

impl Link {
    const CHECKSUM: u64 = u64::MAX >> 2;
    const FILTER: u64 = (1 << 14) - 1;

    /// A link that makes a statement about the body with this checksum. Not for FORWARD.
    #[inline]
    pub fn bound(state: LinkState, checksum: u64) -> Self {
        debug_assert!(state != LinkState::Forward);
        Self((state as u64) << 62 | (checksum & Self::CHECKSUM))
    }

    /// The link of an item with this checksum that was replaced.
    #[inline]
    pub fn forward(checksum: u64, successor: Location) -> Self {
        Self((LinkState::Forward as u64) << 62 | (checksum & Self::FILTER) << Location::BITS | successor.bits())
    }

    /// What it says.
    #[inline]
    pub fn state(self) -> LinkState {
        match self.0 >> 62 {
            0 => LinkState::Dead,
            1 => LinkState::Pending,
            2 => LinkState::Current,
            _ => LinkState::Forward,
        }
    }

    /// Of a FORWARD link: where to.
    #[inline]
    pub fn successor(self) -> Location {
        Location::from_bits(self.0)
    }

    /// Whether it is about the body with this checksum: all 62 bits, or the 14 of a FORWARD (a filter only).
    #[inline]
    pub fn is_about(self, checksum: u64) -> bool {
        match self.state() {
            LinkState::Forward => (self.0 >> Location::BITS) & Self::FILTER == checksum & Self::FILTER,
            _ => self.0 & Self::CHECKSUM == checksum & Self::CHECKSUM,
        }
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.state() {
            LinkState::Forward => write!(f, "Link(Forward to {:?})", self.successor()),
            state => write!(f, "Link({state:?} {:#x})", self.0 & Self::CHECKSUM),
        }
    }
}

/// The five words before the key.
///
/// ```text
///     0  link      8  checksum    16  version    24  key_len u16, flags u16, value_len u32    32  expires
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Everything but this word is immutable once published.
    pub link: Link,
    /// xxh3_64 over byte 16 to the end of the value, seed = table id.
    pub checksum: u64,
    /// Grows with every write to the key.
    pub version: u64,
    /// Length of the key.
    pub key_bytes: u16,
    /// Reserved, 0.
    pub flags: u16,
    /// Length of the value.
    pub value_bytes: u32,
    /// Milliseconds since the Unix epoch; 0 = never.
    pub expires_ms: u64,
}

/// Rounds up to whole words.
#[inline]
pub fn pad(bytes: usize) -> usize {
    bytes.next_multiple_of(8)
}

/// Byte of an item at which its value begins.
#[inline]
pub fn value_offset(key_bytes: usize) -> usize {
    HEADER_BYTES + pad(key_bytes)
}

/// Exact length of an item: the last byte of its value included.
#[inline]
pub fn exact_bytes(key_bytes: usize, value_bytes: usize) -> usize {
    value_offset(key_bytes) + value_bytes
}

/// Length of an item in blocks.
#[inline]
pub fn blocks(key_bytes: usize, value_bytes: usize) -> u64 {
    exact_bytes(key_bytes, value_bytes).div_ceil(BLOCK_BYTES) as u64
}

/// Checksum of an item's bytes, which end exactly with its value.
#[inline]
pub fn checksum(item: &[u8], table_id: u64) -> u64 {
    xxh3_64_with_seed(&item[CHECKED_FROM..], table_id)
}

#[inline]
fn word(bytes: &[u8], index: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[index * 8..index * 8 + 8]);
    u64::from_le_bytes(word)
}

impl Header {
    /// The header of an item's first bytes; none where there are fewer than 40.
    #[inline]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..HEADER_BYTES)?;
        Some(Self::from_words([word(bytes, 0), word(bytes, 1), word(bytes, 2), word(bytes, 3), word(bytes, 4)]))
    }

    /// The header of an item's first words.
    #[inline]
    pub fn from_words(words: [u64; 5]) -> Self {
        let [link, checksum, version, lengths, expires_ms] = words;
        Self {
            link: Link(link),
            checksum,
            version,
            key_bytes: lengths as u16,
            flags: (lengths >> 16) as u16,
            value_bytes: (lengths >> 32) as u32,
            expires_ms,
        }
    }

    /// The item's first words.
    #[inline]
    pub fn to_words(self) -> [u64; 5] {
        let lengths = u64::from(self.key_bytes) | u64::from(self.flags) << 16 | u64::from(self.value_bytes) << 32;
        [self.link.0, self.checksum, self.version, lengths, self.expires_ms]
    }

    /// See [`exact_bytes`].
    #[inline]
    pub fn exact_bytes(&self) -> usize {
        exact_bytes(usize::from(self.key_bytes), self.value_bytes as usize)
    }

    /// See [`blocks`].
    #[inline]
    pub fn blocks(&self) -> u64 {
        blocks(usize::from(self.key_bytes), self.value_bytes as usize)
    }

    /// Whether the lengths are ones that an item can have.
    #[inline]
    pub fn is_plausible(&self) -> bool {
        self.key_bytes > 0 && usize::from(self.key_bytes) <= MAX_KEY_BYTES && self.flags == 0
    }
}

/// An item whose every claim about itself was checked.
#[derive(Clone, Copy, Debug)]
pub struct ValidItem<'b> {
    /// As read.
    pub header: Header,
    /// The key.
    pub key: &'b [u8],
}

/// The checksum of an item whose bytes arrive one after the other: of those that are there it is made while the others
/// travel. The same as [`checksum`], for more work where all are there at once.
#[derive(Clone)]
pub struct Arriving {
    hasher: Xxh3,
    /// Bytes of the item, once its header is there.
    exact_bytes: Option<usize>,
    /// Up to here it is made.
    done: usize,
}

impl Arriving {
    /// Of an item in the table with this id.
    pub fn new(table_id: u64) -> Self {
        Self { hasher: Xxh3::with_seed(table_id), exact_bytes: None, done: CHECKED_FROM }
    }

    /// These are the bytes that are there, from the item's first on: those of the last call, unchanged, and more.
    pub fn arrived(&mut self, bytes: &[u8]) {
        if self.exact_bytes.is_none() {
            self.exact_bytes = Header::read(bytes).filter(Header::is_plausible).map(|header| header.exact_bytes());
        }
        let end = self.exact_bytes.unwrap_or(0).min(bytes.len());
        if let Some(more) = bytes.get(self.done..end) {
            self.hasher.update(more);
            self.done = end;
        }
    }

    /// The checksum, if it is that of an item of so many bytes, and made.
    fn checksum(&self, exact_bytes: usize) -> Option<u64> {
        (self.exact_bytes == Some(exact_bytes) && self.done == exact_bytes).then(|| self.hasher.digest())
    }
}

impl std::fmt::Debug for Arriving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arriving")
            .field("exact_bytes", &self.exact_bytes)
            .field("done", &self.done)
            .finish_non_exhaustive()
    }
}

/// Checks bytes read at a location: lengths fit them, the checksum is right, the link is about this body.
#[inline]
pub fn validate(bytes: &[u8], table_id: u64) -> Option<ValidItem<'_>> {
    validate_with(bytes, |item| checksum(item, table_id))
}

/// [`validate`], with the checksum that was made while the bytes arrived.
pub fn validate_arrived<'b>(bytes: &'b [u8], table_id: u64, arriving: &Arriving) -> Option<ValidItem<'b>> {
    validate_with(bytes, |item| arriving.checksum(item.len()).unwrap_or_else(|| checksum(item, table_id)))
}

#[inline]
fn validate_with(bytes: &[u8], checksum: impl FnOnce(&[u8]) -> u64) -> Option<ValidItem<'_>> {
    let header = Header::read(bytes)?;
    if !header.is_plausible() {
        return None;
    }
    let item = bytes.get(..header.exact_bytes())?;
    if !header.link.is_about(header.checksum) || checksum(item) != header.checksum {
        return None;
    }
    let key = &item[HEADER_BYTES..HEADER_BYTES + usize::from(header.key_bytes)];
    Some(ValidItem { header, key })
}

/// Bytes of an item in whole words, ready to be stored, with a link bound to them in `state`.
/// `into` is overwritten. Returns the checksum.
pub fn compose(into: &mut Vec<u8>, key: &[u8], value: &[u8], header: ComposeHeader, table_id: u64) -> u64 {
    let offset = value_offset(key.len());
    let exact = exact_bytes(key.len(), value.len());
    into.clear();
    into.reserve(pad(exact));
    into.resize(HEADER_BYTES, 0);
    into.extend_from_slice(key);
    into.resize(offset, 0);
    into.extend_from_slice(value);
    seal(into, key.len(), value.len(), header, table_id)
}

/// Version, expiry and first link state of an item that is being written.
#[derive(Clone, Copy, Debug)]
pub struct ComposeHeader {
    /// PENDING for an update, DEAD for an insert.
    pub state: LinkState,
    /// Its version.
    pub version: u64,
    /// Its expiry.
    pub expires_ms: u64,
}

/// Writes the five header words over the front of `item`, which holds everything after them. Returns the checksum.
pub fn seal(item: &mut [u8], key_bytes: usize, value_bytes: usize, header: ComposeHeader, table_id: u64) -> u64 {
    let mut full = Header {
        link: Link(0),
        checksum: 0,
        version: header.version,
        key_bytes: key_bytes as u16,
        flags: 0,
        value_bytes: value_bytes as u32,
        expires_ms: header.expires_ms,
    };
    put_words(item, full);
    full.checksum = checksum(&item[..exact_bytes(key_bytes, value_bytes)], table_id);
    full.link = Link::bound(header.state, full.checksum);
    put_words(item, full);
    full.checksum
}

fn put_words(item: &mut [u8], header: Header) {
    for (bytes, word) in item.chunks_exact_mut(8).zip(header.to_words()) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let mut bytes = Vec::new();
        let header = ComposeHeader { state: LinkState::Current, version: 0x0102, expires_ms: 0x0304 };
        compose(&mut bytes, b"key", b"value", header, 42);
        bytes
    }

    #[test]
    fn golden_bytes() {
        let bytes = sample();
        assert_eq!(bytes.len(), 53);
        assert_eq!(bytes[16..24], [2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[24..32], [3, 0, 0, 0, 5, 0, 0, 0]);
        assert_eq!(bytes[32..40], [4, 3, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&bytes[40..48], b"key\0\0\0\0\0");
        assert_eq!(&bytes[48..53], b"value");
        let sum = xxh3_64_with_seed(&bytes[16..], 42);
        assert_eq!(bytes[8..16], sum.to_le_bytes());
        assert_eq!(bytes[..8], (2 << 62 | (sum & (u64::MAX >> 2))).to_le_bytes());
    }

    #[test]
    fn any_flipped_bit_is_seen() {
        let good = sample();
        assert_eq!(validate(&good, 42).map(|i| i.key), Some(&b"key"[..]));
        assert!(validate(&good, 43).is_none(), "the checksum is keyed by the table");
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            match validate(&bad, 42) {
                None => {}
                // The two state bits are the link's own statement; FORWARD is guarded by a filter only.
                Some(_) => assert!(bit / 8 == 7 && bit % 8 >= 6, "bit {bit} went unseen"),
            }
        }
    }

    #[test]
    fn what_arrives_in_pieces_has_the_same_checksum() {
        for value_bytes in [0, 1, 300, 5000] {
            let value: Vec<u8> = (0..value_bytes).map(|i| (i * 7 + i / 251) as u8).collect();
            let header = ComposeHeader { state: LinkState::Current, version: 1, expires_ms: 0 };
            let mut good = Vec::new();
            compose(&mut good, b"key", &value, header, 42);
            // What follows in the READ is another's.
            let mut read = good.clone();
            read.extend([0xee; 64]);
            for step in [1, 7, 39, 40, 1000, read.len()] {
                let mut arriving = Arriving::new(42);
                (step..read.len()).step_by(step).for_each(|end| arriving.arrived(&read[..end]));
                arriving.arrived(&read);
                assert_eq!(arriving.checksum(good.len()), Some(checksum(&good, 42)), "{value_bytes} by {step}");
                let valid = validate_arrived(&read, 42, &arriving);
                assert_eq!(valid.map(|item| item.key), Some(&b"key"[..]));
            }
        }
    }

    #[test]
    fn a_checksum_that_is_not_made_to_the_end_is_not_believed() {
        let mut bad = sample();
        let mut arriving = Arriving::new(42);
        arriving.arrived(&bad[..50]);
        assert_eq!(arriving.checksum(bad.len()), None);
        bad[52] ^= 1;
        assert!(validate_arrived(&bad, 42, &arriving).is_none());
        arriving.arrived(&bad);
        assert!(validate_arrived(&bad, 42, &arriving).is_none());
    }

    #[test]
    fn links() {
        let link = Link::bound(LinkState::Pending, u64::MAX);
        assert!(link.is_about(u64::MAX) && !link.is_about(u64::MAX - 1));
        assert_eq!(link.state(), LinkState::Pending);
        let forward = Link::forward(0x3fff, Location::new(77, 3));
        assert_eq!((forward.state(), forward.successor()), (LinkState::Forward, Location::new(77, 3)));
        assert!(forward.is_about(0x3fff) && !forward.is_about(0));
        assert_eq!(forward.0, 3 << 62 | 0x3fff << 48 | 3 << 34 | 77);
    }
}
