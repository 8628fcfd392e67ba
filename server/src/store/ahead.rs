//! Growth ahead of the writers: a thread that takes memory into use before they need it.
//!
//! The thread sleeps until a writer sees that little is left, so that an idle server does nothing.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Condvar, Mutex};
use sidestep_core::limits::BLOCK_BYTES;
use sidestep_core::memory::MemoryMut;

use super::Store;
use super::space::STEP_BLOCKS;

/// How the thread is woken and ended.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    orders: Mutex<Orders>,
    given: Condvar,
    /// Whether the thread sleeps and a writer that sees little left is to wake it.
    armed: AtomicBool,
}

#[derive(Debug, Default)]
struct Orders {
    grow: bool,
    stop: bool,
}

impl Ahead {
    /// Wakes the thread if it sleeps for want of something to do. One load, unless it does.
    pub(crate) fn wake_if_armed(&self) {
        if self.armed.load(Ordering::Relaxed) && self.armed.swap(false, Ordering::Relaxed) {
            self.wake();
        }
    }

    /// Has the thread look again, whatever it sleeps for.
    pub(crate) fn wake(&self) {
        self.orders.lock().grow = true;
        self.given.notify_one();
    }

    fn stop(&self) {
        self.orders.lock().stop = true;
        self.given.notify_one();
    }

    /// Sleeps until there is something to do; false: end.
    fn wait(&self) -> bool {
        let mut orders = self.orders.lock();
        self.given.wait_while(&mut orders, |orders| !orders.grow && !orders.stop);
        orders.grow = false;
        !orders.stop
    }
}

/// What growing ahead came to.
#[derive(Debug)]
enum Step {
    Grown,
    /// Enough is left for now.
    Enough,
    /// The whole space is in use.
    End,
    Failed(io::Error),
}

impl<M: MemoryMut + Send + Sync + 'static> Store<M> {
    /// Keeps one step of memory ready for the writers until [`Store::stop_growing_ahead`]; for a thread of its
    /// own. `failed` is told of the first of some failures in a row: after one it waits until a writer, which
    /// gets the error if there is no room without growth, has had success.
    pub fn grow_ahead(&self, mut failed: impl FnMut(&io::Error)) {
        let mut has_failed = false;
        loop {
            match self.step_ahead() {
                Step::Grown => {
                    has_failed = false;
                    self.ahead.wake(); // look again
                }
                Step::Enough => {
                    self.ahead.armed.store(true, Ordering::Relaxed);
                    // A writer may have come between the look and this.
                    if self.is_short() {
                        self.ahead.wake_if_armed();
                    }
                }
                Step::End => {}
                Step::Failed(error) => {
                    if !has_failed {
                        failed(&error);
                    }
                    has_failed = true;
                }
            }
            if !self.ahead.wait() {
                return;
            }
        }
    }

    /// Ends [`Store::grow_ahead`], at once or after the step that it is in.
    pub fn stop_growing_ahead(&self) {
        self.ahead.stop();
    }

    /// Less than one step is left.
    fn is_short(&self) -> bool {
        self.space.lock().extents.free_blocks() < self.short_blocks()
    }

    /// Free blocks below which the next step is prepared: a writer at full speed uses up less while it is.
    pub(crate) fn short_blocks(&self) -> u64 {
        STEP_BLOCKS.min(self.segment_bytes / BLOCK_BYTES as u64)
    }

    fn step_ahead(&self) -> Step {
        let mut growth = self.growth.lock();
        if !self.is_short() {
            return Step::Enough;
        }
        match self.grow(&mut growth) {
            Ok(true) => Step::Grown,
            Ok(false) => Step::End,
            Err(error) => Step::Failed(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use super::super::WriteError;
    use super::super::tests::{SMALL, Words, options};
    use super::*;

    const SPACE: u64 = 16 * SMALL;

    fn stat(store: &Store<Arc<Words>>, name: &str) -> u64 {
        store.stats().into_iter().find(|stat| stat.0 == name).unwrap().1
    }

    /// Waits for the other thread; a bound, not a pace.
    fn eventually(mut holds: impl FnMut() -> bool) {
        let since = Instant::now();
        while !holds() {
            assert!(since.elapsed() < Duration::from_secs(20), "not in time");
            std::thread::yield_now();
        }
    }

    /// Writes 1 KiB values until `count` keys are in or one is refused; each time once `ready` holds.
    fn fill(store: &Arc<Store<Arc<Words>>>, count: u64, mut ready: impl FnMut()) -> Result<(), WriteError> {
        for i in store.keys()..count {
            ready();
            store.put(&i.to_le_bytes(), &[1; 1000], None, 0)?;
        }
        Ok(())
    }

    /// Runs `work` beside the thread.
    fn beside_growth(store: &Arc<Store<Arc<Words>>>, failed: impl FnMut(&io::Error) + Send, work: impl FnOnce()) {
        std::thread::scope(|scope| {
            let growing = scope.spawn(|| store.grow_ahead(failed));
            work();
            store.stop_growing_ahead();
            growing.join().unwrap();
        });
    }

    #[test]
    fn a_writer_does_not_wait_for_growth_that_is_ahead_of_it() {
        let store = Store::create(Words::new(SPACE), &options()).unwrap();
        beside_growth(
            &store,
            |error| panic!("{error}"),
            || {
                fill(&store, 10_000, || eventually(|| !store.is_short())).unwrap();
            },
        );
        assert!(stat(&store, "segments") > 40, "{:?}", store.stats());
        assert_eq!(stat(&store, "growth_waits"), 0);
        let prepared = stat(&store, "memory_free_bytes");
        assert!(prepared <= 2 * store.segment_bytes(), "{prepared} bytes are prepared");

        let alone = Store::create(Words::new(SPACE), &options()).unwrap();
        fill(&alone, 10_000, || {}).unwrap();
        assert!(stat(&alone, "growth_waits") > 30, "a writer without the thread waits each time");
    }

    #[test]
    fn the_thread_sleeps_at_the_end_of_the_space_and_ends_when_told() {
        let store = Store::create(Words::new(SMALL), &options()).unwrap();
        beside_growth(
            &store,
            |error| panic!("{error}"),
            || {
                assert!(matches!(fill(&store, u64::MAX, || {}), Err(WriteError::Full(_))));
            },
        );
        assert_eq!(stat(&store, "memory_usable_bytes"), SMALL);
    }

    #[test]
    fn storage_that_is_full_is_told_once_and_refuses_only_what_has_no_room() {
        let store = Store::create(Words::new(SPACE), &options()).unwrap();
        store.memory().limit(SPACE / 2);
        let (told, failures) = mpsc::channel();
        let failed = move |error: &io::Error| told.send(error.kind()).unwrap();
        beside_growth(&store, failed, || {
            let refused = fill(&store, u64::MAX, || {}).unwrap_err();
            assert!(matches!(&refused, WriteError::Full(text) if text.contains("refuses to grow")), "{refused}");
            assert_eq!(failures.recv(), Ok(io::ErrorKind::StorageFull));
            assert_eq!(stat(&store, "memory_usable_bytes"), SPACE / 2);
            let left = stat(&store, "memory_free_bytes");
            assert!(left < 64 << 10, "refused with {left} bytes left");
            store.memory().limit(u64::MAX);
            fill(&store, store.keys() + 1, || {}).unwrap();
            eventually(|| !store.is_short());
        });
        assert!(stat(&store, "growth_failures") > 0);
        assert_eq!(failures.try_iter().count(), 0, "one message for failures in a row");
    }
}
