//! The control connection of a session: sends requests, hands out answers, and gets itself back
//! when it is lost.

mod lending;
mod reports;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sidestep_core::handshake::Welcome;
use sidestep_core::limits::MAX_CONTROL_BYTES;
use sidestep_core::message::Status;
use sidestep_core::scan::PAGE_OVERHEAD_BYTES;
use tracing::{info, warn};

use crate::answers::{count_answer, read_answer};
use crate::backoff::Backoff;
use crate::client::Shared;
use crate::counters::{Count, Counters};
use crate::dial::{Identity, dial};
use crate::error::{ConnectError, Error};
use crate::link::Link;
use crate::options::Path;
use crate::pipeline::{Pipeline, REPORT_ID, Request};
use crate::receive::{Front, ReceiveBuffer};
use crate::uses::Uses;
use crate::value::Answer;
use crate::watch::Watched;

/// Who is told of each answer: the request's id and how it ended.
pub(crate) type Handler<'h> = &'h mut dyn FnMut(u64, Result<Answer<'_>, Error>);

/// Why a step on the connection failed.
enum Lost {
    /// There is none, or it broke: worth a reconnect.
    Connection,
    /// It stands but brings nothing: whoever waits has waited long enough.
    Silent,
    /// What it brings makes no sense.
    Nonsense(String),
}

impl From<io::Error> for Lost {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::TimedOut { Self::Silent } else { Self::Connection }
    }
}

/// A session's connection and the requests on it.
pub(crate) struct Control {
    shared: Arc<Shared>,
    counters: Arc<Counters>,
    client_id: u64,
    /// Dropped before the pipeline, which holds what the server may read by the link's queue pair.
    link: Option<Link>,
    welcome: Welcome,
    /// Counts connections, so that others notice a new one.
    generation: u64,
    pipeline: Pipeline,
    received: ReceiveBuffer,
    /// Keys that were found without the server's CPU, on their way to it.
    uses: Uses,
    /// Why the last message channel is gone.
    channel_lost: Option<String>,
    /// The same, once it is known that the server was there all the time.
    channel_error: Option<String>,
    /// Whether large values are lent to the server, where a message channel allows that.
    lends: bool,
    /// Since when the connection has been lost without an answer in between.
    lost_since: Option<Instant>,
}

impl Control {
    pub(crate) fn connect(shared: Arc<Shared>, counters: Arc<Counters>, client_id: u64) -> Result<Self, Error> {
        let identity = Identity { client_id, resume_boot_id: 0 };
        let (dialled, welcome) = dial(shared.server(), identity, shared.options(), shared.options().connect_timeout)
            .map_err(|error| error.into_error(shared.server()))?;
        let link = Link::new(dialled, shared.options().spin, shared.options().request_timeout, shared.watch());
        let uses = Uses::new(welcome.report_one_in, client_id);
        Ok(Self {
            shared,
            counters,
            client_id,
            link: Some(link),
            welcome,
            generation: 0,
            pipeline: Pipeline::default(),
            uses,
            received: ReceiveBuffer::default(),
            channel_lost: None,
            channel_error: None,
            lends: true,
            lost_since: None,
        })
    }

    pub(crate) fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    #[cfg(feature = "rdma")]
    pub(crate) fn server(&self) -> &str {
        self.shared.server()
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether the connection stands, as far as anyone has seen. No system call.
    pub(crate) fn stands(&self) -> bool {
        self.link.as_ref().is_some_and(|link| !link.watched().has_ended())
    }

    pub(crate) fn watched(&self) -> Option<&Arc<Watched>> {
        self.link.as_ref().map(Link::watched)
    }

    /// By what its requests travel.
    pub(crate) fn path(&self) -> Path {
        self.link.as_ref().map_or(Path::Tcp, Link::path)
    }

    #[cfg(feature = "rdma")]
    pub(crate) fn has_messages(&self) -> bool {
        self.path() == Path::RdmaRpc
    }

    /// Has everything travel in messages from now on. Nothing may be in flight.
    #[cfg(feature = "rdma")]
    pub(crate) fn carry_by(&mut self, messages: crate::rdma::Messages) {
        if let Some(link) = &mut self.link {
            link.carry_by(messages);
        }
    }

    /// Why a message channel broke, if one did since the last call, to a server that went on.
    pub(crate) fn take_channel_error(&mut self) -> Option<String> {
        self.channel_error.take()
    }

    /// The id that the next request will have.
    pub(crate) fn next_id(&self) -> u64 {
        self.pipeline.next_id()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.pipeline.waiting()
    }

    pub(crate) fn unsent_bytes(&self) -> usize {
        self.pipeline.unsent().len()
    }

    pub(crate) fn writes_are_full(&mut self) -> bool {
        self.pipeline.writes_are_full()
    }

    /// Takes in a request without sending it. Returns its id.
    pub(crate) fn push(&mut self, request: &Request<'_>) -> u64 {
        // A write must not go into a connection that is known to have ended: its outcome would be unknown for nothing.
        if self.link.is_some() && !self.stands() && self.pipeline.waiting() == 0 {
            self.drop_link();
        }
        self.push_report();
        let lent = self.lend(request);
        self.pipeline.push(request, lent)
    }

    /// Sends what is unsent and hands out answers; with `wait`, at least one, unless nothing is in flight.
    /// Every request ends with exactly one call of the handler. Returns how many did.
    pub(crate) fn drive(&mut self, wait: bool, on: Handler<'_>) -> usize {
        let mut ended = 0;
        while ended == 0 && self.pipeline.waiting() > 0 {
            ended += match self.step(wait, on) {
                Ok(answers) if answers == 0 && !wait => break,
                Ok(answers) => answers,
                Err(Lost::Connection) => self.recover(on),
                Err(Lost::Silent) => {
                    let waited_ms = self.shared.options().request_timeout.as_millis() as u64;
                    let server = self.shared.server().to_owned();
                    self.abandon(&Error::TimedOut { server, waited_ms }, on)
                }
                Err(Lost::Nonsense(reason)) => {
                    let server = self.shared.server().to_owned();
                    self.abandon(&Error::Protocol { server, reason }, on)
                }
            };
        }
        ended
    }

    /// Sends and receives once, then hands out every whole answer.
    fn step(&mut self, wait: bool, on: Handler<'_>) -> Result<usize, Lost> {
        self.send()?;
        let link = self.link.as_mut().ok_or(Lost::Connection)?;
        let room = self.received.room();
        let received = if !wait {
            link.try_receive(room)?
        } else if self.pipeline.unsent().is_empty() {
            Some(link.receive(room)?)
        } else {
            // The server may refuse to read on until its replies are taken: wait for either.
            link.wait_writable_or_readable()?;
            link.try_receive(room)?
        };
        if let Some(received) = received {
            self.counters.add(Count::BytesReceived, received as u64);
            self.received.filled(received);
        }
        self.hand_out(on)
    }

    /// Sends what the connection takes now.
    fn send(&mut self) -> Result<(), Lost> {
        let link = self.link.as_mut().ok_or(Lost::Connection)?;
        while !self.pipeline.unsent().is_empty() {
            let sent = link.send(self.pipeline.unsent())?;
            if sent == 0 {
                break;
            }
            self.counters.add(Count::BytesSent, sent as u64);
            self.pipeline.mark_sent(sent);
        }
        Ok(())
    }

    fn hand_out(&mut self, on: Handler<'_>) -> Result<usize, Lost> {
        let limit = self.welcome.max_value_bytes.max(MAX_CONTROL_BYTES).saturating_add(PAGE_OVERHEAD_BYTES);
        let path = self.path();
        let mut answers = 0;
        loop {
            let (header, value) = match self.received.front(limit) {
                Front::Reply(header, value) => (header, value),
                Front::Partial => return Ok(answers),
                Front::TooLong(found) => {
                    return Err(Lost::Nonsense(format!("expected a reply of at most {limit} bytes, found {found}")));
                }
            };
            if header.id.get() == REPORT_ID && self.uses.answered() {
                self.received.consume(&header);
                continue;
            }
            if header.status == Status::Unavailable as u8 && self.pipeline.is_lent(header.id.get()) {
                let reason = String::from_utf8_lossy(value).into_owned();
                return Ok(answers + self.stop_lending(&reason, on));
            }
            let Some(asked) = self.pipeline.answer(&header) else {
                return Err(Lost::Nonsense(format!("a reply to request {}, which was not asked", header.id)));
            };
            let answer = read_answer(asked, path, &header, value, self.shared.server());
            count_answer(&self.counters, path, asked.op, &answer);
            on(asked.id, answer);
            self.received.consume(&header);
            self.lost_since = None;
            answers += 1;
        }
    }

    /// With a message channel its queue pair goes: the server can read nothing that was lent any more.
    fn drop_link(&mut self) {
        if let Some(mut link) = self.link.take() {
            self.channel_lost = link.take_error();
            self.uses.lost();
            self.counters.add(Count::ConnectionsLost, 1);
            self.received.clear();
        }
    }

    /// Gets the connection back and repeats what may be repeated, or gives up. Returns how many requests ended.
    fn recover(&mut self, on: Handler<'_>) -> usize {
        self.drop_link();
        // A connection that is lost again before it brought an answer waits like one that was not had.
        let again = self.lost_since.is_some();
        let since = *self.lost_since.get_or_insert_with(Instant::now);
        let mut backoff = Backoff::until(since + self.shared.options().reconnect_timeout);
        if again && !backoff.wait() {
            let error = io::Error::new(io::ErrorKind::TimedOut, "connected again and again, and lost each time");
            return self.give_up(ConnectError::Io(error), on);
        }
        match self.reconnect_until(backoff, on) {
            Ok(ended) => ended,
            Err(error) => self.give_up(error, on),
        }
    }

    fn give_up(&mut self, error: ConnectError, on: Handler<'_>) -> usize {
        self.lost_since = None;
        let error = error.into_error(self.shared.server());
        self.abandon(&error, on)
    }

    fn reconnect_until(&mut self, mut backoff: Backoff, on: Handler<'_>) -> Result<usize, ConnectError> {
        loop {
            match self.reconnect(self.shared.options().connect_timeout, on) {
                Err(error) if error.is_passing() && backoff.wait() => {}
                result => return result,
            }
        }
    }

    /// Gets another connection in place of one that has ended, before anything is asked of it.
    pub(crate) fn regain(&mut self, on: Handler<'_>) -> Result<(), Error> {
        self.drop_link();
        let backoff = Backoff::until(Instant::now() + self.shared.options().reconnect_timeout);
        self.reconnect_until(backoff, on).map(|_| ()).map_err(|error| error.into_error(self.shared.server()))
    }

    /// One short attempt at [`Self::regain`].
    pub(crate) fn glance(&mut self, within: Duration, on: Handler<'_>) -> Result<(), Error> {
        self.drop_link();
        self.reconnect(within, on).map(|_| ()).map_err(|error| error.into_error(self.shared.server()))
    }

    /// One attempt.
    fn reconnect(&mut self, within: Duration, on: Handler<'_>) -> Result<usize, ConnectError> {
        let identity = Identity { client_id: self.client_id, resume_boot_id: self.welcome.boot_id };
        let options = self.shared.options();
        let within = within.min(options.connect_timeout);
        let (dialled, welcome) = dial(self.shared.server(), identity, options, within)?;
        info!(server = self.shared.server(), resumed = welcome.resumed, boot_id = welcome.boot_id, "reconnected");
        self.link = Some(Link::new(dialled, options.spin, options.request_timeout, self.shared.watch()));
        self.counters.add(Count::Reconnects, 1);
        self.counters.add(Count::SessionsResumed, u64::from(welcome.resumed));
        // A server that has restarted is no fault of the path's.
        let lost = self.channel_lost.take().filter(|_| welcome.boot_id == self.welcome.boot_id);
        self.channel_error = lost.or(self.channel_error.take());
        let reason = if welcome.boot_id == self.welcome.boot_id {
            "the connection was lost and the session had expired when it came back"
        } else {
            "the connection was lost with the server, which has restarted since"
        };
        if welcome.table_id != self.welcome.table_id {
            warn!(server = self.shared.server(), table_id = welcome.table_id, "the server has another table now");
        }
        let resumed = welcome.resumed;
        if (welcome.table_id, welcome.report_one_in) != (self.welcome.table_id, self.welcome.report_one_in) {
            self.uses = Uses::new(welcome.report_one_in, self.client_id);
        }
        self.welcome = welcome;
        self.generation += 1;
        let mut ended = 0;
        let repeated = self.pipeline.replay(resumed, |asked| {
            ended += 1;
            on(asked.id, Err(Error::OutcomeUnknown(reason.to_owned())));
        });
        self.counters.add(Count::OutcomesUnknown, ended as u64);
        self.counters.add(Count::Replayed, repeated as u64);
        Ok(ended)
    }

    /// Ends every request in flight: writes that the server may have seen as unknown, the rest with `error`.
    fn abandon(&mut self, error: &Error, on: Handler<'_>) -> usize {
        warn!(server = self.shared.server(), requests = self.pipeline.waiting(), %error, "connection given up");
        self.drop_link();
        let (mut ended, mut unknown) = (0, 0);
        self.pipeline.abandon(|asked, sent| {
            ended += 1;
            if sent && asked.op.is_write() {
                unknown += 1;
                on(asked.id, Err(Error::OutcomeUnknown(error.to_string())));
            } else {
                on(asked.id, Err(error.clone()));
            }
        });
        self.counters.add(Count::OutcomesUnknown, unknown);
        ended
    }
}
