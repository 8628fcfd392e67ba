//! The stream of requests of one thread, made before it is measured.
//!
//! Drawing a record and rendering its key costs as much as half a `get` from memory, so it is done ahead: a workload
//! without inserts gets one long trace that is gone through again and again (fixed by the seed, and so the same for
//! every path); one with inserts gets a block at a time, since every key is new.

use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::{KeyShape, Mix, RecordChooser, Workload};

/// Bytes that the traces of all threads may take together.
const TRACE_BYTES: usize = 128 << 20;
/// Longest trace of one thread.
const MAX_TRACE: usize = 1 << 20;
/// Shortest one.
const MIN_TRACE: usize = 1 << 10;
/// Requests made at a time when there are inserts.
const BLOCK: usize = 1024;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Read the record.
    Read,
    /// Write it anew.
    Update,
    /// Write a record that is not there.
    Insert,
    /// Read it, then write it.
    ReadModifyWrite,
}

impl Operation {
    /// Every operation, in the order of their discriminants.
    pub const ALL: [Self; 4] = [Self::Read, Self::Update, Self::Insert, Self::ReadModifyWrite];

    /// Its name in messages; in capitals, YCSB's.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Update => "update",
            Self::Insert => "insert",
            Self::ReadModifyWrite => "read-modify-write",
        }
    }
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'r> {
    /// What to do.
    pub operation: Operation,
    /// Number of the record.
    pub record: u64,
    /// Its key.
    pub key: &'r [u8],
}

/// 16 bytes a request, read in order.
#[derive(Clone, Copy, Debug)]
struct Prepared {
    record: u64,
    key_end: u32,
    operation: Operation,
}

impl Prepared {
    #[inline]
    fn with_key(self, keys: &[u8], start: usize) -> Request<'_> {
        Request { operation: self.operation, record: self.record, key: &keys[start..self.key_end as usize] }
    }
}

/// An endless stream of requests.
#[derive(Debug)]
pub struct Requests {
    random: Xoshiro256PlusPlus,
    chooser: RecordChooser,
    shape: KeyShape,
    mix: Mix,
    records: u64,
    thread: u64,
    threads: u64,
    /// Inserts made up so far.
    inserted: u64,
    /// Newest inserts that may still be on their way, and are not read.
    unacknowledged: u64,
    prepared: Vec<Prepared>,
    keys: Vec<u8>,
    next: usize,
    key_start: usize,
}

impl Requests {
    /// For thread `thread` of `threads`. Of the requests before the one that is given out, all but the last
    /// `in_flight - 1` have been answered.
    #[must_use]
    pub fn new(workload: &Workload, seed: u64, thread: usize, threads: usize, in_flight: usize) -> Self {
        let mut requests = Self {
            random: Xoshiro256PlusPlus::seed_from_u64(seed ^ (thread as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)),
            chooser: RecordChooser::new(workload.distribution, workload.records),
            shape: workload.key_shape(),
            mix: workload.mix,
            records: workload.records,
            thread: thread as u64,
            threads: threads.max(1) as u64,
            inserted: 0,
            unacknowledged: in_flight.saturating_sub(1) as u64,
            prepared: Vec::new(),
            keys: Vec::new(),
            next: 0,
            key_start: 0,
        };
        let length = if workload.mix.insert > 0.0 {
            BLOCK
        } else {
            let each = requests.shape.max_bytes() + size_of::<Prepared>();
            (TRACE_BYTES / threads.max(1) / each).clamp(MIN_TRACE, MAX_TRACE)
        };
        requests.prepare(length);
        requests
    }

    /// The next request.
    #[inline]
    pub fn next_request(&mut self) -> Request<'_> {
        if self.next == self.prepared.len() {
            self.turn();
        }
        let prepared = self.prepared[self.next];
        self.next += 1;
        let start = std::mem::replace(&mut self.key_start, prepared.key_end as usize);
        prepared.with_key(&self.keys, start)
    }

    /// The next few requests: `most` of them, or fewer where the trace ends.
    pub fn next_few(&mut self, most: usize) -> impl Iterator<Item = Request<'_>> {
        if self.next == self.prepared.len() {
            self.turn();
        }
        let first = self.next;
        let mut start = self.key_start;
        self.next = (first + most).min(self.prepared.len());
        if self.next > first {
            self.key_start = self.prepared[self.next - 1].key_end as usize;
        }
        let keys = self.keys.as_slice();
        self.prepared[first..self.next].iter().map(move |prepared| {
            let request = prepared.with_key(keys, start);
            start = prepared.key_end as usize;
            request
        })
    }

    #[cold]
    fn turn(&mut self) {
        if self.mix.insert > 0.0 {
            self.prepare(BLOCK);
        }
        self.next = 0;
        self.key_start = 0;
    }

    fn prepare(&mut self, length: usize) {
        self.prepared.clear();
        self.keys.clear();
        self.keys.reserve(length * self.shape.max_bytes());
        for _ in 0..length {
            let operation = self.draw_operation();
            let record = if operation == Operation::Insert { self.insert() } else { self.existing() };
            let key = self.shape.render(record, &mut self.keys);
            self.prepared.push(Prepared { record, key_end: key.end as u32, operation });
        }
    }

    fn draw_operation(&mut self) -> Operation {
        let Mix { read, update, insert, read_modify_write } = self.mix;
        let mut draw = self.random.random::<f64>() * (read + update + insert + read_modify_write);
        for (share, operation) in
            [(update, Operation::Update), (insert, Operation::Insert), (read_modify_write, Operation::ReadModifyWrite)]
        {
            if draw < share {
                return operation;
            }
            draw -= share;
        }
        if read > 0.0 { Operation::Read } else { Operation::Update }
    }

    /// Insert `i` of client `c` of `C` is record `recordcount + c + C·i`.
    fn insert(&mut self) -> u64 {
        let record = self.records + self.thread + self.threads * self.inserted;
        self.inserted += 1;
        let readable = self.inserted.saturating_sub(self.unacknowledged);
        self.chooser.grow_to(self.records + readable);
        record
    }

    /// A record that is there: loaded, or inserted by this thread and acknowledged.
    fn existing(&mut self) -> u64 {
        let drawn = self.chooser.sample(&mut self.random);
        match drawn.checked_sub(self.records) {
            None => drawn,
            Some(own) => self.records + self.thread + self.threads * own,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn stream(workload: &Workload, thread: usize, threads: usize) -> Requests {
        Requests::new(workload, 42, thread, threads, 8)
    }

    fn small(name: &str) -> Workload {
        Workload { records: 1000, ..Workload::preset(name).expect("a preset") }
    }

    #[test]
    fn proportions_are_those_of_the_workload() {
        for name in ["a", "b", "c", "d", "f"] {
            let workload = small(name);
            let mut requests = stream(&workload, 0, 1);
            let mut seen = [0_u32; 4];
            for _ in 0..200_000 {
                seen[requests.next_request().operation as usize] += 1;
            }
            let Mix { read, update, insert, read_modify_write } = workload.mix;
            for (seen, share) in seen.into_iter().zip([read, update, insert, read_modify_write]) {
                let found = f64::from(seen) / 200_000.0;
                assert!((found - share).abs() < 0.005, "workload {name}: {found} instead of {share}");
            }
        }
    }

    #[test]
    fn the_seed_alone_decides() {
        let workload = small("a");
        let (mut one, mut two) = (stream(&workload, 1, 2), stream(&workload, 1, 2));
        for _ in 0..10_000 {
            let (a, b) = (one.next_request(), two.next_request());
            assert_eq!((a.operation, a.record, a.key), (b.operation, b.record, b.key));
        }
    }

    #[test]
    fn a_trace_goes_round() {
        let workload = Workload { zero_padding: 4000, ..small("kv64") };
        let mut requests = Requests::new(&workload, 1, 0, 1000, 1);
        let first = requests.next_request().record;
        for _ in 1..MIN_TRACE {
            requests.next_request();
        }
        let again = requests.next_request();
        assert_eq!(again.record, first);
        assert_eq!(again.key.len(), 4004);
    }

    #[test]
    fn keys_are_those_of_the_records() {
        let workload = small("d");
        let mut requests = stream(&workload, 0, 1);
        let mut arena = Vec::new();
        for _ in 0..5000 {
            let request = requests.next_request();
            arena.clear();
            let _ = workload.key_shape().render(request.record, &mut arena);
            assert_eq!(request.key, arena);
        }
    }

    #[test]
    fn a_few_at_a_time_are_the_same_requests() {
        let workload = Workload { zero_padding: 4000, ..small("a") };
        let make = || Requests::new(&workload, 1, 0, 1000, 1);
        let (mut single, mut few) = (make(), make());
        for most in (1..100).cycle().take(200) {
            for request in few.next_few(most) {
                let alone = single.next_request();
                assert_eq!(
                    (request.operation, request.record, request.key),
                    (alone.operation, alone.record, alone.key)
                );
            }
        }
    }

    #[test]
    fn reads_meet_only_what_is_acknowledged() {
        let workload = small("d");
        let mut threads = [stream(&workload, 0, 2), stream(&workload, 1, 2)];
        for (thread, requests) in threads.iter_mut().enumerate() {
            let mut inserted = Vec::new();
            let mut seen = HashSet::new();
            for _ in 0..50_000 {
                let Request { operation, record, .. } = requests.next_request();
                if operation == Operation::Insert {
                    assert_eq!(record, 1000 + thread as u64 + 2 * inserted.len() as u64);
                    inserted.push(record);
                } else if record >= 1000 {
                    let place = inserted.iter().position(|&made| made == record).expect("inserted by this thread");
                    assert!(place + 7 < inserted.len(), "still on its way");
                    seen.insert(record);
                }
            }
            assert!(seen.len() > 100, "latest reads what was inserted");
        }
    }
}
