//! Decoders of this crate under any bytes, for the fuzz targets: each returns, or panics over a fault.

use sidestep_core::handshake::{self, QueuePairReply};
use sidestep_core::message::Op;
use zerocopy::IntoBytes;

use crate::answers::read_answer;
use crate::options::Path;
use crate::pipeline::{Pipeline, Request};
use crate::receive::{Front, ReceiveBuffer};
use crate::scan::page;
use crate::value::Answer;

const MAX_VALUE_BYTES: u32 = 1 << 20;
/// One of each operation is in flight.
const ASKED: [Op; 8] = [Op::Get, Op::Put, Op::Delete, Op::Ping, Op::Stats, Op::Connect, Op::Scan, Op::Flush];

/// What a server may answer to eight requests: the first byte says into what pieces the rest is cut. However they are
/// cut, the same answers are read.
pub fn replies(bytes: &[u8]) {
    let Some((&cut, rest)) = bytes.split_first() else { return };
    let whole = answers(rest, rest.len().max(1));
    assert_eq!(answers(rest, usize::from(cut) + 1), whole);
}

/// What the answers came to, and where reading ended.
fn answers(mut rest: &[u8], piece: usize) -> (Vec<(u64, String)>, usize) {
    let (mut buffer, mut pipeline) = (ReceiveBuffer::default(), Pipeline::default());
    for op in ASKED {
        pipeline.push(&Request { op, ..Request::get(b"key") }, None);
    }
    let (mut found, mut used) = (Vec::new(), 0);
    while !rest.is_empty() {
        let room = buffer.room();
        let n = piece.min(room.len()).min(rest.len());
        room[..n].copy_from_slice(&rest[..n]);
        rest = &rest[n..];
        buffer.filled(n);
        while let Front::Reply(header, value) = buffer.front(MAX_VALUE_BYTES) {
            let Some(asked) = pipeline.answer(&header) else { return (found, used) };
            let answer = read_answer(asked, Path::Tcp, &header, value, "server");
            match answer {
                Ok(Answer::Echo(body)) => echo(asked.op, body),
                answer => found.push((asked.id, format!("{answer:?}"))),
            }
            used += header.as_bytes().len() + value.len();
            buffer.consume(&header);
        }
        if matches!(buffer.front(MAX_VALUE_BYTES), Front::TooLong(_)) {
            return (found, used);
        }
    }
    (found, used)
}

fn echo(op: Op, body: &[u8]) {
    match op {
        Op::Scan => drop(page(body, |record| assert!(!record.key.is_empty()))),
        Op::Stats => drop(handshake::decode_body::<handshake::Stats>(body)),
        Op::Connect => drop(handshake::decode_body::<QueuePairReply>(body)),
        _ => {}
    }
}
