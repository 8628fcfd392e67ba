//! Values that one end reads out of the other's memory.

use std::sync::Weak;

use super::super::super::tests::faults::Slow;
use super::super::super::{Buffer, RemoteReadable};
use super::*;

const REGION_BYTES: u64 = 4 << 20;

/// An end that reads, the memory that it reads into, and its peer, which lends.
struct Ends {
    reader: Exchange,
    of_reader: Channel,
    region: Region,
    exposed: RemoteReadable,
    lender: Exchange,
    of_lender: Channel,
    pool: BufferPool,
}

impl Ends {
    fn new() -> Self {
        Self::between(&port(), &port())
    }

    fn between(reader_at: &Port, lender_at: &Port) -> Self {
        let (mut reader, mut lender) = (exchange(reader_at, 2, 16), exchange(lender_at, 2, 16));
        let (of_reader, of_lender) = Self::connect(&mut reader, &mut lender);
        let region = Region::memfd(REGION_BYTES).unwrap();
        region.allocate(0, REGION_BYTES).unwrap();
        let exposed = reader.domain.expose(&region, 0, REGION_BYTES).unwrap();
        let pool = BufferPool::lent(&lender.domain, 16 << 20);
        Self { reader, of_reader, region, exposed, lender, of_lender, pool }
    }

    fn connect(reader: &mut Exchange, lender: &mut Exchange) -> (Channel, Channel) {
        let (of_reader, reader_end) = reader.open(1, false).unwrap();
        let (of_lender, lender_end) = lender.open(2, true).unwrap();
        reader.connect(&of_reader, &lender_end).unwrap();
        lender.connect(&of_lender, &reader_end).unwrap();
        (of_reader, of_lender)
    }

    fn lend(&self, bytes: usize) -> (Buffer, RemoteRange) {
        let mut buffer = self.pool.take(bytes).unwrap();
        buffer[..bytes].iter_mut().zip(0u32..).for_each(|(byte, i)| *byte = (i * 7 + i / 251) as u8);
        let (address, rkey) = buffer.lent_at().expect("a pool of what is lent");
        (buffer, RemoteRange { address, rkey, bytes })
    }

    /// Begins to read to byte `at` of the region. What comes back lives as long as the device may write there.
    fn pull(&mut self, from: RemoteRange, at: u64) -> Weak<()> {
        let memory = Arc::new(());
        let owner = Arc::downgrade(&memory);
        let into = self.exposed.range(at, from.bytes).expect("it is within the region");
        self.reader.pull(&self.of_reader, from, into, memory).unwrap();
        owner
    }

    fn read(&self, at: u64, bytes: usize) -> Vec<u8> {
        let mut copy = vec![0; bytes.next_multiple_of(8)];
        self.region.read(at / 8, &mut copy);
        copy.truncate(bytes);
        copy
    }
}

/// Of all lengths about a piece's and a message's, with messages both ways meanwhile.
#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn values_are_read_whole_beside_messages() {
    let mut ends = Ends::new();
    let piece = 256 << 10;
    for bytes in [1, 7, 64, 8191, 8192, 8193, 100_001, piece - 1, piece, piece + 1, 3 * piece, (3 << 20) + 5] {
        let (buffer, from) = ends.lend(bytes);
        ends.region.write(128 / 8, &vec![0xee; (bytes + 64).next_multiple_of(8)]);
        let owner = ends.pull(from, 128);
        let Ends { reader, of_reader, lender, of_lender, .. } = &mut ends;
        let (mut arrived, mut sent, mut heard, mut room) = (0, 0, 0, [0; 512]);
        until("a value and 100 messages each way", || {
            let mut tags = Vec::new();
            reader.poll(|tag| tags.push(tag)).unwrap();
            assert!(tags.iter().all(|tag| *tag == 1));
            lender.poll(|_| ()).unwrap();
            if sent < 100 && reader.send(of_reader, &[1; 100]).unwrap() > 0 {
                sent += 1;
            }
            heard += lender.receive(of_lender, &mut room).unwrap();
            arrived += reader.pulled(of_reader).unwrap();
            arrived == bytes && heard == 10_000
        });
        assert!(owner.upgrade().is_none(), "{bytes} bytes are here, and their memory still held");
        assert!(ends.read(128, bytes) == buffer[..bytes], "{bytes} bytes");
        let behind = ends.read(128 + bytes as u64 / 8 * 8, 64);
        assert!(behind[bytes % 8..].iter().all(|byte| *byte == 0xee), "{bytes} bytes and more");
        assert_eq!(ends.reader.pulled(&ends.of_reader).unwrap(), 0);
    }
}

/// Only after its queue pair is destroyed may what a failed READ was to fill become something else.
#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn what_cannot_be_read_fails_and_its_memory_is_kept_until_the_queue_pair_is_gone() {
    type Wrong = fn(&Ends, RemoteRange) -> RemoteRange;
    let wrongs: [(&str, Wrong); 3] = [
        ("a wrong key", |_, from| RemoteRange { rkey: from.rkey ^ 0x5a00, ..from }),
        // What is registered at once ends long before.
        ("half of it is not lent", |_, from| RemoteRange { bytes: 3 << 20, ..from }),
        ("memory of another kind", |ends, from| {
            let buffer = ends.lender.pool.take(from.bytes).unwrap();
            assert!(buffer.lent_at().is_none(), "only a pool of what is lent tells of keys");
            RemoteRange { address: buffer.target().0, ..from }
        }),
    ];
    for (what, wrong) in wrongs {
        let mut ends = Ends::new();
        let (_buffer, from) = ends.lend(600 << 10);
        let owner = ends.pull(wrong(&ends, from), 0);
        until(what, || {
            ends.reader.poll(|_| ()).unwrap();
            ends.lender.poll(|_| ()).unwrap();
            ends.reader.pulled(&ends.of_reader).is_err()
        });
        assert!(owner.upgrade().is_some(), "{what}: let go by an error");
        let Ends { mut reader, of_reader, .. } = ends;
        reader.close(of_reader);
        assert!(owner.upgrade().is_some(), "{what}: let go by the end of the channel");
        until("the queue pair is gone", || {
            reader.poll(|_| ()).unwrap();
            !reader.tidy()
        });
        assert!(owner.upgrade().is_none(), "{what}: never let go");
    }
}

#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn one_value_at_a_time_and_only_by_a_peer_that_lends() {
    let mut ends = Ends::new();
    let (_buffer, from) = ends.lend(1 << 20);
    let into = ends.exposed.range(0, 1 << 20).unwrap();
    for wrong in [RemoteRange { bytes: 0, ..from }, RemoteRange { bytes: (1 << 20) - 1, ..from }] {
        assert!(ends.reader.pull(&ends.of_reader, wrong, into, Arc::new(())).is_err(), "{wrong:?}");
    }
    assert!(ends.exposed.range(REGION_BYTES - 8, 9).is_none() && ends.exposed.range(u64::MAX, 1).is_none());
    let first = ends.pull(from, 0);
    let error = ends.reader.pull(&ends.of_reader, from, into, Arc::new(())).unwrap_err().to_string();
    assert!(error.contains("one value at a time"), "{error}");
    assert!(first.upgrade().is_some());
    // The lender does not let itself be read from without having said so.
    let (of_reader, reader_end) = ends.reader.open(3, false).unwrap();
    let (of_lender, lender_end) = ends.lender.open(4, false).unwrap();
    ends.reader.connect(&of_reader, &lender_end).unwrap();
    ends.lender.connect(&of_lender, &reader_end).unwrap();
    ends.reader.pull(&of_reader, from, into, Arc::new(())).unwrap();
    until("it is refused", || {
        ends.reader.poll(|_| ()).unwrap();
        ends.reader.pulled(&of_reader).is_err()
    });
}

/// Answers that come after the channel has been given up, to memory that has another use by then.
#[test]
#[ignore = "needs the two devices of scripts/guest"]
fn a_value_that_is_late_is_written_nowhere() {
    const BYTES: usize = 64 << 10;
    let at = |name: &str| Port::find(&name.parse().unwrap(), IpAddr::V4(Ipv4Addr::LOCALHOST)).expect("a device");
    let mut ends = Ends::between(&at("rxe1"), &at("rxe0"));
    let (_buffer, from) = ends.lend(BYTES);
    let _slow = Slow::new();
    let owner = ends.pull(from, 0);
    // As a worker does it, except that it waits less.
    let given_up = std::mem::replace(&mut ends.of_reader, {
        let (of_reader, of_lender) = Ends::connect(&mut ends.reader, &mut ends.lender);
        ends.of_lender = of_lender;
        of_reader
    });
    ends.reader.close(given_up);
    ends.reader.dying.iter_mut().for_each(|(until, _)| *until = Instant::now());
    until("its memory is let go", || {
        ends.reader.tidy();
        owner.upgrade().is_none()
    });
    ends.region.write(0, &[0xaa; BYTES]);
    // What is asked for now is answered after that.
    let _later = ends.pull(RemoteRange { bytes: 64, ..from }, BYTES as u64);
    let mut arrived = 0;
    until("a later value", || {
        ends.reader.poll(|_| ()).unwrap();
        arrived += ends.reader.pulled(&ends.of_reader).unwrap();
        arrived == 64
    });
    assert!(ends.read(0, BYTES).iter().all(|byte| *byte == 0xaa), "a READ of long ago has written");
}
