//! Values that are put where the server reads them by itself.

use sidestep_core::message::Op;
use tracing::warn;

use super::{Control, Handler};
use crate::counters::Count;
use crate::pipeline::{Lent, Request};

/// Values that are lent at once have no more bytes than this together, a single one excepted: their memory is pinned.
const MOST_LENT_BYTES: usize = 64 << 20;

impl Control {
    /// Puts the value of a large put where the server may read it by itself.
    pub(super) fn lend(&mut self, request: &Request<'_>) -> Option<Lent> {
        let is_much = |lent_bytes: usize| lent_bytes > 0 && lent_bytes + request.value.len() > MOST_LENT_BYTES;
        if request.op != Op::Put || !self.lends || is_much(self.pipeline.lent_bytes()) {
            return None;
        }
        let lent = self.link.as_mut()?.lend(request.key.len(), request.value);
        lent.unwrap_or_else(|reason| {
            self.sends_instead(&reason);
            None
        })
    }

    fn sends_instead(&self, reason: &str) {
        self.counters.add(Count::NotLent, 1);
        warn!(
            server = self.shared.server(),
            reason, "a large value travels in messages: it cannot be read by the server"
        );
    }

    /// The server cannot read what was lent. The easiest way to have everything in its order: another connection, over which
    /// values are sent. Returns how many requests ended.
    pub(super) fn stop_lending(&mut self, reason: &str, on: Handler<'_>) -> usize {
        self.sends_instead(reason);
        self.lends = false;
        self.drop_link();
        // It was not the channel's fault.
        self.channel_lost = None;
        self.recover(on)
    }
}
