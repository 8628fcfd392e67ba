//! Who is refused, how clearly, and that the others notice nothing.

mod raw;

use std::io::Write;
use std::time::{Duration, Instant};

use raw::{Client, assert_closed, config, impatient, open, receive, refusal, start};
use sidestep_core::handshake::{self, Challenge, HandshakeError, Hello, PREAMBLE_BYTES, Proof, Role, Welcome};
use sidestep_core::message::{Op, RequestHeader, Status};
use sidestep_server::access::Tokens;
use sidestep_server::config::Timeouts;
use sidestep_server::{Config, Server};
use zerocopy::IntoBytes;

fn hello() -> Vec<u8> {
    handshake::encode(&Hello { nonce: [1; 32], client_id: 1, resume_boot_id: 0 }).unwrap()
}

/// Sends bytes as a first message; the reason of the refusal. A client that was there before goes on.
fn refused(server: &Server, bytes: &[u8]) -> String {
    let mut bystander = Client::connect(server.local_addr());
    let mut stream = open(server.local_addr());
    stream.write_all(bytes).unwrap();
    let reason = refusal(&mut stream);
    assert_eq!(bystander.ping(b"still here").value, b"still here");
    reason
}

#[test]
fn other_protocols_versions_and_lengths_are_refused_with_the_reason() {
    let server = start(config());
    let with = |at: usize, byte: u8| {
        let mut bytes = hello();
        bytes[at] = byte;
        bytes
    };
    assert!(refused(&server, b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").contains("magic"));
    assert!(refused(&server, &[0xff; 3000]).contains("magic"));
    assert!(refused(&server, &with(8, 0)).contains("wire version"));
    assert!(refused(&server, &with(15, 0x7f)).contains("at most"));
    assert!(refused(&server, &with(10, 9)).contains("Hello"));
    let garbage_body = [&hello()[..PREAMBLE_BYTES], &[0xff; 200]].concat();
    let mut garbage_body = garbage_body;
    garbage_body[12] = 200;
    assert!(refused(&server, &garbage_body).contains("malformed"));
    server.stop();
}

#[test]
fn only_who_knows_the_token_comes_in() {
    let server = start(Config { tokens: Some(Tokens::bare("secret")), ..config() });
    let connect = |token: &[u8]| Client::try_connect(server.local_addr(), token, 1, 0);
    for wrong in [&b""[..], b"guess", b"secret "] {
        assert!(matches!(connect(wrong), Err(HandshakeError::Refused(reason)) if reason.contains("token")));
    }
    let mut client = connect(b"secret").unwrap();
    assert!(client.welcome.shm.is_ok(), "the offer comes after the proof");
    assert_eq!(client.ping(b"").status, Status::Ok);
    server.stop();
}

/// Everything that a client said before, said again: the server's nonce is another one.
#[test]
fn a_proof_that_was_overheard_opens_nothing() {
    let server = start(Config { tokens: Some(Tokens::bare("secret")), ..config() });
    let mut stream = open(server.local_addr());
    stream.write_all(&hello()).unwrap();
    let challenge: Challenge = receive(&mut stream).unwrap();
    let mac = handshake::prove(b"secret", Role::Client, &[1; 32], &challenge.nonce);
    let proof = handshake::encode(&Proof { mac }).unwrap();
    stream.write_all(&proof).unwrap();
    receive::<Welcome>(&mut stream).unwrap();
    let mut replayed = open(server.local_addr());
    replayed.write_all(&hello()).unwrap();
    receive::<Challenge>(&mut replayed).unwrap();
    replayed.write_all(&proof).unwrap();
    assert!(refusal(&mut replayed).contains("token"));
    server.stop();
}

#[test]
fn who_says_nothing_or_half_a_message_is_told_and_let_go() {
    let server = start(Config { timeouts: impatient(Timeouts::default()), ..config() });
    for bytes in [&b""[..], &hello()[..PREAMBLE_BYTES - 3], &hello()[..PREAMBLE_BYTES + 5]] {
        assert!(refused(&server, bytes).contains("300 ms"));
    }
    // Also between the two messages of the client.
    let mut stream = open(server.local_addr());
    stream.write_all(&hello()).unwrap();
    receive::<Challenge>(&mut stream).unwrap();
    assert!(refusal(&mut stream).contains("300 ms"));
    server.stop();
}

#[test]
fn half_a_request_is_told_and_let_go_and_idle_clients_are_not() {
    let server = start(Config { timeouts: impatient(Timeouts::default()), ..config() });
    let mut idle = Client::connect(server.local_addr());
    let large = 1 << 20;
    for (value_bytes, sent) in [(10, 20), (10, 45), (large, 60), (large, 30_000)] {
        let mut client = Client::connect(server.local_addr());
        let frame = client.put_frame(b"key", &vec![7; value_bytes]);
        client.send(&frame[..sent]);
        // A megabyte may take 16 s at the slowest rate that is allowed; its client goes away by itself.
        if value_bytes == large {
            continue;
        }
        let reply = client.reply();
        assert_eq!((reply.status, reply.id), (Status::BadRequest, 0));
        assert_closed(&mut client.stream);
    }
    // By now the idle client has been idle for more than a request may take.
    assert_eq!(idle.ping(b"x").value, b"x");
    assert_eq!(idle.get(b"key").status, Status::NotFound);
    server.stop();
}

#[test]
fn nonsense_instead_of_a_request_is_answered_and_let_go() {
    let server = start(config());
    let mut bystander = Client::connect(server.local_addr());
    let header = RequestHeader { op: Op::Get as u8, key_bytes: 3.into(), id: 5.into(), ..RequestHeader::default() };
    for header in [
        RequestHeader { op: 0, ..header },
        RequestHeader { op: 0xff, ..header },
        RequestHeader { flags: 0x80, ..header },
        RequestHeader { key_bytes: 0.into(), ..header },
        RequestHeader { value_bytes: u32::MAX.into(), ..header },
        RequestHeader { op: Op::Put as u8, ..header },
    ] {
        let mut client = Client::connect(server.local_addr());
        let good = client.get_frame(b"key");
        client.send(&[&good[..], header.as_bytes(), &[0xee; 4000]].concat());
        assert_eq!(client.reply().status, Status::NotFound, "what came before is answered");
        let reply = client.reply();
        assert_eq!((reply.status, reply.id), (Status::BadRequest, 5), "{header:?}");
        assert!(String::from_utf8(reply.value).unwrap().starts_with("expected"));
        assert_closed(&mut client.stream);
    }
    assert_eq!(bystander.ping(b"x").value, b"x");
    server.stop();
}

#[test]
fn one_connection_too_many_is_refused_and_room_comes_back() {
    let server = start(Config { max_connections: 2, ..config() });
    let mut first = Client::try_connect(server.local_addr(), b"", 1, 0).unwrap();
    let second = Client::try_connect(server.local_addr(), b"", 2, 0).unwrap();
    // What the client has sent by itself in the meantime must not cost it the reason.
    let mut stream = open(server.local_addr());
    stream.write_all(&hello()).unwrap();
    assert!(refusal(&mut stream).contains("all 2 connections"));
    drop((second, stream));
    while first.stat("connections") > 1 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let third = Client::try_connect(server.local_addr(), b"", 3, 0);
    assert!(third.is_ok());
    server.stop();
}

#[test]
fn an_idle_client_gives_its_place_to_another() {
    let timeouts = Timeouts { idle: Some(Duration::from_millis(300)), ..Timeouts::default() };
    let server = start(Config { max_connections: 1, timeouts, ..config() });
    let mut idle = Client::try_connect(server.local_addr(), b"", 1, 0).unwrap();
    // Nothing came before the end: it was not told off.
    assert_closed(&mut idle.stream);
    let since = Instant::now();
    let mut next = loop {
        match Client::try_connect(server.local_addr(), b"", 2, 0) {
            Ok(client) => break client,
            Err(error) => assert!(since.elapsed() < Duration::from_secs(30), "{error:?}"),
        }
    };
    assert_eq!(next.stat("connections_idle_closed"), 1);
    assert_eq!(next.stat("connections_timed_out"), 0);
    server.stop();
}
