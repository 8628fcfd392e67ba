//! How long a connection may keep the server waiting, and how long it may ask nothing.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use sidestep_core::message::Status;

use super::{Body, Connection, Phase, Turn};
use crate::backing::Backing;
use crate::control::refusal;

/// Slowest rate, in bytes per millisecond, at which a large request may arrive.
const SLOWEST_BYTES_PER_MS: u64 = 64;

impl<S: Read + Write + AsFd, M: Backing> Connection<S, M> {
    /// When the connection will have kept the server waiting for too long.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        [self.receive_by, self.send_by, self.idle_by].into_iter().flatten().min()
    }

    /// Whether its client has asked nothing for as long as it may. Its next turn ends it, unless that brings something.
    pub(crate) fn has_idled(&self, now: Instant) -> bool {
        self.idle_by.is_some_and(|by| now >= by)
    }

    /// Counts from when its client last sent anything or was owed anything. What a queue pair reads is not seen here: a
    /// connection that has one is never idle.
    pub(super) fn set_idle_deadline(&mut self, turn: &Turn<'_, M>) {
        let is_at_rest = matches!(self.phase, Phase::Open(_, Body::Frames))
            && self.receive_by.is_none()
            && !(self.is_unsent() || self.stalled || self.next_channel.is_some() || self.queue_pair.is_some());
        let idle = turn.service.timeouts.idle.filter(|_| is_at_rest);
        self.idle_by = idle.map(|idle| self.idle_by.unwrap_or(turn.now + idle));
    }

    /// A request that has begun has a time to be whole. One that waits only because its client does not
    /// take replies is not late: the sending has a deadline of its own.
    pub(super) fn set_receive_deadline(&mut self, turn: &Turn<'_, M>) {
        let Phase::Open(_, body) = &self.phase else { return };
        if self.stalled {
            self.receive_by = None;
            return;
        }
        let left_bytes = match body {
            Body::Frames if (self.kept.is_empty() && !self.is_within_record()) || self.is_unsent() => {
                self.receive_by = None;
                return;
            }
            Body::Frames => 0,
            Body::Large(large) if large.is_pulled => {
                // Each piece that arrives begins it anew.
                self.receive_by.get_or_insert(turn.now + turn.service.timeouts.pull);
                return;
            }
            Body::Large(large) => large.left() as u64,
            Body::Dropped(left, _) => *left,
        };
        if self.receive_by.is_none() {
            let extra = Duration::from_millis(left_bytes / SLOWEST_BYTES_PER_MS);
            self.receive_by = Some(turn.now + turn.service.timeouts.frame + extra);
        }
    }

    /// The last word to a client that kept the server waiting beyond [`Connection::deadline`].
    pub(crate) fn expire(&mut self, turn: &mut Turn<'_, M>) {
        match &self.phase {
            // It had its last word.
            Phase::Closing(_) => return,
            // It does not take what it is told.
            _ if self.send_by.is_some() => {}
            // It has done nothing wrong: the end of the connection has it send the value again.
            Phase::Open(_, Body::Large(large)) if large.is_pulled => {}
            Phase::Handshake(_) => {
                let limit_ms = turn.service.timeouts.handshake.as_millis();
                self.output.raw(&refusal(&format!("expected the handshake to be done within {limit_ms} ms")));
            }
            Phase::Open(..) => {
                let text = "expected the rest of the request in time";
                self.output.reply(0, Status::BadRequest, 0, text.as_bytes());
            }
        }
        turn.metrics.timed_out.add(1);
        // The connection is over either way.
        let _ = self.flush(turn);
        self.say_goodbye();
    }
}
