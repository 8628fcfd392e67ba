//! A subtable splits and the directory doubles under readers with old directories: nothing is missed.

use loom::thread;
use sidestep_core::layout::bucket::WINDOW_SLOTS;
use sidestep_core::layout::directory::DirectoryWord;
use sidestep_loom::memory::Weakness;
use sidestep_loom::model::{Ranges, Reader, State, Table, explore};

/// Keys of one home bucket, of which every other one moves in the first split, with fingerprints of their own.
fn keys(count: usize) -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = Vec::new();
    let mut i = 0u32;
    while keys.len() < count {
        let key = format!("{i:06}").into_bytes();
        let hash = Table::hash(&key);
        let fits = hash.home() == 7
            && hash.moves_at(0) == keys.len().is_multiple_of(2)
            && keys.iter().all(|other| Table::hash(other).fingerprint() != hash.fingerprint());
        if fits {
            keys.push(key);
        }
        i += 1;
    }
    keys
}

/// Keys that fill their window, and one more.
const FILLING: usize = WINDOW_SLOTS;

/// Slots of each window that loom sees. The first one is that of a key that moves; the second one that of a key
/// that stays, and in the sibling that of the key that is inserted.
const SLOTS: u64 = 2;

/// What the writer does: an insert that splits, then an update of a key that was there.
fn write(table: &Table, keys: &[Vec<u8>]) {
    table.put(&keys[FILLING], 1);
    table.put(&keys[0], 2);
}

fn filled(weakness: Weakness, keys: &[Vec<u8>]) -> Table {
    let table = Table::new(weakness);
    keys[..FILLING].iter().for_each(|key| table.put(key, 1));
    table
}

/// A split under a reader of one of the keys, who starts from the directory entry before the split, or from
/// the root.
fn split(weakness: Weakness, key: usize, states: &'static [State], read: fn(&mut Reader, DirectoryWord)) {
    let keys = keys(FILLING + 1);
    explore("split", 2, move || {
        let table = filled(weakness, &keys);
        let mut ranges = Ranges::default();
        table.slots_of(&keys[0], SLOTS, &mut ranges);
        table.items_from(table.location(&keys[0]), FILLING as u64 + 2, &mut ranges);
        // A table that does the same in private knows where the new directory and the sibling will be.
        let ahead = filled(Weakness::None, &keys);
        write(&ahead, &keys);
        assert!(ahead.directory().depth() == 1 && ahead.entry(&keys[0]).address() != table.entry(&keys[0]).address());
        ahead.slots_of(&keys[0], SLOTS, &mut ranges);
        table.share(ranges);
        let entry = table.entry(&keys[0]);
        let mut reader = table.reader(&keys[key], states);
        let reading = thread::spawn(move || read(&mut reader, entry));
        write(&table, &keys);
        reading.join().expect("the reader");
    });
}

/// From the root.
fn fresh(reader: &mut Reader, _entry: DirectoryWord) {
    reader.get();
}

/// From the old entry.
fn stale(reader: &mut Reader, entry: DirectoryWord) {
    reader.get_with(Some(entry), None);
}

/// From the root, then from the old entry.
fn fresh_then_stale(reader: &mut Reader, entry: DirectoryWord) {
    reader.get();
    reader.get_with(Some(entry), None);
}

#[test]
fn a_key_that_moves_is_never_missed() {
    split(Weakness::None, 0, &[Some(1), Some(2)], stale);
    split(Weakness::None, 0, &[Some(1), Some(2)], fresh);
}

#[test]
fn a_key_that_is_inserted_by_a_split_stays() {
    split(Weakness::None, FILLING, &[None, Some(1)], fresh_then_stale);
}

#[test]
#[should_panic(expected = "had to ask")]
fn relaxed_loads_see_a_directory_before_its_entries() {
    split(Weakness::RelaxedLoads, 0, &[Some(1), Some(2)], fresh);
}

#[test]
#[should_panic(expected = "had to ask")]
fn relaxed_stores_show_a_directory_before_its_entries() {
    split(Weakness::RelaxedStores, 0, &[Some(1), Some(2)], stale);
}

#[test]
#[should_panic(expected = "had to ask")]
fn unfenced_reads_see_a_deeper_word_before_the_directory() {
    split(Weakness::UnfencedReads, 0, &[Some(1), Some(2)], stale);
}
