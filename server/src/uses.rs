//! What clients say they read without this process: the items stay a while longer.

use sidestep_core::hash::KeyHash;
use sidestep_core::message::Status;
use sidestep_core::uses::{MAX_REPORTED, decode};

use crate::backing::Backing;
use crate::frame::Request;
use crate::metrics::WorkerMetrics;
use crate::output::Output;
use crate::store::Store;

/// Windows that are fetched at once: about as many misses as a core has under way.
const FETCHED_AT_ONCE: usize = 16;

/// Takes a report of use, and adds the reply.
pub(crate) fn answer<M: Backing>(
    store: &Store<M>,
    request: &Request<'_>,
    metrics: &WorkerMetrics,
    output: &mut Output,
) -> Status {
    let id = request.header.id.get();
    match decode(request.value) {
        Ok(hashes) => {
            metrics.uses_reported.add(hashes.len() as u64);
            touch(store, hashes);
            output.reply(id, Status::Ok, 0, b"");
            Status::Ok
        }
        Err(error) => {
            output.reply(id, Status::BadRequest, 0, error.to_string().as_bytes());
            Status::BadRequest
        }
    }
}

fn touch<M: Backing>(store: &Store<M>, hashes: impl Iterator<Item = KeyHash>) {
    if !store.evicts() {
        return;
    }
    let mut all = [KeyHash(0); MAX_REPORTED];
    let count = all.iter_mut().zip(hashes).map(|(place, hash)| *place = hash).count();
    for some in all[..count].chunks(FETCHED_AT_ONCE) {
        some.iter().for_each(|hash| store.prefetch_window_of(*hash));
        some.iter().for_each(|hash| store.touch_hash(*hash));
    }
}
