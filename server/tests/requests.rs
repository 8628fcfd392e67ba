//! Requests and replies over bare sockets.

mod raw;

use std::time::{Duration, Instant};

use raw::{Client, assert_closed, config, frame, open, pattern, refusal, start};
use sidestep_core::limits::{MAX_KEY_BYTES, MAX_WRITES_IN_FLIGHT};
use sidestep_core::message::{Op, RequestHeader, Status};
use sidestep_server::Config;
use sidestep_server::config::Timeouts;

#[test]
fn the_operations() {
    let server = start(config());
    let mut client = Client::connect(server.local_addr());
    assert_eq!(client.get(b"k").status, Status::NotFound);
    let first = client.put(b"k", b"one");
    assert_eq!(first.status, Status::Ok);
    let second = client.put(b"k", b"two");
    assert_eq!(second.version, first.version + 1);
    let got = client.get(b"k");
    assert_eq!((got.status, got.version, &got.value[..]), (Status::Ok, second.version, &b"two"[..]));
    let mismatch = client.put_if(b"k", b"three", first.version);
    assert_eq!((mismatch.status, mismatch.version), (Status::VersionMismatch, second.version));
    assert_eq!(client.put_if(b"k", b"three", second.version).status, Status::Ok);
    assert_eq!(client.put_if(b"new", b"", 0).status, Status::Ok);
    assert_eq!(client.get(b"new").value, b"");
    assert_eq!(client.put_if(b"new", b"", 0).status, Status::VersionMismatch);
    let removed = client.delete(b"k");
    assert_eq!((removed.status, removed.version), (Status::Ok, second.version + 1));
    assert_eq!(client.delete(b"k").status, Status::NotFound);
    assert_eq!(client.get(b"k").status, Status::NotFound);
    assert_eq!(client.stat("tcp_get_not_found"), 2);
    assert_eq!(client.stat("tcp_put_version_mismatch"), 2);
    assert_eq!(client.stat("sessions"), 1);
    server.stop();
}

#[test]
fn many_requests_in_one_write_are_answered_in_their_order() {
    let server = start(config());
    let mut client = Client::connect(server.local_addr());
    let keys: Vec<Vec<u8>> = (0..3000_u32).map(|i| format!("key-{i}").into_bytes()).collect();
    for (batch, keys) in keys.chunks(200).enumerate() {
        let puts: Vec<u8> = keys.iter().flat_map(|key| client.put_frame(key, key)).collect();
        client.send(&puts);
        for i in 0..keys.len() {
            let reply = client.reply();
            assert_eq!((reply.status, reply.id), (Status::Ok, (batch * 200 + i + 1) as u64));
        }
    }
    let gets: Vec<u8> = keys.iter().flat_map(|key| client.get_frame(key)).collect();
    client.send(&gets);
    for key in &keys {
        assert_eq!(&client.reply().value, key);
    }
    server.stop();
}

#[test]
fn values_of_all_sizes_arrive_in_any_pieces() {
    let server = start(config());
    let mut client = Client::connect(server.local_addr());
    let limit = 32 << 10;
    let sizes = [0, 1, 7, 64, 4096, limit - 1, limit, limit + 1, 100_000, 128 << 10, (1 << 20) + 3, 9 << 20];
    for (n, size) in sizes.into_iter().enumerate() {
        for piece in [usize::MAX, 4099, 65_536] {
            let value = pattern(size, (n + piece % 97) as u64);
            // The large value is between two small requests, so that both its ends share a packet with another.
            let before = client.get_frame(b"nothing");
            let put = client.put_frame(b"key", &value);
            let after = client.get_frame(b"key");
            for part in [before, put, after].concat().chunks(piece) {
                client.send(part);
            }
            assert_eq!(client.reply().status, Status::NotFound);
            let written = client.reply();
            assert_eq!(written.status, Status::Ok, "{}", String::from_utf8_lossy(&written.value));
            let got = client.reply();
            assert!(got.value == value, "{size} bytes in pieces of {piece}");
            assert_eq!(got.version, written.version);
        }
    }
    server.stop();
}

#[test]
fn what_is_too_large_is_refused_and_the_connection_goes_on() {
    let server = start(Config { max_value_bytes: 100_000, ..config() });
    let mut client = Client::connect(server.local_addr());
    assert_eq!(client.welcome.max_value_bytes, 100_000);
    assert_eq!(client.put(b"k", &pattern(100_000, 1)).status, Status::Ok);
    let reply = client.put(b"k", &pattern(100_001, 1));
    assert_eq!(reply.status, Status::TooLarge);
    assert!(String::from_utf8(reply.value).unwrap().contains("100000"));
    assert_eq!(client.put(&[7; MAX_KEY_BYTES + 1], b"").status, Status::TooLarge);
    assert_eq!(client.put(&[7; MAX_KEY_BYTES], b"x").status, Status::Ok);
    assert_eq!(client.get(b"k").value, pattern(100_000, 1));
    // The announcement alone is answered, before any of the bytes has come.
    let header = RequestHeader {
        op: Op::Put as u8,
        key_bytes: 1.into(),
        value_bytes: u32::MAX.into(),
        sequence: 99.into(),
        ..RequestHeader::default()
    };
    client.send(zerocopy::IntoBytes::as_bytes(&header));
    assert_eq!(client.reply().status, Status::TooLarge);
    server.stop();
}

#[test]
fn a_full_table_refuses_writes_and_serves_on() {
    let server = start(Config { memory_bytes: Some(64 << 20), ..config() });
    let mut client = Client::connect(server.local_addr());
    let mut full = 0;
    let mut kept = Vec::new();
    for i in 0..40_u32 {
        let key = i.to_le_bytes();
        let reply = client.put(&key, &pattern(4 << 20, u64::from(i)));
        match reply.status {
            Status::Ok => kept.push(i),
            Status::Full => full += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(full > 0 && kept.len() > 8, "{full} refused, {} kept", kept.len());
    for &i in &kept {
        assert!(client.get(&i.to_le_bytes()).value == pattern(4 << 20, u64::from(i)));
    }
    assert_eq!(client.delete(&kept[0].to_le_bytes()).status, Status::Ok);
    assert_eq!(client.put(b"again", &pattern(4 << 20, 5)).status, Status::Ok);
    server.stop();
}

#[test]
fn a_repeated_write_is_applied_once_over_any_connection() {
    let server = start(config());
    let mut client = Client::connect(server.local_addr());
    let (id, large) = (77 << 40, pattern(1 << 20, 3));
    let mut first = client.resume(id);
    assert!(!first.welcome.resumed, "there was nothing to resume");
    let writes: Vec<Vec<u8>> =
        (1..=3).map(|sequence| first.frame(Op::Put, sequence, None, b"counter", &large)).collect();
    let replies: Vec<_> = writes.iter().map(|write| first.call_any(write)).collect();
    let newest = replies[2].version;
    assert_eq!(first.call_any(&writes[0]), replies[0]);
    // The same session over a second connection while the first is there, and after it is gone.
    let mut second = first.resume(id);
    assert!(second.welcome.resumed);
    assert_eq!(second.welcome.shm, first.welcome.shm, "the ticket is the session's");
    assert_eq!(second.call_any(&writes[2]), replies[2]);
    assert_eq!(first.call_any(&first_get()).status, Status::NotFound, "reading is still allowed");
    first.send(&writes[1]);
    assert_closed(&mut first.stream);
    drop(second);
    let mut third = client.resume(id);
    assert_eq!(third.call_any(&writes[1]), replies[1]);
    assert_eq!(client.get(b"counter").version, newest);
    assert_eq!(client.stat("tcp_repeated_writes"), 3);
    // What is older than the window is neither done nor claimed to be done.
    for sequence in 4..4 + MAX_WRITES_IN_FLIGHT as u64 {
        let write = third.frame(Op::Put, sequence, None, b"other", b"");
        assert_eq!(third.call_any(&write).status, Status::Ok);
    }
    assert_eq!(third.call_any(&writes[1]).status, Status::OutcomeUnknown);
    assert_eq!(client.get(b"counter").version, newest);
    server.stop();
}

fn first_get() -> Vec<u8> {
    frame(RequestHeader { op: Op::Get as u8, ..RequestHeader::default() }, b"absent", b"")
}

impl Client {
    /// As `call`, for a frame whose id was used before.
    fn call_any(&mut self, bytes: &[u8]) -> raw::Reply {
        self.send(bytes);
        self.reply()
    }
}

#[test]
fn an_expired_session_and_another_boot_are_not_resumed() {
    let timeouts = Timeouts { session: Duration::from_millis(200), ..Timeouts::default() };
    let server = start(Config { timeouts, ..config() });
    let mut watcher = Client::connect(server.local_addr());
    let client = watcher.resume(5);
    drop(client);
    while watcher.stat("sessions") > 1 {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!watcher.resume(5).welcome.resumed);
    let other_boot = Client::try_connect(server.local_addr(), b"", 5, watcher.welcome.boot_id ^ 1).unwrap();
    assert!(!other_boot.welcome.resumed);
    server.stop();
}

#[test]
fn who_does_not_read_holds_up_nobody_and_loses_nothing() {
    let server = start(Config { workers: 1, ..config() });
    let mut writer = Client::connect(server.local_addr());
    let (small, large) = (pattern(10_000, 1), pattern(3 << 20, 2));
    writer.put(b"small", &small);
    writer.put(b"large", &large);
    let mut slow = Client::connect(server.local_addr());
    let requests: Vec<u8> =
        (0..40).flat_map(|_| [slow.get_frame(b"small"), slow.get_frame(b"large")].concat()).collect();
    slow.send(&requests);
    // Its values are overwritten and their memory used again many times while it has not read them.
    for i in 0..100 {
        assert_eq!(writer.put(b"large", &pattern(3 << 20, i)).status, Status::Ok);
    }
    for i in 0..40 {
        assert!(slow.reply().value == small);
        let reply = slow.reply();
        assert_eq!((reply.status, reply.value.len()), (Status::Ok, large.len()));
        let seed = u64::from(reply.value[0]);
        assert!(reply.value == pattern(3 << 20, seed), "value {i} is one that was written");
    }
    server.stop();
}

/// Together they hold no more than they may, and a little for each; nobody's replies are lost, others are served meanwhile,
/// and who comes meanwhile is told why there is no room.
#[test]
fn clients_that_do_not_read_share_a_bound() {
    const CLIENTS: u64 = 40;
    const READS: usize = 2000;
    const BOUND: u64 = 1 << 20;
    // One reply beyond the bound, and what was received with the request for it.
    const EACH: u64 = 100 << 10;
    let config = Config { client_memory_bytes: BOUND, ..config() };
    let server = start(config);
    let mut bystander = Client::connect(server.local_addr());
    let value = pattern(8000, 1);
    bystander.put(b"k", &value);
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| Client::connect(server.local_addr())).collect();
    for client in &mut clients {
        let gets: Vec<u8> = (0..READS).flat_map(|_| client.get_frame(b"k")).collect();
        client.send(&gets);
    }
    // Until all have made the server wait for them: what it has sent stands still.
    let mut sent = 0;
    loop {
        assert_eq!(bystander.get(b"k").value, value);
        let held = bystander.stat("connection_buffer_bytes");
        assert!(held <= BOUND + CLIENTS * EACH, "{held} bytes are held");
        let now = bystander.stat("tcp_sent_bytes");
        if now - sent < 100_000 && held >= BOUND {
            break;
        }
        sent = now;
    }
    let reason = refusal(&mut open(server.local_addr()));
    assert!(reason.contains("hold all 1048576 bytes"), "{reason}");
    for client in &mut clients {
        for _ in 0..READS {
            assert_eq!(client.reply().value, value);
        }
    }
    // A turn is counted once it is over.
    let since = Instant::now();
    while bystander.stat("connection_buffer_bytes") > 0 {
        assert!(since.elapsed() < Duration::from_secs(20), "idle connections hold something");
    }
    assert_eq!(Client::connect(server.local_addr()).get(b"k").value, value);
    server.stop();
}

#[test]
fn a_thousand_clients_at_once() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
    let server = start(config());
    let mut clients: Vec<Client> =
        (0..1000).map(|id| Client::try_connect(server.local_addr(), b"", id, 0).unwrap()).collect();
    for round in 0..3_u8 {
        for (i, client) in clients.iter_mut().enumerate() {
            let put = client.put_frame(&i.to_le_bytes(), &[round]);
            let get = client.get_frame(&i.to_le_bytes());
            client.send(&[put, get].concat());
        }
        for client in &mut clients {
            assert_eq!(client.reply().status, Status::Ok);
            assert_eq!(client.reply().value, [round]);
        }
    }
    assert_eq!(clients[0].stat("connections"), 1000);
    server.stop();
}
