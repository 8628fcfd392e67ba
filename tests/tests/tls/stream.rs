//! Values and requests in records: large ones, many at once, cut ones, slow ones.

use rustix::process::Signal;
use sidestep_client::{Answer, PutOptions};
use sidestep_core::message::{Op, REPLY_BYTES, Status};

use super::raw::{Raw, request};
use super::{options, standing};

fn value_of(i: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|j| (i * 31 + j * 7 + j / 251) as u8).collect()
}

#[test]
fn large_values_travel_both_ways() {
    let (authority, server, mut session) = standing(&[]);
    for (i, bytes) in [16 << 20, (16 << 20) - 1, 32 << 10, (32 << 10) + 1, 16 << 10, 16_343, 65_536, 1_000_003]
        .into_iter()
        .enumerate()
    {
        let value = value_of(i, bytes);
        session.put("large", &value).unwrap();
        assert!(session.get("large").unwrap().as_deref() == Some(&value[..]), "{bytes} bytes");
    }
    let mut spinning = server.connect_with(options().tls(authority.tls()).spin(true)).unwrap();
    let value = value_of(9, 5 << 20);
    spinning.put("large", &value).unwrap();
    assert!(spinning.get("large").unwrap().as_deref() == Some(&value[..]));
}

/// Both sides have more to send than the other takes at once.
#[test]
fn many_requests_are_under_way_at_once() {
    let (_authority, _server, mut session) = standing(&[]);
    let sizes = [0, 1, 100, 4000, 33_000, 70_000, 400_000];
    let mut answered = 0;
    for i in 0..200 {
        session.submit_put(format!("{i}"), value_of(i, sizes[i % sizes.len()]), PutOptions::default()).unwrap();
        if i % 50 == 49 {
            while answered <= i {
                answered += session.poll(|done| assert!(done.answer.is_ok(), "{:?}", done.answer));
            }
        }
    }
    let tickets: Vec<_> = (0..200).map(|i| (i, session.submit_get(format!("{i}")).unwrap())).collect();
    let mut seen = 0;
    while seen < tickets.len() {
        seen += session.poll(|done| {
            let i = tickets.iter().find(|(_, ticket)| *ticket == done.ticket).expect("one of ours").0;
            let Ok(Answer::Value(bytes, _)) = done.answer else { panic!("{i}: {:?}", done.answer) };
            assert!(bytes == value_of(i, sizes[i % sizes.len()]), "{i}");
        });
    }
    let keys: Vec<String> = (0..200).map(|i| i.to_string()).collect();
    for (i, value) in session.multi_get(&keys).unwrap().into_iter().enumerate() {
        assert!(value.as_deref() == Some(&value_of(i, sizes[i % sizes.len()])[..]), "{i}");
    }
    assert_eq!(session.stats().unwrap().client("connections_lost"), Some(0));
}

#[test]
fn a_client_that_shuts_its_side_gets_its_replies_and_a_close_notify() {
    for is_told in [true, false] {
        let (authority, server, _session) = standing(&[]);
        let mut raw = Raw::enter(&server.address, &authority);
        raw.send(&[request(Op::Put, 1, b"key", b"value"), request(Op::Get, 2, b"key", b"")].concat());
        raw.shut(is_told);
        assert_eq!(raw.reply(), (1, Some(Status::Ok), vec![]));
        assert_eq!(raw.reply(), (2, Some(Status::Ok), b"value".to_vec()));
        assert_eq!(raw.rest(), (vec![], true));
    }
}

/// Whoever cuts a stream, or ends it in the middle, has a part of a request done by nobody.
#[test]
fn a_request_that_is_cut_off_counts_for_nothing() {
    let (authority, server, mut session) = standing(&[]);
    session.put("key", "old").unwrap();
    let used = |session: &mut sidestep_client::Session| session.stats().unwrap().server("extent_bytes");
    let before = used(&mut session);
    assert!(before.is_some());
    for (is_told, value_bytes) in [(true, 3 << 20), (false, 3 << 20), (true, 1000), (false, 1000)] {
        let mut raw = Raw::enter(&server.address, &authority);
        let put = request(Op::Put, 1, b"key", &value_of(1, value_bytes));
        raw.send(&put[..put.len() - 1]);
        raw.shut(is_told);
        assert_eq!(raw.rest(), (vec![], true), "no reply, and the server closes");
        assert_eq!(session.get("key").unwrap().as_deref(), Some(&b"old"[..]));
        assert_eq!(used(&mut session), before, "what was reserved is free");
    }
}

/// What it has received is answered, and the end is told in TLS.
#[test]
fn a_server_that_stops_closes_tls() {
    let (authority, server, _session) = standing(&[]);
    let mut raw = Raw::enter(&server.address, &authority);
    raw.send(&request(Op::Put, 1, b"key", b"value"));
    assert_eq!(raw.reply(), (1, Some(Status::Ok), vec![]));
    server.signal(Signal::TERM);
    assert_eq!(raw.rest(), (vec![], true));
}

/// The time of a request runs from the first byte of its record, not from the first that can be decrypted.
#[test]
fn a_record_that_is_never_whole_ends_at_the_deadline_of_requests() {
    let (authority, server, mut other) = standing(&["--frame-timeout-ms", "300"]);
    let mut raw = Raw::enter(&server.address, &authority);
    raw.send(&request(Op::Ping, 1, b"", b"idle is no fault"));
    assert_eq!(raw.reply().1, Some(Status::Ok));
    let mut record = Vec::new();
    std::io::Write::write_all(&mut raw.stream.conn.writer(), &request(Op::Ping, 2, b"", &[7; 500])).unwrap();
    while raw.stream.conn.wants_write() {
        raw.stream.conn.write_tls(&mut record).unwrap();
    }
    std::io::Write::write_all(&mut raw.stream.sock, &record[..record.len() - 1]).unwrap();
    let (told, is_told) = raw.rest();
    assert!(is_told && String::from_utf8_lossy(&told).contains("rest of the request in time"), "{told:?}");
    assert_eq!(other.stats().unwrap().server("connections_timed_out"), Some(1));
}

/// Who does not read is not read from, takes no more than its bounds, and is closed at its deadline.
#[test]
fn a_client_that_takes_no_replies_is_given_up() {
    const VALUE_BYTES: usize = 1 << 20;
    const GETS: usize = 100;
    let (authority, server, mut other) = standing(&["--send-timeout-ms", "300"]);
    other.put("large", value_of(2, VALUE_BYTES)).unwrap();
    let mut raw = Raw::enter(&server.address, &authority);
    let gets: Vec<u8> = (1..=GETS as u64).flat_map(|id| request(Op::Get, id, b"large", b"")).collect();
    raw.send(&gets);
    while other.stats().unwrap().server("connections_timed_out") != Some(1) {
        std::thread::yield_now();
    }
    let (taken, _) = raw.rest();
    assert!(taken.len() < GETS * (REPLY_BYTES + VALUE_BYTES) / 2, "{} bytes were under way", taken.len());
    other.ping().unwrap();
}

#[test]
fn a_record_that_was_changed_on_its_way_ends_the_connection_and_does_nothing() {
    let (authority, mut server, mut other) = standing(&[]);
    let mut raw = Raw::enter(&server.address, &authority);
    let mut record = Vec::new();
    std::io::Write::write_all(&mut raw.stream.conn.writer(), &request(Op::Put, 1, b"key", b"value")).unwrap();
    while raw.stream.conn.wants_write() {
        raw.stream.conn.write_tls(&mut record).unwrap();
    }
    let last = record.len() - 1;
    record[last] ^= 1;
    std::io::Write::write_all(&mut raw.stream.sock, &record).unwrap();
    let mut rest = Vec::new();
    let error = std::io::Read::read_to_end(&mut raw.stream, &mut rest).unwrap_err();
    assert!(error.to_string().contains("BadRecordMac"), "{error}");
    server.says("TLS has failed");
    assert!(other.get("key").unwrap().is_none());
}
