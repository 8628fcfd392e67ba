//! The file of a dump: a header, blocks of records, and an end that counts them. `docs/FORMAT.md` has the diagram.
//!
//! Every length is covered by a checksum that is looked at before the length is used, and every block by one whose seed
//! is the block's number: blocks that are damaged, missing, twice or out of order are found.

use std::io::{self, Read, Write};

use sidestep_client::Record;
use sidestep_core::scan::{RecordError, records};
use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64_with_seed;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First bytes of the file.
pub(crate) const MAGIC: [u8; 8] = *b"SIDEDUMP";
const VERSION: u32 = 1;
/// A block is full when its records have so many bytes.
const BLOCK_BYTES: usize = 1 << 20;
/// No block is longer: a full one, and one record with the largest value that there can be.
const MOST_BLOCK_BYTES: u64 = (BLOCK_BYTES as u64) + (1 << 32) + 8192;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct FileHeader {
    magic: [u8; 8],
    version: U32,
    reserved: U32,
    made_ms: U64,
    /// Of the bytes before it, seed 0.
    checksum: U64,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct BlockHeader {
    kind: U32,
    records: U32,
    payload_bytes: U64,
    /// Of the payload, seed: the block's number.
    payload_checksum: U64,
    /// Of the bytes before it, seed: the block's number.
    checksum: U64,
}

/// The payload is records.
const RECORDS: u32 = 1;
/// The payload is the number of all records, 8 bytes; nothing follows.
const END: u32 = 2;
const _: () = assert!(size_of::<FileHeader>() == 32 && size_of::<BlockHeader>() == 32);

/// Writes a dump.
pub(crate) struct Writer<W> {
    output: W,
    payload: Vec<u8>,
    in_block: u32,
    blocks: u64,
    records: u64,
}

impl<W: Write> Writer<W> {
    pub(crate) fn new(mut output: W, made_ms: u64) -> io::Result<Self> {
        let mut header = FileHeader {
            magic: MAGIC,
            version: VERSION.into(),
            reserved: 0.into(),
            made_ms: made_ms.into(),
            checksum: 0.into(),
        };
        header.checksum = xxh3_64_with_seed(&header.as_bytes()[..24], 0).into();
        output.write_all(header.as_bytes())?;
        Ok(Self { output, payload: Vec::new(), in_block: 0, blocks: 0, records: 0 })
    }

    pub(crate) fn records(&self) -> u64 {
        self.records
    }

    pub(crate) fn add(&mut self, record: &Record<'_>) -> io::Result<()> {
        self.payload.extend_from_slice(record.header().as_bytes());
        self.payload.extend_from_slice(record.key);
        self.payload.extend_from_slice(record.value);
        self.in_block += 1;
        self.records += 1;
        if self.payload.len() >= BLOCK_BYTES { self.end_block(RECORDS) } else { Ok(()) }
    }

    fn end_block(&mut self, kind: u32) -> io::Result<()> {
        let mut header = BlockHeader {
            kind: kind.into(),
            records: self.in_block.into(),
            payload_bytes: (self.payload.len() as u64).into(),
            payload_checksum: xxh3_64_with_seed(&self.payload, self.blocks).into(),
            checksum: 0.into(),
        };
        header.checksum = xxh3_64_with_seed(&header.as_bytes()[..24], self.blocks).into();
        self.output.write_all(header.as_bytes())?;
        self.output.write_all(&self.payload)?;
        self.payload.clear();
        self.in_block = 0;
        self.blocks += 1;
        Ok(())
    }

    /// Without this the file is no dump.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        if self.in_block > 0 {
            self.end_block(RECORDS)?;
        }
        self.payload.extend_from_slice(&self.records.to_le_bytes());
        self.end_block(END)?;
        self.output.flush()?;
        Ok(self.output)
    }
}

/// Why a file is not a whole dump.
#[derive(Debug, Error)]
pub(crate) enum DumpError {
    #[error("cannot read the dump: {0}")]
    Read(#[from] io::Error),
    #[error("not a dump: expected it to begin with SIDEDUMP, found {}", .0.escape_ascii())]
    Foreign(Vec<u8>),
    #[error("expected a dump of version {VERSION}, found version {0}: use the `sidestep` that made it, or a newer one")]
    Version(u32),
    #[error("the dump is cut off in its header: expected 32 bytes, found {0}")]
    ShortHeader(usize),
    #[error("the dump's header is damaged")]
    Header,
    #[error("the dump is cut off in block {block}: expected {expected} bytes, found {found}")]
    Truncated { block: u64, expected: u64, found: u64 },
    #[error("block {block} of the dump is damaged: {what}")]
    Damaged { block: u64, what: String },
    #[error("the dump should have {expected} records, found {found}")]
    Count { expected: u64, found: u64 },
    #[error("expected the end of the dump after its last block, found more")]
    More,
}

/// Reads a dump block by block. Nothing of a block is given out before all of it was checked.
pub(crate) struct Reader<R> {
    input: R,
    payload: Vec<u8>,
    blocks: u64,
    records: u64,
}

impl<R: Read> Reader<R> {
    pub(crate) fn new(mut input: R) -> Result<Self, DumpError> {
        let mut bytes = Vec::with_capacity(size_of::<FileHeader>());
        input.by_ref().take(size_of::<FileHeader>() as u64).read_to_end(&mut bytes)?;
        if !bytes.starts_with(&MAGIC[..bytes.len().min(MAGIC.len())]) || bytes.is_empty() {
            bytes.truncate(MAGIC.len());
            return Err(DumpError::Foreign(bytes));
        }
        let header = FileHeader::read_from_bytes(&bytes).map_err(|_| DumpError::ShortHeader(bytes.len()))?;
        if header.checksum.get() != xxh3_64_with_seed(&bytes[..24], 0) {
            return Err(DumpError::Header);
        }
        if header.version.get() != VERSION || header.reserved.get() != 0 {
            return Err(DumpError::Version(header.version.get()));
        }
        Ok(Self { input, payload: Vec::new(), blocks: 0, records: 0 })
    }

    fn damaged(&self, what: impl ToString) -> DumpError {
        DumpError::Damaged { block: self.blocks, what: what.to_string() }
    }

    /// Reads so many bytes into the payload; memory grows with the bytes that are there.
    fn fill(&mut self, expected: u64) -> Result<(), DumpError> {
        self.payload.clear();
        let found = self.input.by_ref().take(expected).read_to_end(&mut self.payload)? as u64;
        match found == expected {
            true => Ok(()),
            false => Err(DumpError::Truncated { block: self.blocks, expected, found }),
        }
    }

    /// The records of the next block; none after the last one, once it is certain that nothing is missing.
    pub(crate) fn next(&mut self) -> Result<Option<Vec<Record<'_>>>, DumpError> {
        self.fill(size_of::<BlockHeader>() as u64)?;
        let header = BlockHeader::read_from_bytes(&self.payload).map_err(|error| self.damaged(error))?;
        if header.checksum.get() != xxh3_64_with_seed(&self.payload[..24], self.blocks) {
            return Err(self.damaged("the checksum of its header is another"));
        }
        let payload_bytes = header.payload_bytes.get();
        if payload_bytes > MOST_BLOCK_BYTES {
            return Err(self.damaged(format!("expected at most {MOST_BLOCK_BYTES} bytes, found {payload_bytes}")));
        }
        self.fill(payload_bytes)?;
        if header.payload_checksum.get() != xxh3_64_with_seed(&self.payload, self.blocks) {
            return Err(self.damaged("the checksum of its records is another"));
        }
        match header.kind.get() {
            RECORDS => {
                let found = records(&self.payload, header.records.get());
                let block = self.blocks;
                let damaged = |error: RecordError| DumpError::Damaged { block, what: error.to_string() };
                self.blocks += 1;
                self.records += u64::from(header.records.get());
                found.map(Some).map_err(damaged)
            }
            END => self.end().map(|()| None),
            kind => Err(self.damaged(format!("expected a kind of 1 or 2, found {kind}"))),
        }
    }

    fn end(&mut self) -> Result<(), DumpError> {
        let expected =
            u64::read_from_bytes(&self.payload[..]).map(u64::from_le).map_err(|error| self.damaged(error))?;
        if expected != self.records {
            return Err(DumpError::Count { expected, found: self.records });
        }
        match self.input.by_ref().take(1).read_to_end(&mut Vec::new())? {
            0 => Ok(()),
            _ => Err(DumpError::More),
        }
    }
}
