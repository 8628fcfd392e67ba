//! What a connection does with the bytes that came: the handshake, then requests.

use std::io::{Read, Write};
use std::os::fd::AsFd;

use sidestep_core::limits::MAX_KEY_BYTES;
use sidestep_core::message::{Op, Status};
use tracing::debug;

use super::{Body, Connection, Large, Phase, Turn, pull};
use crate::access::Pass;
use crate::backing::Backing;
use crate::control::{Step, refusal};
use crate::durable::Queue;
use crate::frame::{self, Frame, Request};
use crate::metrics::WorkerMetrics;
use crate::output::Output;
use crate::rdma::Connected;
use crate::service::{Caller, Superseded};

/// Requests whose memory is fetched ahead: about as many misses as a core has under way at once.
const PREFETCHED_KEYS: usize = 16;

impl<S: Read + Write + AsFd, M: Backing> Connection<S, M> {
    /// Answers what has been received, as far as there is room for replies.
    pub(super) fn consume(&mut self, turn: &mut Turn<'_, M>) {
        let mut prefetched = 0;
        self.stalled = false;
        while !self.is_full(turn) && self.next_channel.is_none() {
            if let Some(queue) = turn.service.queue().filter(|queue| queue.is_full())
                && self.is_before_write(turn)
            {
                queue.count_stall();
                self.stalled = true;
                break;
            }
            if turn.input.position() >= prefetched && matches!(self.phase, Phase::Open(_, Body::Frames)) {
                prefetched = turn.input.position() + prefetch(turn);
            }
            let going_on = match &mut self.phase {
                Phase::Handshake(_) => self.handshake(turn),
                Phase::Open(..) => self.open(turn).unwrap_or_else(|Superseded| {
                    debug!("the session goes on over another connection");
                    self.phase = Phase::Closing(false);
                    true
                }),
                Phase::Closing(_) => {
                    turn.input.clear();
                    false
                }
            };
            if !going_on {
                break;
            }
        }
    }

    /// Whether what comes next is a write. Its first byte tells.
    fn is_before_write(&self, turn: &Turn<'_, M>) -> bool {
        let op = turn.input.unread().first().and_then(|&op| Op::from_wire(op));
        matches!(self.phase, Phase::Open(_, Body::Frames)) && op.is_some_and(Op::is_write)
    }

    /// One step of the handshake. False if it waits for more bytes.
    fn handshake(&mut self, turn: &mut Turn<'_, M>) -> bool {
        let Phase::Handshake(handshake) = &mut self.phase else { return true };
        if turn.stopping {
            self.refuse("the server is stopping", turn.metrics);
            return true;
        }
        let (step, used) = handshake.advance(turn.input.unread(), turn.service);
        turn.input.advance(used);
        match step {
            Step::More => return false,
            Step::Send(message) => self.output.raw(&message),
            Step::Admit(message, session) => {
                self.output.raw(&message);
                self.phase = Phase::Open(session, Body::Frames);
                self.receive_by = None;
            }
            Step::Refuse(reason) => self.refuse(&reason, turn.metrics),
        }
        true
    }

    /// Tells the client in place of the next handshake message why it is not let in.
    pub(crate) fn refuse(&mut self, reason: &str, metrics: &WorkerMetrics) {
        debug!(reason, "client refused");
        metrics.refused.add(1);
        self.output.raw(&refusal(reason));
        self.phase = Phase::Closing(false);
    }

    /// The next request or part of one. False if it waits for more bytes.
    fn open(&mut self, turn: &mut Turn<'_, M>) -> Result<bool, Superseded> {
        let Phase::Open(session, body) = &mut self.phase else { return Ok(true) };
        let output = &mut self.output;
        match body {
            Body::Frames => {}
            Body::Large(large) if large.left() > 0 => return Ok(false),
            Body::Dropped(left, _) if turn.input.is_empty() && *left > 0 => return Ok(false),
            Body::Dropped(left, reply) => {
                let used = turn.input.unread().len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                turn.input.advance(used);
                *left -= used as u64;
                if *left == 0 {
                    // What is too large has had its reply: with nothing to follow, the next reply would be taken for it.
                    if !reply.is_empty() {
                        if let Some(record) = turn.service.queue().and_then(Queue::reply_after) {
                            output.wait_for(record);
                        }
                        output.raw(reply);
                    }
                    *body = Body::Frames;
                    self.receive_by = None;
                }
                return Ok(true);
            }
            Body::Large(_) => {
                self.receive_by = None;
                if let Body::Large(large) = std::mem::replace(body, Body::Frames) {
                    turn.metrics.pulled_puts.add(u64::from(large.is_pulled));
                    let caller = Caller { session, guard: turn.guard, metrics: turn.metrics, output };
                    turn.service.publish(&large.header, large.reservation, caller)?;
                }
                return Ok(true);
            }
        }
        let unread = turn.input.unread();
        match frame::next(unread, turn.service.store.max_value_bytes()) {
            Frame::Partial => return Ok(false),
            Frame::Whole(request, used) if turn.stopping => {
                stopping(&request, turn.metrics, output);
                turn.input.advance(used);
            }
            Frame::Whole(request, used) if !session.pass().allows(request.op) => {
                forbidden(&request, session.pass(), turn.metrics, output);
                turn.input.advance(used);
                self.receive_by = None;
            }
            Frame::Large(request) if !session.pass().allows(request.op) => {
                let mark = output.mark();
                forbidden(&request, session.pass(), turn.metrics, output);
                let left = u64::from(request.header.value_bytes.get()) - request.value.len() as u64;
                *body = Body::Dropped(left, output.take_from(mark));
                turn.input.clear();
                self.receive_by = None;
            }
            Frame::Whole(request, used) if request.op == Op::Connect => {
                let messages = match self.channel {
                    None => Ok((&mut *turn.messages, turn.seat)),
                    Some(_) => Err("this connection's frames are carried by messages already"),
                };
                let status = match turn.service.connect(&request, messages, output) {
                    Ok(Connected { reads, channel }) => {
                        self.queue_pair = reads.or(self.queue_pair.take());
                        self.next_channel = channel;
                        Status::Ok
                    }
                    Err(status) => status,
                };
                turn.metrics.outcome(Op::Connect, status);
                turn.input.advance(used);
                self.receive_by = None;
            }
            Frame::Whole(request, used) if let Some(lent) = request.lent() => {
                let channel = self.channel.as_ref().map(|channel| (&mut *turn.messages, channel));
                let caller = Caller { session, guard: turn.guard, metrics: turn.metrics, output };
                if let Some(large) = pull::begin(turn.service, &request, lent, channel, caller)? {
                    *body = Body::Large(Box::new(large));
                }
                turn.input.advance(used);
                self.receive_by = None;
            }
            Frame::Whole(request, used) => {
                let caller = Caller { session, guard: turn.guard, metrics: turn.metrics, output };
                turn.service.answer(&request, caller)?;
                turn.input.advance(used);
                self.receive_by = None;
            }
            Frame::Large(request) if turn.stopping => {
                stopping(&request, turn.metrics, output);
                self.phase = Phase::Closing(false);
            }
            Frame::Large(request) => {
                let (header, here) = (*request.header, request.value.len());
                let left = u64::from(header.value_bytes.get()) - here as u64;
                let mark = output.mark();
                let caller = Caller { session, guard: turn.guard, metrics: turn.metrics, output };
                *body = match turn.service.reserve(&request, caller)? {
                    Some(mut reservation) => {
                        turn.service.store.memory().write(reservation.offset() / 8, request.value);
                        reservation.arrived(here);
                        Body::Large(Box::new(Large { header, reservation, filled: here, is_pulled: false }))
                    }
                    None => Body::Dropped(left, output.take_from(mark)),
                };
                turn.input.clear();
                self.receive_by = None;
            }
            Frame::TooLarge(op, id, frame_bytes) => {
                let max_value_bytes = turn.service.store.max_value_bytes();
                let text = format!(
                    "expected a key of at most {MAX_KEY_BYTES} bytes and a value of at most {max_value_bytes}, \
                     found a request of {frame_bytes} bytes"
                );
                output.reply(id, Status::TooLarge, 0, text.as_bytes());
                turn.metrics.outcome(op, Status::TooLarge);
                *body = Body::Dropped(frame_bytes, Vec::new());
                self.receive_by = None;
            }
            Frame::Malformed(id, malformed) => {
                debug!(%malformed, "not a request");
                turn.metrics.malformed.add(1);
                output.reply(id, Status::BadRequest, 0, malformed.to_string().as_bytes());
                self.phase = Phase::Closing(false);
            }
        }
        Ok(true)
    }
}

/// Starts fetching what the next requests will look at, all at once: one key's misses take as long as those of
/// all of them. Returns the bytes of these requests.
fn prefetch<M: Backing>(turn: &Turn<'_, M>) -> usize {
    let store = &turn.service.store;
    let unread = turn.input.unread();
    let (mut keys, mut bytes) = ([&unread[..0]; PREFETCHED_KEYS], 0);
    let mut found = 0;
    while found < PREFETCHED_KEYS
        && let Frame::Whole(request, frame_bytes) = frame::next(&unread[bytes..], store.max_value_bytes())
    {
        bytes += frame_bytes;
        keys[found] = request.key;
        found += usize::from(!request.key.is_empty());
    }
    if found > 1 {
        keys[..found].iter().for_each(|key| store.prefetch_window(key));
        keys[..found].iter().for_each(|key| store.prefetch_item(key));
    }
    bytes
}

/// The reply to a request that the client's token does not allow.
fn forbidden(request: &Request<'_>, pass: &Pass, metrics: &WorkerMetrics, output: &mut Output) {
    let text = format!("expected a token that is good for writes, found {}, which is read-only", pass.name());
    output.reply(request.header.id.get(), Status::Forbidden, 0, text.as_bytes());
    metrics.outcome(request.op, Status::Forbidden);
}

/// The reply to a request that the server does not take any more.
fn stopping(request: &Request<'_>, metrics: &WorkerMetrics, output: &mut Output) {
    output.reply(request.header.id.get(), Status::Stopping, 0, b"the server is stopping");
    metrics.outcome(request.op, Status::Stopping);
}
