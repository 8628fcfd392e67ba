//! The file of a table, damaged: what is checked, recovered and read of it is what was written, or nothing.

mod history;
mod words;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use sidestep_core::layout::bucket::SUBTABLE_BLOCKS;
use sidestep_core::layout::root;
use sidestep_core::limits::BLOCK_WORDS;
use sidestep_core::lookup::Geometry;
use sidestep_core::lookup::local::{LocalReader, Outcome};
use sidestep_server::store::{Got, Salvage, SalvageReport, Store, StoreOptions, check};

use history::{History, MEMORY_BYTES, TABLE_ID, options};
use words::Words;

static HISTORY: LazyLock<History> = LazyLock::new(History::new);

/// Bytes of a [`Change`].
const CHANGE_BYTES: usize = 6;
/// More would be garbage.
const MOST_CHANGES: usize = 64;

/// What each key may be.
type Allowed<'h> = BTreeMap<&'h [u8], Vec<Option<&'h [u8]>>>;

/// The first two bytes say at which store the server was killed, the rest what became of the file then, in six bytes
/// for each change. If nothing did, the recovery and a repair must keep every acknowledged write. In any case readers, with
/// and without a recovery or a repair, get nothing but what was written to the key; and a table that is taken up can be used.
pub(crate) fn table(bytes: &[u8]) {
    let Some((moment, rest)) = bytes.split_first_chunk() else { return };
    let moments = HISTORY.moments();
    let moment = moments.start() + usize::from(u16::from_le_bytes(*moment)) % (moments.end() - moments.start() + 1);
    let mut words = HISTORY.image(moment);
    let before = words.clone();
    rest.chunks_exact(CHANGE_BYTES).take(MOST_CHANGES).for_each(|change| change_one(&mut words, change));
    let is_whole = words == before;
    let allowed = if is_whole { HISTORY.allowed(moment) } else { HISTORY.written() };
    let report = check(&Words::of(&words));
    assert!(!is_whole || report.is_sound(), "{report:?}");
    read_remotely(&words, &allowed, "before a recovery");
    match repair(&words) {
        Some((store, report)) => {
            let has_lost = report.index_problems + report.keys_without_slot > 0;
            assert!(!is_whole || !has_lost, "an undamaged table is repaired: {report:?}");
            use_it(&store, &allowed);
        }
        None => assert!(!is_whole, "an undamaged table cannot be repaired"),
    }
    match Store::recover(Arc::new(Words::of(&words)), &options()) {
        Ok((store, _)) => use_it(&store, &allowed),
        Err(error) => assert!(!is_whole, "an undamaged table is refused: {error}"),
    }
}

/// A new table of what is whole; none if nothing is.
fn repair(words: &[u64]) -> Option<(Arc<Store<Arc<Words>>>, SalvageReport)> {
    let memory = Words::of(words);
    let salvage = Salvage::of(&memory, std::slice::from_ref(&(0..MEMORY_BYTES)), 0).ok()?;
    let options =
        StoreOptions { segment_bytes: salvage.segment_bytes(), version_floor: salvage.version_floor(), ..options() };
    let store = Store::create(Arc::new(Words::of(&vec![0; words.len()])), &options).ok()?;
    let report = salvage.put_into(&memory, &store).expect("room for what had room");
    let sound = check(store.memory());
    assert!(sound.is_sound() && sound.keys == report.keys, "{sound:?}");
    Some((store, report))
}

/// Every key as a one-sided reader finds it. It may have to ask; then it knows nothing.
fn read_remotely(words: &[u64], allowed: &Allowed<'_>, when: &str) {
    let geometry =
        Geometry { table_id: TABLE_ID, memory_bytes: MEMORY_BYTES, max_value_bytes: options().max_value_bytes };
    let mut reader = LocalReader::new(Words::of(words), geometry);
    for (key, allowed) in allowed {
        if let Outcome::Found { value, .. } = reader.get(key) {
            assert!(allowed.contains(&Some(value)), "{} has another value {when}", key.escape_ascii());
        }
    }
}

/// A table that was taken up.
fn use_it(store: &Arc<Store<Arc<Words>>>, allowed: &Allowed<'_>) {
    let image: Vec<u64> = {
        use sidestep_core::memory::Memory;
        (0..store.memory().words()).map(|word| store.memory().load(word)).collect()
    };
    read_remotely(&image, allowed, "after a recovery");
    for (key, allowed) in allowed {
        let found = get(store, key);
        assert!(allowed.contains(&found.as_deref()), "the server has another value for {}", key.escape_ascii());
    }
    for key in allowed.keys() {
        if store.put(key, b"new", None, 0).is_ok() {
            assert_eq!(get(store, key).as_deref(), Some(&b"new"[..]), "{}", key.escape_ascii());
        }
    }
    for key in allowed.keys() {
        let _ = store.delete(key, None);
        assert_eq!(get(store, key), None, "{}", key.escape_ascii());
    }
}

fn get(store: &Store<Arc<Words>>, key: &[u8]) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    match store.get(key, &crossbeam_epoch::pin(), usize::MAX, &mut value) {
        Got::Absent => None,
        Got::Copied { .. } => Some(value),
        Got::Held(_) => panic!("any length may be copied"),
    }
}

/// Changes a word: which of which kind, how, and by what.
fn change_one(words: &mut [u64], change: &[u8]) {
    let &[kind, low, high, how, by, at] = change else { return };
    let which = usize::from(u16::from_le_bytes([low, high]));
    let subtable_words = (SUBTABLE_BLOCKS * BLOCK_WORDS) as usize;
    let word = match kind % 5 {
        0 => which % root::SEGMENTS_WORD as usize,
        1 => which % root::ROOT_BYTES as usize / 8,
        // Where the first subtables and directories are.
        2 => (root::ROOT_BYTES as usize / 8 + which % (8 * subtable_words)) % words.len(),
        3 => which % words.len(),
        // One that is in use.
        _ => {
            let used: Vec<usize> = (0..words.len()).filter(|word| words[*word] != 0).collect();
            used[which % used.len()]
        }
    };
    let other = words[(word + usize::from(by) * 8) % words.len()];
    let word = &mut words[word];
    *word = match how % 6 {
        0 => *word ^ 1 << (by % 64),
        1 => *word & !(0xff << (at % 8 * 8)) | u64::from(by) << (at % 8 * 8),
        2 => word.wrapping_add(u64::from(by)),
        3 => word.wrapping_sub(u64::from(by)),
        4 => 0,
        _ => other,
    };
}
