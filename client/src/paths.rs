//! Which path a session reads on: found when it connects, lost with the server's memory, found again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{debug, info};

use crate::client::{ServerInfo, Shared};
use crate::control::{Control, Handler};
use crate::cooldown::Cooldown;
use crate::counters::{Count, Counters};
use crate::error::Error;
use crate::options::{Path, PathMode};
use crate::rdma::{self, RdmaReader};
use crate::session::Session;
use crate::shm::{Looked, NoView, ShmReader};
use crate::submit::KeptAnswer;
use crate::value::Meta;

/// First and longest time between two attempts to get a preferred path, or a lost server, back.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LONGEST: Duration = Duration::from_secs(10);
/// A reader of a table file goes on without its server; an attempt to reach that must not hold a GET up for longer.
const GLANCE: Duration = Duration::from_millis(50);

/// The generation of no connection.
const NOT_FOUND: u64 = u64::MAX;

/// When to try again, less and less often.
#[derive(Debug, Default)]
struct Retry {
    at: Option<Instant>,
    wait: Duration,
}

impl Retry {
    fn is_due(&self) -> bool {
        self.at.is_none_or(|at| Instant::now() >= at)
    }

    fn later(&mut self) {
        self.wait = (self.wait * 2).clamp(RETRY_FIRST, RETRY_LONGEST);
        self.at = Some(Instant::now() + self.wait);
    }

    fn reset(&mut self) {
        *self = Self::default();
    }
}

/// A way around the server's CPU.
pub(crate) enum Reader {
    Shm(Box<ShmReader>),
    Rdma(Box<RdmaReader>),
}

impl Reader {
    fn path(&self) -> Path {
        match self {
            Self::Shm(_) => Path::Shm,
            Self::Rdma(_) => Path::Rdma,
        }
    }

    /// Whether what it reads is still a server's table. No system call.
    #[inline]
    fn goes_on(&self) -> bool {
        match self {
            Self::Shm(reader) => reader.goes_on(),
            Self::Rdma(reader) => reader.goes_on(),
        }
    }

    /// Looks a key up and hands its value over.
    #[inline]
    pub(crate) fn look(&mut self, key: &[u8], on: &mut dyn FnMut(&[u8], Meta)) -> Looked {
        match self {
            Self::Shm(reader) => reader.look(key, on),
            Self::Rdma(reader) => reader.look(key, on),
        }
    }

    /// Goes on with another control connection; false: it cannot.
    fn adopt(&mut self, control: &Control) -> bool {
        match (self, control.watched()) {
            (Self::Shm(reader), Some(watched)) => reader.adopt(control.welcome(), watched),
            // The server's queue pair has ended with the connection.
            _ => false,
        }
    }

    fn publish(&mut self) {
        match self {
            Self::Shm(reader) => reader.publish_trace(),
            Self::Rdma(reader) => reader.publish_trace(),
        }
    }
}

/// A session's way around the server's CPU, or none.
pub(crate) struct Paths {
    reader: Option<Reader>,
    /// Why there is no reader although the mode would have one; whether that may change on this connection.
    missing: Option<Missing>,
    /// The connection that this was found on.
    generation: u64,
    retry: Retry,
    /// Of `rdma` and `rdma-rpc`: how often they broke.
    cooldown: Cooldown,
    /// Whether requests are to travel in messages.
    by_messages: bool,
}

struct Missing {
    path: Path,
    reason: String,
}

impl Paths {
    /// Finds the path that the mode asks for on a new connection.
    pub(crate) fn find(shared: &Shared, counters: &Arc<Counters>, control: &mut Control) -> Result<Self, Error> {
        let by_messages = matches!(
            shared.options().path,
            PathMode::Prefer(Path::Rdma | Path::RdmaRpc) | PathMode::Require(Path::Rdma | Path::RdmaRpc)
        );
        let mut paths = Self {
            by_messages,
            reader: None,
            missing: None,
            generation: control.generation(),
            retry: Retry::default(),
            cooldown: Cooldown::new(shared.options().path_pause),
        };
        // Nothing else was asked yet.
        paths.find_reader(shared, counters, control, &mut |_, _| ())?;
        Ok(paths)
    }

    pub(crate) fn current(&self, control: &Control) -> Path {
        self.reader.as_ref().map_or_else(|| control.path(), Reader::path)
    }

    #[inline]
    pub(crate) fn reader(&mut self) -> Option<&mut Reader> {
        self.reader.as_mut()
    }

    pub(crate) fn publish_counters(&mut self) {
        if let Some(reader) = &mut self.reader {
            reader.publish();
        }
    }

    /// Whether there is nothing to do before a read. Without a reader to be had: no system call, no clock.
    #[inline]
    fn is_settled(&self, control: &Control) -> bool {
        match &self.reader {
            Some(_) => control.stands() && self.generation == control.generation(),
            None => {
                self.generation == control.generation()
                    && self.missing.as_ref().is_none_or(|_| !self.retry.is_due())
                    // Over the socket a request finds out by itself, and is repeated; it must not do so by another path.
                    && (!self.by_messages || control.stands())
            }
        }
    }

    /// The memory is no server's any more: nothing is read before a path is found again.
    fn lose_reader(&mut self) {
        if let Some(mut reader) = self.reader.take() {
            reader.publish();
            if let Reader::Rdma(reader) = &mut reader
                && let Some(error) = reader.take_error()
            {
                debug!(%error, "the queue pair is given up");
                self.cooldown.failed(Instant::now(), error.to_string());
            }
        }
        self.generation = NOT_FOUND;
    }

    fn find_reader(
        &mut self,
        shared: &Shared,
        counters: &Arc<Counters>,
        control: &mut Control,
        keep: Handler<'_>,
    ) -> Result<(), Error> {
        if let Some(error) = control.take_channel_error() {
            debug!(error, "the message channel is given up");
            self.cooldown.failed(Instant::now(), error);
        }
        let (path, required) = match shared.options().path {
            PathMode::Auto => (Path::Shm, false),
            PathMode::Prefer(path) => (path, false),
            PathMode::Require(path) => (path, true),
        };
        let opened = match self.open(path, shared, counters, control, keep) {
            // On another host, or out of reach on this one.
            Err(no) if shared.options().path == PathMode::Auto && shared.options().tls.is_none() => {
                match self.open(Path::Rdma, shared, counters, control, keep) {
                    Ok(reader) => {
                        if !no.is_elsewhere {
                            info!(reason = no.reason, "shm is not available on this host, reading by rdma");
                        }
                        Ok(reader)
                    }
                    Err(no_rdma) if !no_rdma.is_elsewhere => Err((Path::Rdma, no_rdma)),
                    Err(_) => Err((path, no)),
                }
            }
            opened => opened.map_err(|no| (path, no)),
        };
        self.generation = control.generation();
        let (path, no) = match opened {
            Ok(reader) => {
                let path = reader.as_ref().map_or(path, Reader::path);
                self.by_messages |= path == Path::Rdma;
                self.reader = reader;
                if matches!(path, Path::Rdma | Path::RdmaRpc) {
                    shared.log_in_the_clear(path);
                }
                self.retry.reset();
                if self.missing.take().is_some() {
                    counters.add(Count::PathsRegained, 1);
                    shared.log_regained(path);
                }
                return Ok(());
            }
            Err(no) => no,
        };
        if required {
            // Missing and due at once: no read gets past this before the path is there.
            self.missing = Some(Missing { path, reason: no.reason.clone() });
            return Err(Error::PathUnavailable { path, reason: no.reason });
        }
        if shared.options().path == PathMode::Auto && control.welcome().rdma.is_ok() {
            shared.log_left_out();
        }
        // `auto` takes `tcp` to another host as a matter of course: that is no fallback.
        if shared.options().path == PathMode::Auto && no.is_elsewhere {
            self.missing = None;
            return Ok(());
        }
        if self.missing.is_none() {
            counters.add(Count::Fallbacks, 1);
            shared.log_fallback(path, &no.reason);
        }
        self.missing = Some(Missing { path, reason: no.reason });
        self.retry.later();
        Ok(())
    }

    /// A reader by this path; none: it needs none.
    fn open(
        &mut self,
        path: Path,
        shared: &Shared,
        counters: &Arc<Counters>,
        control: &mut Control,
        keep: Handler<'_>,
    ) -> Result<Option<Reader>, NoView> {
        match path {
            Path::Tcp => Ok(None),
            Path::Rdma | Path::RdmaRpc => {
                self.cooldown.check(Instant::now()).map_err(NoView::here)?;
                let reader = rdma::connect(shared, counters, control, keep, path == Path::Rdma)?;
                Ok(reader.map(|reader| Reader::Rdma(Box::new(reader))))
            }
            Path::Shm => {
                let welcome = control.welcome();
                let view = shared.view(welcome)?;
                let watched = control.watched().ok_or_else(|| NoView::here("the control connection is lost"))?;
                let cache = shared.options().location_cache;
                let reader = ShmReader::new(view, welcome, watched, cache, counters.clone());
                Ok(Some(Reader::Shm(Box::new(reader))))
            }
        }
    }

    /// Paths of the server, with the reasons of both sides.
    pub(crate) fn server_info(&self, control: &Control) -> ServerInfo {
        let welcome = control.welcome();
        let state = |path: Path| match (path, &self.missing) {
            (Path::Tcp, _) => Ok(()),
            (path, _) if self.current(control) == path => Ok(()),
            (path, Some(missing)) if missing.path == path => Err(missing.reason.clone()),
            (Path::Shm, _) => welcome.shm.as_ref().map(|_| ()).map_err(String::clone),
            (Path::Rdma | Path::RdmaRpc, _) => welcome.rdma.as_ref().map(|_| ()).map_err(String::clone),
        };
        ServerInfo {
            pid: welcome.pid,
            table_id: welcome.table_id,
            boot_id: welcome.boot_id,
            memory_bytes: welcome.memory_bytes,
            segment_bytes: welcome.segment_bytes,
            max_value_bytes: welcome.max_value_bytes,
            durable: welcome.durable,
            rdma: welcome.rdma.as_ref().map(|offer| offer.port.clone()).map_err(String::clone),
            local_address: control.watched().and_then(|watched| watched.stream().local_addr().ok()),
            paths: Path::ALL.into_iter().map(|path| (path, state(path))).collect(),
        }
    }
}

impl Session {
    /// Sees to it, before a read, that the path in use is one that may be used.
    #[inline]
    pub(crate) fn settle(&mut self) -> Result<(), Error> {
        if self.paths.is_settled(&self.control) { Ok(()) } else { self.settle_again() }
    }

    /// Sees to it, before a request to the server, that it travels in messages where it is to. Only `rdma-rpc`, when it is
    /// required, is missed: on `rdma` writes go over TCP rather than nowhere.
    #[inline]
    pub(crate) fn settle_request(&mut self) -> Result<(), Error> {
        if !self.paths.by_messages || self.paths.is_settled(&self.control) {
            return Ok(());
        }
        match self.settle_again() {
            Err(Error::PathUnavailable { path, .. }) if path != Path::RdmaRpc => Ok(()),
            settled => settled,
        }
    }

    /// [`Self::settle`] for whoever knows that there is something to do.
    #[cold]
    pub(crate) fn settle_again(&mut self) -> Result<(), Error> {
        let Self { shared, counters, control, paths, kept, .. } = self;
        let mut keep = |id, answer: Result<crate::value::Answer<'_>, Error>| {
            kept.push_back((id, answer.map(KeptAnswer::from)));
        };
        match &paths.reader {
            Some(reader) if !reader.goes_on() => paths.lose_reader(),
            // A file's reader goes on without its server, and looks for it now and then.
            Some(_) if !control.stands() => {
                if !paths.retry.is_due() {
                    return Ok(());
                }
                paths.retry.later();
                if control.glance(GLANCE, &mut keep).is_err() {
                    return Ok(());
                }
                paths.retry.reset();
            }
            _ => {}
        }
        if !control.stands() {
            control.regain(&mut keep)?;
        }
        if paths.generation != control.generation()
            && let Some(reader) = &mut paths.reader
            && reader.adopt(control)
        {
            paths.generation = control.generation();
            return Ok(());
        }
        paths.lose_reader();
        paths.find_reader(shared, counters, control, &mut keep)
    }
}
