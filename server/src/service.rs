//! What the server does for a client, whatever way the request came.

use std::sync::Arc;

use crossbeam_epoch::Guard;
use sidestep_core::handshake::{self, Hello, ShmOffer, Stats, Welcome};
use sidestep_core::message::{LentValue, Op, RequestHeader, Status};
use sidestep_fabric::region::Region;

use crate::access::{Access, Pass};
use crate::backing::Backing;
use crate::config::Timeouts;
use crate::control::{Gate, random};
use crate::durable::{LogHandle, Queue};
use crate::frame::{LARGE_VALUE_BYTES, Request, expected};
use crate::metrics::{Metrics, WorkerMetrics};
use crate::output::Output;
use crate::rdma::{Channel, Connected, Messages, Rdma};
use crate::scan;
use crate::sessions::{Applied, Attached, Outcome, Sessions};
use crate::store::{Got, Reservation, Store, WriteError};
use crate::tls::TlsDoor;
use crate::uses;

/// Where a client on the same host can have the table's memory.
#[derive(Clone, Debug)]
pub(crate) struct ShmAddress {
    pub(crate) socket_name: Vec<u8>,
    pub(crate) host_boot_id: String,
}

/// One table and everything that serving it takes. Shared by all workers.
#[derive(Debug)]
pub(crate) struct Service<M = Region> {
    pub(crate) store: Arc<Store<M>>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) metrics: Metrics,
    pub(crate) access: Arc<Access>,
    /// None: connections are not encrypted.
    pub(crate) tls: Option<TlsDoor>,
    pub(crate) durable: bool,
    /// Where writes go beside the table.
    pub(crate) log: Option<LogHandle>,
    pub(crate) shm: Result<ShmAddress, String>,
    /// The `rdma` path, or why there is none.
    pub(crate) rdma: Result<Rdma, String>,
    pub(crate) timeouts: Timeouts,
}

#[cfg(any(test, feature = "fuzzing"))]
impl<M> Service<M> {
    /// A table that one worker serves without tokens, TLS, log or other paths.
    pub(crate) fn alone(store: Arc<Store<M>>, most_buffered: u64) -> Self {
        let timeouts = Timeouts::default();
        Self {
            store,
            sessions: Arc::new(Sessions::new(timeouts.session)),
            metrics: Metrics::new(1, most_buffered),
            access: Arc::new(Access::new(None)),
            tls: None,
            durable: false,
            log: None,
            shm: Err("not here".into()),
            rdma: Err("not here".into()),
            timeouts,
        }
    }
}

/// Who asks, and where the answer goes.
pub(crate) struct Caller<'a> {
    pub(crate) session: &'a Attached,
    pub(crate) guard: &'a mut Guard,
    pub(crate) metrics: &'a WorkerMetrics,
    pub(crate) output: &'a mut Output,
}

/// The session that asked is over: its connection has no more to say.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Superseded;

impl<M: Backing> Gate for Service<M> {
    fn access(&self) -> &Access {
        &self.access
    }

    fn admit(&self, hello: &Hello, pass: Pass) -> Result<(Attached, Welcome), String> {
        let resume = hello.resume_boot_id == self.store.boot_id();
        let (session, resumed) = self.sessions.attach(hello.client_id, resume, random()?, pass)?;
        let shm = self.shm.clone().map(|address| ShmOffer {
            socket_name: address.socket_name,
            ticket: session.ticket(),
            host_boot_id: address.host_boot_id,
        });
        let welcome = Welcome {
            mac: [0; 32],
            table_id: self.store.table_id(),
            boot_id: self.store.boot_id(),
            resumed,
            memory_bytes: self.store.memory_bytes(),
            segment_bytes: self.store.segment_bytes(),
            max_value_bytes: self.store.max_value_bytes(),
            durable: self.durable,
            pid: std::process::id(),
            report_one_in: self.store.report_one_in(),
            shm,
            rdma: self.rdma.as_ref().map(Rdma::offer).map_err(String::clone),
        };
        Ok((session, welcome))
    }
}

impl<M: Backing> Service<M> {
    /// Answers a whole request into `output`.
    ///
    /// Reads run under the pin; a write runs outside of it, so that it can wait for extents to be given back.
    pub(crate) fn answer(&self, request: &Request<'_>, caller: Caller<'_>) -> Result<(), Superseded> {
        let id = request.header.id.get();
        let status = match request.op {
            Op::Get => self.get(id, request.key, caller.guard, caller.output),
            Op::Ping => {
                caller.output.reply(id, Status::Ok, 0, request.value);
                Status::Ok
            }
            Op::Stats => {
                let stats = self.stats();
                let (status, body) = match handshake::encode_body(&stats) {
                    Ok(body) => (Status::Ok, body),
                    Err(reason) => (Status::TooLarge, reason.into_bytes()),
                };
                caller.output.reply(id, status, 0, &body);
                status
            }
            // The connection, which the queue pair belongs to, has done it.
            Op::Connect => Status::BadRequest,
            Op::Touch => uses::answer(&self.store, request, caller.metrics, caller.output),
            Op::Scan => scan::answer(&self.store, request, caller.guard, caller.output),
            Op::Put | Op::Delete | Op::Flush => {
                let write = || self.write(request);
                return caller.write(self.queue(), request.op, request.header, write);
            }
        };
        caller.metrics.outcome(request.op, status);
        Ok(())
    }

    /// Connects what the client asks for, and adds the reply.
    pub(crate) fn connect(
        &self,
        request: &Request<'_>,
        messages: Result<(&mut Messages, usize), &str>,
        output: &mut Output,
    ) -> Result<Connected, Status> {
        let id = request.header.id.get();
        let connected = self.rdma.as_ref().map_err(String::clone);
        match connected.and_then(|rdma| rdma.connect(request.value, messages)) {
            Ok((connected, body)) => {
                output.reply(id, Status::Ok, 0, &body);
                Ok(connected)
            }
            Err(reason) => {
                output.reply(id, Status::Unavailable, 0, reason.as_bytes());
                Err(Status::Unavailable)
            }
        }
    }

    fn get(&self, id: u64, key: &[u8], guard: &Guard, output: &mut Output) -> Status {
        let at = output.open();
        match self.store.get(key, guard, LARGE_VALUE_BYTES as usize, output.buffer()) {
            Got::Copied { version, value_bytes } => output.close(at, id, Status::Ok, version, value_bytes),
            Got::Held(hold) => {
                output.close(at, id, Status::Ok, hold.version(), hold.value_bytes());
                output.hold(hold);
            }
            Got::Absent => {
                output.close(at, id, Status::NotFound, 0, 0);
                return Status::NotFound;
            }
        }
        Status::Ok
    }

    fn write(&self, request: &Request<'_>) -> Result<Outcome, WriteError> {
        if request.op == Op::Delete {
            let removed = self.store.delete(request.key, request.expect())?;
            return Ok(match removed {
                Some(version) => Outcome { status: Status::Ok, version },
                None => Outcome { status: Status::NotFound, version: 0 },
            });
        }
        if request.op == Op::Flush {
            let flushed = scan::flush(&self.store, request);
            if let (None, Some(log)) = (flushed.next(), &self.log) {
                log.bell.ring();
            }
            return Ok(Outcome { status: Status::Ok, version: flushed.0 });
        }
        let expires_ms = self.store.end_after(request.header.ttl_ms.get());
        let version = self.store.put(request.key, request.value, request.expect(), expires_ms)?;
        Ok(Outcome { status: Status::Ok, version })
    }

    /// Takes the space for a large value; None if the put has its reply already and the value is of no use.
    pub(crate) fn reserve(
        &self,
        request: &Request<'_>,
        caller: Caller<'_>,
    ) -> Result<Option<Reservation<M>>, Superseded> {
        let header = request.header;
        let reserved = match caller.session.seen(header.sequence.get()) {
            Some(applied) => return caller.written(self.queue(), Op::Put, header, applied, "").map(|()| None),
            None => match self.queue().and_then(Queue::refusal) {
                Some(reason) => Err(WriteError::NotLogged(reason)),
                None => {
                    let expires_ms = self.store.end_after(header.ttl_ms.get());
                    let value_bytes = header.value_bytes.get();
                    caller.guard.repin_after(|| self.store.reserve(request.key, value_bytes, expires_ms))
                }
            },
        };
        match reserved {
            Ok(reservation) => Ok(Some(reservation)),
            Err(error) => caller.write(self.queue(), Op::Put, header, || Err(error)).map(|()| None),
        }
    }

    /// Begins to read a value that the client has lent into its reservation.
    pub(crate) fn pull(
        &self,
        channel: (&mut Messages, &Channel),
        from: &LentValue,
        reservation: &Reservation<M>,
    ) -> Result<(), String> {
        let rdma = self.rdma.as_ref().map_err(String::clone)?;
        rdma.pull(channel, from, reservation.offset(), reservation.extent())
    }

    /// Publishes a large value that has been received.
    pub(crate) fn publish(
        &self,
        header: &RequestHeader,
        reservation: Reservation<M>,
        caller: Caller<'_>,
    ) -> Result<(), Superseded> {
        caller.write(self.queue(), Op::Put, header, || {
            let version = reservation.publish(expected(header))?;
            Ok(Outcome { status: Status::Ok, version })
        })
    }

    /// Writes on their way to the log.
    pub(crate) fn queue(&self) -> Option<&Queue> {
        self.log.as_ref().map(|log| &*log.queue)
    }

    /// All counters, by name.
    pub(crate) fn stats(&self) -> Stats {
        let mut counters = Vec::new();
        self.metrics.report(&mut counters);
        counters.push(("sessions".into(), self.sessions.len() as u64));
        counters.extend(self.access.stats());
        counters.extend(self.store.stats());
        counters.extend(self.log.iter().flat_map(LogHandle::stats));
        let facts = crate::BUILD.facts().map(|(name, fact)| (name.to_owned(), fact.to_owned()));
        Stats { counters, facts: facts.into() }
    }
}

/// The outcome of a write; what there is to say to a person goes to `text`.
fn outcome(result: Result<Outcome, WriteError>, text: &mut String) -> Outcome {
    let error = match result {
        Ok(outcome) => return outcome,
        Err(error) => error,
    };
    let (status, version) = match &error {
        WriteError::VersionMismatch { found } => return Outcome { status: Status::VersionMismatch, version: *found },
        WriteError::Full(_) => (Status::Full, 0),
        WriteError::NotLogged(_) | WriteError::NoVersion(_) => (Status::Full, 0),
        WriteError::TooLarge(_) => (Status::TooLarge, 0),
        WriteError::BadKey(_) => (Status::BadRequest, 0),
    };
    *text = error.to_string();
    Outcome { status, version }
}

impl Caller<'_> {
    /// The same one, for a part of the work.
    pub(crate) fn again(&mut self) -> Caller<'_> {
        Caller { session: self.session, guard: self.guard, metrics: self.metrics, output: self.output }
    }

    /// Does a write unless it was done before, outside of the pin, and adds the reply.
    fn write(
        self,
        log: Option<&Queue>,
        op: Op,
        header: &RequestHeader,
        write: impl FnOnce() -> Result<Outcome, WriteError>,
    ) -> Result<(), Superseded> {
        let mut text = String::new();
        let session = self.session;
        let write = || match log.and_then(|log| Some((log, log.refusal()?))) {
            Some((log, reason)) => {
                log.count_refusal();
                Err(WriteError::NotLogged(reason))
            }
            None => write(),
        };
        let apply = || session.apply(header.sequence.get(), || outcome(write(), &mut text));
        let applied = self.guard.repin_after(apply);
        self.written(log, op, header, applied, &text)
    }

    fn written(
        self,
        log: Option<&Queue>,
        op: Op,
        header: &RequestHeader,
        applied: Applied,
        text: &str,
    ) -> Result<(), Superseded> {
        let (outcome, text) = match applied {
            Applied::Now(outcome) => (outcome, text),
            Applied::Before(outcome) => {
                self.metrics.repeated_writes.add(1);
                (outcome, "")
            }
            Applied::Unknown => (
                Outcome { status: Status::OutcomeUnknown, version: 0 },
                "the sequence number is older than the replies that the server remembers",
            ),
            Applied::Superseded => return Err(Superseded),
        };
        if let Some(record) = log.and_then(Queue::reply_after) {
            self.output.wait_for(record);
        }
        self.output.reply(header.id.get(), outcome.status, outcome.version, text.as_bytes());
        self.metrics.outcome(op, outcome.status);
        Ok(())
    }
}
