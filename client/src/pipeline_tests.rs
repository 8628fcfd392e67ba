use super::*;
use sidestep_core::message::Status;

fn put<'a>(key: &'a [u8], value: &'a [u8]) -> Request<'a> {
    Request { op: Op::Put, key, value, expect: None, ttl_ms: 0 }
}

fn reply(id: u64) -> ReplyHeader {
    ReplyHeader { status: Status::Ok as u8, id: id.into(), ..Default::default() }
}

fn send_all(pipeline: &mut Pipeline) -> Vec<(u64, u64)> {
    let bytes = pipeline.unsent().to_vec();
    pipeline.mark_sent(bytes.len());
    headers(&bytes)
}

/// Id and sequence of each request in the bytes.
fn headers(mut bytes: &[u8]) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let (header, rest) = RequestHeader::read_from_prefix(bytes).unwrap();
        found.push((header.id.get(), header.sequence.get()));
        bytes = &rest[header.key_bytes.get() as usize + header.value_bytes.get() as usize..];
    }
    found
}

#[test]
fn replies_in_any_order() {
    let mut pipeline = Pipeline::default();
    for _ in 0..3 {
        pipeline.push(&Request::get(b"k"), None);
    }
    assert_eq!(send_all(&mut pipeline), [(0, 0), (1, 0), (2, 0)]);
    assert_eq!(pipeline.answer(&reply(1)), Some(Asked { id: 1, op: Op::Get }));
    assert_eq!(pipeline.answer(&reply(1)), None, "a second reply");
    assert_eq!(pipeline.answer(&reply(7)), None, "a reply to nothing");
    assert!(pipeline.answer(&reply(2)).is_some());
    assert!(pipeline.answer(&reply(0)).is_some());
    assert_eq!(pipeline.waiting(), 0);
    assert_eq!(pipeline.answer(&reply(0)), None);
    assert_eq!(pipeline.push(&Request::get(b"k"), None), 3);
}

#[test]
fn an_answer_to_what_was_not_sent_is_none() {
    let mut pipeline = Pipeline::default();
    pipeline.push(&Request::get(b"k"), None);
    assert_eq!(pipeline.answer(&reply(0)), None);
    pipeline.mark_sent(REQUEST_BYTES);
    assert_eq!(pipeline.answer(&reply(0)), None, "the key is missing");
    pipeline.mark_sent(1);
    assert!(pipeline.answer(&reply(0)).is_some());
}

#[test]
fn a_resumed_session_repeats_the_same_bytes() {
    let mut pipeline = Pipeline::default();
    pipeline.push(&put(b"a", b"1"), None);
    pipeline.push(&Request::get(b"b"), None);
    pipeline.push(&put(b"c", b"3"), None);
    let first = pipeline.unsent().to_vec();
    pipeline.mark_sent(first.len());
    pipeline.answer(&reply(1)).unwrap();
    assert_eq!(pipeline.replay(true, |_| panic!("nothing is lost")), 2);
    assert_eq!(headers(pipeline.unsent()), [(0, 1), (2, 2)]);
    send_all(&mut pipeline);
    pipeline.answer(&reply(2)).unwrap();
    pipeline.answer(&reply(0)).unwrap();
    assert_eq!(pipeline.waiting(), 0);
    assert_eq!(pipeline.push(&put(b"d", b"4"), None), 3);
    assert_eq!(send_all(&mut pipeline), [(3, 3)]);
}

#[test]
fn a_new_session_repeats_reads_and_what_was_never_whole() {
    let mut pipeline = Pipeline::default();
    pipeline.push(&put(b"a", b"1"), None);
    pipeline.push(&Request::get(b"b"), None);
    pipeline.push(&put(b"c", b"3"), None);
    let all_but_one = pipeline.unsent().len() - 1;
    pipeline.mark_sent(all_but_one);
    let mut lost = Vec::new();
    assert_eq!(pipeline.replay(false, |asked| lost.push(asked.id)), 2);
    assert_eq!(lost, [0]);
    assert_eq!(send_all(&mut pipeline), [(1, 0), (2, 1)]);
}

#[test]
fn abandoned_requests_say_whether_they_were_sent() {
    let mut pipeline = Pipeline::default();
    pipeline.push(&put(b"a", b"1"), None);
    send_all(&mut pipeline);
    pipeline.push(&put(b"b", b"2"), None);
    let mut lost = Vec::new();
    pipeline.abandon(|asked, sent| lost.push((asked.id, sent)));
    assert_eq!(lost, [(0, true), (1, false)]);
    assert_eq!((pipeline.waiting(), pipeline.unsent().len(), pipeline.next_id()), (0, 0, 2));
}

#[test]
fn no_more_writes_than_the_server_remembers() {
    let mut pipeline = Pipeline::default();
    for _ in 0..MAX_WRITES_IN_FLIGHT {
        assert!(!pipeline.writes_are_full());
        pipeline.push(&put(b"k", b""), None);
        pipeline.push(&Request::get(b"k"), None);
    }
    assert!(pipeline.writes_are_full());
    send_all(&mut pipeline);
    pipeline.answer(&reply(2)).unwrap();
    assert!(pipeline.writes_are_full(), "the oldest is what counts");
    pipeline.answer(&reply(0)).unwrap();
    assert!(!pipeline.writes_are_full());
}

#[test]
fn the_log_stays_small_under_endless_pipelining() {
    let mut pipeline = Pipeline::default();
    for _ in 0..16 {
        pipeline.push(&put(b"key", &[7; 100]), None);
    }
    for id in 0..10_000 {
        send_all(&mut pipeline);
        pipeline.answer(&reply(id)).unwrap();
        pipeline.push(&put(b"key", &[7; 100]), None);
    }
    assert!(pipeline.log.capacity() < 16 * 150 * 8, "{}", pipeline.log.capacity());
    assert_eq!(pipeline.waiting(), 16);
}

fn lent(value: &[u8]) -> Option<Lent> {
    let at = LentValue { address: 64.into(), rkey: 5.into(), value_bytes: (value.len() as u32).into() };
    Some(Lent { at, memory: Box::new(value.to_vec()) })
}

#[test]
fn what_was_lent_is_taken_back_with_its_reply_and_sent_after_a_lost_connection() {
    let mut pipeline = Pipeline::default();
    let (long, longer) = (vec![1; 10_000], vec![2; 20_000]);
    pipeline.push(&put(b"a", &long), lent(&long));
    pipeline.push(&put(b"b", b"1"), None);
    pipeline.push(&Request { expect: Some(3), ..put(b"c", &longer) }, lent(&longer));
    assert_eq!(
        (pipeline.lent_bytes(), pipeline.unsent().len()),
        (30_000, 3 * (REQUEST_BYTES + 1) + 2 * LENT_BYTES + 1)
    );
    send_all(&mut pipeline);
    assert!(pipeline.answer(&reply(0)).is_some() && !pipeline.is_lent(0) && pipeline.is_lent(2));
    assert_eq!(pipeline.lent_bytes(), 20_000);
    assert_eq!(pipeline.replay(true, |_| unreachable!()), 2);
    assert!(pipeline.lent_bytes() == 0 && !pipeline.is_lent(2));
    let bytes = pipeline.unsent();
    let (header, rest) = RequestHeader::read_from_prefix(&bytes[REQUEST_BYTES + 2..]).unwrap();
    assert_eq!((header.flags, header.sequence.get(), header.expect_version.get()), (FLAG_CONDITIONAL, 3, 3));
    assert!(rest[0] == b'c' && rest[1..] == longer[..], "the value is in the frame");
    assert_eq!(send_all(&mut pipeline), [(1, 2), (2, 3)]);
    for id in [1, 2] {
        assert!(pipeline.answer(&reply(id)).is_some(), "{id}");
    }
    assert!(pipeline.waiting() == 0 && pipeline.unsent().is_empty());
}

#[test]
fn what_was_lent_to_a_server_that_has_forgotten_is_given_up() {
    let mut pipeline = Pipeline::default();
    pipeline.push(&put(b"a", &[1; 10_000]), lent(&[1; 10_000]));
    send_all(&mut pipeline);
    pipeline.push(&put(b"b", &[2; 10_000]), lent(&[2; 10_000]));
    let mut lost = Vec::new();
    assert_eq!(pipeline.replay(false, |asked| lost.push(asked.id)), 1);
    assert_eq!((lost, pipeline.lent_bytes()), (vec![0], 0));
    assert_eq!(send_all(&mut pipeline), [(1, 1)]);
}

fn report(pipeline: &mut Pipeline, hashes: usize) {
    pipeline.push_report((0..hashes as u64).map(KeyHash).collect::<Vec<_>>().into_iter());
}

#[test]
fn a_report_is_no_request() {
    let mut pipeline = Pipeline::default();
    report(&mut pipeline, 2);
    assert_eq!((pipeline.waiting(), pipeline.next_id()), (0, 0));
    assert_eq!(pipeline.push(&Request::get(b"k"), None), 0);
    report(&mut pipeline, 1);
    assert_eq!(pipeline.push(&put(b"k", b"v"), None), 1);
    let report_id = (REPORT_ID, 0);
    assert_eq!(send_all(&mut pipeline), [report_id, (0, 0), report_id, (1, 1)]);
    assert_eq!(pipeline.answer(&reply(REPORT_ID)), None);
    assert!(pipeline.answer(&reply(0)).is_some() && pipeline.answer(&reply(1)).is_some());
    assert_eq!(pipeline.waiting(), 0);
}

#[test]
fn reports_are_not_repeated_and_nothing_is_mixed_up_with_them() {
    for (resumed, sent_whole) in [(true, true), (true, false), (false, false)] {
        let mut pipeline = Pipeline::default();
        report(&mut pipeline, 3);
        pipeline.push(&put(b"a", b"1"), None);
        report(&mut pipeline, 2);
        pipeline.push(&Request::get(b"b"), None);
        report(&mut pipeline, 1);
        if sent_whole {
            send_all(&mut pipeline);
        } else {
            pipeline.mark_sent(REQUEST_BYTES + 9);
        }
        assert_eq!(pipeline.replay(resumed, |_| panic!("nothing is lost")), 2);
        assert_eq!(send_all(&mut pipeline), [(0, 1), (1, 0)]);
        assert!(pipeline.answer(&reply(0)).is_some() && pipeline.answer(&reply(1)).is_some());
    }
}

#[test]
fn the_log_does_not_grow_with_reports_alone() {
    let mut pipeline = Pipeline::default();
    for _ in 0..1000 {
        report(&mut pipeline, 512);
        // Some bytes of each are behind those of the one before.
        pipeline.mark_sent(pipeline.unsent().len() - 5);
    }
    assert!(pipeline.log.len() < 3 * (REQUEST_BYTES + 512 * HASH_BYTES), "{} bytes", pipeline.log.len());
    pipeline.mark_sent(5);
    pipeline.push(&Request::get(b"k"), None);
    assert_eq!(send_all(&mut pipeline), [(0, 0)]);
}
