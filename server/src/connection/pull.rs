//! Large values that the server reads out of their client's memory.
//!
//! The value goes straight into a reservation, by READs on the queue pair of the connection's message channel, and is
//! checked and published like one that was sent. The worker does not wait: the connection has a turn as bytes arrive, and
//! others have theirs meanwhile.
//!
//! When the READs fail, or nothing arrives for [`Timeouts::pull`](crate::Timeouts), or the client or the connection ends, the reservation goes with the connection. Its extent is
//! free only after the queue pair is destroyed: see `Exchange::pull`.

use sidestep_core::message::{LentValue, Op, RequestHeader, Status};

use super::Large;
use crate::backing::Backing;
use crate::frame::Request;
use crate::rdma::{Channel, Messages};
use crate::service::{Caller, Service, Superseded};

/// Reserves the space for a value that was lent and begins to read it. None: the request has its reply.
pub(super) fn begin<M: Backing>(
    service: &Service<M>,
    request: &Request<'_>,
    lent: &LentValue,
    channel: Option<(&mut Messages, &Channel)>,
    mut caller: Caller<'_>,
) -> Result<Option<Large<M>>, Superseded> {
    // As if it had been sent.
    let header = RequestHeader { value_bytes: lent.value_bytes, ..*request.header };
    let request = Request { header: &header, ..*request };
    let Some(reservation) = service.reserve(&request, caller.again())? else { return Ok(None) };
    let begun = match channel {
        _ if reservation.value_bytes() == 0 => Ok(()),
        Some(channel) => service.pull(channel, lent, &reservation),
        None => Err("a value can be lent over a message channel only, and this is a socket".to_owned()),
    };
    if let Err(reason) = begun {
        // Nothing is remembered: the client sends the value under the same sequence number.
        caller.output.reply(header.id.get(), Status::Unavailable, 0, reason.as_bytes());
        caller.metrics.outcome(Op::Put, Status::Unavailable);
        return Ok(None);
    }
    caller.metrics.pulls_begun.add(1);
    Ok(Some(Large { header, reservation, filled: 0, is_pulled: true }))
}
