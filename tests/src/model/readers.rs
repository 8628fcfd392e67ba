//! Readers of one key that begin at every time, with everything their caches can remember by then.

use std::collections::HashSet;
use std::sync::Arc;

use sidestep_core::layout::directory::DirectoryWord;
use sidestep_core::lookup::CachedLocation;

use super::explore::Explorer;
use super::keys::Key;
use super::oracle::{Read, Write, check_reads, check_versions, list};
use super::reader::{End, Node};
use super::tape::Event;
use super::timeline::{Time, Timeline};
use super::{Bounds, Defence, Report};

/// A write as the run knows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Written {
    pub(crate) key: Key,
    pub(crate) state: Option<Vec<u8>>,
    pub(crate) version: Option<u64>,
}

/// One run of the server, kills and recoveries included.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// The words before it.
    pub(crate) initial: Arc<[u64]>,
    pub(crate) events: Vec<Event>,
    /// All writes; the events name them by their place.
    pub(crate) writes: Vec<Written>,
}

/// Locations that a cache can hold, and since when.
type Locations = Vec<(CachedLocation, Time)>;

/// The places of caches that a reader may begin with.
type Start = (Option<DirectoryWord>, Option<CachedLocation>);

/// Follows every reader of `key` in this run. `before`: the key's state in the initial words. Words that the
/// readers turn out to read are added to `footprint`; true = some were, and the answer does not count.
pub(crate) fn check_readers(
    run: &Run,
    key: Key,
    before: &Written,
    bounds: Bounds,
    without: Option<Defence>,
    footprint: &mut HashSet<u64>,
    report: &mut Report,
) -> Result<bool, String> {
    let is_mine = |write: usize| run.writes[write].key == key;
    let timeline = Timeline::new(&run.initial, &run.events, footprint, is_mine);
    let writes = writes_of(run, key, before, &timeline);
    if !bounds.rivals {
        check_versions(&writes)?;
    }
    let mut explorer = Explorer::new(&timeline, key, without, bounds.coarse);
    let explored = follow_all(&mut explorer, &timeline, key, bounds);
    let missed = timeline.missed();
    if !missed.is_empty() {
        footprint.extend(missed);
        return Ok(true);
    }
    report.timelines += 1;
    report.states += explorer.states;
    report.alone += explorer.alone_runs;
    report.most_windows = report.most_windows.max(explorer.most_windows);
    report.exhausted &= !explorer.cut;
    let (reads, locations) = explored.map_err(|failure| show(&timeline, key, &writes, &failure))?;
    report.lookups += reads.len() as u64;
    let orders = if bounds.rivals { orders(&writes, &reads) } else { vec![writes] };
    let mut failure = None;
    for writes in orders {
        let failed = check_versions(&writes).err().map(|why| (why, None));
        let failed = failed.or_else(|| check_reads(&writes, &reads).err().map(|(why, read)| (why, Some(read))));
        let Some((why, read)) = failed else { return Ok(false) };
        failure = Some((writes, why, read));
    }
    let Some((writes, why, read)) = failure else { return Ok(false) };
    let Some(read) = read else { return Err(show(&timeline, key, &writes, &why)) };
    let way = explain(&mut explorer, &locations, key, &read, bounds);
    let Read { begin, end, result } = read;
    Err(show(
        &timeline,
        key,
        &writes,
        &format!("{why}: a lookup from {begin} to {end} that ended as {result:?}\n{way}"),
    ))
}

/// The writes to a key with their times, in the order of their begins.
fn writes_of(run: &Run, key: Key, before: &Written, timeline: &Timeline) -> Vec<Write> {
    let mut writes =
        vec![(usize::MAX, Write { state: before.state.clone(), version: before.version, begin: 0, end: Some(0) })];
    for (event, time) in &timeline.marks {
        match event {
            Event::Begin(number) if run.writes[*number].key == key => {
                let Written { state, version, .. } = run.writes[*number].clone();
                writes.push((*number, Write { state, version, begin: *time, end: None }));
            }
            Event::End(number) => {
                if let Some((_, write)) = writes.iter_mut().find(|(known, _)| known == number) {
                    write.end = Some(*time);
                }
            }
            _ => {}
        }
    }
    writes.into_iter().map(|(_, write)| write).collect()
}

/// The orders that the writes of two writers can have had: that of their versions. The version of a write that was
/// killed is known if somebody has seen it; else it explains nothing and is left out. A delete that was killed may
/// have removed any of them.
fn orders(writes: &[Write], reads: &[Read]) -> Vec<Vec<Write>> {
    let mut writes = writes.to_vec();
    for write in writes.iter_mut().filter(|write| write.version.is_none() && write.state.is_some()) {
        write.version = reads.iter().find_map(|read| match &read.result {
            End::Found { value, version, .. } if Some(value) == write.state.as_ref() => Some(*version),
            _ => None,
        });
    }
    let versions: Vec<u64> = writes.iter().filter_map(|write| write.version).collect();
    let killed = writes.iter().position(|write| write.state.is_none() && write.version.is_none());
    let choices = if killed.is_some() { versions } else { vec![0] };
    let order = |removed: u64| {
        let mut writes = writes.clone();
        if let Some(killed) = killed {
            writes[killed].version = Some(removed);
        }
        writes.retain(|write| write.version.is_some());
        // A delete comes after the version that it removed.
        writes[1..].sort_by_key(|write| (write.version, write.state.is_none()));
        writes
    };
    choices.into_iter().map(order).collect()
}

/// Every lookup that can happen: from each time on, from each start that a cache can hold by then.
fn follow_all(
    explorer: &mut Explorer<'_>,
    timeline: &Timeline,
    key: Key,
    bounds: Bounds,
) -> Result<(Vec<Read>, Locations), String> {
    let mut reads: HashSet<Read> = HashSet::new();
    let mut locations = Locations::new();
    for begin in 0..=timeline.end {
        let mut done: HashSet<Start> = HashSet::new();
        loop {
            let starts: Vec<Start> =
                starts(explorer, &locations, begin, bounds).into_iter().filter(|start| !done.contains(start)).collect();
            if starts.is_empty() {
                break;
            }
            for start in starts {
                done.insert(start);
                let node = Node::start(key, start.0, start.1);
                for (result, end) in explorer.ends(&node, begin)?.iter() {
                    if let End::Found { location, .. } = result
                        && location.address != 0
                    {
                        match locations.iter_mut().find(|(known, _)| known == location) {
                            Some((_, since)) => *since = (*since).min(*end),
                            None => locations.push((*location, *end)),
                        }
                    }
                    reads.insert(Read { begin, end: *end, result: result.clone() });
                }
            }
        }
    }
    let mut reads: Vec<Read> = reads.into_iter().collect();
    reads.sort_by_key(|read| (read.begin, read.end));
    Ok((reads, locations))
}

fn starts(explorer: &Explorer<'_>, locations: &[(CachedLocation, Time)], begin: Time, bounds: Bounds) -> Vec<Start> {
    let entries =
        explorer.entries.iter().filter(|(_, since)| *since <= begin && bounds.stale).map(|(entry, _)| Some(*entry));
    let entries: Vec<Option<DirectoryWord>> = std::iter::once(None).chain(entries).collect();
    let locations = locations.iter().filter(|(_, since)| *since <= begin && bounds.stale).map(|(at, _)| Some(*at));
    let locations: Vec<Option<CachedLocation>> = std::iter::once(None).chain(locations).collect();
    entries.iter().flat_map(|&entry| locations.iter().map(move |&location| (entry, location))).collect()
}

/// One way to a lookup that is not explained.
fn explain(
    explorer: &mut Explorer<'_>,
    locations: &[(CachedLocation, Time)],
    key: Key,
    read: &Read,
    bounds: Bounds,
) -> String {
    for start in starts(explorer, locations, read.begin, bounds) {
        let node = Node::start(key, start.0, start.1);
        let mut way = vec![format!("  {}: begins with {start:?}", read.begin)];
        if explorer.way(&node, read.begin, read, &mut way) {
            return way.join("\n");
        }
    }
    String::new()
}

/// The run as this key's readers see it.
fn show(timeline: &Timeline, key: Key, writes: &[Write], failure: &str) -> String {
    let mut text = format!("key {}: {failure}\nwrites: {}\ntime: event\n", String::from_utf8_lossy(key), list(writes));
    for (event, time) in &timeline.marks {
        let event = match event {
            Event::Store { word, value } => format!("{word:#x} := {value:#x}"),
            Event::Write { word, values, torn } => {
                format!("{word:#x}.. := {} words{}", values.len(), if *torn { ", killed" } else { "" })
            }
            Event::Begin(write) => format!("write {write} begins"),
            Event::End(write) => format!("write {write} is acknowledged"),
        };
        text += &format!("  {time}: {event}\n");
    }
    text
}
