//! The `shm` path: this process reads the server's segments itself.
//!
//! A GET makes no system call and takes no server CPU, also when the key is absent.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sidestep_core::handshake::Welcome;
use sidestep_core::hash::KeyHash;
use sidestep_core::layout::root::{
    BOOT_ID_WORD, CLOCK_FLOOR_WORD, FORMAT_VERSION, FORMAT_WORD, MAGIC, MAGIC_WORD, ROOT_BYTES, TABLE_ID_WORD,
};
use sidestep_core::lookup::local::{LocalReader, Outcome};
use sidestep_core::lookup::{Found, Geometry, Trace};
use sidestep_core::memory::Memory;
use sidestep_fabric::region::ReadOnlyRegion;
use sidestep_fabric::shm::{fetch_fd, host_boot_id};

use crate::cache::{LocationCache, note};
use crate::counters::{Count, Counters};
use crate::options::Path;
use crate::value::Meta;
use crate::watch::Watched;

/// Lookups of a key that is found expired again and again before the server is asked.
const EXPIRY_ROUNDS: u32 = 8;
/// Lookups between two publications of the causes of retries.
const TRACE_EVERY: u64 = 256;

/// Why there is no view.
#[derive(Debug)]
pub(crate) struct NoView {
    /// The server is on another host or has none to offer, rather than: it should work and does not.
    pub(crate) is_elsewhere: bool,
    pub(crate) reason: String,
}

impl NoView {
    pub(crate) fn here(reason: impl ToString) -> Self {
        Self { is_elsewhere: false, reason: reason.to_string() }
    }
}

/// The server's memory as all sessions of a client share it.
#[derive(Debug)]
pub(crate) struct View {
    region: ReadOnlyRegion,
    geometry: Geometry,
}

impl View {
    /// Asks for the segments and maps them.
    pub(crate) fn open(welcome: &Welcome, timeout: Duration) -> Result<Self, NoView> {
        let offer = welcome.shm.as_ref().map_err(|reason| NoView {
            is_elsewhere: true,
            reason: format!("the server does not offer it: {reason}"),
        })?;
        let here = host_boot_id().map_err(|error| NoView::here(format!("cannot tell which host this is: {error}")))?;
        if here != offer.host_boot_id {
            return Err(NoView { is_elsewhere: true, reason: "the server is on another host".to_owned() });
        }
        if welcome.memory_bytes < ROOT_BYTES {
            let found = welcome.memory_bytes;
            return Err(NoView::here(format!("expected a table of at least {ROOT_BYTES} bytes, found {found}")));
        }
        let fd = fetch_fd(&offer.socket_name, offer.ticket, timeout).map_err(NoView::here)?;
        let region = ReadOnlyRegion::map(fd, welcome.memory_bytes).map_err(NoView::here)?;
        let geometry = Geometry {
            table_id: welcome.table_id,
            memory_bytes: welcome.memory_bytes,
            max_value_bytes: welcome.max_value_bytes,
        };
        let view = Self { region, geometry };
        let (magic, format) = (view.region.load(MAGIC_WORD), view.region.load(FORMAT_WORD));
        if magic != MAGIC || format != FORMAT_VERSION {
            return Err(NoView::here(format!(
                "expected magic {MAGIC:#x} and format {FORMAT_VERSION}, found {magic:#x} and {format}"
            )));
        }
        if !view.is_of(welcome) {
            return Err(NoView::here("the segments are not of the table that the server told of"));
        }
        Ok(view)
    }

    /// Whether this is the memory of that start of that server. (A table file shows each new start; a copy of it does not.)
    pub(crate) fn is_of(&self, welcome: &Welcome) -> bool {
        self.geometry.memory_bytes == welcome.memory_bytes
            && self.geometry.max_value_bytes == welcome.max_value_bytes
            && self.region.load(TABLE_ID_WORD) == welcome.table_id
            && self.region.load(BOOT_ID_WORD) == welcome.boot_id
    }
}

impl View {
    /// The server's clock: the host's, but never below the floor.
    fn now_ms(&self) -> u64 {
        let host_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis() as u64);
        host_ms.max(self.region.load(CLOCK_FLOOR_WORD))
    }
}

/// The view as the lookup reads it: shared, never copied.
#[derive(Clone, Debug)]
struct Segments(Arc<View>);

impl Memory for Segments {
    #[inline]
    fn words(&self) -> u64 {
        self.0.region.words()
    }
    #[inline]
    fn load(&self, word: u64) -> u64 {
        self.0.region.load(word)
    }
    #[inline]
    fn read(&self, word: u64, into: &mut [u8]) {
        self.0.region.read(word, into);
    }
    #[inline]
    fn prefetch(&self, word: u64, bytes: usize) {
        self.0.region.prefetch(word, bytes);
    }
}

/// How a look into the segments ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Looked {
    /// The value was handed over.
    Found,
    Absent,
    /// Ask the server.
    Ask,
    /// The memory's server is gone: what it holds may be old.
    Gone,
}

/// Tells whether the memory is still a server's.
struct Life {
    /// Of a memfd: the connection whose end is the memory's. A file outlives its server.
    watched: Option<Arc<Watched>>,
    boot_id: u64,
}

impl Life {
    fn new(welcome: &Welcome, watched: &Arc<Watched>) -> Self {
        Self { watched: (!welcome.durable).then(|| watched.clone()), boot_id: welcome.boot_id }
    }

    /// Asked after the memory was read: while its server lived, no other took writes to this table.
    #[inline]
    fn goes_on(&self, view: &View) -> bool {
        match &self.watched {
            None => true,
            Some(watched) => !watched.has_ended() && view.region.load(BOOT_ID_WORD) == self.boot_id,
        }
    }
}

/// One session's reader: its buffers, its location cache.
pub(crate) struct ShmReader {
    view: Arc<View>,
    reader: LocalReader<Segments>,
    cache: Option<LocationCache>,
    life: Life,
    counters: Arc<Counters>,
    lookups: u64,
    /// What the counters know of the reader's trace.
    published: Trace,
}

impl ShmReader {
    pub(crate) fn new(
        view: Arc<View>,
        welcome: &Welcome,
        watched: &Arc<Watched>,
        cache_entries: usize,
        counters: Arc<Counters>,
    ) -> Self {
        let reader = LocalReader::new(Segments(view.clone()), view.geometry);
        let cache = LocationCache::new(cache_entries);
        Self {
            view,
            reader,
            cache,
            life: Life::new(welcome, watched),
            counters,
            lookups: 0,
            published: Trace::default(),
        }
    }

    /// Whether what it reads is still a server's table. No system call.
    #[inline]
    pub(crate) fn goes_on(&self) -> bool {
        self.life.goes_on(&self.view)
    }

    /// Goes on with another connection to the same memory; false: it is other memory.
    pub(crate) fn adopt(&mut self, welcome: &Welcome, watched: &Arc<Watched>) -> bool {
        let same = self.view.is_of(welcome);
        if same {
            self.life = Life::new(welcome, watched);
        }
        same
    }

    /// Looks a key up and hands its value over.
    #[inline]
    pub(crate) fn look(&mut self, key: &[u8], on: &mut dyn FnMut(&[u8], Meta)) -> Looked {
        let hash = self.reader.hash(key);
        let cached = self.cache.as_ref().and_then(|cache| cache.find(hash));
        let mut now_at = None;
        let looked = match self.reader.get_with(key, hash, None, cached) {
            Outcome::Found { found, .. } if found.expires_ms != 0 => Looked::Ask,
            Outcome::Found { .. } | Outcome::Absent if !self.life.goes_on(&self.view) => Looked::Gone,
            Outcome::Found { value, found } => {
                on(value, meta(&found));
                now_at = Some(found.location);
                Looked::Found
            }
            Outcome::Absent => Looked::Absent,
            Outcome::Ask => Looked::Ask,
        };
        if let Some(cache) = &mut self.cache {
            note(cache, &self.counters, hash, cached, now_at);
        }
        // An item that expires, or a lookup that asks: both are rare enough to look again.
        let looked = if looked == Looked::Ask { self.look_closely(key, hash, on) } else { looked };
        self.count(looked);
        looked
    }

    /// Looks a batch up, one round for each READ step of all keys. Keys that need a closer look go into `again`.
    pub(crate) fn look_batch<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        again: &mut Vec<usize>,
        on: &mut impl FnMut(usize, Option<(&[u8], Meta)>),
    ) {
        let Self { view, reader, life, .. } = self;
        let (mut found_count, mut absent_count) = (0, 0);
        reader.multi_get(keys, |i, outcome| match outcome {
            Outcome::Found { found, .. } if found.expires_ms != 0 => again.push(i),
            Outcome::Ask => again.push(i),
            _ if !life.goes_on(view) => again.push(i),
            Outcome::Found { value, found } => {
                found_count += 1;
                on(i, Some((value, meta(&found))));
            }
            Outcome::Absent => {
                absent_count += 1;
                on(i, None);
            }
        });
        self.counters.add(Count::ShmGetFound, found_count);
        self.counters.add(Count::ShmGetAbsent, absent_count);
        self.publish_trace();
    }

    /// Looks again with the clock in hand. The host is the server's, and so is the clock, but for the floor.
    #[cold]
    fn look_closely(&mut self, key: &[u8], hash: KeyHash, on: &mut dyn FnMut(&[u8], Meta)) -> Looked {
        for _ in 0..EXPIRY_ROUNDS {
            let before_ms = self.view.now_ms();
            match self.reader.get_with(key, hash, None, None) {
                Outcome::Ask => return Looked::Ask,
                _ if !self.life.goes_on(&self.view) => return Looked::Gone,
                Outcome::Absent => return Looked::Absent,
                Outcome::Found { value, found } => {
                    let expires_ms = found.expires_ms;
                    if expires_ms == 0 || self.view.now_ms() < expires_ms {
                        on(value, meta(&found));
                        return Looked::Found;
                    }
                    if before_ms >= expires_ms {
                        self.counters.add(Count::ShmExpired, 1);
                        return Looked::Absent;
                    }
                    // It expired between the two looks at the clock: neither answer can be given.
                }
            }
        }
        Looked::Ask
    }

    #[inline]
    fn count(&mut self, looked: Looked) {
        match looked {
            Looked::Found => self.counters.add(Count::ShmGetFound, 1),
            Looked::Absent => self.counters.add(Count::ShmGetAbsent, 1),
            Looked::Ask => self.counters.add(Count::ShmAsks, 1),
            Looked::Gone => {}
        }
        self.lookups += 1;
        if self.lookups.is_multiple_of(TRACE_EVERY) {
            self.publish_trace();
        }
    }

    /// Makes the causes of retries visible to other threads.
    pub(crate) fn publish_trace(&mut self) {
        let (trace, before) = (self.reader.trace(), self.published);
        self.published = trace;
        // The words of a trace wrap around; their differences are right all the same.
        for (count, n) in [
            (Count::ShmRetriesDirectory, trace.stale_directory.wrapping_sub(before.stale_directory)),
            (Count::ShmRetriesTorn, trace.torn.wrapping_sub(before.torn)),
            (Count::ShmRetriesPending, trace.pending.wrapping_sub(before.pending)),
            (Count::ShmRetriesLocation, trace.stale_locations.wrapping_sub(before.stale_locations)),
            (Count::ShmHops, trace.hops.wrapping_sub(before.hops)),
            (Count::ShmCollisions, trace.second_looks.wrapping_sub(before.second_looks)),
        ] {
            self.counters.add(count, u64::from(n));
        }
    }
}

fn meta(found: &Found) -> Meta {
    Meta { version: found.version, path: Path::Shm, value_bytes: found.value_bytes }
}
