//! A segment on a disk that goes down in the middle of a commit: what was written since the last sync is there, or not, or
//! torn, or has a flipped bit.

use std::io;

use parking_lot::Mutex;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::*;

const SECTOR: usize = 512;
/// What the engine writes once and for all at the front of a file.
const FIXED_BYTES: usize = 64;

#[derive(Clone, Debug)]
enum Event {
    Write(u64, Vec<u8>),
    SetLen(u64),
    Sync,
}

/// A disk that remembers everything that was done to it.
#[derive(Clone, Debug, Default)]
struct Recorder {
    bytes: Arc<Mutex<Vec<u8>>>,
    events: Arc<Mutex<Vec<Event>>>,
}

impl StorageBackend for Recorder {
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes.lock().len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let bytes = self.bytes.lock();
        let from = bytes.get(offset as usize..offset as usize + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(from);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.bytes.lock().resize(len as usize, 0);
        self.events.lock().push(Event::SetLen(len));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.events.lock().push(Event::Sync);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.bytes.lock()[offset as usize..offset as usize + data.len()].copy_from_slice(data);
        self.events.lock().push(Event::Write(offset, data.to_vec()));
        Ok(())
    }
}

fn apply(bytes: &mut Vec<u8>, event: &Event) {
    match event {
        Event::Write(offset, data) => {
            let at = *offset as usize;
            // The write of a length that is not there yet makes it so.
            bytes.resize(bytes.len().max(at + data.len()), 0);
            bytes[at..at + data.len()].copy_from_slice(data);
        }
        Event::SetLen(len) => bytes.resize(*len as usize, 0),
        Event::Sync => {}
    }
}

/// What the disk has when it goes down after `syncs` syncs, while what comes until the next one is on its way.
fn crash(random: &mut impl Rng, events: &[Event], syncs: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut seen = 0;
    let split = events.iter().position(|event| {
        seen += usize::from(matches!(event, Event::Sync));
        seen == syncs
    });
    let (safe, rest) = events.split_at(split.map_or(0, |at| at + 1));
    safe.iter().for_each(|event| apply(&mut bytes, event));
    let under_way = rest.iter().take_while(|event| !matches!(event, Event::Sync));
    // The length first: the engine orders nothing between two syncs.
    let mut sectors = Vec::new();
    for event in under_way {
        match event {
            Event::Write(offset, data) => {
                let parts = data.chunks(SECTOR).enumerate();
                sectors.extend(parts.map(|(i, part)| (offset + (i * SECTOR) as u64, part.to_vec())));
            }
            event => apply(&mut bytes, event),
        }
    }
    // One fate for all, or one for each.
    let fate = random.random_range(0..5);
    if fate == 4 {
        sectors.shuffle(random);
    }
    for (offset, mut part) in sectors {
        match if fate < 4 { fate } else { random.random_range(0..4) } {
            0 => continue,
            1 => {}
            2 => part.truncate(random.random_range(0..=part.len()) & !7),
            _ => {
                // Of the first sector, what has changed: its two commit slots are what the engine builds on.
                let has_changed = |byte: usize| bytes.get(byte) != Some(&part[byte]);
                let can_flip = |byte: &usize| offset > 0 || (*byte >= FIXED_BYTES && has_changed(*byte));
                let flipped: Vec<usize> = (0..part.len()).filter(can_flip).collect();
                if let Some(&byte) = flipped.choose(random) {
                    part[byte] ^= 1 << random.random_range(0..8);
                }
            }
        }
        apply(&mut bytes, &Event::Write(offset, part));
    }
    bytes
}

fn facts() -> Facts {
    Facts { log_id: 7, number: 1, base: 1, first: 100, ceiling: 1000 }
}

fn batch(random: &mut impl Rng, first: u64) -> Batch {
    let pieces: Vec<Vec<u8>> = (0..random.random_range(1..4))
        .map(|_| {
            let most = [50, 5000, 40_000][random.random_range(0..3)];
            (0..random.random_range(1..most)).map(|_| random.random()).collect()
        })
        .collect();
    let bytes = pieces.iter().map(|piece| piece.len() as u64).sum();
    Batch { pieces, bytes, records: random.random_range(1..9), first, ceiling: 1000 + first, ..Batch::default() }
}

fn found(segment: &Segment) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let each = &mut |_: &BatchHeader, batch: Vec<u8>| {
        found.push(batch[BATCH_HEADER_BYTES..].to_vec());
        Ok(())
    };
    segment.batches(each).expect("batches that are whole");
    found
}

#[test]
fn a_crash_in_a_commit_leaves_the_batches_before_it_and_that_one_whole_or_not() {
    let seed = std::env::var("SIDESTEP_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("SIDESTEP_SEED={seed}");
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let disk = Recorder::default();
    let syncs = || disk.events.lock().iter().filter(|event| matches!(event, Event::Sync)).count();
    let mut segment = Segment::make(disk.clone(), Path::new("test"), facts()).expect("a segment");
    let (mut written, mut next, mut acknowledged) = (Vec::new(), facts().first, vec![(syncs(), 0)]);
    for done in 1..=12 {
        let batch = batch(&mut random, next);
        segment.append(&batch, 5).expect("a commit");
        next = batch.end();
        written.push(batch.pieces.concat());
        acknowledged.push((syncs(), done));
    }
    let events = disk.events.lock().clone();
    let (mut torn, mut whole) = (0, 0);
    for _ in 0..150 {
        let (at, kept) = acknowledged[random.random_range(0..12)];
        let image = Recorder::default();
        *image.bytes.lock() = crash(&mut random, &events, at);
        let segment =
            Segment::open_on(image, Path::new("test")).unwrap_or_else(|error| panic!("after {kept}: {error}"));
        let found = found(&segment);
        assert!(found.len() == kept || found.len() == kept + 1, "{kept} acknowledged, {} found", found.len());
        assert_eq!(found[..], written[..found.len()]);
        torn += u32::from(segment.is_torn);
        whole += u32::from(found.len() > kept);
        assert!(segment.facts().ceiling >= if kept == 0 { 1000 } else { 1100 });
    }
    println!("{torn} reported torn, {whole} as if the sync had been through");
    assert!(torn > 0 && whole > 0);
}

#[test]
fn a_segment_goes_on_where_it_was_and_knows_its_cells() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
    let disk = Recorder::default();
    let mut segment = Segment::make(disk.clone(), Path::new("test"), facts()).expect("a segment");
    let first = batch(&mut random, 100);
    segment.append(&first, 5).expect("a commit");
    segment.set_base(3).expect("a commit");
    drop(segment);
    let mut segment = Segment::open_on(disk.clone(), Path::new("test")).expect("a segment");
    assert_eq!(*segment.facts(), Facts { base: 3, ceiling: 1100, ..facts() });
    let second = batch(&mut random, first.end());
    segment.append(&second, 5).expect("a commit");
    assert_eq!(found(&segment), [first.pieces.concat(), second.pieces.concat()]);
    let gap = batch(&mut random, second.end() + 1);
    segment.append(&gap, 5).expect("a commit");
    let error = segment.batches(&mut |_, _| Ok(())).expect_err("a record is missing");
    assert!(error.to_string().contains(&format!("expected record {}", second.end())), "{error}");
}

/// The checksums of ours see what the engine's, which are right, cannot: bytes of another place.
#[test]
fn a_cell_of_another_segment_is_damage() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
    let mut segment = Segment::make(Recorder::default(), Path::new("test"), facts()).expect("a segment");
    segment.append(&batch(&mut random, 100), 5).expect("a commit");
    segment.facts.number = 2;
    let error = segment.batches(&mut |_, _| Ok(())).expect_err("not of this segment");
    assert!(matches!(error, LogError::Damaged { .. }) && error.to_string().contains("checksum"), "{error}");
}
