//! A disk that refuses something, and what it comes to.

use std::time::Instant;

use sidestep_fabric::region::Region;

use super::tape::{Event, Tape};
use super::*;
use crate::store::{Got, StoreOptions};

/// A bound, not a pace.
const PATIENCE: Duration = Duration::from_secs(60);

fn open(folder: &Path) -> Stored {
    Stored::open(&LogConfig { path: folder.to_owned(), sync: SyncMode::Always }).unwrap()
}

fn new_store() -> Arc<Store<Region>> {
    store_above(0)
}

fn store_above(version_floor: u64) -> Arc<Store<Region>> {
    let options = StoreOptions { version_floor, ..StoreOptions::default() };
    Store::create(Region::memfd(64 << 20).unwrap(), &options).unwrap()
}

fn has(store: &Store<Region>, key: &[u8]) -> bool {
    !matches!(store.get(key, &crossbeam_epoch::pin(), usize::MAX, &mut Vec::new()), Got::Absent)
}

/// The table that a start makes of the log.
fn rebuilt(folder: &Path) -> Arc<Store<Region>> {
    let mut stored = open(folder);
    let store = store_above(stored.ceiling());
    stored.rebuild(&store).unwrap();
    store
}

fn contains(data: &[u8], part: &[u8]) -> bool {
    data.windows(part.len()).any(|found| found == part)
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::yield_now();
    }
}

/// Everything that is written once the table's own item is synced: that is, that the old segments are not needed.
fn refuse_the_end_of_the_compaction(tape: &Tape) {
    let (mut is_written, mut is_synced) = (false, false);
    tape.refuse(move |event| {
        match event {
            Event::Write(_, _, data) if !is_synced => is_written |= contains(data, b"of the table"),
            Event::Sync(_) => is_synced |= is_written,
            _ => {}
        }
        is_synced && matches!(event, Event::Write(..))
    });
}

/// The segment that the compaction would begin: of the two before, the start has made one.
fn refuse_the_third_segment(tape: &Tape) {
    tape.refuse(|event| matches!(event, Event::SetLen(file, _) | Event::Write(file, ..) if file.ends_with("03")));
}

/// The log has a key that was deleted since, and the table, which is ahead, does not. As long as the old segments are
/// needed the key is in what a crash of the machine leaves.
#[test]
fn a_start_that_cannot_do_without_the_old_segments_ends_with_an_error() {
    for refuse in [refuse_the_third_segment, refuse_the_end_of_the_compaction] {
        let folder = tempfile::tempdir().unwrap();
        let store = new_store();
        let before = open(folder.path()).begin(&store).unwrap();
        store.put(b"deleted", b"1", None, 0).unwrap();
        drop(before);
        let table = || {
            let table = new_store();
            table.put(b"a key", b"of the table", None, 0).unwrap();
            table
        };
        let tape = Tape::of(folder.path());
        refuse(&tape);
        let started = open(folder.path()).go_on(&table(), true).map(drop);
        tape.refuse(|_| false);
        let what =
            format!("{started:?}, and a crash brings the key back: {}", has(&rebuilt(folder.path()), b"deleted"));
        assert!(matches!(started, Err(LogError::Copy { .. })), "{what}");
        drop(open(folder.path()).go_on(&table(), true).unwrap());
        let after = rebuilt(folder.path());
        assert!(!has(&after, b"deleted") && has(&after, b"a key"));
        Tape::end(folder.path());
    }
}

/// As on a full disk, where each try would take a part of what was freed.
#[test]
fn a_batch_that_is_refused_again_and_again_takes_no_more_room() {
    let folder = tempfile::tempdir().unwrap();
    let (tape, store) = (Tape::of(folder.path()), new_store());
    let (log, compactor) = open(folder.path()).begin(&store).unwrap();
    store.put(b"first", b"1", None, 0).unwrap();
    until("a sync", || log.queue.durable() == 1);
    tape.refuse(|event| matches!(event, Event::Write(_, _, data) if contains(data, b"refused")));
    store.put(b"second", b"refused", None, 0).unwrap();
    until("five tries", || log.queue.counters.failures.load(Ordering::Relaxed) >= 5);
    let segments = compactor.folder.segments().unwrap();
    tape.refuse(|_| false);
    until("a disk that takes it", || log.queue.durable() == 2);
    store.put(b"third", b"1", None, 0).unwrap();
    drop((log, compactor));
    assert_eq!(segments, [1, 2]);
    assert_eq!(rebuilt(folder.path()).keys(), 3);
    Tape::end(folder.path());
}

/// Else the loss of what was synced last could not be told from the loss of what was not.
#[test]
fn the_tail_says_that_a_batch_is_synced_before_anybody_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let store = new_store();
    let (log, compactor) = open(folder.path()).begin(&store).unwrap();
    for record in 1..=3 {
        store.put(b"key", b"1", None, 0).unwrap();
        until("a sync", || log.queue.durable() == record);
        let tail = compactor.folder.tail().unwrap();
        assert_eq!((tail.synced, tail.begun), (record, record));
    }
}

#[test]
fn folders_that_are_not_there_are_made_for_their_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let above = tempfile::tempdir().unwrap();
    let folder = above.path().join("of").join("a").join("log");
    for _ in 0..2 {
        drop(open(&folder));
    }
    for made in folder.ancestors().take_while(|&made| made != above.path()) {
        assert_eq!(std::fs::metadata(made).unwrap().permissions().mode() & 0o777, 0o700);
    }
    std::fs::write(above.path().join("a file"), b"").unwrap();
    let config = LogConfig { path: above.path().join("a file").join("log"), sync: SyncMode::Always };
    assert!(matches!(Stored::open(&config), Err(LogError::Io { .. })));
}
