//! The expiry sweep: a thread that removes what has expired, so that its space comes back without anyone asking for it.
//!
//! Each subtable remembers a time before which nothing in it expires, and the store the soonest of these: the thread
//! sleeps until then, and a pass looks only into subtables whose time has come. A removal is a delete under the
//! subtable's own lock. Readers need none of this: what has expired is absent for them, removed or not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use sidestep_core::hash::KeyHash;
use sidestep_core::layout::bucket::{SUBTABLE_SLOTS, SlotWord};
use sidestep_core::layout::item::HEADER_BYTES;
use sidestep_core::layout::root;
use sidestep_core::limits::BLOCK_WORDS;
use sidestep_core::memory::MemoryMut;

use super::time::ClockWatch;
use super::write::Place;
use super::{Locked, Store};

/// Items whose headers are fetched ahead.
const PREFETCH: usize = 16;
/// Longest sleep while something will expire: the clock of the system may be set meanwhile.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);
/// Shortest time from one pass to the next.
const SHORTEST_REST: Duration = Duration::from_millis(500);
/// A pass is followed by a rest of so many times its own length: at most a twentieth of a processor.
const REST: u32 = 19;

/// When there is something to sweep, and how the thread is woken and ended.
#[derive(Debug)]
pub(crate) struct Sweeper {
    /// No item expires before this, in milliseconds since the Unix epoch.
    soonest_ms: AtomicU64,
    orders: Mutex<Orders>,
    given: Condvar,
}

#[derive(Debug, Default)]
struct Orders {
    look: bool,
    stop: bool,
}

impl Default for Sweeper {
    fn default() -> Self {
        Self { soonest_ms: AtomicU64::new(u64::MAX), orders: Mutex::default(), given: Condvar::new() }
    }
}

impl Sweeper {
    /// Sleeps, at most for `longest`, until an item that expires sooner than all others is written; false: end.
    fn wait(&self, longest: Option<Duration>) -> bool {
        let mut orders = self.orders.lock();
        let until = longest.map(|longest| Instant::now() + longest);
        while !orders.look && !orders.stop {
            match until {
                None => self.given.wait(&mut orders),
                Some(until) => {
                    if self.given.wait_until(&mut orders, until).timed_out() {
                        break;
                    }
                }
            }
        }
        orders.look = false;
        !orders.stop
    }

    /// Sleeps for this long, whatever is written; false: end.
    fn rest(&self, time: Duration) -> bool {
        let mut orders = self.orders.lock();
        let until = Instant::now() + time;
        while !orders.stop && !self.given.wait_until(&mut orders, until).timed_out() {}
        !orders.stop
    }
}

impl<M: MemoryMut + Send + Sync + 'static> Store<M> {
    /// An item with this expiry (0 = never) is in this subtable now, whose lock the caller has.
    pub(super) fn note_expiry(&self, subtable: u64, expires_ms: u64) {
        if expires_ms == 0 {
            return;
        }
        self.locks.beside(subtable).soonest_ms.fetch_min(expires_ms, Ordering::Relaxed);
        // Release, and always a store: a pass that begins by taking this value sees the subtable's too.
        if expires_ms < self.sweeper.soonest_ms.fetch_min(expires_ms, Ordering::AcqRel) {
            self.sweeper.orders.lock().look = true;
            self.sweeper.given.notify_one();
        }
    }

    /// A sibling has items of the old subtable. Both are locked.
    pub(super) fn inherit_expiry(&self, old: u64, sibling: u64) {
        let soonest_ms = self.locks.beside(old).soonest_ms.load(Ordering::Relaxed);
        self.locks.beside(sibling).soonest_ms.store(soonest_ms, Ordering::Relaxed);
    }

    /// Removes items as they expire, until [`Store::stop_sweeping`]; for a thread of its own. It sleeps while nothing
    /// is due. An item is gone within a second of its time, or twenty times what a pass over the table takes.
    ///
    /// `clock_ahead` is told when the table's clock is found to be ahead of this machine's, by how many milliseconds, and
    /// with 0 when it is no more.
    pub fn sweep_expired(self: &Arc<Self>, mut clock_ahead: impl FnMut(u64)) {
        let mut watch = ClockWatch::default();
        loop {
            watch.look(self.clock_ahead_ms()).into_iter().for_each(&mut clock_ahead);
            let soonest_ms = self.sweeper.soonest_ms.load(Ordering::Relaxed);
            let left_ms = soonest_ms.saturating_sub(self.now_ms());
            if left_ms > 0 {
                let sleep = (soonest_ms != u64::MAX).then(|| Duration::from_millis(left_ms).min(LONGEST_SLEEP));
                if !self.sweeper.wait(sleep) {
                    return;
                }
                continue;
            }
            let since = Instant::now();
            self.sweep_once();
            if !self.sweeper.rest((since.elapsed() * REST).max(SHORTEST_REST)) {
                return;
            }
        }
    }

    /// Ends [`Store::sweep_expired`], at once or after the subtable that it is in.
    pub fn stop_sweeping(&self) {
        self.sweeper.orders.lock().stop = true;
        self.sweeper.given.notify_one();
    }

    /// One pass over all subtables. What is written meanwhile lowers the soonest time again.
    pub(super) fn sweep_once(&self) {
        self.sweeper.soonest_ms.swap(u64::MAX, Ordering::AcqRel);
        let mut soonest_ms = u64::MAX;
        let mut prefix = Some(KeyHash(0));
        while let Some(hash) = prefix {
            if self.sweeper.orders.lock().stop {
                break;
            }
            let entry = self.route(hash);
            let beside = self.locks.beside(entry.address());
            if beside.soonest_ms.load(Ordering::Relaxed) > self.now_ms() {
                soonest_ms = soonest_ms.min(beside.soonest_ms.load(Ordering::Relaxed));
                prefix = hash.after_prefix(entry.depth());
                continue;
            }
            let mut locked = self.lock_subtable(hash);
            soonest_ms = soonest_ms.min(self.sweep_subtable(&mut locked));
            prefix = hash.after_prefix(locked.entry.depth());
            drop(locked);
            // The sweeper is outside of any pin: what it removed is reused as soon as readers have left it.
            self.hand_over_retired(&crossbeam_epoch::pin());
        }
        self.sweeper.soonest_ms.fetch_min(soonest_ms, Ordering::AcqRel);
        self.counters.sweeps.add_one();
    }

    /// Removes what has expired from a subtable. Returns before when nothing of the rest expires.
    fn sweep_subtable(&self, locked: &mut Locked<'_>) -> u64 {
        let subtable = locked.entry.address();
        let now_ms = self.now_ms();
        // As with any answer that something is gone: the clock does not go back before it.
        self.memory.fetch_max(root::CLOCK_FLOOR_WORD, now_ms);
        let slots = (0..SUBTABLE_SLOTS as u64).map(|slot| subtable * BLOCK_WORDS + slot);
        let words: Vec<(u64, SlotWord)> =
            slots.map(|slot| (slot, SlotWord(self.memory.load(slot)))).filter(|(_, word)| !word.is_empty()).collect();
        let prefetch = |(_, word): &(u64, SlotWord)| self.memory.prefetch(word.location().word(), HEADER_BYTES);
        words.iter().take(PREFETCH).for_each(prefetch);
        let mut soonest_ms = u64::MAX;
        for (i, &(slot, word)) in words.iter().enumerate() {
            words.get(i + PREFETCH).into_iter().for_each(prefetch);
            let header = self.header(word.location());
            match header.expires_ms {
                0 => {}
                expires_ms if expires_ms > now_ms => soonest_ms = soonest_ms.min(expires_ms),
                _ => {
                    // A log needs no word of it: it has the expiry.
                    self.take_out(locked, &Place { slot, location: word.location(), header });
                    self.counters.expired.add_one();
                }
            }
        }
        self.locks.beside(subtable).soonest_ms.store(soonest_ms, Ordering::Relaxed);
        soonest_ms
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{SMALL, Words, options};
    use super::*;

    const SPACE: u64 = 64 * SMALL;

    fn store() -> Arc<Store<Arc<Words>>> {
        Store::create(Words::new(SPACE), &options()).unwrap()
    }

    fn stat(store: &Store<Arc<Words>>, name: &str) -> u64 {
        store.stats().into_iter().find(|stat| stat.0 == name).unwrap().1
    }

    fn put(store: &Arc<Store<Arc<Words>>>, key: u64, expires_ms: u64) -> u64 {
        store.put(&key.to_le_bytes(), &[7; 100], None, expires_ms).unwrap()
    }

    /// Waits for the other thread; a bound, not a pace.
    fn eventually(mut holds: impl FnMut() -> bool) {
        let since = Instant::now();
        while !holds() {
            assert!(since.elapsed() < Duration::from_secs(20), "not in time");
            std::thread::yield_now();
        }
    }

    /// Ends the sweeper.
    struct Stop<'s>(&'s Arc<Store<Arc<Words>>>);

    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.stop_sweeping();
        }
    }

    fn beside_sweeper(store: &Arc<Store<Arc<Words>>>, work: impl FnOnce()) {
        std::thread::scope(|scope| {
            scope.spawn(|| store.sweep_expired(|_| {}));
            // Also where the work panics, which would wait for the thread for ever.
            let _stop = Stop(store);
            work();
        });
    }

    #[test]
    fn what_expired_gives_its_space_back_unasked_through_splits() {
        let store = store();
        for key in 0..2000 {
            put(&store, key, 1);
        }
        let before = stat(&store, "subtables");
        for key in 2000..4000 {
            put(&store, key, 0);
        }
        assert!(stat(&store, "subtables") > before + 4, "siblings are told of nothing: they have to inherit it");
        beside_sweeper(&store, || eventually(|| store.keys() == 2000));
        assert_eq!(stat(&store, "expired_removed"), 2000);
        eventually(|| {
            crossbeam_epoch::pin().flush();
            stat(&store, "extents") == 2000
        });
    }

    #[test]
    fn only_what_is_due_goes() {
        let store = store();
        let later = store.now_ms() + 3_600_000;
        put(&store, 1, 1);
        put(&store, 2, later);
        put(&store, 3, 1);
        put(&store, 3, 0); // has no end any more
        put(&store, 4, 0);
        put(&store, 4, 1);
        store.sweep_once();
        assert_eq!((store.keys(), stat(&store, "expired_removed")), (2, 2));
        assert_eq!(store.sweeper.soonest_ms.load(Ordering::Relaxed), later);
        assert_eq!(store.delete(&1_u64.to_le_bytes(), None).unwrap(), None);
        assert!(store.delete(&2_u64.to_le_bytes(), None).unwrap().is_some());
    }

    #[test]
    fn a_version_is_not_given_twice_after_an_expiry() {
        let store = store();
        let before = (0..5).map(|_| put(&store, 9, 1)).max().unwrap();
        store.sweep_once();
        assert_eq!(store.keys(), 0);
        assert!(put(&store, 9, 0) > before);
    }

    #[test]
    fn an_item_that_is_due_sooner_wakes_the_sleeper() {
        let store = store();
        put(&store, 1, store.now_ms() + 3_600_000);
        beside_sweeper(&store, || {
            put(&store, 2, store.now_ms() + 20);
            eventually(|| store.keys() == 1);
        });
        assert_eq!(stat(&store, "expired_removed"), 1);
    }

    #[test]
    fn a_recovered_table_sweeps_on() {
        let memory = Words::new(SPACE);
        let store = Store::create(memory.clone(), &options()).unwrap();
        for key in 0..1000 {
            put(&store, key, 1);
        }
        put(&store, 1000, 0);
        drop(store);
        let (store, report) = Store::recover(memory, &options()).unwrap();
        assert_eq!(report.keys, 1001);
        beside_sweeper(&store, || eventually(|| store.keys() == 1));
    }

    #[test]
    fn the_thread_sleeps_while_nothing_is_due() {
        let store = store();
        put(&store, 1, 0);
        beside_sweeper(&store, || {
            put(&store, 2, store.now_ms() + 20);
            eventually(|| stat(&store, "expired_removed") == 1);
        });
        assert_eq!(stat(&store, "expiry_sweeps"), 1);
    }
}
