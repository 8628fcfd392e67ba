//! Requests without waiting: submit many, poll for their answers.

use std::mem;

use sidestep_core::limits::MAX_WRITES_IN_FLIGHT;
use sidestep_core::message::Op;

use crate::error::Error;
use crate::options::{Path, PutOptions};
use crate::pipeline::Request;
use crate::session::{Session, check_key};
use crate::value::{Answer, Completion, Meta, Ticket};

/// Tickets of gets that this process answers itself: those of the wire never get so far.
const LOCAL: u64 = 1 << 63;

/// Gets that are looked up together: as many as a chain of READs has.
const KEYS_AT_ONCE: usize = 64;

/// An answer that had to be copied, because it arrived before it was polled for.
#[derive(Clone, Debug)]
pub(crate) enum KeptAnswer {
    Value(Vec<u8>, Meta),
    Absent,
    Written(u64),
    Removed(u64),
    Echo(Vec<u8>),
}

impl From<Answer<'_>> for KeptAnswer {
    fn from(answer: Answer<'_>) -> Self {
        match answer {
            Answer::Value(bytes, meta) => Self::Value(bytes.to_vec(), meta),
            Answer::Absent => Self::Absent,
            Answer::Written { version } => Self::Written(version),
            Answer::Removed { version } => Self::Removed(version),
            Answer::Echo(bytes) => Self::Echo(bytes.to_vec()),
        }
    }
}

impl KeptAnswer {
    fn borrow(&self) -> Answer<'_> {
        match self {
            Self::Value(bytes, meta) => Answer::Value(bytes, *meta),
            Self::Absent => Answer::Absent,
            Self::Written(version) => Answer::Written { version: *version },
            Self::Removed(version) => Answer::Removed { version: *version },
            Self::Echo(bytes) => Answer::Echo(bytes),
        }
    }
}

/// Keys of submitted gets, back to back, until they are looked up as one batch.
#[derive(Debug, Default)]
pub(crate) struct LocalGets {
    keys: Vec<u8>,
    ends: Vec<usize>,
    /// Number of the first one's ticket.
    first: u64,
}

impl LocalGets {
    fn push(&mut self, key: &[u8]) -> Ticket {
        self.keys.extend_from_slice(key);
        self.ends.push(self.keys.len());
        Ticket(LOCAL | (self.first + self.ends.len() as u64 - 1))
    }

    fn keys(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.keys[start..*end])
    }

    fn clear(&mut self) {
        self.first += self.ends.len() as u64;
        self.keys.clear();
        self.ends.clear();
    }
}

impl Session {
    /// Requests that were submitted and not handed out by [`Session::poll`] yet.
    pub fn in_flight(&self) -> usize {
        self.control.waiting() + self.kept.len() + self.local.ends.len()
    }

    /// Submits a read. Nothing is sent before the next [`Session::poll`] or blocking call. On `shm` and `rdma` the gets
    /// submitted since the last poll are looked up as one batch.
    pub fn submit_get(&mut self, key: impl AsRef<[u8]>) -> Result<Ticket, Error> {
        let key = key.as_ref();
        check_key(key)?;
        if matches!(self.path(), Path::Shm | Path::Rdma) {
            return Ok(self.local.push(key));
        }
        self.settle_request()?;
        Ok(Ticket(self.control.push(&Request::get(key))))
    }

    /// Submits a write; at most [`MAX_WRITES_IN_FLIGHT`] may be in flight.
    pub fn submit_put(
        &mut self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        options: PutOptions,
    ) -> Result<Ticket, Error> {
        let request = self.put_request(key.as_ref(), value.as_ref(), options)?;
        self.submit_write(&request)
    }

    /// Submits a removal, of a version if `expect` names one; at most [`MAX_WRITES_IN_FLIGHT`] may be in flight.
    pub fn submit_delete(&mut self, key: impl AsRef<[u8]>, expect: Option<u64>) -> Result<Ticket, Error> {
        let key = key.as_ref();
        check_key(key)?;
        self.submit_write(&Request { op: Op::Delete, key, value: &[], expect, ttl_ms: 0 })
    }

    fn submit_write(&mut self, request: &Request<'_>) -> Result<Ticket, Error> {
        self.settle_request()?;
        if self.control.writes_are_full() {
            return Err(Error::TooManyInFlight { limit: MAX_WRITES_IN_FLIGHT });
        }
        Ok(Ticket(self.control.push(request)))
    }

    /// Sends what was submitted and hands out completions, waiting for at least one unless nothing is in flight.
    /// Each ticket is handed out exactly once, in no order. Returns how many were.
    ///
    /// ```
    /// # use sidestep_client::{Answer, Client, Options};
    /// # let server = sidestep_server::Server::start(sidestep_server::Config {
    /// #     listen: "127.0.0.1:0".to_owned(), ..Default::default() })?;
    /// # let mut session = Client::connect(server.local_addr().to_string(), Options::default())?.session()?;
    /// # session.put("b", "2")?;
    /// let tickets = [session.submit_get("a")?, session.submit_get("b")?];
    /// let mut found = Vec::new();
    /// while session.in_flight() > 0 {
    ///     session.poll(|done| {
    ///         if let Ok(Answer::Value(value, _)) = done.answer {
    ///             found.push((done.ticket, value.to_vec()));
    ///         }
    ///     });
    /// }
    /// assert_eq!(found, [(tickets[1], b"2".to_vec())]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn poll(&mut self, mut on: impl FnMut(Completion<'_>)) -> usize {
        self.poll_dyn(true, &mut on)
    }

    /// [`Session::poll`] without waiting for answers. Getting a lost connection back may take its time.
    pub fn try_poll(&mut self, mut on: impl FnMut(Completion<'_>)) -> usize {
        self.poll_dyn(false, &mut on)
    }

    fn poll_dyn(&mut self, wait: bool, on: &mut dyn FnMut(Completion<'_>)) -> usize {
        let mut ended = self.hand_out_kept(on) + self.look_up_local(on);
        // With something in hand there is no need to wait, but what was submitted is to be sent.
        ended +=
            self.control.drive(wait && ended == 0, &mut |id, answer| on(Completion { ticket: Ticket(id), answer }));
        ended
    }

    fn hand_out_kept(&mut self, on: &mut dyn FnMut(Completion<'_>)) -> usize {
        let ended = self.kept.len();
        for (id, answer) in self.kept.drain(..) {
            let answer = match &answer {
                Ok(kept) => Ok(kept.borrow()),
                Err(error) => Err(error.clone()),
            };
            on(Completion { ticket: Ticket(id), answer });
        }
        ended
    }

    fn look_up_local(&mut self, on: &mut dyn FnMut(Completion<'_>)) -> usize {
        let ended = self.local.ends.len();
        if ended == 0 {
            return 0;
        }
        let mut local = mem::take(&mut self.local);
        let mut keys = local.keys();
        let mut failed: Option<Error> = None;
        for first in (0..ended).step_by(KEYS_AT_ONCE) {
            let mut some: [&[u8]; KEYS_AT_ONCE] = [&[]; KEYS_AT_ONCE];
            let count = some.iter_mut().zip(&mut keys).map(|(place, key)| *place = key).count();
            let ticket = |i: usize| Ticket(LOCAL | (local.first + (first + i) as u64));
            let mut open = [true; KEYS_AT_ONCE];
            // What could not be had for the first of them is not tried for each of the rest.
            let result = match failed.take() {
                None => self.multi_get_with(&some[..count], |i, found| {
                    open[i] = false;
                    let answer = Ok(found.map_or(Answer::Absent, |(bytes, meta)| Answer::Value(bytes, meta)));
                    on(Completion { ticket: ticket(i), answer });
                }),
                Some(error) => Err(error),
            };
            if let Err(error) = result {
                for i in (0..count).filter(|i| open[*i]) {
                    on(Completion { ticket: ticket(i), answer: Err(error.clone()) });
                }
                failed = Some(error);
            }
        }
        drop(keys);
        local.clear();
        self.local = local;
        ended
    }
}
