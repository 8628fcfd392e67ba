//! On real verbs: two ends in this process. Needs a device: `scripts/guest`.

pub(super) mod faults;

use std::net::{IpAddr, Ipv4Addr};
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

use ibverbs_sys as ffi;
use sidestep_core::memory::MemoryMut;

use super::completions::Completions;
use super::queue_pair::{Access, QueuePair};
use super::*;
use crate::region::Region;

const BYTES: u64 = 1 << 20;
const WAITING: Waiting = Waiting { spin: Duration::from_micros(50), most: Duration::from_secs(20) };

/// A serving end with a region whose word i is i, and what a reader must know of it.
struct Server {
    region: Region,
    domain: Domain,
    exposed: RemoteReadable,
    acceptor: Acceptor,
    port: Port,
}

impl Server {
    fn new() -> Self {
        Self::on("auto")
    }

    fn on(device: &str) -> Self {
        Self::of(device, BYTES)
    }

    fn of(device: &str, bytes: u64) -> Self {
        let port = Port::find(&device.parse().unwrap(), IpAddr::V4(Ipv4Addr::LOCALHOST)).expect("a device");
        let region = Region::memfd(2 * bytes).unwrap();
        region.allocate(0, 2 * bytes).unwrap();
        (0..bytes / 8).for_each(|word| region.store(word, word));
        let domain = Domain::new(port.device()).unwrap();
        // Half of it: what is behind must stay out of reach.
        let exposed = domain.expose(&region, 0, bytes).unwrap();
        let acceptor = Acceptor::new(&domain, &port).unwrap();
        Self { region, domain, exposed, acceptor, port }
    }

    fn reader(&self, depth: u32) -> (Reads, BufferPool, Accepted) {
        let domain = Domain::new(self.port.device()).unwrap();
        let unconnected = Unconnected::new(&domain, &self.port, depth).unwrap();
        let accepted = self.acceptor.accept(&unconnected.end()).unwrap();
        let reads = unconnected.connect(&accepted.end(), WAITING).unwrap();
        (reads, BufferPool::new(&domain, 4 << 20), accepted)
    }

    fn range(&self, offset: u64, bytes: usize) -> RemoteRange {
        RemoteRange { address: self.exposed.address() + offset, rkey: self.exposed.rkey(), bytes }
    }
}

fn word_at(buffer: &Buffer, index: usize) -> u64 {
    u64::from_le_bytes(buffer[index * 8..][..8].try_into().unwrap())
}

fn status(result: Result<Option<(u64, Buffer)>, RdmaError>) -> u32 {
    match result {
        Err(RdmaError::Completion { status, .. }) => status,
        other => panic!("expected an error completion, found {other:?}"),
    }
}

#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn chains_longer_than_the_queue_come_back_in_order() {
    let server = Server::new();
    for depth in [2, 3, 16, 128] {
        let (mut reads, pool, _accepted) = server.reader(depth);
        for i in 0..1000u64 {
            reads.push(i, pool.take(64).unwrap(), 0, server.range(i * 64, 64)).unwrap();
        }
        for i in 0..1000u64 {
            let (tag, buffer) = reads.wait().unwrap().expect("as many as were pushed");
            assert_eq!((tag, word_at(&buffer, 0), word_at(&buffer, 7)), (i, i * 8, i * 8 + 7), "depth {depth}");
        }
        assert!(reads.wait().unwrap().is_none() && reads.is_idle());
    }
}

#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn a_long_read_comes_in_pieces_and_whole() {
    let server = Server::new();
    for depth in [2, 128] {
        let (mut reads, pool, _accepted) = server.reader(depth);
        reads.push(1, pool.take(BYTES as usize).unwrap(), 0, server.range(0, BYTES as usize)).unwrap();
        let (_, buffer) = reads.wait().unwrap().unwrap();
        assert!((0..BYTES as usize / 8).all(|i| word_at(&buffer, i) == i as u64));
    }
}

/// Two of them, one behind the other: each is told of by itself.
#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn what_has_arrived_of_a_long_read_is_there() {
    const AT: usize = 512;
    // So long that Soft-RoCE does not read it in one go.
    const LONG: usize = 16 << 20;
    let server = Server::of("auto", LONG as u64);
    let (mut reads, pool, _accepted) = server.reader(128);
    for (tag, skipped) in [(1, 0), (2, 8)] {
        let bytes = LONG - skipped;
        reads.push(tag, pool.take(AT + bytes).unwrap(), AT, server.range(skipped as u64, bytes)).unwrap();
    }
    let mut told = 0;
    for (tag, first) in [(1, 0), (2, 1)] {
        let mut seen = 0;
        let on_arrived = &mut |arrived: &[u8]| {
            assert!(arrived.len() > seen && arrived.len() < LONG, "{} after {seen}", arrived.len());
            let words = arrived.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
            assert!(words.eq(first..first + arrived.len() as u64 / 8), "bytes that have not arrived");
            seen = arrived.len();
            told += 1;
        };
        let (found, buffer) = reads.wait_with(on_arrived).unwrap().unwrap();
        assert_eq!((found, word_at(&buffer, AT / 8)), (tag, first));
    }
    assert!(told > 0, "nothing was told before it was whole");
}

#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn what_is_not_exposed_is_refused_and_others_go_on() {
    let server = Server::new();
    let (mut bystander, of_bystander, _accepted) = server.reader(8);
    let wrong = [
        server.range(BYTES - 32, 64),
        server.range(BYTES, 8),
        RemoteRange { rkey: server.exposed.rkey() ^ 0x5a00, ..server.range(0, 64) },
    ];
    for range in wrong {
        let (mut reads, pool, _accepted) = server.reader(8);
        reads.push(1, pool.take(64).unwrap(), 0, range).unwrap();
        let first = status(reads.wait());
        assert!(matches!(
            first,
            ffi::ibv_wc_status::IBV_WC_REM_ACCESS_ERR | ffi::ibv_wc_status::IBV_WC_REM_INV_REQ_ERR
        ));
        // Everything after it is flushed, or fails to be posted.
        let second = reads.push(2, pool.take(64).unwrap(), 0, server.range(0, 64)).and_then(|()| reads.wait());
        assert!(second.is_err(), "{range:?}");
        bystander.push(3, of_bystander.take(64).unwrap(), 0, server.range(640, 64)).unwrap();
        assert_eq!(word_at(&bystander.wait().unwrap().unwrap().1, 0), 80);
    }
}

#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn a_peer_that_is_gone_is_noticed_and_buffers_come_back() {
    let server = Server::new();
    let (mut reads, pool, accepted) = server.reader(8);
    let buffer = pool.take(64).unwrap();
    let at = buffer.as_ptr();
    drop(accepted);
    reads.push(1, buffer, 0, server.range(0, 64)).unwrap();
    status(reads.wait());
    assert_ne!(pool.take(64).unwrap().as_ptr(), at, "it is the device's until the queue pair is gone");
    drop(reads);
    let back: Vec<Buffer> = (0..2000).map_while(|_| pool.take(64).ok()).collect();
    assert!(back.iter().any(|buffer| buffer.as_ptr() == at));
}

/// A client that breaks the rules: its own queue pair may do what it likes, the server's decides.
#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn a_forged_write_changes_nothing() {
    let server = Server::new();
    let domain = Domain::new(server.port.device()).unwrap();
    let completions = Arc::new(Completions::new(server.port.device(), 8).unwrap());
    let pair = QueuePair::new(&domain, &server.port, &completions, 8, Access::Nothing).unwrap();
    let accepted = server.acceptor.accept(&pair.end()).unwrap();
    pair.connect(&accepted.end()).unwrap();
    let pool = BufferPool::new(&domain, 1 << 20);
    let mut buffer = pool.take(64).unwrap();
    buffer.fill(0xee);
    let (address, lkey) = buffer.target();
    let mut target = ffi::ibv_sge { addr: address, length: 64, lkey };
    let mut request = ffi::ibv_send_wr {
        wr_id: 9,
        next: null_mut(),
        sg_list: &raw mut target,
        num_sge: 1,
        opcode: ffi::ibv_wr_opcode::IBV_WR_RDMA_WRITE,
        send_flags: ffi::ibv_send_flags::IBV_SEND_SIGNALED.0,
        ..Default::default()
    };
    request.wr.rdma = ffi::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
        remote_addr: server.exposed.address(),
        rkey: server.exposed.rkey(),
    };
    // SAFETY: one request, of a buffer that lives until its completion has been seen below.
    unsafe { pair.post(&raw mut request) }.unwrap();
    // SAFETY: all of its fields are numbers, for which zero is a value.
    let mut polled: [ffi::ibv_wc; 1] = unsafe { std::mem::zeroed() };
    while completions.poll(&mut polled).unwrap() == 0 {
        std::hint::spin_loop();
    }
    assert_eq!(polled[0].wr_id(), 9);
    assert!(polled[0].error().is_some(), "a WRITE into memory that may only be read");
    let mut bytes = [0; 64];
    sidestep_core::memory::Memory::read(&server.region, 0, &mut bytes);
    let expected: Vec<u8> = (0..8u64).flat_map(u64::to_le_bytes).collect();
    assert_eq!(&bytes[..], &expected[..]);
    // The server and its other clients go on.
    let (mut reads, pool, _accepted) = server.reader(8);
    reads.push(1, pool.take(64).unwrap(), 0, server.range(0, 64)).unwrap();
    assert_eq!(word_at(&reads.wait().unwrap().unwrap().1, 7), 7);
}

/// The other order of ends would be a use after free in libibverbs.
#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn parts_may_be_dropped_in_any_order() {
    for order in 0..6 {
        let server = Server::new();
        let (mut reads, pool, accepted) = server.reader(8);
        reads.push(1, pool.take(64).unwrap(), 0, server.range(0, 64)).unwrap();
        reads.ring().unwrap();
        let held = pool.take(64).unwrap();
        let mut parts: Vec<Box<dyn std::any::Any>> =
            vec![Box::new(server), Box::new(reads), Box::new(pool), Box::new(accepted), Box::new(held)];
        parts.rotate_left(order % 5);
        if order == 5 {
            parts.reverse();
        }
        parts.into_iter().for_each(drop);
    }
}
