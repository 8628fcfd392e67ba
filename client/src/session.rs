//! One thread's way to the server.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sidestep_core::handshake;
use sidestep_core::limits::MAX_KEY_BYTES;
use sidestep_core::message::Op;

use crate::client::{ServerInfo, Shared};
use crate::control::Control;
use crate::counters::{Counters, Effort, Stats};
use crate::error::Error;
use crate::options::{Path, PutOptions};
use crate::paths::{Paths, Reader};
use crate::pipeline::Request;
use crate::shm::Looked;
use crate::submit::{KeptAnswer, LocalGets};
use crate::value::{Answer, Meta, Value};

/// One thread's way to the server: a TCP connection and, where there is one, a path around the server's CPU.
///
/// `Send`, not shared: calls take `&mut self`. Reads that are served by `shm` make no system call. A lost
/// connection is got back by the next call that needs it, within
/// [`Options::reconnect_timeout`](crate::Options::reconnect_timeout); a write that was in flight is repeated if
/// the server still knows the session (and is then applied once), or else ends as [`Error::OutcomeUnknown`].
pub struct Session {
    pub(crate) shared: Arc<Shared>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) control: Control,
    pub(crate) paths: Paths,
    /// Answers to submitted requests that arrived while something else was waited for.
    pub(crate) kept: VecDeque<(u64, Result<KeptAnswer, Error>)>,
    /// Submitted gets that this process will answer itself.
    pub(crate) local: LocalGets,
    /// Keys of a batch that need a closer look.
    pub(crate) again: Vec<usize>,
}

impl Session {
    pub(crate) fn connect(shared: Arc<Shared>) -> Result<Self, Error> {
        let counters = shared.registry().enter();
        let connected = Self::connect_counted(shared.clone(), counters.clone());
        if connected.is_err() {
            shared.registry().leave(&counters);
        }
        connected
    }

    fn connect_counted(shared: Arc<Shared>, counters: Arc<Counters>) -> Result<Self, Error> {
        let mut control = Control::connect(shared.clone(), counters.clone(), shared.new_client_id())?;
        let paths = Paths::find(&shared, &counters, &mut control)?;
        Ok(Self {
            shared,
            counters,
            control,
            paths,
            kept: VecDeque::new(),
            local: LocalGets::default(),
            again: Vec::new(),
        })
    }

    /// The path that reads take now.
    pub fn path(&self) -> Path {
        self.paths.current(&self.control)
    }

    /// What the server told of itself when this session last connected.
    pub fn server_info(&self) -> ServerInfo {
        self.paths.server_info(&self.control)
    }

    /// Reads a value. On `rdma` it stays in the buffer that the NIC wrote: two READs, one where the location is cached,
    /// none of the server's CPU. On `shm`: two dependent cache misses, one copy and one to check it,
    /// no system call. On `tcp`: one round trip.
    pub fn get(&mut self, key: impl AsRef<[u8]>) -> Result<Option<Value>, Error> {
        let key = key.as_ref();
        check_key(key)?;
        self.settle()?;
        let mut found = None;
        let mut copy = |bytes: &[u8], meta| found = Some(Value::copied(bytes, meta));
        while let Some(reader) = self.paths.reader() {
            let looked = match reader {
                Reader::Rdma(reader) => {
                    let mut item = None;
                    match reader.find(key, &mut item) {
                        Looked::Found | Looked::Absent => {
                            if item.is_some() {
                                self.control.used(key);
                            }
                            return Ok(item.map(Value::received));
                        }
                        looked => looked,
                    }
                }
                reader => reader.look(key, &mut copy),
            };
            match looked {
                Looked::Found => {
                    self.control.used(key);
                    return Ok(found);
                }
                Looked::Absent => return Ok(None),
                Looked::Ask => break,
                Looked::Gone => self.settle_again()?,
            }
        }
        self.get_over_tcp(key, &mut copy)?;
        Ok(found)
    }

    /// Reads a value into the caller's buffer, whose old contents are dropped and whose memory is used again.
    pub fn get_into(&mut self, key: impl AsRef<[u8]>, into: &mut Vec<u8>) -> Result<Option<Meta>, Error> {
        let mut found = None;
        into.clear();
        self.get_with(key.as_ref(), &mut |bytes, meta| {
            into.clear();
            into.extend_from_slice(bytes);
            found = Some(meta);
        })?;
        Ok(found)
    }

    /// Reads a value where it was received: `on` is called with it, once, unless the key is absent.
    pub(crate) fn get_with(&mut self, key: &[u8], on: &mut dyn FnMut(&[u8], Meta)) -> Result<(), Error> {
        check_key(key)?;
        self.settle()?;
        while let Some(reader) = self.paths.reader() {
            match reader.look(key, on) {
                Looked::Found => {
                    self.control.used(key);
                    return Ok(());
                }
                Looked::Absent => return Ok(()),
                Looked::Ask => break,
                Looked::Gone => self.settle_again()?,
            }
        }
        self.get_over_tcp(key, on)
    }

    pub(crate) fn get_over_tcp(&mut self, key: &[u8], on: &mut dyn FnMut(&[u8], Meta)) -> Result<(), Error> {
        self.call(&Request::get(key), |answer| {
            if let Answer::Value(bytes, meta) = answer {
                on(bytes, meta);
            }
        })
    }

    /// Writes a value. Returns its version. One round trip.
    pub fn put(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<u64, Error> {
        self.put_with(key, value, PutOptions::default())
    }

    /// Writes a value if the key's version is `expect` (0 = if the key is absent), or else ends as
    /// [`Error::VersionMismatch`]. Returns the new version.
    pub fn put_if(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, expect: u64) -> Result<u64, Error> {
        self.put_with(key, value, PutOptions { expect: Some(expect), ttl: None })
    }

    /// Writes a value, with a condition or a time to live. Returns its version.
    pub fn put_with(
        &mut self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        options: PutOptions,
    ) -> Result<u64, Error> {
        let request = self.put_request(key.as_ref(), value.as_ref(), options)?;
        let mut written = 0;
        self.call(&request, |answer| {
            if let Answer::Written { version } = answer {
                written = version;
            }
        })?;
        Ok(written)
    }

    /// Removes a key; false: it was absent. One round trip.
    pub fn delete(&mut self, key: impl AsRef<[u8]>) -> Result<bool, Error> {
        self.delete_with(key.as_ref(), None)
    }

    /// Removes a key if its version is `expect`, or else ends as [`Error::VersionMismatch`].
    pub fn delete_if(&mut self, key: impl AsRef<[u8]>, expect: u64) -> Result<bool, Error> {
        self.delete_with(key.as_ref(), Some(expect))
    }

    fn delete_with(&mut self, key: &[u8], expect: Option<u64>) -> Result<bool, Error> {
        check_key(key)?;
        let mut removed = false;
        let request = Request { op: Op::Delete, key, value: &[], expect, ttl_ms: 0 };
        self.call(&request, |answer| removed = matches!(answer, Answer::Removed { .. }))?;
        Ok(removed)
    }

    /// Round-trip time of a request that does nothing.
    pub fn ping(&mut self) -> Result<Duration, Error> {
        let started = Instant::now();
        self.call(&Request { op: Op::Ping, ..Request::get(&[]) }, |_| {})?;
        Ok(started.elapsed())
    }

    /// Counters of the server and of this client (all its sessions).
    pub fn stats(&mut self) -> Result<Stats, Error> {
        let mut server = Err("no answer".to_owned());
        self.call(&Request { op: Op::Stats, ..Request::get(&[]) }, |answer| {
            if let Answer::Echo(body) = answer {
                server = handshake::decode_body::<handshake::Stats>(body);
            }
        })?;
        let server = server.map_err(|reason| Error::Protocol { server: self.shared.server().to_owned(), reason })?;
        self.paths.publish_counters();
        Ok(Stats { server: server.counters, facts: server.facts, client: self.shared.registry().sums() })
    }

    /// What this session's operations took beside their answers. Asks nobody.
    pub fn effort(&mut self) -> Effort {
        self.paths.publish_counters();
        self.counters.effort()
    }

    /// One request to the server, its answer waited for.
    pub(crate) fn call(&mut self, request: &Request<'_>, on: impl FnOnce(Answer<'_>)) -> Result<(), Error> {
        self.settle_request()?;
        if request.is_write() {
            self.make_room_for_write();
        }
        let Self { control, kept, .. } = self;
        let id = control.push(request);
        let (mut on, mut result) = (Some(on), None);
        while result.is_none() {
            control.drive(true, &mut |other, answer| {
                if other != id {
                    kept.push_back((other, answer.map(KeptAnswer::from)));
                    return;
                }
                result = Some(answer.map(|answer| {
                    if let Some(on) = on.take() {
                        on(answer);
                    }
                }));
            });
        }
        result.unwrap_or(Ok(()))
    }

    /// Waits until a write may be pushed; what arrives meanwhile is kept.
    fn make_room_for_write(&mut self) {
        let Self { control, kept, .. } = self;
        while control.writes_are_full() {
            control.drive(true, &mut |id, answer| kept.push_back((id, answer.map(KeptAnswer::from))));
        }
    }

    /// A put whose lengths and time to live are right.
    pub(crate) fn put_request<'a>(
        &self,
        key: &'a [u8],
        value: &'a [u8],
        options: PutOptions,
    ) -> Result<Request<'a>, Error> {
        check_key(key)?;
        let most = self.control.welcome().max_value_bytes;
        if value.len() > most as usize {
            return Err(Error::TooLarge(format!("expected a value of at most {most} bytes, found {}", value.len())));
        }
        let ttl_ms = match options.ttl {
            Some(ttl) => ttl_ms(ttl)?,
            None => 0,
        };
        Ok(Request { op: Op::Put, key, value, expect: options.expect, ttl_ms })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.paths.publish_counters();
        self.shared.registry().leave(&self.counters);
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("server", &self.shared.server())
            .field("path", &self.path())
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

/// Lengths of a key that the wire and the table can hold.
pub(crate) fn check_key(key: &[u8]) -> Result<(), Error> {
    match key.len() {
        0 => Err(Error::BadRequest("expected a key of at least 1 byte, found an empty one".to_owned())),
        n if n > MAX_KEY_BYTES => {
            Err(Error::TooLarge(format!("expected a key of at most {MAX_KEY_BYTES} bytes, found {n}")))
        }
        _ => Ok(()),
    }
}

/// Never 0, which is for ever.
fn ttl_ms(ttl: Duration) -> Result<u64, Error> {
    let too_far = |_| Error::Options(format!("a time to live of {ttl:?} is beyond what a clock can hold"));
    u64::try_from(ttl.as_millis()).map(|ms| ms.max(1)).map_err(too_far)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_to_live_is_never_for_ever() {
        for (ttl, ms) in [(0, 1), (1, 1), (1_999, 1), (2_000, 2), (3_600_000_000, 3_600_000)] {
            assert_eq!(ttl_ms(Duration::from_micros(ttl)).ok(), Some(ms));
        }
        assert!(matches!(ttl_ms(Duration::MAX), Err(Error::Options(_))));
    }
}
