use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;

use sidestep_core::handshake::{self, Hello, Proof};
use sidestep_core::message::{Op, REPLY_BYTES, ReplyHeader, Status};
use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::store::{Store, StoreOptions};

/// A connection over a socket pair, with everything that a worker would lend it.
struct Bench {
    service: Service,
    connection: Connection<UnixStream>,
    client: UnixStream,
    input: Input,
    spare: Vec<u8>,
    messages: Messages,
    now: Instant,
    stopping: bool,
}

impl Bench {
    fn new() -> Self {
        let store = Store::create(Region::memfd(64 << 20).unwrap(), &StoreOptions::default()).unwrap();
        let service = Service::alone(store, 1 << 30);
        let (server, client) = UnixStream::pair().unwrap();
        for stream in [&server, &client] {
            stream.set_nonblocking(true).unwrap();
        }
        let now = Instant::now();
        let connection = Connection::new(server, Ipv4Addr::LOCALHOST.into(), None, now, service.timeouts.handshake);
        Self {
            service,
            connection,
            client,
            input: Input::new(),
            spare: Vec::new(),
            messages: Messages::default(),
            now,
            stopping: false,
        }
    }

    /// A bench whose client is let in.
    fn open() -> Self {
        let mut bench = Self::new();
        bench.let_in();
        bench
    }

    fn let_in(&mut self) {
        let hello = handshake::encode(&Hello { nonce: [0; 32], client_id: 1, resume_boot_id: 0 }).unwrap();
        self.send(&hello);
        self.send(&handshake::encode(&Proof { mac: [0; 32] }).unwrap());
        self.received();
        assert!(matches!(self.connection.phase, Phase::Open(..)));
    }

    fn turn(&mut self, budget: usize) -> Next {
        self.connection.ready(true, true, false);
        self.with_turn(budget, |connection, turn| connection.turn(turn))
    }

    fn with_turn<R>(&mut self, budget: usize, act: impl FnOnce(&mut Connection<UnixStream>, &mut Turn<'_>) -> R) -> R {
        let mut guard = crossbeam_epoch::pin();
        let mut turn = Turn {
            service: &self.service,
            metrics: self.service.metrics.worker(0, Carried::Socket),
            guard: &mut guard,
            input: &mut self.input,
            spare: &mut self.spare,
            messages: &mut self.messages,
            seat: 0,
            now: self.now,
            budget,
            stopping: self.stopping,
        };
        act(&mut self.connection, &mut turn)
    }

    /// Sends bytes and gives the server a turn.
    fn send(&mut self, bytes: &[u8]) -> Next {
        self.client.write_all(bytes).unwrap();
        self.turn(1 << 20)
    }

    /// Everything that the client can read now.
    fn received(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        match self.client.read_to_end(&mut all) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
        all
    }

    fn replies(&mut self) -> Vec<(u64, Status, Vec<u8>)> {
        let all = self.received();
        let mut rest = &all[..];
        let mut replies = Vec::new();
        while !rest.is_empty() {
            let header = ReplyHeader::read_from_bytes(&rest[..REPLY_BYTES]).unwrap();
            let end = REPLY_BYTES + header.value_bytes.get() as usize;
            let status = Status::from_wire(header.status).unwrap();
            replies.push((header.id.get(), status, rest[REPLY_BYTES..end].to_vec()));
            rest = &rest[end..];
        }
        replies
    }
}

fn request(op: Op, id: u64, key: &[u8], value: &[u8]) -> Vec<u8> {
    let header = RequestHeader {
        op: op as u8,
        key_bytes: u16::try_from(key.len()).unwrap().into(),
        value_bytes: u32::try_from(value.len()).unwrap().into(),
        id: id.into(),
        sequence: if matches!(op, Op::Put | Op::Delete) { id } else { 0 }.into(),
        ..RequestHeader::default()
    };
    [header.as_bytes(), key, value].concat()
}

#[test]
fn requests_may_come_byte_by_byte() {
    let mut bench = Bench::open();
    let bytes = [request(Op::Put, 1, b"k", b"value"), request(Op::Get, 2, b"k", b"")].concat();
    for byte in bytes {
        assert_eq!(bench.send(&[byte]), Next::Wait);
    }
    let replies = bench.replies();
    assert_eq!(replies, [(1, Status::Ok, vec![]), (2, Status::Ok, b"value".to_vec())]);
}

#[test]
fn a_small_budget_gives_the_turn_back_and_comes_again() {
    let mut bench = Bench::open();
    let many: Vec<u8> = (1..=1500).flat_map(|id| request(Op::Ping, id, b"", &[1; 60])).collect();
    bench.client.write_all(&many).unwrap();
    let mut turns = 1;
    while bench.turn(1) == Next::Again {
        turns += 1;
    }
    assert!(turns > 1);
    assert_eq!(bench.replies().len(), 1500);
}

#[test]
fn a_client_that_does_not_read_is_not_read_from() {
    let mut bench = Bench::open();
    bench.send(&request(Op::Put, 1, b"k", &[9; 16 << 10]));
    bench.replies();
    let gets: Vec<u8> = (2..1002).flat_map(|id| request(Op::Get, id, b"k", b"")).collect();
    bench.send(&gets);
    let waiting = bench.connection.output.unsent();
    assert!(waiting > 0 && waiting < 1 << 20, "{waiting} bytes wait");
    assert!(bench.connection.send_by.is_some() && bench.connection.receive_by.is_none());
    // It goes on where it was once the client reads, without a new request.
    let mut ids = Vec::new();
    let mut tail = Vec::new();
    while ids.len() < 1000 {
        tail.extend(bench.received());
        while tail.len() >= REPLY_BYTES + (16 << 10) {
            let rest = tail.split_off(REPLY_BYTES + (16 << 10));
            ids.push(ReplyHeader::read_from_bytes(&tail[..REPLY_BYTES]).unwrap().id.get());
            tail = rest;
        }
        bench.turn(1 << 20);
    }
    assert_eq!(ids, (2..1002).collect::<Vec<_>>());
    assert!(bench.connection.deadline().is_none());
}

#[test]
fn a_large_value_that_never_ends_leaves_nothing() {
    let mut bench = Bench::open();
    let put = request(Op::Put, 1, b"k", &[3; 100_000]);
    bench.send(&put[..70_000]);
    assert!(matches!(bench.connection.phase, Phase::Open(_, Body::Large(_))));
    let deadline = bench.connection.deadline().unwrap();
    bench.now = deadline;
    bench.with_turn(0, |connection, turn| connection.expire(turn));
    assert_eq!(bench.replies()[0].1, Status::BadRequest);
    bench.connection.phase = Phase::Closing(false);
    let guard = crossbeam_epoch::pin();
    assert!(matches!(bench.service.store.get(b"k", &guard, 0, &mut Vec::new()), crate::store::Got::Absent));
}

/// Its client is not done with the request: a reply to it would be one to nothing. (A repeat is refused as anything else
/// is that is known from the header.)
#[test]
fn a_large_value_that_is_of_no_use_is_answered_when_it_has_come() {
    let mut bench = Bench::open();
    let put = request(Op::Put, 1, b"k", &[3; 100_000]);
    bench.send(&put[..50_000]);
    bench.send(&put[50_000..]);
    assert_eq!(bench.replies(), [(1, Status::Ok, vec![])]);
    bench.send(&put[..50_000]);
    bench.send(&put[50_000..99_999]);
    assert!(matches!(bench.connection.phase, Phase::Open(_, Body::Dropped(..))));
    assert_eq!(bench.replies(), []);
    bench.send(&[&put[99_999..], &request(Op::Ping, 2, b"", b"next")].concat());
    assert_eq!(bench.replies(), [(1, Status::Ok, vec![]), (2, Status::Ok, b"next".to_vec())]);
}

/// It is answered before it has come. At its end there is no reply that could wait for the disk, or be unknown.
#[test]
fn the_end_of_what_is_too_large_is_no_reply() {
    let mut bench = Bench::open();
    bench.service.log = Some(crate::durable::LogHandle::failing());
    let header =
        RequestHeader { op: Op::Ping as u8, value_bytes: 40_000.into(), id: 1.into(), ..RequestHeader::default() };
    bench.send(&[header.as_bytes(), &[0; 30_000]].concat());
    bench.send(&[0; 10_000]);
    assert!(!bench.connection.output.is_waiting());
    bench.send(&request(Op::Get, 2, b"absent", b""));
    let replies: Vec<_> = bench.replies().into_iter().map(|(id, status, _)| (id, status)).collect();
    assert_eq!(replies, [(1, Status::TooLarge), (2, Status::NotFound)]);
}

#[test]
fn writes_wait_for_a_log_that_is_behind_and_reads_do_not() {
    let mut bench = Bench::new();
    bench.service.log = Some(crate::durable::LogHandle::stuck(32 << 20));
    bench.let_in();
    bench.send(&request(Op::Get, 1, b"absent", b""));
    assert!(!bench.connection.waits_for_log());
    bench.send(&[request(Op::Put, 2, b"k", b""), request(Op::Get, 3, b"k", b"")].concat());
    assert!(bench.connection.waits_for_log() && bench.connection.deadline().is_none());
    assert_eq!(bench.replies(), [(1, Status::NotFound, vec![])]);
}

#[test]
fn each_request_has_its_own_time() {
    let mut bench = Bench::open();
    let bytes = [request(Op::Ping, 1, b"", b"a"), request(Op::Ping, 2, b"", b"b")].concat();
    bench.send(&bytes[..10]);
    let first = bench.connection.deadline().unwrap();
    bench.now += Duration::from_secs(9);
    bench.send(&bytes[10..20]);
    assert_eq!(bench.connection.deadline(), Some(first), "more of the same request wins no time");
    bench.send(&bytes[20..50]);
    assert_eq!(bench.connection.deadline(), Some(first + Duration::from_secs(9)));
    bench.send(&bytes[50..]);
    assert_eq!(bench.connection.deadline(), None);
}

/// Seen to fail without `set_idle_deadline`'s conditions on requests that have begun and replies that are unsent, and with
/// a turn that brings nothing counted as asking.
#[test]
fn only_who_asks_nothing_and_is_owed_nothing_is_idle() {
    let idle = Duration::from_secs(60);
    let mut bench = Bench::new();
    bench.service.timeouts.idle = Some(idle);
    bench.let_in();
    assert_eq!(bench.connection.deadline(), Some(bench.now + idle));
    // Half a request: it has a deadline of its own, shorter.
    let frame = bench.service.timeouts.frame;
    let ping = request(Op::Ping, 1, b"", b"a");
    bench.send(&ping[..10]);
    assert_eq!(bench.connection.deadline(), Some(bench.now + frame));
    assert!(!bench.connection.has_idled(bench.now + 2 * idle));
    bench.now += frame / 2;
    bench.send(&ping[10..]);
    assert_eq!(bench.connection.deadline(), Some(bench.now + idle));
    // A turn that brings nothing wins no time.
    bench.now += idle / 2;
    assert_eq!(bench.turn(1 << 20), Next::Wait);
    assert_eq!(bench.connection.deadline(), Some(bench.now + idle / 2));
    assert_eq!(bench.replies().len(), 1);
    // Replies that are not taken: that has a deadline of its own too.
    bench.send(&request(Op::Put, 2, b"k", &[9; 50_000]));
    bench.send(&(0..20).flat_map(|id| request(Op::Get, id, b"k", b"")).collect::<Vec<_>>());
    assert!(bench.connection.is_unsent());
    assert_eq!(bench.connection.deadline(), bench.connection.send_by);
    bench.now += idle;
    assert!(!bench.connection.has_idled(bench.now));
    while !bench.received().is_empty() {
        bench.turn(1 << 20);
    }
    assert_eq!(bench.connection.deadline(), Some(bench.now + idle));
    // It is let go in order: what it still sends is dropped, and its end is awaited.
    bench.now += idle;
    assert!(bench.connection.has_idled(bench.now));
    assert_eq!(bench.turn(1 << 20), Next::Wait);
    assert!(matches!(bench.connection.phase, Phase::Closing(true)));
    assert_eq!(bench.client.read(&mut [0]).unwrap(), 0, "an end, and nothing before it");
    bench.client.shutdown(std::net::Shutdown::Both).unwrap();
    assert_eq!(bench.turn(1 << 20), Next::Close);
    assert_eq!(bench.service.metrics.worker(0, Carried::Socket).idle_closed.get(), 1);
}

#[test]
fn what_waits_for_the_log_is_not_idle() {
    let mut bench = Bench::new();
    bench.service.log = Some(crate::durable::LogHandle::stuck(32 << 20));
    bench.service.timeouts.idle = Some(Duration::from_secs(60));
    bench.let_in();
    bench.send(&request(Op::Put, 1, b"k", b""));
    assert!(bench.connection.waits_for_log() && bench.connection.deadline().is_none());
}

#[test]
fn a_client_that_shuts_its_side_gets_its_replies() {
    let mut bench = Bench::open();
    bench.client.write_all(&request(Op::Ping, 1, b"", b"last")).unwrap();
    bench.client.shutdown(std::net::Shutdown::Write).unwrap();
    bench.connection.ready(true, true, true);
    assert_eq!(bench.turn(1 << 20), Next::Close);
    assert_eq!(bench.replies(), [(1, Status::Ok, b"last".to_vec())]);
}

#[test]
fn stopping_takes_no_request_but_ends_the_one_that_is_being_received() {
    let mut bench = Bench::open();
    let put = request(Op::Put, 1, b"k", &[3; 100_000]);
    bench.send(&put[..50_000]);
    bench.stopping = true;
    bench.send(&[&put[50_000..], &request(Op::Put, 2, b"other", b"")].concat());
    let replies = bench.replies();
    assert_eq!(replies[0].1, Status::Ok);
    assert!(replies.len() == 1 || replies[1].1 == Status::Stopping);
    assert!(matches!(bench.connection.phase, Phase::Closing(true)));
    drop(bench.client);
    bench.client = UnixStream::pair().unwrap().0;
    assert_eq!(bench.turn(1 << 20), Next::Close);
}

#[test]
fn idle_connections_keep_no_memory() {
    let mut bench = Bench::open();
    bench.send(&request(Op::Put, 1, b"k", &[9; 10_000]));
    for byte in request(Op::Get, 2, b"k", b"") {
        bench.send(&[byte]);
    }
    assert_eq!(bench.replies().len(), 2);
    assert_eq!(bench.connection.kept.capacity(), 0);
    assert_eq!(bench.connection.output.buffer().capacity(), 0);
}

/// Bytes of a region are sent only behind what is before them; a reply behind a gate waits, and so does all that follows.
#[test]
fn a_reply_to_a_write_waits_for_the_disk_and_so_do_those_behind_it() {
    let region = Region::memfd(1 << 20).unwrap();
    let (mut server, mut client) = UnixStream::pair().unwrap();
    client.set_nonblocking(true).unwrap();
    let mut output = Output::default();
    let mut received = |output: &mut Output, durable: u64, is_failing: bool| {
        output.open_gates(LogState { durable, is_failing });
        let sent = output.flush(Carrier::Socket(&mut server), &region).unwrap();
        assert!(!sent.is_carrier_full);
        let mut statuses = Vec::new();
        let mut reply = [0; REPLY_BYTES];
        while client.read_exact(&mut reply).is_ok() {
            statuses.push((reply[0], ReplyHeader::read_from_bytes(&reply).unwrap().id.get()));
        }
        statuses
    };
    let (ok, unknown) = (Status::Ok as u8, Status::OutcomeUnknown as u8);
    output.reply(1, Status::Ok, 0, b"");
    for (id, record) in [(2, 10), (3, 20)] {
        output.wait_for(record);
        output.reply(id, Status::Ok, 0, b"");
    }
    output.reply(4, Status::Ok, 0, b"");
    assert_eq!(received(&mut output, 9, false), [(ok, 1)]);
    assert!(output.is_waiting() && !output.is_empty());
    assert_eq!(received(&mut output, 19, false), [(ok, 2)]);
    // What waits when the disk refuses may or may not be there after a crash. What does not wait is what it is.
    output.wait_for(21);
    output.reply(5, Status::Full, 0, b"");
    assert_eq!(received(&mut output, 19, true), [(unknown, 3), (ok, 4), (Status::Full as u8, 5)]);
    // So may what a write found that has changed nothing.
    let found = [Status::NotFound, Status::VersionMismatch];
    for (id, status) in (5..).zip(found) {
        output.wait_for(21);
        output.reply(id, status, 7, b"");
    }
    assert_eq!(
        received(&mut output, 21, true),
        found.map(|status| status as u8).into_iter().zip(5..).collect::<Vec<_>>()
    );
    for (id, status) in (5..).zip(found) {
        output.wait_for(22);
        output.reply(id, status, 7, b"");
    }
    output.reply(7, Status::NotFound, 0, b"");
    assert_eq!(received(&mut output, 21, true), [(unknown, 5), (unknown, 6), (Status::NotFound as u8, 7)]);
    assert!(output.is_empty() && !output.is_waiting());
    // A reply that is put off takes its gate along.
    let mark = output.mark();
    output.wait_for(30);
    output.reply(6, Status::Ok, 0, b"");
    let later = output.take_from(mark);
    assert!(!output.is_waiting() && later.len() == REPLY_BYTES);
}
