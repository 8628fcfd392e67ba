//! One-sided READs over a queue pair: posted in chains, completed in order.
//!
//! A READ takes its [`Buffer`] along: until its completion has been seen it belongs to the in-flight table here,
//! whatever becomes of the caller, and comes back with the completion. Requests of a reliable connection complete in the
//! order in which they were posted, so only the last of a chain asks for a completion; it speaks for all before it,
//! and gives back the places that they had in the send queue. A long READ is cut into pieces, each of which asks for one:
//! what has arrived can be looked at while the rest travels.

use std::collections::VecDeque;
use std::fmt;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ibverbs_sys as ffi;
use sidestep_core::handshake::QueuePairEnd;

use super::completions::Completions;
use super::queue_pair::{Access, QueuePair};
use super::{Buffer, Domain, Port, RdmaError};

/// Completions taken at a time.
const POLLED: usize = 16;
/// A long READ is cut into pieces of this many bytes, a multiple of every MTU, or longer ones where there would be too many.
const PIECE_BYTES: usize = 256 << 10;
/// A clock is looked at once in so many empty polls.
const POLLS_PER_LOOK: u32 = 32;

/// What to read: an address of the peer, the key to it, a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRange {
    /// First byte, as the peer counts.
    pub address: u64,
    /// Of the peer's memory region.
    pub rkey: u32,
    /// Length in bytes, at least 1.
    pub bytes: usize,
}

/// How to wait for completions.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    /// Polls for so long before it sleeps. [`Duration::MAX`]: it never sleeps.
    pub spin: Duration,
    /// Longest time without any completion.
    pub most: Duration,
}

/// A queue pair that is not connected yet.
#[derive(Debug)]
pub struct Unconnected {
    pair: QueuePair,
    completions: Arc<Completions>,
    depth: usize,
}

impl Unconnected {
    /// A queue pair with room for `depth` requests, as far as the device has it.
    pub fn new(domain: &Domain, port: &Port, depth: u32) -> Result<Self, RdmaError> {
        let depth = depth.clamp(2, domain.device().limits().send_requests.max(2));
        let completions = Arc::new(Completions::new(domain.device(), depth)?);
        let pair = QueuePair::new(domain, port, &completions, depth, Access::Nothing)?;
        Ok(Self { pair, completions, depth: depth as usize })
    }

    /// What the peer is to be told.
    pub fn end(&self) -> QueuePairEnd {
        self.pair.end()
    }

    /// Connects to the peer.
    pub fn connect(self, peer: &QueuePairEnd, waiting: Waiting) -> Result<Reads, RdmaError> {
        self.pair.connect(peer)?;
        Ok(Reads {
            pair: self.pair,
            completions: self.completions,
            depth: self.depth,
            waiting,
            chain: Chain::with_capacity(self.depth),
            in_flight: VecDeque::with_capacity(self.depth),
            done: VecDeque::new(),
            arrived: 0,
            next: 0,
            // SAFETY: all of its fields are numbers, for which zero is a value.
            polled: Box::new(unsafe { std::mem::zeroed() }),
        })
    }
}

/// READs that wait for the doorbell, as the device wants them. Their memory is used again for the next chain.
struct Chain {
    targets: Vec<ffi::ibv_sge>,
    /// Of each the pointers are set only when it is posted.
    requests: Vec<ffi::ibv_send_wr>,
}

// SAFETY: the pointers in `requests` are null, or left over from a call that is done with them; none is followed
// before it is set again.
unsafe impl Send for Chain {}
// SAFETY: as above, and a shared reference gives nothing away.
unsafe impl Sync for Chain {}

impl Chain {
    fn with_capacity(requests: usize) -> Self {
        Self { targets: Vec::with_capacity(requests), requests: Vec::with_capacity(requests) }
    }

    fn push(&mut self, number: u64, target: ffi::ibv_sge, remote_addr: u64, rkey: u32, signalled: bool) {
        let mut request = ffi::ibv_send_wr {
            wr_id: number,
            num_sge: 1,
            opcode: ffi::ibv_wr_opcode::IBV_WR_RDMA_READ,
            send_flags: if signalled { ffi::ibv_send_flags::IBV_SEND_SIGNALED.0 } else { 0 },
            ..Default::default()
        };
        request.wr.rdma = ffi::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey };
        self.targets.push(target);
        self.requests.push(request);
    }

    /// Links the requests. The last one asks for a completion.
    fn link(&mut self) -> *mut ffi::ibv_send_wr {
        let (first, first_target) = (self.requests.as_mut_ptr(), self.targets.as_mut_ptr());
        let last = self.requests.len().saturating_sub(1);
        for (i, request) in self.requests.iter_mut().enumerate() {
            request.sg_list = first_target.wrapping_add(i);
            request.next = if i == last { null_mut() } else { first.wrapping_add(i + 1) };
            if i == last {
                request.send_flags = ffi::ibv_send_flags::IBV_SEND_SIGNALED.0;
            }
        }
        // Taken anew: the references above are gone.
        self.requests.as_mut_ptr()
    }

    fn clear(&mut self) {
        self.targets.clear();
        self.requests.clear();
    }
}

/// A place of the send queue that is taken.
struct Place {
    number: u64,
    /// Of its piece.
    bytes: usize,
    /// The last piece of a READ has the READ.
    whole: Option<Whole>,
}

/// A READ: its tag, its buffer, and where in it its first byte goes.
struct Whole {
    tag: u64,
    buffer: Buffer,
    at: usize,
}

/// Posts READs and hands their buffers back. After any error it is of no use: drop it.
pub struct Reads {
    pair: QueuePair,
    completions: Arc<Completions>,
    depth: usize,
    waiting: Waiting,
    chain: Chain,
    /// In the order of their numbers; those of the chain included.
    in_flight: VecDeque<Place>,
    done: VecDeque<(u64, Buffer)>,
    /// Bytes that have arrived of the READ that the oldest place belongs to.
    arrived: usize,
    next: u64,
    /// Where completions are put: most polls find none, and should not have to clear it first.
    polled: Box<[ffi::ibv_wc; POLLED]>,
}

// Buffers, requests in progress and plain numbers: nothing here is tied to a thread.
impl Reads {
    /// READs that were pushed and not handed back yet.
    pub fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && self.done.is_empty()
    }

    /// Adds a READ of `from` into the buffer, from byte `at` on, to the chain. `tag` comes back with the buffer.
    ///
    /// Posts the chain and waits for some of it where the send queue has no place left.
    ///
    /// # Errors
    /// As [`Self::wait`]. The buffer is then kept until this is dropped.
    pub fn push(&mut self, tag: u64, buffer: Buffer, at: usize, from: RemoteRange) -> Result<(), RdmaError> {
        let end = at.checked_add(from.bytes).filter(|&end| end <= buffer.len());
        assert!(end.is_some() && from.bytes > 0, "a READ of {} bytes into {} at {at}", from.bytes, buffer.len());
        let (local_address, lkey) = buffer.target();
        let piece_bytes = self.piece_bytes(from.bytes);
        let mut whole = Some(Whole { tag, buffer, at });
        let mut offset = 0;
        while offset < from.bytes {
            let bytes = piece_bytes.min(from.bytes - offset);
            let is_last = offset + bytes == from.bytes;
            while self.in_flight.len() == self.depth {
                if let Err(error) = self.ring().and_then(|()| self.reap()) {
                    // Pieces of it may be under way: the buffer stays with them.
                    self.in_flight.push_back(Place { number: self.next, bytes: 0, whole });
                    return Err(error);
                }
            }
            let target = ffi::ibv_sge { addr: local_address + (at + offset) as u64, length: bytes as u32, lkey };
            let is_piece = bytes < from.bytes;
            self.chain.push(self.next, target, from.address.wrapping_add(offset as u64), from.rkey, is_piece);
            let whole = if is_last { whole.take() } else { None };
            self.in_flight.push_back(Place { number: self.next, bytes, whole });
            self.next += 1;
            offset += bytes;
        }
        Ok(())
    }

    fn piece_bytes(&self, bytes: usize) -> usize {
        let most = self.pair.port().message_bytes.max(4096) as usize;
        let few_enough = bytes.div_ceil(self.depth).next_multiple_of(4096);
        PIECE_BYTES.max(few_enough).min(most / 4096 * 4096)
    }

    /// Posts the chain with one doorbell. The last request asks for a completion.
    pub fn ring(&mut self) -> Result<(), RdmaError> {
        if self.chain.requests.is_empty() {
            return Ok(());
        }
        let first = self.chain.link();
        // SAFETY: the chain runs through `requests` and `targets`, which stay as they are during the call; each
        // names a range of a buffer that is in the in-flight table, and stays there until the request has completed or
        // the queue pair is destroyed.
        let posted = unsafe { self.pair.post(first) };
        self.chain.clear();
        posted
    }

    /// Takes completions, waiting for at least one that speaks for something.
    fn reap(&mut self) -> Result<(), RdmaError> {
        // Most completions come before there is a need to look at a clock.
        let mut started = None;
        let mut is_armed = false;
        let mut polls = 0u32;
        loop {
            if self.take_completions()? {
                return Ok(());
            }
            polls = polls.wrapping_add(1);
            if !is_armed && !polls.is_multiple_of(POLLS_PER_LOOK) {
                std::hint::spin_loop();
                continue;
            }
            let waited = started.get_or_insert_with(Instant::now).elapsed();
            if waited >= self.waiting.most {
                return Err(RdmaError::Silent { waited_ms: waited.as_millis() as u64 });
            }
            if waited < self.waiting.spin {
                std::hint::spin_loop();
            } else if is_armed {
                self.completions.sleep(self.waiting.most - waited)?;
                is_armed = false;
            } else {
                // What completes between the last poll and this is found by the next poll.
                self.completions.arm()?;
                is_armed = true;
            }
        }
    }

    /// Whether there were any.
    fn take_completions(&mut self) -> Result<bool, RdmaError> {
        let count = self.completions.poll(&mut self.polled[..])?;
        for completion in &self.polled[..count.min(POLLED)] {
            // Of a failed one nothing means anything but its id and status.
            if let Some((status, _)) = completion.error() {
                return Err(RdmaError::completion(status));
            }
            while let Some(place) = self.in_flight.pop_front_if(|place| place.number <= completion.wr_id()) {
                self.arrived += place.bytes;
                if let Some(Whole { tag, buffer, .. }) = place.whole {
                    self.done.push_back((tag, buffer));
                    self.arrived = 0;
                }
            }
        }
        Ok(count > 0)
    }

    /// The next READ that has completed, in the order of pushing; waits for it. None: there is none under way.
    ///
    /// # Errors
    /// An error completion, or none for too long: every buffer is kept until this is dropped.
    pub fn wait(&mut self) -> Result<Option<(u64, Buffer)>, RdmaError> {
        self.wait_with(&mut |_| {})
    }

    /// The same. Of a READ in pieces (one that is longer than 256 KiB) `on_arrived` is called with the bytes from its first
    /// on that have arrived, each time that there are more, until it is whole.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub fn wait_with(&mut self, on_arrived: &mut dyn FnMut(&[u8])) -> Result<Option<(u64, Buffer)>, RdmaError> {
        self.ring()?;
        let mut told = 0;
        while self.done.is_empty() && !self.in_flight.is_empty() {
            if self.arrived > told
                && let Some(whole) = self.in_flight.iter().find_map(|place| place.whole.as_ref())
            {
                told = self.arrived;
                // SAFETY: the pieces of these bytes have completed, without error, so the device writes to them no more;
                // of the others no reference is made. The pieces were of this buffer: it is in the first place that has one.
                on_arrived(unsafe { whole.buffer.arrived(whole.at, told) });
            }
            self.reap()?;
        }
        Ok(self.done.pop_front())
    }
}

impl Drop for Reads {
    fn drop(&mut self) {
        if !self.pair.destroy() {
            // The device may still write into the buffers: they must not be used again.
            std::mem::forget(std::mem::take(&mut self.in_flight));
        }
    }
}

impl fmt::Debug for Reads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reads")
            .field("pair", &self.pair)
            .field("in_flight", &self.in_flight.len())
            .finish_non_exhaustive()
    }
}
