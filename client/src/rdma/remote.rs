//! The server's memory as the NIC reads it: segments, their keys, READs by word.

use std::collections::VecDeque;
use std::ops::Range;

use sidestep_core::handshake::Welcome;
use sidestep_core::layout::item::Arriving;
use sidestep_core::layout::root::{MAX_SEGMENTS, SEGMENTS_WORD, SegmentWord};
use sidestep_core::limits::BLOCK_BYTES;
use sidestep_core::lookup::ItemRead;
use sidestep_fabric::rdma::{Buffer, BufferPool, RdmaError, Reads, RemoteRange};

use crate::counters::{Count, Counters};

/// What is known of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Segment {
    /// Not in use when the table of segments was last read.
    Unknown,
    /// In use, and not registered: the server could not pin it.
    Closed,
    /// Readable.
    At { address: u64, rkey: u32 },
}

/// Where a READ by word leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    /// To this range, shorter than asked for where the segment ends before.
    Range(RemoteRange),
    /// Nowhere: no such memory is in use. Whoever named it was wrong or read something torn.
    Nowhere,
    /// To memory that only the server can read.
    Closed,
}

/// What a READ brought.
#[derive(Debug, Default)]
pub(super) enum Fetched {
    /// In a part of a buffer: fewer bytes than asked for where the segment ends before. Of many bytes the checksum was made
    /// while they arrived.
    Bytes(Buffer, Range<usize>, Option<Box<Arriving>>),
    /// Nothing: it leads to no memory in use.
    #[default]
    Nothing,
    /// Nothing: the server must be asked.
    Closed,
}

impl Fetched {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(buffer, range, _) => &buffer[range.clone()],
            Self::Nothing | Self::Closed => &[],
        }
    }

    /// Gives the buffer back if it is the one that was wanted: those of the pool are filled from their first byte on.
    pub(super) fn give_back(self, wanted: &mut Option<Wanted>) {
        if let Self::Bytes(buffer, range, _) = self
            && range.start > 0
        {
            *wanted = Some(Wanted { buffer, at: range.start });
        }
    }

    pub(super) fn arriving(&self) -> Option<&Arriving> {
        match self {
            Self::Bytes(.., arriving) => arriving.as_deref(),
            Self::Nothing | Self::Closed => None,
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(self, Self::Closed)
    }

    /// The word that a READ of one brought; 0 where there was nothing.
    pub(super) fn word(&self) -> u64 {
        self.bytes().try_into().map_or(0, u64::from_le_bytes)
    }
}

/// A READ that was pushed, in the order of pushing.
#[derive(Clone, Copy, Debug)]
enum UnderWay {
    /// Into this part of its buffer.
    Bytes {
        at: usize,
        bytes: usize,
    },
    Nothing,
    Closed,
}

/// Where an item is wanted: in this buffer, from this byte on, which is not its first.
pub(super) struct Wanted {
    pub(super) buffer: Buffer,
    pub(super) at: usize,
}

/// The server's memory over a queue pair.
pub(super) struct Remote {
    reads: Reads,
    pool: BufferPool,
    segments: Vec<Segment>,
    segment_bytes: u64,
    table_id: u64,
    /// With their tags. What leads nowhere waits for its turn here too.
    under_way: VecDeque<(u64, UnderWay)>,
    /// READs and their bytes since they were last published.
    posted: (u64, u64),
}

impl Remote {
    /// With the key of segment 0, as the server told it.
    pub(super) fn new(reads: Reads, pool: BufferPool, welcome: &Welcome, root: (u64, u32)) -> Result<Self, String> {
        let segment_bytes = welcome.segment_bytes;
        let count = welcome.memory_bytes.checked_div(segment_bytes).unwrap_or(0);
        if !segment_bytes.is_power_of_two() || !(1..=MAX_SEGMENTS).contains(&count) {
            let memory_bytes = welcome.memory_bytes;
            return Err(format!(
                "expected 1 to {MAX_SEGMENTS} segments, found {memory_bytes} bytes in {segment_bytes}"
            ));
        }
        let mut segments = vec![Segment::Unknown; count as usize];
        segments[0] = Segment::At { address: root.0, rkey: root.1 };
        let (table_id, under_way) = (welcome.table_id, VecDeque::new());
        Ok(Self { reads, pool, segments, segment_bytes, table_id, under_way, posted: (0, 0) })
    }

    pub(super) fn pool(&self) -> &BufferPool {
        &self.pool
    }

    /// Keeps what a READ brought beside the next one, which may need the buffer that is wanted.
    pub(super) fn set_aside(&self, fetched: Fetched, wanted: &mut Option<Wanted>) -> Result<Fetched, RdmaError> {
        match &fetched {
            Fetched::Bytes(_, range, _) if range.start > 0 => {
                let bytes = range.len();
                let mut copy = self.pool.take(bytes)?;
                copy[..bytes].copy_from_slice(fetched.bytes());
                fetched.give_back(wanted);
                Ok(Fetched::Bytes(copy, 0..bytes, None))
            }
            _ => Ok(fetched),
        }
    }

    /// Adds what was posted since the last call.
    pub(super) fn publish(&mut self, counters: &Counters) {
        let (reads, bytes) = std::mem::take(&mut self.posted);
        counters.add(Count::RdmaReads, reads);
        counters.add(Count::RdmaReadBytes, bytes);
    }

    fn note_posted(&mut self, range: RemoteRange) {
        self.posted.0 += 1;
        self.posted.1 += range.bytes as u64;
    }

    fn known(&self, word: u64, bytes: usize) -> Result<Target, usize> {
        let offset = word.saturating_mul(8);
        let index = (offset / self.segment_bytes) as usize;
        match self.segments.get(index) {
            None => Ok(Target::Nowhere),
            Some(Segment::Unknown) => Err(index),
            Some(Segment::Closed) => Ok(Target::Closed),
            Some(Segment::At { address, rkey }) => {
                let within = offset % self.segment_bytes;
                let bytes = bytes.min((self.segment_bytes - within) as usize);
                Ok(Target::Range(RemoteRange { address: address.wrapping_add(within), rkey: *rkey, bytes }))
            }
        }
    }

    /// Reads the table of segments, one-sided. Twice where an entry was seen half: of an entry that was seen to be
    /// in use, a later READ sees all.
    fn read_segments(&mut self) -> Result<(), RdmaError> {
        for _ in 0..2 {
            let Ok(Target::Range(range)) = self.known(SEGMENTS_WORD, self.segments.len() * 16) else { return Ok(()) };
            let buffer = self.pool.take(range.bytes)?;
            self.reads.push(0, buffer, 0, range)?;
            self.note_posted(range);
            let Some((_, buffer)) = self.reads.wait()? else { return Ok(()) };
            let mut is_whole = true;
            for (segment, entry) in self.segments.iter_mut().zip(buffer.chunks_exact(16)).skip(1) {
                let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| entry[at + i]));
                let (address, word) = (word(0), SegmentWord(word(8)));
                *segment = match word.rkey() {
                    _ if !word.is_in_use() => Segment::Unknown,
                    0 => Segment::Closed,
                    rkey => Segment::At { address, rkey },
                };
                is_whole &= !matches!(segment, Segment::At { address: 0, .. });
            }
            if is_whole {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Learns the segments that `reads` lead to. Nothing may be under way.
    pub(super) fn prepare(&mut self, mut reads: impl Iterator<Item = ItemRead>) -> Result<(), RdmaError> {
        // Once: what is unknown after that leads nowhere.
        if reads.any(|read| self.known(read.word, read.bytes).is_err()) {
            self.read_segments()?;
        }
        Ok(())
    }

    /// Adds a READ to the chain, into a buffer of the pool. `tag` comes back with the bytes.
    pub(super) fn push(&mut self, tag: u64, read: ItemRead) -> Result<(), RdmaError> {
        self.push_into(tag, read, &mut None)
    }

    /// Adds a READ to the chain, into the buffer that is wanted if it is of a whole item and fits, which takes that.
    pub(super) fn push_into(&mut self, tag: u64, read: ItemRead, wanted: &mut Option<Wanted>) -> Result<(), RdmaError> {
        let under_way = match self.known(read.word, read.bytes).unwrap_or(Target::Nowhere) {
            Target::Closed => UnderWay::Closed,
            Target::Range(range) if range.bytes > 0 => {
                let is_item = |wanted: &mut Wanted| {
                    range.bytes > BLOCK_BYTES && range.bytes <= wanted.buffer.len().saturating_sub(wanted.at)
                };
                let Wanted { buffer, at } = match wanted.take_if(is_item) {
                    Some(wanted) => wanted,
                    None => Wanted { buffer: self.pool.take(range.bytes)?, at: 0 },
                };
                self.reads.push(tag, buffer, at, range)?;
                self.note_posted(range);
                UnderWay::Bytes { at, bytes: range.bytes }
            }
            Target::Nowhere | Target::Range(_) => UnderWay::Nothing,
        };
        self.under_way.push_back((tag, under_way));
        Ok(())
    }

    /// What the next READ brought, in the order of pushing; waits for it. None: none is under way.
    pub(super) fn next(&mut self) -> Result<Option<(u64, Fetched)>, RdmaError> {
        // What was gathered goes out before anything is waited for.
        self.reads.ring()?;
        let Some((tag, under_way)) = self.under_way.pop_front() else { return Ok(None) };
        let fetched = match under_way {
            UnderWay::Nothing => Fetched::Nothing,
            UnderWay::Closed => Fetched::Closed,
            UnderWay::Bytes { at, bytes } => {
                let (table_id, mut arriving) = (self.table_id, None);
                let on_arrived = &mut |arrived: &[u8]| {
                    arriving.get_or_insert_with(|| Box::new(Arriving::new(table_id))).arrived(arrived);
                };
                match self.reads.wait_with(on_arrived)? {
                    Some((_, buffer)) => {
                        if let Some(arriving) = &mut arriving {
                            arriving.arrived(&buffer[at..at + bytes]);
                        }
                        Fetched::Bytes(buffer, at..at + bytes, arriving)
                    }
                    None => Fetched::Nothing,
                }
            }
        };
        Ok(Some((tag, fetched)))
    }

    /// One READ. Nothing may be under way.
    pub(super) fn fetch(&mut self, read: ItemRead) -> Result<Fetched, RdmaError> {
        self.fetch_into(read, &mut None)
    }

    /// One READ, as by [`Self::push_into`]. Nothing may be under way.
    pub(super) fn fetch_into(&mut self, read: ItemRead, wanted: &mut Option<Wanted>) -> Result<Fetched, RdmaError> {
        self.prepare(std::iter::once(read))?;
        self.push_into(0, read, wanted)?;
        Ok(self.next()?.map_or(Fetched::Nothing, |(_, fetched)| fetched))
    }
}
