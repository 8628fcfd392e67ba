//! Errors of each status that can be had, and what is late.

use std::process::Command;

use super::*;

/// What a request ended with, and what that is called.
fn failure(result: Result<Option<(u64, Buffer)>, RdmaError>) -> (u32, String) {
    match result {
        Err(error @ RdmaError::Completion { status, .. }) => (status, error.to_string()),
        other => panic!("expected an error completion, found {other:?}"),
    }
}

/// Reads by a queue pair whose peer is this one, which allows `access` and holds no memory.
fn reads_of(server: &Server, access: Access) -> (Reads, BufferPool, QueuePair) {
    let domain = Domain::new(server.port.device()).unwrap();
    let completions = Arc::new(Completions::new(server.port.device(), 8).unwrap());
    let peer = QueuePair::new(&domain, &server.port, &completions, 8, access).unwrap();
    let own = Domain::new(server.port.device()).unwrap();
    let unconnected = Unconnected::new(&own, &server.port, 8).unwrap();
    peer.connect(&unconnected.end()).unwrap();
    (unconnected.connect(&peer.end(), WAITING).unwrap(), BufferPool::new(&own, 1 << 20), peer)
}

/// 13, receiver not ready, is that of messages: see their tests. Codes are asserted loosely, for devices differ.
#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn every_error_is_called_by_its_name_and_ends_its_queue_pair_alone() {
    use ffi::ibv_wc_status as is;
    let refused = [is::IBV_WC_REM_ACCESS_ERR, is::IBV_WC_REM_INV_REQ_ERR];
    let server = Server::new();
    let (mut bystander, of_bystander, _accepted) = server.reader(8);
    let good = server.range(0, 64);
    let wrong_key = RemoteRange { rkey: good.rkey ^ 0x5a00, ..good };
    let too_far = server.range(BYTES - 32, 64);
    let mut met = Vec::new();
    let mut meet = |what: &str, (mut reads, buffer, range): (Reads, Buffer, RemoteRange), codes: &[u32], says: &str| {
        reads.push(1, buffer, 0, range).unwrap();
        let (status, text) = failure(reads.wait());
        assert!(codes.contains(&status) && text.contains(says), "{what}: {text}");
        // Whatever is asked of it now ends the same way, without being done.
        let (_, pool, _) = server.reader(8);
        match reads.push(2, pool.take(64).unwrap(), 0, good).and_then(|()| reads.wait()) {
            Err(RdmaError::Completion { status, .. }) => assert_eq!(status, is::IBV_WC_WR_FLUSH_ERR, "{what}"),
            Err(RdmaError::Verb { .. }) => {}
            other => panic!("{what}: {other:?}"),
        }
        met.push((what.to_owned(), status));
        bystander.push(3, of_bystander.take(64).unwrap(), 0, server.range(640, 64)).unwrap();
        assert_eq!(word_at(&bystander.wait().unwrap().unwrap().1, 0), 80, "{what}");
    };
    for (what, range) in [("a wrong key", wrong_key), ("beyond the end", too_far)] {
        let (reads, pool, _accepted) = server.reader(8);
        meet(what, (reads, pool.take(64).unwrap(), range), &refused, "peer");
    }
    let (reads, pool, _peer) = reads_of(&server, Access::Nothing);
    meet("a peer that lets nobody read", (reads, pool.take(64).unwrap(), good), &refused, "peer");
    let (reads, pool, _peer) = reads_of(&server, Access::Read);
    meet("a key of another domain", (reads, pool.take(64).unwrap(), good), &refused, "peer refused access");
    let (reads, _, _accepted) = server.reader(8);
    let (_, others, _) = server.reader(8);
    meet(
        "a buffer of another domain",
        (reads, others.take(64).unwrap(), good),
        &[is::IBV_WC_LOC_PROT_ERR],
        "local buffer is not registered",
    );
    let (reads, pool, accepted) = server.reader(8);
    drop(accepted);
    let gone = [is::IBV_WC_RETRY_EXC_ERR, is::IBV_WC_REM_ACCESS_ERR, is::IBV_WC_REM_INV_REQ_ERR];
    meet("a peer that is gone", (reads, pool.take(64).unwrap(), good), &gone, "peer");
    println!("{met:?}");
}

/// The new registration is in the same domain, so nothing but the end of the old one keeps its key from opening. The test
/// fails when `Registered::drop` forgets the registration instead of ending it.
#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn a_key_of_memory_that_is_exposed_no_more_opens_nothing() {
    let mut server = Server::new();
    let stale = server.range(0, 64);
    server.exposed = server.domain.expose(&server.region, 0, BYTES).unwrap();
    assert_ne!(stale.rkey, server.exposed.rkey());
    let (mut reads, pool, _accepted) = server.reader(8);
    reads.push(1, pool.take(64).unwrap(), 0, stale).unwrap();
    failure(reads.wait());
    let (mut reads, pool, _accepted) = server.reader(8);
    reads.push(1, pool.take(64).unwrap(), 0, server.range(0, 64)).unwrap();
    assert_eq!(word_at(&reads.wait().unwrap().unwrap().1, 7), 7);
}

/// A delay of what the server's device sends, ended by drop.
pub(in super::super) struct Slow;

impl Slow {
    fn tc(arguments: &[&str]) {
        let done = Command::new("tc").args(arguments).status().expect("iproute2");
        assert!(done.success());
    }

    pub(in super::super) fn new() -> Self {
        Self::tc(&["qdisc", "add", "dev", "rdma0", "root", "netem", "delay", "100ms"]);
        Self
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        Self::tc(&["qdisc", "del", "dev", "rdma0", "root"]);
    }
}

/// Late DMA into a buffer that has another use by then: what owns the queue pair ends it before it gives back the
/// buffers of its READs. The test fails when `QueuePair::destroy` forgets the queue pair instead of destroying it.
#[test]
#[ignore = "needs the two devices of scripts/guest"]
fn a_read_that_nobody_waits_for_any_more_writes_nowhere() {
    const READS: u64 = 16;
    let server = Server::on("rxe0");
    let port = Port::find(&"rxe1".parse().unwrap(), IpAddr::V4(Ipv4Addr::LOCALHOST)).expect("a second device");
    let domain = Domain::new(port.device()).unwrap();
    let pool = BufferPool::new(&domain, 1 << 20);
    let reader = || {
        let unconnected = Unconnected::new(&domain, &port, 32).unwrap();
        let accepted = server.acceptor.accept(&unconnected.end()).unwrap();
        (unconnected.connect(&accepted.end(), WAITING).unwrap(), accepted)
    };
    let (mut reads, _accepted) = reader();
    let (mut later, _also_accepted) = reader();
    let _slow = Slow::new();
    let mut places = Vec::new();
    for i in 0..READS {
        let buffer = pool.take(4096).unwrap();
        places.push(buffer.as_ptr());
        reads.push(i, buffer, 0, server.range(4096 * (1 + i), 4096)).unwrap();
    }
    reads.ring().unwrap();
    drop(reads);
    let mut again: Vec<Buffer> = (0..64).map(|_| pool.take(4096).unwrap()).collect();
    assert!(places.iter().all(|place| again.iter().any(|buffer| buffer.as_ptr() == *place)), "not given back");
    again.iter_mut().for_each(|buffer| buffer.fill(0xaa));
    // Its answer leaves after those to the READs before.
    let own = pool.take(64).unwrap();
    later.push(1, own, 0, server.range(64, 64)).unwrap();
    assert_eq!(word_at(&later.wait().unwrap().unwrap().1, 0), 8);
    assert!(again.iter().all(|buffer| buffer.iter().all(|&byte| byte == 0xaa)), "a READ of long ago has written");
}
