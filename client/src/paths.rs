//! Which path a session reads on: found when it connects, lost with the server's memory, found again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::client::{ServerInfo, Shared};
use crate::control::Control;
use crate::counters::{Count, Counters};
use crate::error::Error;
use crate::options::{Path, PathMode};
use crate::session::Session;
use crate::shm::{NoView, ShmReader};
use crate::submit::KeptAnswer;

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

/// A session's way around the server's CPU, or none.
pub(crate) struct Paths {
    reader: Option<ShmReader>,
    /// Why there is no reader although the mode would have one; whether that may change on this connection.
    missing: Option<Missing>,
    /// The connection that this was found on.
    generation: u64,
    retry: Retry,
}

struct Missing {
    path: Path,
    reason: String,
}

impl Paths {
    /// Finds the path that the mode asks for on a new connection.
    pub(crate) fn find(shared: &Shared, counters: &Arc<Counters>, control: &Control) -> Result<Self, Error> {
        let mut paths = Self { reader: None, missing: None, generation: control.generation(), retry: Retry::default() };
        paths.find_reader(shared, counters, control)?;
        Ok(paths)
    }

    pub(crate) fn current(&self) -> Path {
        if self.reader.is_some() { Path::Shm } else { Path::Tcp }
    }

    #[inline]
    pub(crate) fn reader(&mut self) -> Option<&mut ShmReader> {
        self.reader.as_mut()
    }

    pub(crate) fn publish_counters(&mut self) {
        if let Some(reader) = &mut self.reader {
            reader.publish_trace();
        }
    }

    /// Whether there is nothing to do before a read. Without a reader to be had: no system call, no clock.
    #[inline]
    fn is_settled(&self, control: &Control) -> bool {
        match &self.reader {
            Some(_) => control.stands() && self.generation == control.generation(),
            None => {
                self.generation == control.generation() && self.missing.as_ref().is_none_or(|_| !self.retry.is_due())
            }
        }
    }

    /// The memory is no server's any more: nothing is read before a path is found again.
    fn lose_reader(&mut self) {
        self.reader = None;
        self.generation = NOT_FOUND;
    }

    fn find_reader(&mut self, shared: &Shared, counters: &Arc<Counters>, control: &Control) -> Result<(), Error> {
        self.generation = control.generation();
        let (path, required) = match shared.options().path {
            PathMode::Auto => (Path::Shm, false),
            PathMode::Prefer(path) => (path, false),
            PathMode::Require(path) => (path, true),
        };
        let no = match open(path, shared, control) {
            Ok(Opened::Tcp) => return Ok(()),
            Ok(Opened::Shm(open)) => {
                self.reader = Some(open(shared.options().location_cache, counters.clone()));
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

    /// Paths of the server, with the reasons of both sides.
    pub(crate) fn server_info(&self, control: &Control) -> ServerInfo {
        let welcome = control.welcome();
        let state = |path: Path| match (path, &self.missing) {
            (Path::Tcp, _) => Ok(()),
            (Path::Shm, _) if self.reader.is_some() => Ok(()),
            (path, Some(missing)) if missing.path == path => Err(missing.reason.clone()),
            (Path::Shm, _) => welcome.shm.as_ref().map(|_| ()).map_err(String::clone),
            (Path::Rdma | Path::RdmaRpc, _) => Err(no_rdma(control)),
        };
        ServerInfo {
            pid: welcome.pid,
            table_id: welcome.table_id,
            boot_id: welcome.boot_id,
            memory_bytes: welcome.memory_bytes,
            segment_bytes: welcome.segment_bytes,
            max_value_bytes: welcome.max_value_bytes,
            durable: welcome.durable,
            paths: Path::ALL.into_iter().map(|path| (path, state(path))).collect(),
        }
    }
}

/// A reader that only needs its session's parts.
type MakeReader = Box<dyn FnOnce(usize, Arc<Counters>) -> ShmReader>;

enum Opened {
    Tcp,
    Shm(MakeReader),
}

fn open(path: Path, shared: &Shared, control: &Control) -> Result<Opened, NoView> {
    match path {
        Path::Tcp => Ok(Opened::Tcp),
        Path::Rdma | Path::RdmaRpc => Err(NoView { is_elsewhere: false, reason: no_rdma(control) }),
        Path::Shm => {
            let welcome = control.welcome().clone();
            let view = shared.view(&welcome)?;
            let watched = control
                .watched()
                .cloned()
                .ok_or_else(|| NoView { is_elsewhere: false, reason: "the control connection is lost".to_owned() })?;
            Ok(Opened::Shm(Box::new(move |cache, counters| ShmReader::new(view, &welcome, &watched, cache, counters))))
        }
    }
}

fn no_rdma(control: &Control) -> String {
    match &control.welcome().rdma {
        Err(reason) => format!("the server does not offer it: {reason}"),
        Ok(_) => "this client was built without it".to_owned(),
    }
}

impl Session {
    /// Sees to it, before a read, that the path in use is one that may be used.
    #[inline]
    pub(crate) fn settle(&mut self) -> Result<(), Error> {
        if self.paths.is_settled(&self.control) { Ok(()) } else { self.settle_again() }
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
            && let (Some(reader), Some(watched)) = (&mut paths.reader, control.watched())
            && reader.adopt(control.welcome(), watched)
        {
            paths.generation = control.generation();
            return Ok(());
        }
        paths.lose_reader();
        paths.find_reader(shared, counters, control)
    }
}
