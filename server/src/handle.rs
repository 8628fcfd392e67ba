//! What other threads have of a worker.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::Sender;
use mio::Waker;
use mio::net::TcpStream;
use tracing::warn;

/// A connection that was accepted.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) stream: TcpStream,
    pub(crate) from: IpAddr,
    /// Why it is not to be served.
    pub(crate) refused: Option<String>,
}

/// The other threads' side of a worker.
#[derive(Debug)]
pub(crate) struct Handle {
    inbox: Sender<Arrival>,
    stop: Arc<AtomicBool>,
    waker: Arc<Waker>,
}

impl Handle {
    pub(crate) fn new(inbox: Sender<Arrival>, stop: Arc<AtomicBool>, waker: Arc<Waker>) -> Self {
        Self { inbox, stop, waker }
    }

    /// Gives the worker a connection. Back if the worker is no more.
    pub(crate) fn serve(&self, arrival: Arrival) -> Result<(), Arrival> {
        self.inbox.send(arrival).map_err(|unsent| unsent.0)?;
        self.wake();
        Ok(())
    }

    /// Has the worker finish what it has received, and end.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    /// Has the worker look at what others have changed.
    pub(crate) fn wake(&self) {
        if let Err(error) = self.waker.wake() {
            warn!(%error, "cannot wake a worker");
        }
    }
}
