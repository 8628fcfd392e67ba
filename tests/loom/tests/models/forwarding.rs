//! Whoever has seen an update, or was told of it, does not see the value before it, by whatever way it looks.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use sidestep_loom::memory::Weakness;
use sidestep_loom::model::{Ranges, State, Table, explore};

const KEY: &[u8] = b"key";
const STATES: &[State] = &[Some(1), Some(2)];

/// A table with the key in it and room for its next items, shared.
fn table(weakness: Weakness, items: u64) -> Table {
    let table = Table::new(weakness);
    table.put(KEY, 1);
    let mut ranges = Ranges::default();
    table.window_of(KEY, &mut ranges);
    table.items_from(table.location(KEY), items, &mut ranges);
    table.share(ranges);
    table
}

/// One reader: through the slot, then through the old location, and the other way round.
fn one_reader(weakness: Weakness) {
    explore("forwarding, one reader", 3, move || {
        let table = table(weakness, 2);
        let location = table.location(KEY);
        let mut reader = table.reader(KEY, STATES);
        let reading = thread::spawn(move || {
            reader.get_with(None, Some(location));
            reader.get();
            reader.get_with(None, Some(location));
        });
        table.put(KEY, 2);
        reading.join().expect("the reader");
    });
}

/// What one reader has seen it tells another one, who looks through the old location.
fn two_readers(weakness: Weakness, told: Ordering) {
    explore("forwarding, two readers", 2, move || {
        let table = table(weakness, 2);
        let location = table.location(KEY);
        let seen = Arc::new(AtomicUsize::new(0));
        let (mut first, mut second) = (table.reader(KEY, STATES), table.reader(KEY, STATES));
        let telling = seen.clone();
        let one = thread::spawn(move || {
            first.get();
            telling.store(first.order.at(), told);
        });
        let other = thread::spawn(move || {
            second.order.not_before(seen.load(Ordering::Acquire));
            second.get_with(None, Some(location));
        });
        table.put(KEY, 2);
        one.join().expect("the first reader");
        other.join().expect("the second reader");
    });
}

/// The writer acknowledges each of its writes: an update and a delete.
fn acknowledged(weakness: Weakness, remembers: bool) {
    explore("forwarding, acknowledged", 2, move || {
        let table = table(weakness, 2);
        let location = table.location(KEY);
        let mut reader = table.reader(KEY, &[Some(1), Some(2), None]);
        let done = Arc::new(AtomicUsize::new(0));
        let acknowledged = done.clone();
        let reading = thread::spawn(move || {
            reader.order.not_before(acknowledged.load(Ordering::Acquire));
            reader.get_with(None, remembers.then_some(location));
        });
        table.put(KEY, 2);
        done.store(1, Ordering::Release);
        table.delete(KEY);
        done.store(2, Ordering::Release);
        reading.join().expect("the reader");
    });
}

#[test]
fn a_reader_never_goes_back() {
    one_reader(Weakness::None);
}

#[test]
#[should_panic(expected = "had to ask")]
fn relaxed_stores_leave_a_reader_without_an_answer() {
    one_reader(Weakness::RelaxedStores);
}

#[test]
#[should_panic(expected = "had to ask")]
fn unfenced_reads_leave_a_reader_without_an_answer() {
    one_reader(Weakness::UnfencedReads);
}

#[test]
fn readers_that_talk_never_go_back() {
    two_readers(Weakness::None, Ordering::Release);
}

#[test]
#[should_panic(expected = "saw Some(1) after state 1")]
fn readers_must_be_told_in_order() {
    two_readers(Weakness::None, Ordering::Relaxed);
}

#[test]
fn what_was_acknowledged_is_seen() {
    acknowledged(Weakness::None, false);
    acknowledged(Weakness::None, true);
}
