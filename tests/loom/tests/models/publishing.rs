//! A reader that sees a slot, a link or a directory sees what was written before it.

use loom::thread;
use sidestep_loom::memory::Weakness;
use sidestep_loom::model::{Ranges, Table, explore};

const KEY: &[u8] = b"key";
const OTHER: &[u8] = b"other";

/// A key is inserted where another one lies already, under a reader that looks twice.
fn insert(weakness: Weakness) {
    explore("insert", 3, move || {
        let table = Table::new(weakness);
        table.put(OTHER, 1);
        let mut ranges = Ranges::default();
        table.window_of(KEY, &mut ranges);
        table.items_from(table.location(OTHER), 2, &mut ranges);
        table.share(ranges);
        let mut reader = table.reader(KEY, &[None, Some(1)]);
        let reading = thread::spawn(move || {
            reader.get();
            reader.get();
        });
        table.put(KEY, 1);
        reading.join().expect("the reader");
    });
}

#[test]
fn an_insert_is_seen_whole_or_not_at_all() {
    insert(Weakness::None);
}

#[test]
#[should_panic(expected = "had to ask")]
fn relaxed_stores_show_a_slot_before_its_item() {
    insert(Weakness::RelaxedStores);
}

#[test]
#[should_panic(expected = "had to ask")]
fn unfenced_reads_see_a_slot_before_its_item() {
    insert(Weakness::UnfencedReads);
}
