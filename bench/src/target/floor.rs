//! What a path cannot be quicker than: the same bytes by the same means, without a table. Driven and verified as the
//! stores are. Keys are record numbers (`insertorder=ordered`), so that nothing has to be looked up.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::bare_read::BareRead;
use super::wire::{Parsed, Protocol, Wire};
use super::{Completion, Connection, EachCompletion, EachRead, Reply, Route, Target, TargetError};
use crate::workload::{Stamp, Workload, fill};

/// Bytes of the length that precedes a key and a value on the socket.
const LENGTH_BYTES: usize = 4;
const REPLY: Reply = Reply { version: 0, route: Route::Local };

/// The values of a workload, one after the other.
#[derive(Debug)]
pub(super) struct Values {
    pub(super) bytes: Vec<u8>,
    value_bytes: usize,
}

impl Values {
    fn of(workload: &Workload) -> Self {
        let value_bytes = workload.value_bytes;
        let mut bytes = vec![0; value_bytes * workload.records as usize];
        for (record, value) in bytes.chunks_exact_mut(value_bytes.max(1)).enumerate() {
            fill(record as u64, Stamp::LOADED, value);
        }
        Self { bytes, value_bytes }
    }

    /// Where a record's value is.
    pub(super) fn place(&self, key: &[u8]) -> Option<Range<usize>> {
        let digits = key.strip_prefix(b"user")?;
        let record = digits.iter().fold(0_usize, |number, digit| number * 10 + usize::from(digit.wrapping_sub(b'0')));
        let start = record.checked_mul(self.value_bytes)?;
        let place = start..start.checked_add(self.value_bytes)?;
        (place.end <= self.bytes.len()).then_some(place)
    }

    fn get(&self, key: &[u8]) -> Option<&[u8]> {
        Some(&self.bytes[self.place(key)?])
    }
}

/// Copies of values out of an array in this process: the floor of `shm`.
#[derive(Debug)]
pub struct Memcpy(Arc<Values>);

impl Memcpy {
    /// With the values of `workload`, whose keys must be ordered.
    #[must_use]
    pub fn new(workload: &Workload) -> Self {
        Self(Arc::new(Values::of(workload)))
    }

    /// The other floor, with the same values. Its threads end with their connections.
    ///
    /// # Errors
    /// There is no port to be had.
    pub fn echo(&self) -> Result<Echo, TargetError> {
        Echo::start(self.0.clone())
    }

    /// That of `rdma`, with the same values, on the port by which the server at `HOST:PORT` is spoken to; `spin` polls
    /// instead of sleeping.
    ///
    /// # Errors
    /// There is no such port, or its device cannot have so much memory.
    pub fn bare_read(&self, server: &str, spin: bool) -> Result<BareRead, TargetError> {
        BareRead::start(&self.0, server, spin)
    }
}

impl Target for Memcpy {
    fn name(&self) -> &str {
        "memcpy"
    }

    fn about(&self) -> String {
        "copies out of an array in this process, by record number".into()
    }

    fn route(&self) -> Route {
        Route::Local
    }

    fn connect(&self, _depth: usize) -> Result<Box<dyn Connection>, TargetError> {
        Ok(Box::new(Copies { values: self.0.clone(), submitted: Vec::new() }))
    }

    fn server_cpu(&self) -> Option<Duration> {
        None
    }

    fn is_memory(&self) -> bool {
        true
    }
}

struct Copies {
    values: Arc<Values>,
    submitted: Vec<(usize, Vec<u8>)>,
}

pub(super) fn read_only() -> TargetError {
    TargetError::new("a floor has no writes")
}

impl Connection for Copies {
    fn read(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<Option<Reply>, TargetError> {
        Ok(self.values.get(key).map(|found| {
            value.clear();
            value.extend_from_slice(found);
            REPLY
        }))
    }

    fn write(&mut self, _key: &[u8], _value: &[u8]) -> Result<Reply, TargetError> {
        Err(read_only())
    }

    fn read_batch(&mut self, keys: &[&[u8]], each: EachRead<'_>) -> Result<(), TargetError> {
        let mut value = Vec::new();
        for (index, key) in keys.iter().enumerate() {
            let found = self.read(key, &mut value)?;
            each(index, found.map(|reply| (value.as_slice(), reply)));
        }
        Ok(())
    }

    fn submit_read(&mut self, tag: usize, key: &[u8]) -> Result<(), TargetError> {
        self.submitted.push((tag, key.to_vec()));
        Ok(())
    }

    fn submit_write(&mut self, _tag: usize, _key: &[u8], _value: &[u8]) -> Result<(), TargetError> {
        Err(read_only())
    }

    fn complete(&mut self, _wait: bool, each: EachCompletion<'_>) -> Result<(), TargetError> {
        for (tag, key) in std::mem::take(&mut self.submitted) {
            each(Completion { tag, outcome: Ok(self.values.get(&key).map(|value| (value, REPLY))) });
        }
        Ok(())
    }
}

/// Threads of this process that answer keys with values over loopback sockets: the floor of `tcp`.
#[derive(Debug)]
pub struct Echo {
    address: SocketAddr,
}

impl Echo {
    fn start(values: Arc<Values>) -> Result<Self, TargetError> {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(TargetError::new)?;
        let address = listener.local_addr().map_err(TargetError::new)?;
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let values = values.clone();
                // A client that goes away ends its thread.
                std::thread::spawn(move || drop(answer(stream, &values)));
            }
        });
        Ok(Self { address })
    }
}

/// Answers as many requests as came with each read with one write.
fn answer(mut stream: TcpStream, values: &Values) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut inbox, mut out, mut filled) = (vec![0; 64 << 10], Vec::new(), 0);
    loop {
        let received = stream.read(&mut inbox[filled..])?;
        if received == 0 {
            return Ok(());
        }
        filled += received;
        let mut taken = 0;
        while let Some((key, end)) = framed(&inbox[taken..filled]) {
            let value = values.get(key).unwrap_or_default();
            out.extend_from_slice(&(value.len() as u32).to_le_bytes());
            out.extend_from_slice(value);
            taken += end;
        }
        inbox.copy_within(taken..filled, 0);
        filled -= taken;
        stream.write_all(&out)?;
        out.clear();
    }
}

/// What follows a length, and where it ends, once all of it is there.
fn framed(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let length = u32::from_le_bytes(*bytes.first_chunk::<LENGTH_BYTES>()?) as usize;
    Some((bytes.get(LENGTH_BYTES..LENGTH_BYTES + length)?, LENGTH_BYTES + length))
}

impl Target for Echo {
    fn name(&self) -> &str {
        "tcp echo"
    }

    fn about(&self) -> String {
        format!("threads of this process that answer with the same bytes, at {}", self.address)
    }

    fn route(&self) -> Route {
        Route::Tcp
    }

    fn connect(&self, _depth: usize) -> Result<Box<dyn Connection>, TargetError> {
        Ok(Box::new(Wire::<Raw>::connect(&self.address.to_string())?))
    }

    fn server_cpu(&self) -> Option<Duration> {
        None
    }
}

/// A length and a key; a length and a value.
struct Raw;

impl Protocol for Raw {
    fn get(out: &mut Vec<u8>, key: &[u8]) {
        out.extend_from_slice(&(key.len() as u32).to_le_bytes());
        out.extend_from_slice(key);
    }

    fn set(out: &mut Vec<u8>, key: &[u8], _value: &[u8]) {
        Self::get(out, key);
    }

    fn parse(bytes: &[u8]) -> Parsed {
        match framed(bytes) {
            Some((_, end)) => Parsed::Value { start: LENGTH_BYTES, end, taken: end },
            None => {
                let length = bytes.first_chunk::<LENGTH_BYTES>().map_or(0, |length| u32::from_le_bytes(*length));
                Parsed::Partial { at_least: LENGTH_BYTES + length as usize }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floors_give_every_record() {
        let workload = Workload { records: 300, ordered_keys: true, ..Workload::preset("kv64").expect("a preset") };
        let memcpy = Memcpy::new(&workload);
        let floors: [&dyn Target; 2] = [&memcpy, &memcpy.echo().expect("a port")];
        for floor in floors {
            let mut connection = floor.connect(1).expect("connected");
            let (mut key, mut value, mut expected) = (Vec::new(), Vec::new(), vec![0; workload.value_bytes]);
            for record in 0..workload.records {
                key.clear();
                let _ = workload.key_shape().render(record, &mut key);
                assert!(connection.read(&key, &mut value).expect("read").is_some());
                fill(record, Stamp::LOADED, &mut expected);
                assert_eq!(value, expected, "{}: record {record}", floor.name());
            }
        }
    }
}
