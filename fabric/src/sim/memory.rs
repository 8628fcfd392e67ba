//! Words in ordinary memory, with an adversary between any two accesses.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use sidestep_core::memory::{Memory, MemoryMut};

use super::threads::step;

const PAGE_BYTES: u64 = 4096;
const PAGE_WORDS: u64 = PAGE_BYTES / 8;
/// No store has this number.
const NEVER: u64 = u64::MAX;

type Hook = Arc<dyn Fn(u64) + Send + Sync>;

/// What a killed server's thread unwinds with, see [`kill`] and [`until_killed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Killed;

/// Unwinds with [`Killed`], without a message: for hooks that end the server there and then.
///
/// Unlike [`SimMemory::kill_at`] it does not freeze the memory; what runs while unwinding may still write.
pub fn kill() -> ! {
    resume_unwind(Box::new(Killed))
}

/// Runs a server until it is done or killed. Other panics go on.
pub fn until_killed<T>(server: impl FnOnce() -> T) -> Result<T, Killed> {
    catch_unwind(AssertUnwindSafe(server)).map_err(|payload| match payload.downcast::<Killed>() {
        Ok(killed) => *killed,
        Err(other) => resume_unwind(other),
    })
}

/// Memory of a simulated segment. Every access is a [`step`] of the logical threads.
///
/// Hooks run before an access, on its thread; accesses that they make themselves run no hooks.
pub struct SimMemory {
    words: Box<[AtomicU64]>,
    random: Mutex<Xoshiro256PlusPlus>,
    stores: AtomicU64,
    loads: AtomicU64,
    on_store: RwLock<Option<Hook>>,
    on_load: RwLock<Option<Hook>>,
    kill_at: AtomicU64,
    frozen: AtomicBool,
    storage: Option<Storage>,
}

/// Which pages exist, where that matters.
struct Storage {
    pages: Mutex<Vec<bool>>,
    max_pages: usize,
}

thread_local! {
    static IN_HOOK: Cell<bool> = const { Cell::new(false) };
}

impl SimMemory {
    /// `words` zero words; `seed` decides the order of the words of reads and writes.
    pub fn new(words: u64, seed: u64) -> Self {
        Self::from_words((0..words).map(|_| AtomicU64::new(0)).collect(), seed)
    }

    fn from_words(words: Box<[AtomicU64]>, seed: u64) -> Self {
        Self {
            words,
            random: Mutex::new(Xoshiro256PlusPlus::seed_from_u64(seed)),
            stores: AtomicU64::new(0),
            loads: AtomicU64::new(0),
            on_store: RwLock::new(None),
            on_load: RwLock::new(None),
            kill_at: AtomicU64::new(NEVER),
            frozen: AtomicBool::new(false),
            storage: None,
        }
    }

    /// Makes it like a sparse file on a small disk: pages of at most `max_bytes` in all can be
    /// allocated, more is [`io::ErrorKind::StorageFull`], and a write to a page that was not
    /// allocated panics, as it might be a SIGBUS.
    pub fn with_storage(mut self, max_bytes: u64) -> Self {
        let pages = vec![false; (self.words.len() as u64).div_ceil(PAGE_WORDS) as usize];
        self.storage = Some(Storage { pages: Mutex::new(pages), max_pages: (max_bytes / PAGE_BYTES) as usize });
        self
    }

    /// Calls `hook` before every store, fetch_max and write with its number, from 0 on since the
    /// memory was made. It may run readers, pause, or [`kill`].
    pub fn on_store(&self, hook: impl Fn(u64) + Send + Sync + 'static) {
        *self.on_store.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(hook));
    }

    /// Calls `hook` before every load and before every single word of a read, with its number
    /// from 0 on. It may run the server, so that one read sees several of its states.
    pub fn on_load(&self, hook: impl Fn(u64) + Send + Sync + 'static) {
        *self.on_load.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(hook));
    }

    /// Takes both hooks away.
    pub fn clear_hooks(&self) {
        *self.on_store.write().unwrap_or_else(PoisonError::into_inner) = None;
        *self.on_load.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Kills the server at the store of this number: its thread unwinds with [`Killed`] in place
    /// of the store, or with a random part of the words of a write done.
    ///
    /// From then on nothing changes the memory, whatever destructors do; another thread that tries is
    /// killed too. Readers go on. See [`Self::revive`].
    pub fn kill_at(&self, store: u64) {
        self.kill_at.store(store, Ordering::SeqCst);
    }

    /// Whether the server was killed by [`Self::kill_at`].
    pub fn is_killed(&self) -> bool {
        self.frozen.load(Ordering::SeqCst)
    }

    /// Lets the next server write to the same memory, as after a restart on the same file.
    pub fn revive(&self) {
        self.kill_at(NEVER);
        self.frozen.store(false, Ordering::SeqCst);
    }

    /// Stores, fetch_maxes and writes so far.
    pub fn stores(&self) -> u64 {
        self.stores.load(Ordering::SeqCst)
    }

    /// Loads, and words of reads, so far.
    pub fn loads(&self) -> u64 {
        self.loads.load(Ordering::SeqCst)
    }

    /// New memory with the same words and pages, without hooks: to try several ways on from here.
    pub fn copy(&self, seed: u64) -> Self {
        let words = self.words.iter().map(|word| AtomicU64::new(word.load(Ordering::SeqCst))).collect();
        let mut copy = Self::from_words(words, seed);
        copy.storage = self.storage.as_ref().map(|storage| Storage {
            pages: Mutex::new(storage.pages.lock().unwrap_or_else(PoisonError::into_inner).clone()),
            max_pages: storage.max_pages,
        });
        copy
    }

    fn at(&self, word: u64) -> &AtomicU64 {
        &self.words[word as usize]
    }

    /// A panic as of the mapped memory, before anything is accessed.
    fn check(&self, word: u64, count: usize) {
        let words = self.words.len() as u64;
        let inside = word.checked_add(count as u64).is_some_and(|end| end <= words);
        assert!(inside, "words {word:#x}..+{count:#x} lie outside the {words:#x} simulated ones");
    }

    fn shuffled(&self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        order.shuffle(&mut *self.random.lock().unwrap_or_else(PoisonError::into_inner));
        order
    }

    /// One word of a read or a load.
    fn sample(&self, word: u64) -> u64 {
        let number = self.loads.fetch_add(1, Ordering::SeqCst);
        step();
        call(&self.on_load, number);
        self.at(word).load(Ordering::Acquire)
    }

    /// Before a store to `count` words; Err = the number of words to write before dying.
    fn before_store(&self, word: u64, count: usize) -> Result<(), usize> {
        self.check(word, count);
        if let Some(storage) = &self.storage {
            let pages = storage.pages.lock().unwrap_or_else(PoisonError::into_inner);
            let last = word + (count as u64).max(1) - 1;
            for page in word / PAGE_WORDS..=last / PAGE_WORDS {
                let allocated = count == 0 || pages[page as usize];
                drop_unless(allocated, &format!("word {word:#x} is written but page {page:#x} was never allocated"));
            }
        }
        step();
        if self.is_killed() {
            return Err(0);
        }
        let number = self.stores.fetch_add(1, Ordering::SeqCst);
        if number == self.kill_at.load(Ordering::SeqCst) {
            self.frozen.store(true, Ordering::SeqCst);
            let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
            return Err(random.random_range(0..=count));
        }
        call(&self.on_store, number);
        // The hook may have paused this thread while another was killed.
        if self.is_killed() { Err(0) } else { Ok(()) }
    }

    fn set(&self, word: u64, value: u64) {
        self.at(word).store(value, Ordering::Release);
    }
}

fn drop_unless(allocated: bool, message: &str) {
    // A panic while unwinding would abort.
    assert!(allocated || std::thread::panicking(), "{message}");
}

/// The end of a killed server, except where its thread is unwinding already: there stores do nothing.
fn die() {
    if !std::thread::panicking() {
        kill();
    }
}

fn call(hook: &RwLock<Option<Hook>>, number: u64) {
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            IN_HOOK.set(false);
        }
    }
    if IN_HOOK.get() {
        return;
    }
    // Not called under the lock: it may set another hook.
    let hook = hook.read().unwrap_or_else(PoisonError::into_inner).clone();
    if let Some(hook) = hook {
        IN_HOOK.set(true);
        let _reset = Reset;
        hook(number);
    }
}

impl fmt::Debug for SimMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimMemory")
            .field("words", &self.words.len())
            .field("stores", &self.stores())
            .field("killed", &self.is_killed())
            .finish_non_exhaustive()
    }
}

impl Memory for SimMemory {
    fn words(&self) -> u64 {
        self.words.len() as u64
    }

    fn load(&self, word: u64) -> u64 {
        self.check(word, 1);
        self.sample(word)
    }

    fn read(&self, word: u64, into: &mut [u8]) {
        assert!(into.len().is_multiple_of(8), "a read takes whole words");
        self.check(word, into.len() / 8);
        for index in self.shuffled(into.len() / 8) {
            let value = self.sample(word + index as u64);
            into[index * 8..][..8].copy_from_slice(&value.to_le_bytes());
        }
    }
}

impl MemoryMut for SimMemory {
    fn store(&self, word: u64, value: u64) {
        match self.before_store(word, 1) {
            Ok(()) => self.set(word, value),
            Err(_) => die(),
        }
    }

    fn fetch_max(&self, word: u64, value: u64) -> u64 {
        if self.before_store(word, 1).is_err() {
            die();
            return self.at(word).load(Ordering::Acquire);
        }
        self.at(word).fetch_max(value, Ordering::AcqRel)
    }

    fn write(&self, word: u64, from: &[u8]) {
        let count = from.len().div_ceil(8);
        let before = self.before_store(word, count);
        let order = self.shuffled(count);
        for (done, index) in order.into_iter().enumerate() {
            if before.is_err_and(|limit| done >= limit) {
                break;
            }
            if done > 0 {
                step();
                // Killed meanwhile, by another thread's store.
                if before.is_ok() && self.is_killed() {
                    return die();
                }
            }
            let bytes = &from[index * 8..from.len().min(index * 8 + 8)];
            let mut value = [0; 8];
            value[..bytes.len()].copy_from_slice(bytes);
            self.set(word + index as u64, u64::from_le_bytes(value));
        }
        if before.is_err() {
            die();
        }
    }

    fn fence(&self) {
        fence(Ordering::Release);
    }

    fn allocate(&self, word: u64, bytes: u64) -> io::Result<()> {
        let space = self.words.len() as u64 * 8;
        let end = word.checked_mul(8).and_then(|offset| offset.checked_add(bytes)).filter(|end| *end <= space);
        let Some(end) = end else {
            let text = format!("expected a range within {space:#x} bytes, found {bytes:#x} bytes at word {word:#x}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        };
        let Some(storage) = self.storage.as_ref().filter(|_| bytes > 0) else { return Ok(()) };
        let mut pages = storage.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let range = (word / PAGE_WORDS) as usize..end.div_ceil(PAGE_BYTES) as usize;
        let new = pages[range.clone()].iter().filter(|page| !**page).count();
        let used = pages.iter().filter(|page| **page).count();
        if used + new > storage.max_pages {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        pages[range].fill(true);
        Ok(())
    }
}
