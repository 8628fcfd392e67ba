//! Tells others how the server is: `/metrics` for Prometheus, `/health` and `/ready` for whoever watches over it.
//!
//! One thread, asleep until somebody asks. It answers one request at a time, each within [`http::DEADLINE`], and takes
//! nothing from the workers but a look at their counters.

mod http;
mod names;
mod text;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use mio::{Events, Interest, Poll, Token, Waker};
use parking_lot::Mutex;
use sidestep_core::handshake::Stats;
use tracing::{debug, error, warn};

const LISTENER: Token = Token(0);
const WAKE: Token = Token(1);
/// Pause after the system could not give a connection, as when descriptors have run out.
const PAUSE: Duration = Duration::from_millis(100);

/// The head of a request, for the fuzz targets.
#[cfg(feature = "fuzzing")]
pub(crate) fn parse_any(head: &[u8]) {
    let _ = http::parse(head);
}

/// Gathers the counters of a server that serves.
type Source = Box<dyn Fn() -> Stats + Send>;

/// How far the server has come.
enum Stage {
    /// The table is being opened or recovered.
    Starting,
    Serving(Source),
    /// What has been received is being answered.
    Stopping(Source),
}

struct Shared {
    stage: Mutex<Stage>,
    stop: AtomicBool,
}

/// A running thread `sidestep-http`. Ends when it is dropped.
pub(crate) struct Exporter {
    address: SocketAddr,
    shared: Arc<Shared>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Exporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exporter").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Exporter {
    /// Listens, and answers that the server is not ready.
    pub(crate) fn start(address: &str) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let mut listener = mio::net::TcpListener::from_std(listener);
        let poll = Poll::new()?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let waker = Waker::new(poll.registry(), WAKE)?;
        let shared = Arc::new(Shared { stage: Mutex::new(Stage::Starting), stop: AtomicBool::new(false) });
        let mut exporter = Self { address, shared: shared.clone(), waker, thread: None };
        let run = move || {
            if let Err(error) = shared.serve(&listener, poll) {
                error!(%error, "the thread that answers for metrics ended");
            }
        };
        exporter.thread = Some(Builder::new().name("sidestep-http".into()).spawn(run)?);
        Ok(exporter)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on the server is ready, and has counters.
    pub(crate) fn serving(&self, source: impl Fn() -> Stats + Send + 'static) {
        *self.shared.stage.lock() = Stage::Serving(Box::new(source));
    }

    /// The server is not ready any more.
    pub(crate) fn stopping(&self) {
        let mut stage = self.shared.stage.lock();
        *stage = match std::mem::replace(&mut *stage, Stage::Starting) {
            Stage::Serving(source) => Stage::Stopping(source),
            other => other,
        };
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Err(error) = self.waker.wake() {
            warn!(%error, "cannot wake the thread that answers for metrics");
            return;
        }
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            error!("the thread that answers for metrics panicked");
        }
        // The counters' owner is not kept alive by us.
        *self.shared.stage.lock() = Stage::Starting;
    }
}

impl Shared {
    fn serve(&self, listener: &mio::net::TcpListener, mut poll: Poll) -> io::Result<()> {
        let mut events = Events::with_capacity(8);
        let mut more = false;
        loop {
            match poll.poll(&mut events, more.then_some(PAUSE)) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                polled => polled?,
            }
            more = self.answer_all(listener);
            if self.stop.load(Ordering::Acquire) {
                return Ok(());
            }
        }
    }

    /// Answers all that wait. True if the system could not give a connection and may do so later.
    fn answer_all(&self, listener: &mio::net::TcpListener) -> bool {
        while !self.stop.load(Ordering::Acquire) {
            match listener.accept() {
                Ok((stream, from)) => {
                    let stream = TcpStream::from(OwnedFd::from(stream));
                    if let Err(error) = http::answer(stream, |path| self.page(path)) {
                        debug!(%error, %from, "a request for metrics was not answered");
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    warn!(%error, "cannot take a connection for metrics");
                    return true;
                }
            }
        }
        false
    }

    fn page(&self, path: &str) -> http::Page {
        let stage = self.stage.lock();
        match path {
            "/metrics" => {
                let (stats, is_ready) = match &*stage {
                    Stage::Starting => (Stats::default(), false),
                    Stage::Serving(source) => (source(), true),
                    Stage::Stopping(source) => (source(), false),
                };
                match text::render(stats.counters, is_ready) {
                    Ok(body) => http::Page { status: http::OK, content_type: text::CONTENT_TYPE, body },
                    Err(error) => http::Page::text(http::INTERNAL, format!("cannot write the metrics: {error}\n")),
                }
            }
            "/health" => http::Page::text(http::OK, "live\n"),
            "/ready" => match &*stage {
                Stage::Starting => http::Page::text(http::UNAVAILABLE, "starting: the table is being opened\n"),
                Stage::Serving(_) => http::Page::text(http::OK, "ready\n"),
                Stage::Stopping(_) => http::Page::text(http::UNAVAILABLE, "stopping\n"),
            },
            _ => http::Page::text(http::NOT_FOUND, "expected /metrics, /health or /ready\n"),
        }
    }
}
