use super::*;

/// The bytes of a message: its preamble, then `body`.
fn framed(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = b"SIDESTEP".to_vec();
    bytes.extend([5, 0, kind, 0, body.len() as u8, 0, 0, 0]);
    bytes.extend(body);
    bytes
}

fn golden<M: Message + PartialEq + std::fmt::Debug>(message: M, kind: u8, body: &[&[u8]]) {
    let expected = framed(kind, &body.concat());
    assert_eq!(encode(&message).unwrap(), expected, "{message:?}");
    assert_eq!(decode::<M>(u16::from(kind), &expected[PREAMBLE_BYTES..]).unwrap(), message);
}

/// Numbers are bincode's: one byte below 251, or a byte that tells the width, then little-endian.
#[test]
fn golden_bytes() {
    let hello = Hello { nonce: [7; 32], client_id: 0x0102_0304_0506_0708, resume_boot_id: 250 };
    golden(hello, 1, &[&[7; 32], &[253, 8, 7, 6, 5, 4, 3, 2, 1], &[250]]);
    golden(Challenge { nonce: [8; 32], token_required: true }, 2, &[&[8; 32], &[1]]);
    golden(Proof { mac: [9; 32] }, 3, &[&[9; 32]]);
    let welcome = Welcome {
        mac: [1; 32],
        table_id: 2,
        boot_id: 251,
        resumed: false,
        memory_bytes: 1 << 30,
        segment_bytes: 1 << 26,
        max_value_bytes: 1 << 24,
        durable: true,
        pid: 300,
        report_one_in: 32,
        shm: Ok(ShmOffer { socket_name: vec![3, 4], ticket: [5; 16], host_boot_id: "host".into() }),
        rdma: Err("no".into()),
    };
    let numbers: [&[u8]; 9] = [
        &[2],
        &[251, 251, 0],
        &[0],
        &[252, 0, 0, 0, 0x40],
        &[252, 0, 0, 0, 4],
        &[252, 0, 0, 0, 1],
        &[1],
        &[251, 44, 1],
        &[32],
    ];
    golden(welcome, 4, &[&[1; 32], &numbers.concat(), &[0, 2, 3, 4], &[5; 16], b"\x04host", b"\x01\x02no"]);
    golden(Refusal { reason: "why".into() }, 5, &[b"\x03why"]);
    let stats = Stats { counters: vec![("keys".into(), 9)], facts: vec![("rustc".into(), "1".into())] };
    assert_eq!(encode_body(&stats).unwrap(), b"\x01\x04keys\x09\x01\x05rustc\x011");
    let end =
        QueuePairEnd { number: 300, first_packet: 4, gid: [6; 16], lid: 7, mtu: 5, reads_served: 16, reads_issued: 8 };
    let end_bytes = [&[251, 44, 1, 4][..], &[6; 16], &[7, 5, 16, 8]].concat();
    let request = QueuePairRequest { reads: Some(end), messages: None };
    assert_eq!(encode_body(&request).unwrap(), [&[1], &end_bytes[..], &[0]].concat());
    let messages = Some(MessagesEnd { end, receives: 32 });
    let request = QueuePairRequest { reads: None, messages };
    assert_eq!(encode_body(&request).unwrap(), [&[0, 1], &end_bytes[..], &[32]].concat());
    let reads = Some(ReadsReply { end, root_address: 9, root_rkey: 10 });
    let reply = QueuePairReply { reads, messages };
    let expected = [&[1], &end_bytes[..], &[9, 10, 1], &end_bytes[..], &[32]].concat();
    assert_eq!(encode_body(&reply).unwrap(), expected);
    assert_eq!(decode_body::<QueuePairReply>(&expected).unwrap(), reply);
}

#[test]
fn golden_proofs() {
    let hex = |mac: [u8; 32]| mac.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let proof = |role| hex(prove(b"secret", role, &[1; 32], &[2; 32]));
    assert_eq!(proof(Role::Client), "baf229e9d8f32e4caa82632e064697d2917bf481e0247cab105150a543176394");
    assert_eq!(proof(Role::Server), "a00619918cd43a938d77f9d66cfca504ef115d1ea894369565452a002477b6bb");
}

#[test]
fn what_is_wrong_is_named() {
    let good = Preamble { magic: MAGIC, wire_version: WIRE_VERSION.into(), kind: 1.into(), body_bytes: 4.into() };
    assert_eq!(good.check(), Ok((1, 4)));
    assert_eq!(Preamble { magic: *b"GET / HT", ..good }.check(), Err(HandshakeError::Magic(*b"GET / HT")));
    assert_eq!(Preamble { wire_version: 99.into(), ..good }.check(), Err(HandshakeError::Version(99)));
    assert_eq!(Preamble { body_bytes: u32::MAX.into(), ..good }.check(), Err(HandshakeError::TooLong(u32::MAX)));
    assert_eq!(decode::<Proof>(5, b"\x03why"), Err(HandshakeError::Refused("why".into())));
    assert_eq!(decode::<Proof>(1, &[]), Err(HandshakeError::Kind { expected: Kind::Proof, found: 1 }));
    assert!(matches!(decode::<Proof>(3, &[0; 33]), Err(HandshakeError::Body { kind: Kind::Proof, .. })));
    assert!(matches!(decode::<Proof>(3, &[0; 31]), Err(HandshakeError::Body { kind: Kind::Proof, .. })));
}
