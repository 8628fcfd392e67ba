//! What a peer that breaks the rules does.

use super::super::super::BufferPool;
use super::End;

impl End {
    /// Takes credits that it was not given.
    pub(in super::super) fn take_credits(&mut self, credits: u32) {
        self.credits += credits;
    }

    /// Sends a message of so many bytes, whatever is allowed.
    pub(in super::super) fn send_long(&mut self, bytes: usize, pool: &BufferPool) {
        if let Ok(buffer) = pool.take(bytes) {
            self.post_buffer(buffer, bytes);
        }
    }

    /// Whether bytes would go out now.
    pub(in super::super) fn can_send(&self) -> bool {
        self.has_room()
    }

    /// Gives back credits that it does not owe.
    pub(in super::super) fn owe(&mut self, credits: u32) {
        self.owed += credits;
    }
}
