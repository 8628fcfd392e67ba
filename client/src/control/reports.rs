//! Reports of what was found without the server's CPU. They travel with the requests, or by themselves where there are
//! none; nobody waits for one, and one that is lost is lost.

use std::time::Instant;

use sidestep_core::hash::KeyHash;

use super::Control;
use crate::counters::Count;

impl Control {
    /// A key was found without the server's CPU. One decrement, but for one in so many; never waits.
    #[inline]
    pub(crate) fn used(&mut self, key: &[u8]) {
        if self.uses.is_due() {
            self.note_use(key);
        }
    }

    #[cold]
    fn note_use(&mut self, key: &[u8]) {
        let hash = KeyHash::of(key, self.welcome.table_id);
        // With requests in flight the caller is about to send and receive by itself.
        if self.uses.note(hash, Instant::now()) && self.pipeline.waiting() == 0 && self.stands() {
            self.report();
        }
    }

    /// Sends a report by itself, once the answer to the one before is there.
    fn report(&mut self) {
        if self.uses.is_under_way() && self.step(false, &mut |_, _| ()).is_err() {
            // Nothing else was in flight: there is nothing to repeat. Whoever needs the connection gets it back.
            return self.drop_link();
        }
        self.push_report();
        if self.send().is_err() {
            self.drop_link();
        }
    }

    /// Puts what was noted before the next request, unless a report is under way.
    pub(super) fn push_report(&mut self) {
        if self.uses.is_under_way() || !self.stands() {
            return;
        }
        if let Some(noted) = self.uses.take() {
            self.counters.add(Count::UsesReported, noted.len() as u64);
            self.pipeline.push_report(noted);
        }
    }
}
