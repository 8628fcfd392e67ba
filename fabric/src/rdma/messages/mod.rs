//! Messages: a stream of bytes each way, cut into SENDs of at most [`MESSAGE_BYTES`].
//!
//! An [`Exchange`] has the channels of one thread: one completion queue and one shared receive queue for all of them.
//! It never waits: whoever drives it polls, or arms it and sleeps on its descriptor. Nothing is allocated for a message,
//! and nothing completes at the sender but the last of each half of its send queue.
//!
//! A peer that breaks the rules (credits, lengths) loses its channel; the others go on.
//!
//! Beside its messages an end may read, one-sided, what the peer has lent it: [`Exchange::pull`].

mod channel;
mod receives;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ibverbs_sys as ffi;
use sidestep_core::handshake::MessagesEnd;

use self::channel::End;
pub(super) use self::receives::SharedQueue;
use self::receives::{RECEIVE, Receives};
use super::completions::Completions;
use super::queue_pair::{Access, QueuePair};
use super::{BufferPool, Domain, LocalRange, Port, RdmaError, RemoteRange};
use crate::region::Region;

/// Longest message.
pub const MESSAGE_BYTES: usize = 8 << 10;

/// Completions taken at a time.
const POLLED: usize = 16;
/// Requests that a channel has under way at once.
const SENDS: u32 = 32;
/// Messages that are no longer carry their bytes in the request itself, where the device does that: a small request or
/// reply takes no buffer.
const INLINE_BYTES: u32 = 220;
/// READs that a channel has under way at once: they leave most of its send queue to messages.
const READS: u32 = 8;
/// Completions of a channel's own requests that may wait at once: one for each half of its queue, one that was asked for,
/// and one for each READ.
const SEND_COMPLETIONS: u32 = 4 + READS;
/// Memory for buffers that is kept registered; beyond it each use registers anew.
const POOL_BYTES: usize = 1 << 40;
/// A queue pair that is given up is destroyed only after this time: messages that it had begun to receive hold buffers
/// of the shared queue, and destroying it may drop the completions that give them back.
const LAST_COMPLETIONS: Duration = Duration::from_millis(100);

/// A channel of an [`Exchange`]; to be given back by [`Exchange::close`].
#[derive(Debug)]
pub struct Channel {
    index: usize,
}

/// The channels of one thread.
pub struct Exchange {
    domain: Domain,
    port: Port,
    completions: Arc<Completions>,
    pool: BufferPool,
    receives: Receives,
    /// Messages that each channel has room for.
    each: u16,
    most: usize,
    ends: Vec<Option<End>>,
    /// Indices by the numbers of the queue pairs.
    by_number: BTreeMap<u32, usize>,
    /// Given up, until when.
    dying: VecDeque<(Instant, End)>,
    polled: Box<[ffi::ibv_wc; POLLED]>,
    is_armed: bool,
    received: u64,
    sent: u64,
}

impl Exchange {
    /// For at most `channels` channels, as far as the device has room, each with room for `receives` messages.
    pub fn new(domain: &Domain, port: &Port, channels: u32, receives: u16) -> Result<Self, RdmaError> {
        let limits = domain.device().limits();
        let each = u32::from(receives);
        let most =
            channels.min(limits.shared_receives / each.max(1)).min(limits.completions / (each + SEND_COMPLETIONS));
        if most == 0 {
            let source = std::io::Error::other(format!("the device {} has no room for it", domain.device().name()));
            return Err(RdmaError::verb("create a shared receive queue", source));
        }
        let completions = Arc::new(Completions::new(domain.device(), most * (each + SEND_COMPLETIONS))?);
        let pool = BufferPool::new(domain, POOL_BYTES);
        Ok(Self {
            receives: Receives::new(domain, &pool, &completions, most * each)?,
            domain: domain.clone(),
            port: port.clone(),
            completions,
            pool,
            each: receives,
            most: most as usize,
            ends: Vec::new(),
            by_number: BTreeMap::new(),
            dying: VecDeque::new(),
            // SAFETY: all of its fields are numbers, for which zero is a value.
            polled: Box::new(unsafe { std::mem::zeroed() }),
            is_armed: false,
            received: 0,
            sent: 0,
        })
    }

    /// A new channel that is not connected yet, and what the peer is to be told. What happens on it is told of by `tag`.
    /// With `is_read` the peer may read, one-sided, what is exposed in the domain.
    pub fn open(&mut self, tag: usize, is_read: bool) -> Result<(Channel, MessagesEnd), RdmaError> {
        self.bury();
        if self.by_number.len() >= self.most {
            let source = std::io::Error::other(format!("there are {} already, as many as there may be", self.most));
            return Err(RdmaError::verb("open another message channel", source));
        }
        let access = if is_read { Access::Read } else { Access::Nothing };
        let depth = SENDS.min(self.domain.device().limits().send_requests);
        let sends = (depth, INLINE_BYTES);
        let shared = self.receives.queue()?;
        let pair = QueuePair::with_messages(&self.domain, &self.port, &self.completions, sends, access, shared)?;
        let each = u32::from(self.each);
        self.receives.grow(each)?;
        let index = self.ends.iter().position(Option::is_none).unwrap_or_else(|| {
            self.ends.push(None);
            self.ends.len() - 1
        });
        self.by_number.insert(pair.number(), index);
        let end = MessagesEnd { end: pair.end(), receives: self.each };
        self.ends[index] = Some(End::new(pair, tag, depth, each));
        Ok((Channel { index }, end))
    }

    /// Connects a channel to its peer.
    pub fn connect(&mut self, channel: &Channel, peer: &MessagesEnd) -> Result<(), RdmaError> {
        open(&mut self.ends, channel)?.connect(peer)
    }

    /// Ends a channel: nothing is sent or received any more. The queue pair goes with a later [`Self::tidy`].
    pub fn close(&mut self, Channel { index }: Channel) {
        self.bury();
        let Some(mut end) = self.ends.get_mut(index).and_then(Option::take) else { return };
        self.by_number.remove(&end.pair.number());
        end.pair.fail();
        self.receives.shrink(end.receives());
        for buffer in end.drain() {
            give_back(&mut self.receives, buffer);
        }
        self.dying.push_back((Instant::now() + LAST_COMPLETIONS, end));
    }

    /// Destroys queue pairs of closed channels for which it is time. False: there are none left.
    pub fn tidy(&mut self) -> bool {
        self.bury();
        !self.dying.is_empty()
    }

    fn bury(&mut self) {
        if !self.dying.is_empty() {
            let now = Instant::now();
            while self.dying.front().is_some_and(|(until, _)| *until <= now) {
                self.dying.pop_front();
            }
        }
    }

    /// Channels that are open.
    pub fn channels(&self) -> usize {
        self.by_number.len()
    }

    /// Messages received and sent so far, those that only give credits back not counted as sent.
    pub fn counts(&self) -> (u64, u64) {
        (self.received, self.sent)
    }

    /// Of all channels.
    pub fn tags(&self) -> impl Iterator<Item = usize> + '_ {
        self.ends.iter().flatten().map(|end| end.tag)
    }

    /// Takes what has completed, and tells `on` the tags of the channels on which something happened: bytes came, there
    /// is room to send, or it failed. A tag may be told more than once. Returns how many completions there were. No
    /// system call, unless credits are to be given back.
    pub fn poll(&mut self, mut on: impl FnMut(usize)) -> Result<usize, RdmaError> {
        // Also when nothing has completed: or what was given up last would stay until the next message.
        self.bury();
        let count = self.completions.poll(&mut self.polled[..])?.min(POLLED);
        if count == 0 {
            return Ok(0);
        }
        let Self { receives, ends, by_number, polled, received: all, .. } = self;
        for completion in &polled[..count] {
            // Of a failed one nothing means anything but its id, its status and the queue pair's number.
            let end = by_number.get(&completion.qp_num).and_then(|&index| ends[index].as_mut());
            let error = completion.error().map(|(status, _)| RdmaError::completion(status));
            let received = if completion.wr_id() & RECEIVE != 0 { receives.take(completion.wr_id()) } else { None };
            let Some(end) = end else {
                // Of one that was given up.
                received.into_iter().for_each(|buffer| give_back(receives, buffer));
                continue;
            };
            match (received, error) {
                (Some(buffer), None) => {
                    *all += 1;
                    let credits = completion.imm_data().map(u32::from_be);
                    if let Some(buffer) = end.arrived(buffer, completion.len(), credits) {
                        give_back(receives, buffer);
                    }
                    end.return_credits();
                }
                (Some(buffer), Some(error)) => {
                    give_back(receives, buffer);
                    end.fail(error);
                }
                (None, None) => end.sent(completion.wr_id()),
                (None, Some(error)) => end.fail(error),
            }
            on(end.tag);
        }
        Ok(count)
    }

    /// Has the descriptor become readable with the next completion. What completed before is not told of: poll after this.
    pub fn arm(&mut self) -> Result<(), RdmaError> {
        if !self.is_armed {
            self.completions.arm()?;
            self.is_armed = true;
        }
        Ok(())
    }

    /// Takes note of the descriptor's having become readable.
    pub fn wake(&mut self) {
        while self.completions.acknowledge() {
            self.is_armed = false;
        }
    }

    /// Sleeps until something completes after [`Self::arm`], or `other` ends or has bytes, for at most `time`. True: it
    /// was `other`. May wake for nothing.
    pub fn sleep(&mut self, other: BorrowedFd<'_>, time: Duration) -> Result<bool, RdmaError> {
        let is_other = self.completions.sleep_or(other, time)?;
        self.is_armed = false;
        Ok(is_other)
    }

    /// Sends as much of `bytes` as goes into one message: copied, or in the request itself. 0: no room for one now; the
    /// channel's tag is told once there may be. One system call on a device without a doorbell in user space, else none.
    pub fn send(&mut self, channel: &Channel, bytes: &[u8]) -> Result<usize, RdmaError> {
        let Self { ends, pool, sent, .. } = self;
        let bytes = open(ends, channel)?.send(bytes, pool)?;
        *sent += u64::from(bytes > 0);
        Ok(bytes)
    }

    /// As [`Self::send`], of `prefix` and after it a range (offset, length) of the region. The offset is a multiple of 8,
    /// and stays one when what was sent is left out next time.
    pub fn send_from(
        &mut self,
        channel: &Channel,
        prefix: &[u8],
        region: &Region,
        range: (u64, usize),
    ) -> Result<usize, RdmaError> {
        let Self { ends, pool, sent, .. } = self;
        let bytes = open(ends, channel)?.send_from(prefix, region, range, pool)?;
        *sent += u64::from(bytes > 0);
        Ok(bytes)
    }

    /// Takes bytes that have come, as far as there is room. 0: none now.
    ///
    /// # Errors
    /// Once all that came before it has been taken: why the channel is of no use any more.
    pub fn receive(&mut self, channel: &Channel, into: &mut [u8]) -> Result<usize, RdmaError> {
        let Self { ends, receives, .. } = self;
        open(ends, channel)?.receive(into, receives)
    }

    /// As [`Self::receive`], to a range (offset, length) of the region that nobody else uses.
    pub fn receive_into(
        &mut self,
        channel: &Channel,
        region: &Region,
        range: (u64, usize),
    ) -> Result<usize, RdmaError> {
        let Self { ends, receives, .. } = self;
        open(ends, channel)?.receive_into(region, range, receives)
    }

    /// Begins to read `from` of the peer's memory into `into`; one at a time. The channel's tag is told as bytes arrive.
    ///
    /// `memory` keeps what is read into from any other use. It is let go only when the device is done with it: after the
    /// last READ has completed, or, where the channel fails or is closed, after its queue pair is destroyed.
    ///
    /// # Errors
    /// It cannot be begun; nothing will be read.
    pub fn pull(
        &mut self,
        channel: &Channel,
        from: RemoteRange,
        into: LocalRange,
        memory: Arc<dyn Send + Sync>,
    ) -> Result<(), RdmaError> {
        open(&mut self.ends, channel)?.pull(from, into, memory)
    }

    /// How many more bytes of a [`Self::pull`] have arrived since the last call, in their order. 0: none now.
    ///
    /// # Errors
    /// As of [`Self::receive`].
    pub fn pulled(&mut self, channel: &Channel) -> Result<usize, RdmaError> {
        open(&mut self.ends, channel)?.pulled()
    }

    /// Whether all that was sent has reached the peer, or never will. If not, the channel's tag is told later.
    pub fn is_delivered(&mut self, channel: &Channel) -> bool {
        open(&mut self.ends, channel).map_or(true, End::is_delivered)
    }
}

fn open<'a>(ends: &'a mut [Option<End>], channel: &Channel) -> Result<&'a mut End, RdmaError> {
    let closed = || RdmaError::Peer { expected: "an open channel", found: channel.index as u64 };
    ends.get_mut(channel.index).and_then(Option::as_mut).ok_or_else(closed)
}

/// A buffer that cannot be posted again is lost to the queue: it has one fewer, and says so.
fn give_back(receives: &mut Receives, buffer: super::Buffer) {
    if let Err(error) = receives.give_back(buffer) {
        tracing::warn!(%error, "a receive buffer is lost");
    }
}

impl AsFd for Exchange {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.completions.fd()
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let mut are_gone = true;
        for end in self.ends.iter_mut().flatten().chain(self.dying.iter_mut().map(|(_, end)| end)) {
            are_gone &= end.destroy();
        }
        self.ends.clear();
        self.dying.clear();
        if !self.receives.destroy() || !are_gone {
            self.receives.forget();
        }
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange")
            .field("port", &self.port.to_string())
            .field("channels", &self.channels())
            .field("receives", &self.receives)
            .finish_non_exhaustive()
    }
}
