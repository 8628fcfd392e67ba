//! An extent is written again at once: no reader sees bytes of two lives, nor misses a key that is there.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use sidestep_loom::memory::Weakness;
use sidestep_loom::model::{Ranges, Table, explore};

const KEY: &[u8] = b"key";
const OTHER: &[u8] = b"other";

/// A key is updated, and its old extent is given to another key. A reader that has the old slot, or the old
/// location, meets an item of that other key there. Only the fence before the first store into a reused extent
/// tells it that its slot is old: without it, it takes the other key for a collision and the key for absent.
fn by_another_key(weakness: Weakness, remembers: bool) {
    explore("reuse by another key", 3, move || {
        let table = Table::new(weakness);
        table.put(KEY, 1);
        let location = table.location(KEY);
        let mut ranges = Ranges::default();
        table.window_of(KEY, &mut ranges);
        table.window_of(OTHER, &mut ranges);
        table.items_from(location, 2, &mut ranges);
        table.share(ranges);
        let mut reader = table.reader(KEY, &[Some(1), Some(2)]);
        // Without an ordering readers ask, too, and loom finds that first.
        reader.may_ask = weakness != Weakness::None;
        let reading = thread::spawn(move || reader.get_with(None, remembers.then_some(location)));
        table.put(KEY, 2);
        table.put(OTHER, 9);
        assert_eq!(table.location(OTHER), location_with_length_of(OTHER, location.address), "reused at once");
        reading.join().expect("the reader");
    });
}

fn location_with_length_of(key: &[u8], address: u64) -> sidestep_core::lookup::CachedLocation {
    let bytes = sidestep_core::layout::item::exact_bytes(key.len(), 16) as u32;
    sidestep_core::lookup::CachedLocation { address, bytes }
}

/// A key is updated twice: the third value lies where the first one lay.
fn by_the_same_key(weakness: Weakness) {
    explore("reuse by the same key", 1, move || {
        let table = Table::new(weakness);
        table.put(KEY, 1);
        let location = table.location(KEY);
        let mut ranges = Ranges::default();
        table.window_of(KEY, &mut ranges);
        table.items_from(location, 2, &mut ranges);
        table.share(ranges);
        let mut reader = table.reader(KEY, &[Some(1), Some(2), Some(3)]);
        let done = Arc::new(AtomicUsize::new(0));
        let acknowledged = done.clone();
        let reading = thread::spawn(move || {
            reader.order.not_before(acknowledged.load(Ordering::Acquire));
            reader.get_with(None, Some(location));
        });
        table.put(KEY, 2);
        done.store(1, Ordering::Release);
        table.put(KEY, 3);
        assert_eq!(table.location(KEY), location, "reused at once");
        done.store(2, Ordering::Release);
        reading.join().expect("the reader");
    });
}

/// A key is deleted and inserted again, in the same place.
fn after_a_delete(weakness: Weakness) {
    explore("reuse after a delete", 1, move || {
        let table = Table::new(weakness);
        table.put(KEY, 1);
        let location = table.location(KEY);
        let mut ranges = Ranges::default();
        table.window_of(KEY, &mut ranges);
        table.items_from(location, 1, &mut ranges);
        table.share(ranges);
        let mut reader = table.reader(KEY, &[Some(1), None, Some(2)]);
        let deleted = Arc::new(AtomicUsize::new(0));
        let acknowledged = deleted.clone();
        let reading = thread::spawn(move || {
            reader.order.not_before(acknowledged.load(Ordering::Acquire));
            reader.get_with(None, Some(location));
        });
        table.delete(KEY);
        deleted.store(1, Ordering::Release);
        table.put(KEY, 2);
        assert_eq!(table.location(KEY), location, "reused at once");
        reading.join().expect("the reader");
    });
}

#[test]
fn an_extent_of_another_key_is_no_miss() {
    by_another_key(Weakness::None, false);
}

#[test]
#[should_panic(expected = "saw None")]
fn without_the_fence_a_key_that_is_there_is_missed() {
    by_another_key(Weakness::NoFence, false);
}

#[test]
#[should_panic(expected = "saw None")]
fn with_unfenced_reads_a_key_that_is_there_is_missed() {
    by_another_key(Weakness::UnfencedReads, false);
}

#[test]
fn a_location_of_another_key_is_no_miss() {
    by_another_key(Weakness::None, true);
}

#[test]
fn lives_of_one_key_are_not_mixed() {
    by_the_same_key(Weakness::None);
}

#[test]
#[should_panic(expected = "had to ask")]
fn relaxed_stores_leave_a_reader_among_lives_without_an_answer() {
    by_the_same_key(Weakness::RelaxedStores);
}

#[test]
fn a_deleted_key_does_not_come_back() {
    after_a_delete(Weakness::None);
}

#[test]
#[should_panic(expected = "had to ask")]
fn relaxed_stores_leave_a_reader_after_a_delete_without_an_answer() {
    after_a_delete(Weakness::RelaxedStores);
}
