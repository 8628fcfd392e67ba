//! One session's lookups by one-sided READs.
//!
//! With a directory entry that is known: a READ of the window, then all items whose fingerprint matches in one doorbell.
//! With a location that is known: one READ. The server's CPU takes no part.

use std::ops::Range;
use std::sync::Arc;

use sidestep_core::handshake::Welcome;
use sidestep_core::hash::KeyHash;
use sidestep_core::layout::bucket::{self, WINDOW_SLOTS};
use sidestep_core::layout::directory::DirectoryWord;
use sidestep_core::layout::root::CURRENT_DIRECTORY_WORD;
use sidestep_core::lookup::{CachedLocation, Found, Geometry, ItemRead, Lookup, Step, Trace};
use sidestep_fabric::rdma::{Buffer, RdmaError};
use tracing::debug;

use super::directory::DirectoryCache;
use super::remote::{Fetched, Remote, Wanted};
use crate::cache::{LocationCache, note};
use crate::counters::{Count, Counters};
use crate::options::Path;
use crate::shm::Looked;
use crate::value::Meta;
use crate::watch::Watched;

/// Bytes of a window.
pub(super) const WINDOW_BYTES: usize = WINDOW_SLOTS * 8;

/// The READ of the root's current directory word.
pub(super) const ROOT: ItemRead = ItemRead { word: CURRENT_DIRECTORY_WORD, bytes: 8 };

/// A value in the buffer that the NIC wrote.
#[derive(Debug)]
pub(crate) struct Item {
    buffer: Buffer,
    range: Range<usize>,
    meta: Meta,
}

impl Item {
    /// Of an item that is in the buffer from byte `at` on.
    fn new(buffer: Buffer, at: usize, found: &Found) -> Self {
        let range = at + found.value_offset..at + found.value_offset + found.value_bytes;
        let meta = Meta { version: found.version, path: Path::Rdma, value_bytes: found.value_bytes };
        Self { buffer, range, meta }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[self.range.clone()]
    }

    pub(crate) fn meta(&self) -> Meta {
        self.meta
    }

    pub(super) fn into_parts(self) -> (Buffer, Range<usize>) {
        (self.buffer, self.range)
    }

    /// Whether its buffer should go back soon.
    pub(crate) fn is_scarce(&self) -> bool {
        self.buffer.is_scarce()
    }
}

/// A lookup before its first READ.
pub(super) struct Begun<'k> {
    pub(super) hash: KeyHash,
    pub(super) cached: Option<CachedLocation>,
    pub(super) lookup: Lookup<'k>,
    pub(super) step: Step,
}

/// How a lookup ended.
pub(super) enum End {
    Found(Item, Found),
    Absent,
    Ask,
}

/// One session's reader: queue pair, caches.
pub(crate) struct RdmaReader {
    pub(super) remote: Remote,
    pub(super) geometry: Geometry,
    pub(super) directory: DirectoryCache,
    pub(super) cache: Option<LocationCache>,
    pub(super) counters: Arc<Counters>,
    pub(super) trace: Trace,
    watched: Arc<Watched>,
    /// The first error: nothing is read after it.
    broken: Option<RdmaError>,
    published: Trace,
}

impl RdmaReader {
    pub(super) fn new(
        remote: Remote,
        welcome: &Welcome,
        watched: &Arc<Watched>,
        cache_entries: usize,
        counters: Arc<Counters>,
    ) -> Self {
        let geometry = Geometry {
            table_id: welcome.table_id,
            memory_bytes: welcome.memory_bytes,
            max_value_bytes: welcome.max_value_bytes,
        };
        Self {
            remote,
            geometry,
            directory: DirectoryCache::new(),
            cache: LocationCache::new(cache_entries),
            counters,
            trace: Trace::default(),
            watched: watched.clone(),
            broken: None,
            published: Trace::default(),
        }
    }

    /// Whether what it reads is still a server's table. No system call.
    #[inline]
    pub(crate) fn goes_on(&self) -> bool {
        self.broken.is_none() && !self.watched.has_ended()
    }

    /// What ended it, if it was not the end of the connection.
    pub(crate) fn take_error(&mut self) -> Option<RdmaError> {
        self.broken.take()
    }

    /// Notes why the queue pair is of no use any more.
    pub(super) fn break_off(&mut self, error: RdmaError) {
        debug!(%error, "a read failed");
        self.counters.add(Count::RdmaErrors, 1);
        self.broken.get_or_insert(error);
    }

    /// Looks a key up and hands its value over.
    pub(crate) fn look(&mut self, key: &[u8], on: &mut dyn FnMut(&[u8], Meta)) -> Looked {
        let mut item = None;
        let looked = self.find(key, &mut item);
        if let Some(item) = &item {
            on(item.bytes(), item.meta);
        }
        looked
    }

    /// Looks a key up. `into` gets the value with its buffer.
    pub(crate) fn find(&mut self, key: &[u8], into: &mut Option<Item>) -> Looked {
        self.find_into(key, into, &mut None)
    }

    /// Begins a lookup where the caches say, if they know.
    pub(super) fn begin<'k>(&self, key: &'k [u8]) -> Begun<'k> {
        let hash = KeyHash::of(key, self.geometry.table_id);
        let cached = self.cache.as_ref().and_then(|cache| cache.find(hash));
        let mut lookup = Lookup::new(key, hash, self.geometry);
        let entry = self.directory.find(hash);
        let step = match cached {
            Some(location) => lookup.start_at(location, entry),
            None => lookup.start(entry),
        };
        Begun { hash, cached, lookup, step }
    }

    /// Looks a key up, its item read into the buffer that is wanted if it fits.
    pub(super) fn find_into(&mut self, key: &[u8], into: &mut Option<Item>, wanted: &mut Option<Wanted>) -> Looked {
        let Begun { hash, cached, mut lookup, step } = self.begin(key);
        let end = match drive(&mut lookup, step, &mut self.remote, wanted) {
            Ok(end) => end,
            Err(error) => {
                self.break_off(error);
                return Looked::Gone;
            }
        };
        self.learn(hash, &lookup, cached, &end);
        self.conclude(end, into)
    }

    /// Keeps what a lookup has shown.
    pub(super) fn learn(&mut self, hash: KeyHash, lookup: &Lookup<'_>, cached: Option<CachedLocation>, end: &End) {
        self.trace += lookup.trace();
        self.directory.keep(hash, lookup.entry());
        if let Some(cache) = &mut self.cache {
            let now_at = match end {
                End::Found(_, found) => Some(found.location),
                _ => None,
            };
            note(cache, &self.counters, hash, cached, now_at);
        }
    }

    /// What the end of a lookup is to the caller. While the control connection stands, no other server has taken
    /// writes to this table.
    pub(super) fn conclude(&mut self, end: End, into: &mut Option<Item>) -> Looked {
        let (looked, count) = match end {
            // This host's clock is not the server's.
            End::Found(_, found) if found.expires_ms != 0 => (Looked::Ask, Count::RdmaAsks),
            End::Ask => (Looked::Ask, Count::RdmaAsks),
            _ if self.watched.has_ended() => return Looked::Gone,
            End::Found(item, _) => {
                *into = Some(item);
                (Looked::Found, Count::RdmaGetFound)
            }
            End::Absent => (Looked::Absent, Count::RdmaGetAbsent),
        };
        self.counters.add(count, 1);
        looked
    }

    /// Makes what was counted visible to other threads.
    pub(crate) fn publish_trace(&mut self) {
        let (trace, before) = (self.trace, self.published);
        self.published = trace;
        self.remote.publish(&self.counters);
        for (count, n) in [
            (Count::RdmaRetriesDirectory, trace.stale_directory.wrapping_sub(before.stale_directory)),
            (Count::RdmaRetriesTorn, trace.torn.wrapping_sub(before.torn)),
            (Count::RdmaRetriesPending, trace.pending.wrapping_sub(before.pending)),
            (Count::RdmaRetriesLocation, trace.stale_locations.wrapping_sub(before.stale_locations)),
            (Count::RdmaHops, trace.hops.wrapping_sub(before.hops)),
            (Count::RdmaCollisions, trace.second_looks.wrapping_sub(before.second_looks)),
        ] {
            self.counters.add(count, u64::from(n));
        }
    }
}

/// The step after a window. A window that was cut off is no subtable's.
pub(super) fn on_window(lookup: &mut Lookup<'_>, fetched: &Fetched) -> Step {
    match fetched.bytes().try_into() {
        Ok(bytes) => lookup.on_window(&bucket::window_from_bytes(bytes)),
        Err(_) => Step::Ask,
    }
}

/// The outcome, with the buffer that it is in.
pub(super) fn end_of(step: Step, last: Fetched, kept: Fetched) -> End {
    match step {
        Step::Found(found) => match if found.kept { kept } else { last } {
            Fetched::Bytes(buffer, range, _) if found.value_offset + found.value_bytes <= range.len() => {
                End::Found(Item::new(buffer, range.start, &found), found)
            }
            _ => End::Ask,
        },
        Step::Absent => End::Absent,
        _ => End::Ask,
    }
}

/// Drives a lookup from a step to its end, one READ or one doorbell of READs at a time.
fn drive(
    lookup: &mut Lookup<'_>,
    mut step: Step,
    remote: &mut Remote,
    wanted: &mut Option<Wanted>,
) -> Result<End, RdmaError> {
    let (mut last, mut kept) = (Fetched::Nothing, Fetched::Nothing);
    loop {
        step = match step {
            Step::Root => lookup.on_root(DirectoryWord(remote.fetch(ROOT)?.word())),
            Step::Entry { word } => lookup.on_entry(DirectoryWord(remote.fetch(ItemRead { word, bytes: 8 })?.word())),
            Step::Window { word } => on_window(lookup, &remote.fetch(ItemRead { word, bytes: WINDOW_BYTES })?),
            Step::Candidates | Step::Next => {
                std::mem::take(&mut last).give_back(wanted);
                candidates(lookup, remote, &mut last, wanted)?
            }
            Step::Item { read, keep } => {
                let before = std::mem::take(&mut last);
                if keep {
                    kept = remote.set_aside(before, wanted)?;
                } else {
                    before.give_back(wanted);
                }
                last = remote.fetch_into(read, wanted)?;
                on_item(lookup, &last)
            }
            end @ (Step::Found(_) | Step::Absent | Step::Ask) => {
                if !matches!(end, Step::Found(Found { kept: false, .. })) {
                    std::mem::take(&mut last).give_back(wanted);
                }
                return Ok(end_of(end, last, kept));
            }
        };
    }
}

/// The step after an item. One that only the server can read ends the lookup.
pub(super) fn on_item(lookup: &mut Lookup<'_>, fetched: &Fetched) -> Step {
    if fetched.is_closed() { Step::Ask } else { lookup.on_item_arrived(fetched.bytes(), fetched.arriving()) }
}

/// Reads all candidates in one doorbell and hands them over in their order. `last` is the one that decided.
fn candidates(
    lookup: &mut Lookup<'_>,
    remote: &mut Remote,
    last: &mut Fetched,
    wanted: &mut Option<Wanted>,
) -> Result<Step, RdmaError> {
    remote.prepare(lookup.candidates())?;
    let is_alone = lookup.candidates().nth(1).is_none();
    for read in lookup.candidates() {
        // Of several each may turn out to be another key's.
        if is_alone { remote.push_into(0, read, wanted)? } else { remote.push(0, read)? }
    }
    let mut step = Step::Next;
    // The others are read to the end too: nothing stays under way behind a lookup.
    while let Some((_, fetched)) = remote.next()? {
        if step == Step::Next {
            step = on_item(lookup, &fetched);
            *last = fetched;
        }
    }
    Ok(if step == Step::Next { Step::Ask } else { step })
}
