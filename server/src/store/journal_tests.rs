//! What readers see at the moment at which the journal is told.

use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;

use super::super::Store;
use super::super::tests::{SMALL, Words, get, read, small};
use super::*;

/// What was told, and the version that readers found meanwhile: the server's own, and clients'.
type Told = (Option<u64>, [Option<u64>; 2]);

/// Looks at the key whenever it is told of it.
#[derive(Debug, Default)]
struct Double {
    store: OnceLock<Weak<Store<Arc<Words>>>>,
    told: Mutex<Vec<Told>>,
}

impl Double {
    fn look(&self, key: &[u8], version: Option<u64>) {
        let store = self.store.get().and_then(Weak::upgrade).unwrap();
        let found = [get(&store, key), read(&store, key)].map(|found| found.map(|(version, _)| version));
        self.told.lock().push((version, found));
    }
}

impl Journal for Double {
    fn put(&self, key: &[u8], _: Cow<'_, [u8]>, version: u64, _: u64) {
        self.look(key, Some(version));
    }

    fn delete(&self, key: &[u8], _: u64) {
        self.look(key, None);
    }
}

/// Else somebody could see a write, and have another one acknowledged that rests on it, and the log have only that.
#[test]
fn nobody_sees_a_write_before_the_journal_has_it() {
    let store = small(SMALL);
    let journal = Arc::new(Double::default());
    journal.store.set(Arc::downgrade(&store)).unwrap();
    store.set_journal(journal.clone());
    for value in [&[7; 10][..], &[7; 10_000]] {
        let insert = store.put(b"key", value, None, 0).unwrap();
        let update = store.put(b"key", value, Some(insert), 0).unwrap();
        store.delete(b"key", None).unwrap();
        let told = std::mem::take(&mut *journal.told.lock());
        let before = |version| [version; 2];
        let expected =
            [(Some(insert), before(None)), (Some(update), before(Some(insert))), (None, before(Some(update)))];
        assert_eq!(told, expected, "{} bytes", value.len());
    }
}

/// A write that is refused leaves nothing in the log.
#[test]
fn the_journal_is_told_of_no_write_that_is_refused() {
    let store = small(SMALL);
    let journal = Arc::new(Double::default());
    journal.store.set(Arc::downgrade(&store)).unwrap();
    store.set_journal(journal.clone());
    let version = store.put(b"key", b"1", None, 0).unwrap();
    assert!(store.put(b"key", b"2", Some(version + 1), 0).is_err());
    assert!(store.put(b"another", b"2", Some(1), 0).is_err());
    assert!(store.delete(b"key", Some(version + 1)).is_err());
    assert_eq!(store.delete(b"another", None).unwrap(), None);
    let mut keys = 0..;
    while store.put(format!("{:?}", keys.next()).as_bytes(), &[7; 1000], None, 0).is_ok() {}
    assert_eq!(journal.told.lock().len() as u64, store.keys());
}
