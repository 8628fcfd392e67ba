//! What peers send: messages of the handshake, pages of a scan, items in memory that is read from afar.

use std::fmt::Debug;

use sidestep_core::handshake::{
    self, Challenge, Hello, Message, PREAMBLE_BYTES, Preamble, Proof, QueuePairReply, QueuePairRequest, Refusal, Stats,
    Welcome,
};
use sidestep_core::layout::item::{self, ComposeHeader};
use sidestep_core::scan::{self, PageHeader};
use zerocopy::{FromBytes, IntoBytes};

/// A message as a peer reads it: preamble, check, body. Then the bodies that travel in frames.
pub(crate) fn handshake(bytes: &[u8]) {
    if let Ok((preamble, rest)) = Preamble::read_from_prefix(bytes)
        && let Ok((kind, body_bytes)) = preamble.check()
        && let Some(body) = rest.get(..body_bytes)
    {
        message::<Hello>(kind, body);
        message::<Challenge>(kind, body);
        message::<Proof>(kind, body);
        message::<Welcome>(kind, body);
        message::<Refusal>(kind, body);
    }
    body::<Stats>(bytes);
    body::<QueuePairRequest>(bytes);
    body::<QueuePairReply>(bytes);
}

fn message<M: Message + PartialEq + Debug>(kind: u16, body: &[u8]) {
    let Ok(decoded) = handshake::decode::<M>(kind, body) else { return };
    let encoded = handshake::encode(&decoded).expect("what came in a message fits one");
    let preamble = Preamble::ref_from_prefix(&encoded).expect("it begins with a preamble").0;
    let (kind, body_bytes) = preamble.check().expect("a good preamble");
    assert_eq!(body_bytes, encoded.len() - PREAMBLE_BYTES);
    assert_eq!(handshake::decode::<M>(kind, &encoded[PREAMBLE_BYTES..]).as_ref(), Ok(&decoded));
}

fn body<T: bincode::Encode + bincode::Decode<()> + PartialEq + Debug>(bytes: &[u8]) {
    let Ok(decoded) = handshake::decode_body::<T>(bytes) else { return };
    let encoded = handshake::encode_body(&decoded).expect("what came in a body fits one");
    assert_eq!(handshake::decode_body::<T>(&encoded).as_ref(), Ok(&decoded));
}

/// A page of a scan: its records are the bytes that they were read from.
pub(crate) fn scan(bytes: &[u8]) {
    let Ok((header, rest)) = PageHeader::read_from_prefix(bytes) else { return };
    let Ok(records) = scan::records(rest, header.records.get()) else { return };
    assert_eq!(records.len(), header.records.get() as usize);
    let mut again = Vec::with_capacity(rest.len());
    for record in &records {
        let mut written = record.header();
        // Bytes that say nothing.
        let read = scan::RecordHeader::ref_from_prefix(&rest[again.len()..]).expect("it was read").0;
        written.reserved = read.reserved;
        again.extend_from_slice(written.as_bytes());
        again.extend_from_slice(record.key);
        again.extend_from_slice(record.value);
    }
    assert_eq!(again, rest);
}

/// An item, in a table whose id is the first word; the rest is taken for one, and for key and value of another.
pub(crate) fn item(bytes: &[u8]) {
    let Some((id, rest)) = bytes.split_first_chunk() else { return };
    let table_id = u64::from_le_bytes(*id);
    if let Some(valid) = item::validate(rest, table_id) {
        assert_eq!(valid.key.len(), usize::from(valid.header.key_bytes));
        assert!(valid.header.value_bytes as usize <= rest.len());
        assert!(valid.header.exact_bytes() <= rest.len());
    }
    let (key, value) = rest.split_at(rest.len() / 4);
    if !(1..=sidestep_core::limits::MAX_KEY_BYTES).contains(&key.len()) {
        return;
    }
    let header = ComposeHeader { state: item::LinkState::Current, version: 1 << 40, expires_ms: 7 };
    let mut composed = Vec::new();
    item::compose(&mut composed, key, value, header, table_id);
    let valid = item::validate(&composed, table_id).expect("an item is valid");
    let at = item::value_offset(key.len());
    assert_eq!((valid.key, &composed[at..at + value.len()]), (key, value));
    // One changed byte of it is found; only the link may say something else of the same body.
    let at = 8 + usize::from(rest[0]) * 7 % (valid.header.exact_bytes() - 8);
    composed[at] ^= 1 << (rest[0] % 8);
    assert!(item::validate(&composed, table_id).is_none(), "byte {at} changed");
}
