//! One thread per client that notices the end of control connections, so that a GET around the
//! server's CPU learns of it from a flag instead of a system call.

use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

/// A socket and whether its peer has ended it.
#[derive(Debug)]
pub(crate) struct Watched {
    stream: TcpStream,
    ended: AtomicBool,
}

impl Watched {
    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Whether the connection has ended, as far as the watch has seen. No system call.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Says so, for whoever met the end before the watch did.
    pub(crate) fn set_ended(&self) {
        self.ended.store(true, Ordering::Release);
    }
}

/// The thread and what it watches.
#[derive(Debug)]
pub(crate) struct Watch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    sockets: Mutex<Vec<Weak<Watched>>>,
    wake: OwnedFd,
    stop: AtomicBool,
}

impl Shared {
    fn wake(&self) {
        // Fails only when the counter is at its end, and then the thread is awake anyway.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

impl Watch {
    /// Starts the thread.
    pub(crate) fn start() -> std::io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared { sockets: Mutex::default(), wake, stop: AtomicBool::new(false) });
        let of_thread = shared.clone();
        let thread = std::thread::Builder::new().name("sidestep-watch".to_owned()).spawn(move || watch(&of_thread))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Watches a socket from now on, until its last owner lets go of it.
    pub(crate) fn add(&self, stream: TcpStream) -> Arc<Watched> {
        let watched = Arc::new(Watched { stream, ended: AtomicBool::new(false) });
        self.shared.sockets.lock().push(Arc::downgrade(&watched));
        self.shared.wake();
        watched
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake();
        if let Some(thread) = self.thread.take() {
            // It cannot panic on input; if it did, there is nothing to undo.
            let _ = thread.join();
        }
    }
}

fn watch(shared: &Shared) {
    while !shared.stop.load(Ordering::Acquire) {
        let sockets: Vec<Arc<Watched>> = {
            let mut all = shared.sockets.lock();
            all.retain(|weak| weak.upgrade().is_some_and(|watched| !watched.has_ended()));
            all.iter().filter_map(Weak::upgrade).collect()
        };
        // RDHUP alone: data that arrives does not wake this thread.
        let mut fds: Vec<PollFd<'_>> =
            sockets.iter().map(|watched| PollFd::new(&watched.stream, PollFlags::RDHUP)).collect();
        fds.push(PollFd::new(&shared.wake, PollFlags::IN));
        if poll(&mut fds, None).is_err() {
            // A signal: look again.
            continue;
        }
        let ended = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
        for (watched, fd) in sockets.iter().zip(&fds) {
            if fd.revents().intersects(ended) {
                watched.set_ended();
            }
        }
        let mut count = [0; 8];
        // Empty unless it was what woke us.
        let _ = rustix::io::read(&shared.wake, &mut count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn the_end_of_a_connection_is_seen() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let watch = Watch::start().unwrap();
        let kept = watch.add(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let (_kept_peer, _) = listener.accept().unwrap();
        let lost = watch.add(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let (lost_peer, _) = listener.accept().unwrap();
        assert!(!lost.has_ended());
        drop(lost_peer);
        let deadline = Instant::now() + Duration::from_secs(10);
        while !lost.has_ended() {
            assert!(Instant::now() < deadline, "the end was not seen");
            std::thread::yield_now();
        }
        assert!(!kept.has_ended());
    }

    #[test]
    fn dropping_the_watch_ends_its_thread() {
        drop(Watch::start().unwrap());
    }
}
