//! Replies on their way out: copied bytes, and between them values that are sent from their items.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;

use sidestep_core::message::{REPLY_BYTES, ReplyHeader, Status};
use sidestep_fabric::region::Region;
use zerocopy::IntoBytes;

use crate::connection::Carrier;
use crate::store::Hold;

/// A connection with so many unsent bytes is not read from until its client takes some.
const LIMIT_BYTES: usize = 256 << 10;
/// A sent front of this size is cut off a buffer that does not get empty.
const CUT_BYTES: usize = 64 << 10;

/// Replies to writes that say what the table has. All others say why nothing was looked at, and are certain.
const TELLS_OF_THE_TABLE: [Status; 3] = [Status::Ok, Status::NotFound, Status::VersionMismatch];

/// A value that follows `at` bytes of the buffer.
#[derive(Debug)]
struct Held {
    at: usize,
    sent: usize,
    hold: Hold,
}

impl Held {
    fn left(&self) -> usize {
        self.hold.value_bytes() as usize - self.sent
    }
}

/// The reply at `at` of the buffer goes out when all records before this one are on the disk; so do those behind it.
#[derive(Debug)]
struct Gate {
    at: usize,
    record: u64,
}

/// What a flush came to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) bytes: usize,
    /// The carrier takes no more for now.
    pub(crate) is_carrier_full: bool,
}

/// How far the log is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogState {
    /// All records before this one are on the disk.
    pub(crate) durable: u64,
    /// The disk refuses.
    pub(crate) is_failing: bool,
}

/// The unsent replies of a connection.
#[derive(Debug, Default)]
pub(crate) struct Output {
    buffer: Vec<u8>,
    sent: usize,
    held: VecDeque<Held>,
    held_bytes: usize,
    /// In the order of the buffer, and of their records.
    gates: VecDeque<Gate>,
}

impl Output {
    /// Takes the worker's spare buffer unless it has a buffer with something in it.
    pub(crate) fn take(&mut self, spare: &mut Vec<u8>) {
        if self.buffer.is_empty() {
            std::mem::swap(&mut self.buffer, spare);
        }
    }

    /// Gives the buffer back if everything in it is sent. Idle connections keep no memory.
    pub(crate) fn give_back(&mut self, spare: &mut Vec<u8>) {
        if self.is_empty() {
            // The worker has one already if this connection came with one of its own.
            let buffer = std::mem::take(&mut self.buffer);
            if buffer.capacity() > spare.capacity() {
                *spare = buffer;
            }
            if self.held.capacity() > 0 {
                self.held = VecDeque::new();
            }
            if self.gates.capacity() > 0 {
                self.gates = VecDeque::new();
            }
        } else if self.buffer.capacity() > 4 * self.buffer.len() {
            // The worker's buffer has room for more than waits here.
            self.buffer.shrink_to(self.buffer.len());
        }
    }

    /// Memory that it holds.
    pub(crate) fn memory(&self) -> usize {
        self.buffer.capacity() + self.held.capacity() * size_of::<Held>() + self.gates.capacity() * size_of::<Gate>()
    }

    pub(crate) fn unsent(&self) -> usize {
        self.buffer.len() - self.sent + self.held_bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.unsent() == 0
    }

    /// Whether the client has to take some replies before it is served on.
    pub(crate) fn is_full(&self) -> bool {
        self.unsent() >= LIMIT_BYTES
    }

    /// Adds bytes that are no reply to a request.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Adds a reply with a value or a text.
    pub(crate) fn reply(&mut self, id: u64, status: Status, version: u64, value: &[u8]) {
        let at = self.open();
        self.buffer.extend_from_slice(value);
        self.close(at, id, status, version, value.len() as u32);
    }

    /// Begins a reply whose value is appended to [`Output::buffer`] before it is closed.
    pub(crate) fn open(&mut self) -> usize {
        let at = self.buffer.len();
        self.buffer.extend_from_slice(&[0; REPLY_BYTES]);
        at
    }

    /// Where the next reply will begin, until anything is sent.
    pub(crate) fn mark(&self) -> usize {
        self.buffer.len()
    }

    /// Takes back the replies from `mark` on, to be sent later: a client that is still sending a request does not expect
    /// its reply.
    pub(crate) fn take_from(&mut self, mark: usize) -> Vec<u8> {
        while self.gates.back().is_some_and(|gate| gate.at >= mark) {
            self.gates.pop_back();
        }
        self.buffer.split_off(mark)
    }

    /// The next reply, which is to a write, goes out when all records before this one are on the disk.
    pub(crate) fn wait_for(&mut self, record: u64) {
        self.gates.push_back(Gate { at: self.buffer.len(), record });
    }

    /// Whether anything waits for the disk.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.gates.is_empty()
    }

    /// Opens what the log has come to. While the disk refuses nobody knows whether what waits for it will be there after a
    /// crash: such writes are told to have an unknown outcome. So are those that changed nothing for what they found: that
    /// it is so rests on writes which wait as well.
    pub(crate) fn open_gates(&mut self, log: LogState) {
        while let Some(gate) = self.gates.front() {
            if gate.record > log.durable {
                if !log.is_failing {
                    break;
                }
                let status = &mut self.buffer[gate.at];
                if TELLS_OF_THE_TABLE.iter().any(|&told| told as u8 == *status) {
                    *status = Status::OutcomeUnknown as u8;
                }
            }
            self.gates.pop_front();
        }
    }

    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// Ends the reply that [`Output::open`] began at `at`.
    pub(crate) fn close(&mut self, at: usize, id: u64, status: Status, version: u64, value_bytes: u32) {
        let header = ReplyHeader {
            status: status as u8,
            flags: 0,
            reserved: 0.into(),
            value_bytes: value_bytes.into(),
            id: id.into(),
            version: version.into(),
        };
        self.buffer[at..at + REPLY_BYTES].copy_from_slice(header.as_bytes());
    }

    /// The value of the last reply follows from its item.
    pub(crate) fn hold(&mut self, hold: Hold) {
        self.held_bytes += hold.value_bytes() as usize;
        self.held.push_back(Held { at: self.buffer.len(), sent: 0, hold });
    }

    /// Sends until everything is sent that does not wait for the disk, or the carrier takes no more. Returns the number of
    /// bytes sent.
    pub(crate) fn flush<S: Read + Write + AsFd>(
        &mut self,
        mut carrier: Carrier<'_, S>,
        region: &Region,
    ) -> io::Result<Sent> {
        let (mut total, mut is_carrier_full) = (0, false);
        let end = self.gates.front().map_or(self.buffer.len(), |gate| gate.at);
        while !self.is_empty() {
            let held = self.held.front().filter(|held| held.at <= end);
            let prefix = &self.buffer[self.sent..held.map_or(end, |held| held.at)];
            if prefix.is_empty() && held.is_none() {
                break;
            }
            let sent = match held {
                Some(held) => carrier.send_from(prefix, region, held.hold.offset() + held.sent as u64, held.left()),
                None => carrier.send(prefix),
            };
            match sent {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => {
                    total += sent;
                    self.gone(sent, prefix.len().min(sent));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    is_carrier_full = true;
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.tidy();
        Ok(Sent { bytes: total, is_carrier_full })
    }

    /// `sent` bytes are sent, `copied` of them from the buffer.
    fn gone(&mut self, sent: usize, copied: usize) {
        self.sent += copied;
        if let Some(held) = self.held.front_mut() {
            held.sent += sent - copied;
            self.held_bytes -= sent - copied;
            if held.left() == 0 {
                self.held.pop_front();
            }
        }
    }

    fn tidy(&mut self) {
        if self.is_empty() {
            self.buffer.clear();
            self.gates.clear();
            self.sent = 0;
        } else if self.sent >= CUT_BYTES {
            self.buffer.drain(..self.sent);
            for held in &mut self.held {
                held.at -= self.sent;
            }
            for gate in &mut self.gates {
                gate.at -= self.sent;
            }
            self.sent = 0;
        }
    }
}
