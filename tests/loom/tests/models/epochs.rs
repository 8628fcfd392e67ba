//! The server's own readers check no checksum: under a pin, no extent that they can reach is reused.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use loom::thread;
use sidestep_loom::memory::Weakness;
use sidestep_loom::model::{Order, Ranges, State, Table, explore};

const KEY: &[u8] = b"key";
const STATES: &[State] = &[Some(1), Some(2), Some(3)];

/// Executions by what happened in them.
#[derive(Debug, Default)]
struct Counts {
    reused: AtomicU64,
    kept: AtomicU64,
    wrong: AtomicU64,
}

/// A key is updated twice, with every deferred free in between done that may be done. The second update gets
/// the extent of the first value if no reader holds it back. Counts, for a panic would end the process in the
/// epochs' destructors.
fn updated_twice(epochs: bool) -> Arc<Counts> {
    let counts = Arc::new(Counts::default());
    let counting = counts.clone();
    explore("epochs", 1, move || {
        let table = if epochs { Table::with_epochs(Weakness::None) } else { Table::new(Weakness::None) };
        table.put(KEY, 1);
        let first = table.location(KEY);
        let mut ranges = Ranges::default();
        table.window_of(KEY, &mut ranges);
        table.items_from(first, 3, &mut ranges);
        table.share(ranges);
        let written = table.clone();
        let writing = thread::spawn(move || {
            written.put(KEY, 2);
            for _ in 0..3 {
                crossbeam_epoch::pin().flush();
            }
            written.put(KEY, 3);
            written.location(KEY) == first
        });
        // The reader is the first thread: to stop it half-way and let the writer finish takes one preemption.
        let seen = table.get_pinned(KEY, &crossbeam_epoch::pin());
        if !seen.is_ok_and(|state| Order::new(STATES).saw(state)) {
            counting.wrong.fetch_add(1, Ordering::Relaxed);
        }
        let reused = writing.join().expect("the writer");
        let count = if reused { &counting.reused } else { &counting.kept };
        count.fetch_add(1, Ordering::Relaxed);
    });
    println!("epochs: {counts:?}");
    counts
}

#[test]
fn a_pin_keeps_what_can_be_reached() {
    let counts = updated_twice(true);
    assert_eq!(counts.wrong.load(Ordering::Relaxed), 0);
    let both = [&counts.reused, &counts.kept].map(|count| count.load(Ordering::Relaxed) > 0);
    assert_eq!(both, [true; 2], "some executions must reuse the extent, and in some a reader must keep it");
}

#[test]
fn without_epochs_a_reader_goes_wrong() {
    assert!(updated_twice(false).wrong.load(Ordering::Relaxed) > 0);
}
