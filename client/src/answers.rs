//! What replies say.

use sidestep_core::message::{Op, ReplyHeader, Status};

use crate::counters::{Count, Counters};
use crate::error::Error;
use crate::options::Path;
use crate::pipeline::Asked;
use crate::value::{Answer, Meta};

/// What a reply says of what was asked.
pub(crate) fn read_answer<'a>(
    asked: Asked,
    path: Path,
    header: &ReplyHeader,
    value: &'a [u8],
    server: &str,
) -> Result<Answer<'a>, Error> {
    let version = header.version.get();
    let text = || String::from_utf8_lossy(value).into_owned();
    match Status::from_wire(header.status) {
        Some(Status::Ok) => Ok(match asked.op {
            Op::Get => Answer::Value(value, Meta { version, path, value_bytes: value.len() }),
            Op::Put | Op::Flush => Answer::Written { version },
            Op::Delete => Answer::Removed { version },
            Op::Ping | Op::Stats | Op::Connect | Op::Scan | Op::Touch => Answer::Echo(value),
        }),
        Some(Status::NotFound) => Ok(Answer::Absent),
        Some(Status::VersionMismatch) => Err(Error::VersionMismatch { found: version }),
        Some(Status::Full) => Err(Error::Full(text())),
        Some(Status::TooLarge) => Err(Error::TooLarge(text())),
        Some(Status::OutcomeUnknown) => Err(Error::OutcomeUnknown(text())),
        Some(Status::BadRequest) => Err(Error::BadRequest(text())),
        Some(Status::Unavailable) => Err(Error::PathUnavailable { path: Path::Rdma, reason: text() }),
        Some(Status::Forbidden) => Err(Error::Forbidden(text())),
        Some(Status::Stopping) => Err(Error::Stopping { server: server.to_owned() }),
        None => {
            let reason = format!("expected a status, found {}", header.status);
            Err(Error::Protocol { server: server.to_owned(), reason })
        }
    }
}

/// Counts how a request ended.
pub(crate) fn count_answer(counters: &Counters, path: Path, op: Op, answer: &Result<Answer<'_>, Error>) {
    let (tcp, messages) = match (op, answer) {
        (_, Ok(Answer::Echo(_))) | (Op::Flush, Ok(_)) => return,
        (_, Ok(Answer::Value(..))) => (Count::TcpGetFound, Count::RpcGetFound),
        (_, Ok(Answer::Written { .. })) => (Count::TcpPutOk, Count::RpcPutOk),
        (_, Ok(Answer::Removed { .. })) => (Count::TcpDeleteOk, Count::RpcDeleteOk),
        (Op::Get, Ok(Answer::Absent)) => (Count::TcpGetAbsent, Count::RpcGetAbsent),
        (_, Ok(Answer::Absent)) => (Count::TcpDeleteAbsent, Count::RpcDeleteAbsent),
        (_, Err(Error::VersionMismatch { .. })) => (Count::TcpVersionMismatch, Count::RpcVersionMismatch),
        (_, Err(Error::OutcomeUnknown(_))) => (Count::OutcomesUnknown, Count::OutcomesUnknown),
        (_, Err(_)) => (Count::TcpOtherErrors, Count::RpcOtherErrors),
    };
    counters.add(if path == Path::RdmaRpc { messages } else { tcp }, 1);
}
