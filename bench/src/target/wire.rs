//! What the peers' text protocols share: a blocking socket with `TCP_NODELAY`, one write for all that was submitted,
//! replies in the order of the requests.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::{Completion, Connection, EachCompletion, EachRead, Effort, Reply, Route, TargetError};

/// Bytes asked of the socket at a time, as far as they go.
const READ_BYTES: usize = 256 << 10;
/// Longest wait for a peer that says nothing.
const TIMEOUT: Duration = Duration::from_secs(10);

const REPLY: Reply = Reply { version: 0, route: Route::Tcp };

/// What one reply of a peer is, and how many bytes it took.
pub(super) enum Parsed {
    /// Not all of it is there yet; at least this many bytes are needed in all.
    Partial { at_least: usize },
    /// A value, in this range of the bytes given.
    Value { start: usize, end: usize, taken: usize },
    /// There is no such key.
    Absent { taken: usize },
    /// Done.
    Stored { taken: usize },
    /// The peer refused.
    Refused { reason: String },
}

/// A peer's protocol: how a request is written, how a reply is read.
pub(super) trait Protocol: Send {
    fn get(out: &mut Vec<u8>, key: &[u8]);
    fn set(out: &mut Vec<u8>, key: &[u8], value: &[u8]);
    fn parse(bytes: &[u8]) -> Parsed;
}

/// A connection that speaks `P`.
pub(super) struct Wire<P> {
    stream: TcpStream,
    out: Vec<u8>,
    inbox: Vec<u8>,
    /// Of `inbox`, what is parsed and what is filled.
    parsed: usize,
    filled: usize,
    tags: VecDeque<usize>,
    effort: Effort,
    protocol: std::marker::PhantomData<P>,
}

impl<P: Protocol> Wire<P> {
    pub(super) fn connect(address: &str) -> Result<Self, TargetError> {
        let stream = TcpStream::connect(address).map_err(|error| TargetError::new(format!("{address}: {error}")))?;
        stream.set_nodelay(true).map_err(TargetError::new)?;
        stream.set_read_timeout(Some(TIMEOUT)).map_err(TargetError::new)?;
        stream.set_write_timeout(Some(TIMEOUT)).map_err(TargetError::new)?;
        Ok(Self {
            stream,
            out: Vec::new(),
            inbox: vec![0; READ_BYTES],
            parsed: 0,
            filled: 0,
            tags: VecDeque::new(),
            effort: Effort::default(),
            protocol: std::marker::PhantomData,
        })
    }

    fn flush(&mut self) -> Result<(), TargetError> {
        if !self.out.is_empty() {
            self.stream.write_all(&self.out).map_err(TargetError::new)?;
            self.effort.bytes_sent += self.out.len() as u64;
            self.out.clear();
        }
        Ok(())
    }

    /// Reads once; what was parsed makes room first.
    fn fill(&mut self, at_least: usize) -> Result<(), TargetError> {
        self.inbox.copy_within(self.parsed..self.filled, 0);
        self.filled -= self.parsed;
        self.parsed = 0;
        if self.inbox.len() < at_least.max(self.filled + READ_BYTES / 4) {
            self.inbox.resize(at_least.max(self.filled + READ_BYTES), 0);
        }
        match self.stream.read(&mut self.inbox[self.filled..]) {
            Ok(0) => Err(TargetError::new("the peer closed the connection")),
            Ok(bytes) => {
                self.filled += bytes;
                self.effort.bytes_received += bytes as u64;
                Ok(())
            }
            Err(error) => Err(TargetError::new(error)),
        }
    }

    /// Hands out the replies that are there whole. Returns how many, and what the next one needs.
    fn hand_out(&mut self, each: EachCompletion<'_>) -> Result<(usize, usize), TargetError> {
        let mut count = 0;
        while let Some(&tag) = self.tags.front() {
            let bytes = &self.inbox[self.parsed..self.filled];
            let (outcome, taken) = match P::parse(bytes) {
                Parsed::Partial { at_least } => return Ok((count, at_least)),
                Parsed::Value { start, end, taken } => (Some((&bytes[start..end], REPLY)), taken),
                Parsed::Absent { taken } => (None, taken),
                Parsed::Stored { taken } => (Some((&[][..], REPLY)), taken),
                Parsed::Refused { reason } => return Err(TargetError(reason)),
            };
            each(Completion { tag, outcome: Ok(outcome) });
            self.tags.pop_front();
            self.parsed += taken;
            count += 1;
        }
        Ok((count, 0))
    }
}

impl<P: Protocol> Connection for Wire<P> {
    fn read(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<Option<Reply>, TargetError> {
        let mut found = None;
        self.read_batch(&[key], &mut |_, read| {
            found = read.map(|(bytes, reply)| {
                value.clear();
                value.extend_from_slice(bytes);
                reply
            });
        })?;
        Ok(found)
    }

    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<Reply, TargetError> {
        self.submit_write(0, key, value)?;
        let mut stored = None;
        self.complete(true, &mut |completion| stored = completion.outcome.ok().flatten().map(|(_, reply)| reply))?;
        stored.ok_or_else(|| TargetError::new("the peer gave no reply to a write"))
    }

    fn read_batch(&mut self, keys: &[&[u8]], each: EachRead<'_>) -> Result<(), TargetError> {
        for (tag, key) in keys.iter().enumerate() {
            self.submit_read(tag, key)?;
        }
        while !self.tags.is_empty() {
            self.complete(true, &mut |completion| each(completion.tag, completion.outcome.ok().flatten()))?;
        }
        Ok(())
    }

    fn submit_read(&mut self, tag: usize, key: &[u8]) -> Result<(), TargetError> {
        P::get(&mut self.out, key);
        self.tags.push_back(tag);
        Ok(())
    }

    fn submit_write(&mut self, tag: usize, key: &[u8], value: &[u8]) -> Result<(), TargetError> {
        P::set(&mut self.out, key, value);
        self.tags.push_back(tag);
        Ok(())
    }

    fn complete(&mut self, wait: bool, each: EachCompletion<'_>) -> Result<(), TargetError> {
        self.flush()?;
        loop {
            let (count, at_least) = self.hand_out(each)?;
            if count > 0 || !wait || self.tags.is_empty() {
                return Ok(());
            }
            self.fill(at_least)?;
        }
    }

    fn effort(&mut self) -> Effort {
        self.effort
    }
}

/// Where the first line of `bytes` ends: (without its line end, with it).
pub(super) fn line_end(bytes: &[u8]) -> Option<(usize, usize)> {
    let newline = bytes.iter().position(|&byte| byte == b'\n')?;
    let end = if newline > 0 && bytes[newline - 1] == b'\r' { newline - 1 } else { newline };
    Some((end, newline + 1))
}

/// A decimal number, nothing else.
pub(super) fn number(text: &[u8]) -> Option<usize> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// A value of `value_bytes` that starts at `start` and is followed by a line end.
pub(super) fn value_at(bytes: &[u8], start: usize, value_bytes: usize) -> Parsed {
    let end = start.saturating_add(value_bytes);
    let taken = end.saturating_add(2);
    if bytes.len() < taken {
        return Parsed::Partial { at_least: taken };
    }
    Parsed::Value { start, end, taken }
}

/// What a peer said that is not understood.
pub(super) fn refused(line: &[u8]) -> Parsed {
    Parsed::Refused { reason: format!("the peer answered {:?}", String::from_utf8_lossy(line)) }
}

/// Sends `command` over a connection of its own and returns what comes back up to `until`.
pub(super) fn ask(address: &str, command: &[u8], until: &[u8]) -> Result<String, TargetError> {
    let mut stream = TcpStream::connect(address).map_err(|error| TargetError::new(format!("{address}: {error}")))?;
    stream.set_read_timeout(Some(TIMEOUT)).map_err(TargetError::new)?;
    stream.write_all(command).map_err(TargetError::new)?;
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    while !answer.windows(until.len()).any(|window| window == until) {
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(bytes) => answer.extend_from_slice(&piece[..bytes]),
            Err(error) => return Err(TargetError::new(format!("{address}: {error}"))),
        }
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
