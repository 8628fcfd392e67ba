//! How a log ends.

use sidestep_fabric::region::Region;

use super::*;
use crate::store::StoreOptions;

fn open(folder: &Path) -> Stored {
    Stored::open(&LogConfig { path: folder.to_owned(), sync: SyncMode::Always }).unwrap()
}

#[test]
fn nobody_waits_for_a_thread_that_has_panicked() {
    let queue = Arc::new(Queue::new(SyncMode::Always, 0, 0, Arc::default()));
    let mourner = Mourner(queue.clone(), "here".into());
    let before = queue.progress();
    let panicking = move || {
        let _mourner = mourner;
        std::panic::resume_unwind(Box::new("as a fault in the engine"));
    };
    assert!(std::thread::spawn(panicking).join().is_err());
    assert!(queue.refusal().is_some() && queue.progress() > before);
}

/// Otherwise the next start would take the table for one that the log has, and serve what no crash leaves.
#[test]
fn a_log_that_was_not_given_the_table_is_not_ended_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let store = || {
        let store = Store::create(Region::memfd(64 << 20).unwrap(), &StoreOptions::default()).unwrap();
        store.put(b"in the table", b"alone", None, 0).unwrap();
        store
    };
    // As where there is no room for the table: the start ends with an error here.
    drop(open(folder.path()).begin(&store()).unwrap());
    let stored = open(folder.path());
    assert_eq!((stored.clean, stored.next), (None, 0));
    drop(stored.go_on(&store(), true).unwrap());
    let stored = open(folder.path());
    assert_eq!((stored.clean, stored.next), (Some(1), 1));
}
