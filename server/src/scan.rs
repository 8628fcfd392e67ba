//! Requests about the whole table: its next page, and its end.

use crossbeam_epoch::Guard;
use sidestep_core::message::Status;
use sidestep_core::scan::{Flushed, PAGE_HEADER_BYTES, PAGE_LIMIT_BYTES, PageHeader, RecordHeader, ScanRequest};
use zerocopy::{FromBytes, IntoBytes};

use crate::backing::Backing;
use crate::frame::{LARGE_VALUE_BYTES, Request};
use crate::output::Output;
use crate::store::{Got, Met, ScanFrom, Store};

/// Adds the page that a scan's request asks for. Long values are sent from where they are, as those of a GET.
pub(crate) fn answer<M: Backing>(
    store: &Store<M>,
    request: &Request<'_>,
    guard: &Guard,
    output: &mut Output,
) -> Status {
    let id = request.header.id.get();
    let Ok(ask) = ScanRequest::read_from_bytes(request.value) else {
        // The frame was checked: not reached.
        output.reply(id, Status::BadRequest, 0, b"expected the value of a scan's request");
        return Status::BadRequest;
    };
    let at = output.open();
    let page = output.buffer().len();
    output.buffer().extend_from_slice(&[0; PAGE_HEADER_BYTES]);
    let limit = ask.limit_bytes.get().min(PAGE_LIMIT_BYTES) as usize;
    let (mut records, mut held) = (0u32, 0);
    let from = ScanFrom { hash: ask.from.get(), after: request.key };
    let next = store.scan(from, limit, guard, &mut |met| {
        records += 1;
        let before = output.buffer().len();
        held += add(store, met, output);
        output.buffer().len() - before + met.value_bytes as usize
    });
    let header = PageHeader {
        next: next.unwrap_or(0).into(),
        records: records.into(),
        is_last: u8::from(next.is_none()),
        reserved: [0; 3],
    };
    output.buffer()[page..page + PAGE_HEADER_BYTES].copy_from_slice(header.as_bytes());
    let value_bytes = output.buffer().len() - page + held;
    output.close(at, id, Status::Ok, 0, value_bytes as u32);
    Status::Ok
}

/// Adds a record. Returns how many bytes of it are sent from its item.
fn add<M: Backing>(store: &Store<M>, met: &Met<'_>, output: &mut Output) -> usize {
    let header = RecordHeader {
        version: met.version.into(),
        expires_ms: met.expires_ms.into(),
        value_bytes: met.value_bytes.into(),
        key_bytes: (met.key.len() as u16).into(),
        reserved: 0.into(),
    };
    output.buffer().extend_from_slice(header.as_bytes());
    output.buffer().extend_from_slice(met.key);
    match store.take_met(met, LARGE_VALUE_BYTES as usize, output.buffer()) {
        Got::Held(hold) => {
            let bytes = hold.value_bytes() as usize;
            output.hold(hold);
            bytes
        }
        Got::Copied { .. } | Got::Absent => 0,
    }
}

/// Removes keys from the hash of a flush's request on.
pub(crate) fn flush<M: Backing>(store: &Store<M>, request: &Request<'_>) -> Flushed {
    let from = u64::read_from_bytes(request.value).map_or(0, u64::from_le);
    let (next, removed) = store.flush(from);
    Flushed::new(next, removed)
}
