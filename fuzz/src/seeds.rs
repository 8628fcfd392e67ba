//! Good inputs of this version, from which mutations begin beside the corpus.

use bincode::Encode;
use sidestep_client::Record;
use sidestep_core::handshake::{
    self, Challenge, Hello, MessagesEnd, Proof, QueuePairEnd, QueuePairReply, QueuePairRequest, RdmaOffer, ReadsReply,
    Refusal, ShmOffer, Stats, Welcome,
};
use sidestep_core::layout::item::{self, ComposeHeader};
use sidestep_core::message::{FLAG_CONDITIONAL, FLAG_LENT, LentValue, Op, ReplyHeader, RequestHeader, Status};
use sidestep_core::scan::{PageHeader, ScanRequest};
use zerocopy::IntoBytes;

use crate::dump::file::Writer;

/// Those of the target of this name.
pub fn seeds(name: &str) -> Vec<Vec<u8>> {
    match name {
        "handshake" => [handshakes(), bodies()].concat(),
        "frames" => vec![requests().concat()],
        "connection" => vec![
            [&[1, 255][..], &requests().concat()].concat(),
            [&[1, 0][..], &requests().concat()].concat(),
            [&[0, 3][..], &handshakes().concat(), &requests().concat()].concat(),
        ],
        "replies" => vec![[&[7][..], &replies().concat()].concat()],
        "scan" => vec![page()],
        "item" => vec![item(), [&[0; 8][..], b"a key and its value, of which the key is the first quarter"].concat()],
        "http" => vec![b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n".to_vec()],
        "dump" => vec![[&[1][..], &dump()].concat()],
        "files" => files().map(|text| text.as_bytes().to_vec()).to_vec(),
        "properties" => vec![PROPERTIES.as_bytes().to_vec()],
        "log" => vec![log()],
        "table" => {
            (0..8).map(|at: u16| [&(at * 977).to_le_bytes()[..], &[4, 9, at as u8, 1, 40, 2]].concat()).collect()
        }
        _ => Vec::new(),
    }
}

fn end(number: u32) -> QueuePairEnd {
    QueuePairEnd { number, first_packet: 7, gid: [9; 16], lid: 0, mtu: 3, reads_served: 16, reads_issued: 16 }
}

fn handshakes() -> Vec<Vec<u8>> {
    let welcome = Welcome {
        mac: [1; 32],
        table_id: 2,
        boot_id: 3,
        resumed: false,
        memory_bytes: 1 << 30,
        segment_bytes: 64 << 20,
        max_value_bytes: 16 << 20,
        durable: true,
        pid: 4,
        report_one_in: 32,
        shm: Ok(ShmOffer { socket_name: b"name".to_vec(), ticket: [5; 16], host_boot_id: "host".into() }),
        rdma: Ok(RdmaOffer { port: "device/1".into() }),
    };
    let refused = Welcome { shm: Err("no".into()), rdma: Err("no".into()), ..welcome.clone() };
    let messages = [
        handshake::encode(&Hello { nonce: [0; 32], client_id: 1, resume_boot_id: 0 }),
        handshake::encode(&Proof { mac: [0; 32] }),
        handshake::encode(&Challenge { nonce: [0; 32], token_required: true }),
        handshake::encode(&welcome),
        handshake::encode(&refused),
        handshake::encode(&Refusal { reason: "because".into() }),
    ];
    messages.into_iter().map(|message| message.expect("it is short")).collect()
}

fn body(value: &impl Encode) -> Vec<u8> {
    handshake::encode_body(value).expect("it is short")
}

fn bodies() -> Vec<Vec<u8>> {
    let messages = Some(MessagesEnd { end: end(2), receives: 64 });
    let reads = ReadsReply { end: end(1), root_address: 1 << 40, root_rkey: 77 };
    vec![
        body(&Stats { counters: vec![("keys".into(), 1 << 40)], facts: vec![("version".into(), "0".into())] }),
        body(&QueuePairRequest { reads: Some(end(1)), messages }),
        body(&QueuePairReply { reads: Some(reads), messages }),
    ]
}

fn request(op: Op, flags: u8, key: &[u8], value: &[u8], id: u64) -> Vec<u8> {
    let header = RequestHeader {
        op: op as u8,
        flags,
        key_bytes: (key.len() as u16).into(),
        value_bytes: (value.len() as u32).into(),
        id: id.into(),
        sequence: if op.is_write() { id } else { 0 }.into(),
        expect_version: 0.into(),
        ttl_ms: 0.into(),
    };
    [header.as_bytes(), key, value].concat()
}

fn requests() -> Vec<Vec<u8>> {
    let lent = LentValue { address: 1.into(), rkey: 2.into(), value_bytes: 3.into() };
    let scan = ScanRequest { limit_bytes: 1000.into(), ..ScanRequest::default() };
    vec![
        request(Op::Put, 0, b"key", b"value", 1),
        request(Op::Put, FLAG_CONDITIONAL, b"key", b"other", 2),
        request(Op::Get, 0, b"key", b"", 3),
        request(Op::Ping, 0, b"", b"echo", 4),
        request(Op::Stats, 0, b"", b"", 5),
        request(Op::Scan, 0, b"", scan.as_bytes(), 6),
        request(Op::Put, 0, b"long", &[7; 5000], 3),
        request(Op::Delete, 0, b"key", b"", 4),
        request(Op::Flush, 0, b"", &[0; 8], 5),
        request(Op::Touch, 0, b"", &[9; 24], 7),
        request(Op::Touch, 0, b"", &[9; 23], 8),
        request(Op::Connect, 0, b"", &bodies()[1], 10),
        request(Op::Put, FLAG_LENT, b"key", lent.as_bytes(), 6),
    ]
}

fn replies() -> Vec<Vec<u8>> {
    let reply = |(id, (status, value)): (usize, (Status, Vec<u8>))| {
        let header = ReplyHeader {
            status: status as u8,
            value_bytes: (value.len() as u32).into(),
            id: (id as u64).into(),
            version: 5.into(),
            ..ReplyHeader::default()
        };
        [header.as_bytes(), &value].concat()
    };
    let values = [
        (Status::Ok, b"value".to_vec()),
        (Status::Ok, Vec::new()),
        (Status::VersionMismatch, Vec::new()),
        (Status::Ok, b"echo".to_vec()),
        (Status::Ok, bodies()[0].clone()),
        (Status::Ok, bodies()[2].clone()),
        (Status::Ok, page()),
        (Status::Full, b"no room".to_vec()),
    ];
    values.into_iter().enumerate().map(reply).collect()
}

fn records() -> [Record<'static>; 2] {
    let one = Record { key: b"key", value: b"value", version: 1, expires_ms: 0 };
    [one, Record { key: b"another", value: &[7; 300], version: 1 << 40, expires_ms: 1 << 41 }]
}

fn page() -> Vec<u8> {
    let mut bytes = PageHeader { next: 77.into(), records: 2.into(), ..PageHeader::default() }.as_bytes().to_vec();
    for record in records() {
        bytes.extend_from_slice(record.header().as_bytes());
        bytes.extend_from_slice(record.key);
        bytes.extend_from_slice(record.value);
    }
    bytes
}

fn item() -> Vec<u8> {
    let mut bytes = Vec::new();
    let header = ComposeHeader { state: item::LinkState::Current, version: 7, expires_ms: 0 };
    item::compose(&mut bytes, b"a key", &[3; 100], header, 42);
    [&42u64.to_le_bytes()[..], &bytes].concat()
}

fn dump() -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), 1).expect("memory");
    records().iter().for_each(|record| writer.add(record).expect("memory"));
    writer.finish().expect("memory")
}

/// A batch: two puts, the first of them done away with again.
fn log() -> Vec<u8> {
    let record = |kind: u8, key: &[u8], value: &[u8], version: u64, expires_ms: u64| {
        let lengths = [&(key.len() as u16).to_le_bytes()[..], &(value.len() as u32).to_le_bytes()].concat();
        [&[kind, 0], &lengths[..], &version.to_le_bytes(), &expires_ms.to_le_bytes(), key, value].concat()
    };
    let records =
        [record(1, b"key", &[7; 300], 8, 1 << 41), record(1, b"another", b"value", 9, 0), record(2, b"key", b"", 8, 0)]
            .concat();
    let header = [&3u32.to_le_bytes()[..], &[0; 8], &(records.len() as u64).to_le_bytes(), &[0; 8]].concat();
    [b"SLOG", &header[..], &records].concat()
}

fn files() -> [&'static str; 4] {
    [
        "# tokens\nreader read-only 0123456789abcdef0123 2030-01-01T00:00:00Z\nwriter read-write fedcba9876543210abcd\n",
        "listen = \"127.0.0.1:7000\"\nmemory = \"4GiB\"\nevict = \"clock\"\nworkers = 2\nallow-uid = [7]\npin = true\n",
        "64 MiB",
        "one-secret",
    ]
}

const PROPERTIES: &str = "# a comment\nrecordcount=1000\noperationcount : 7\nreadproportion=0.5\nupdateproportion=0.5\n\
    requestdistribution=zipfian\nfieldcount=10\nfieldlength=1\\\n00\nzeropadding=12\nhotspotdatafraction=\\u0030.2\n";
