//! Memory whose words cannot be believed, and words from long ago.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use sidestep_core::hash::KeyHash;
use sidestep_core::layout::bucket::{SUBTABLE_BLOCKS, SlotWord, WINDOW_SLOTS};
use sidestep_core::layout::directory::DirectoryWord;
use sidestep_core::layout::item::{Link, LinkState};
use sidestep_core::layout::root;
use sidestep_core::limits::{BLOCK_BYTES, BLOCK_WORDS};
use sidestep_core::location::Location;
use sidestep_core::lookup::local::{LocalReader, Outcome};
use sidestep_core::lookup::{Geometry, Lookup, Step};
use sidestep_core::memory::{Memory, MemoryMut};
use sidestep_fabric::sim::SimMemory;
use sidestep_server::store::{Store, StoreOptions, check};

const MEMORY_BYTES: u64 = 1 << 20;
const TABLE_ID: u64 = 0xbad_c0de;
/// Loads and READs that one lookup may take: 8 rounds of at most a root, an entry, a window of 16 words, 16 items
/// and some hops.
const MOST_READS: u64 = 8 * 64;

fn options() -> StoreOptions {
    StoreOptions {
        segment_bytes: Some(256 << 10),
        table_id: Some(TABLE_ID),
        reuse_at_once: true,
        ..StoreOptions::default()
    }
}

fn geometry(memory_bytes: u64) -> Geometry {
    Geometry { table_id: TABLE_ID, memory_bytes, max_value_bytes: options().max_value_bytes }
}

/// Memory that bears only so many reads.
struct Patient<'m> {
    memory: &'m SimMemory,
    left: Cell<u64>,
}

impl Patient<'_> {
    fn count(&self) {
        let left = self.left.get().checked_sub(1).expect("a lookup comes to an end");
        self.left.set(left);
    }
}

impl Memory for Patient<'_> {
    fn words(&self) -> u64 {
        self.memory.words()
    }
    fn load(&self, word: u64) -> u64 {
        self.count();
        self.memory.load(word)
    }
    fn read(&self, word: u64, into: &mut [u8]) {
        self.count();
        self.memory.read(word, into);
    }
}

/// A lookup that must end soon; what it found, if anything, and whether it would ask the server.
fn look(memory: &SimMemory, key: &[u8]) -> (Option<Vec<u8>>, bool) {
    let patient = Patient { memory, left: Cell::new(MOST_READS) };
    let mut reader = LocalReader::new(&patient, geometry(memory.words() * 8));
    match reader.get(key) {
        Outcome::Found { value, .. } => (Some(value.to_vec()), false),
        Outcome::Absent => (None, false),
        Outcome::Ask => (None, true),
    }
}

fn pairs() -> Vec<(Vec<u8>, Vec<u8>)> {
    let value = |i: usize| vec![i as u8; [0, 8, 100, 1000, 5000][i % 5]];
    (0..150).map(|i| (format!("key {i}").into_bytes(), value(i))).collect()
}

/// A table with some of everything, as words.
fn table() -> Vec<u64> {
    let memory = Arc::new(SimMemory::new(MEMORY_BYTES / 8, 0));
    let store = Store::create(memory.clone(), &options()).expect("a table");
    for (key, value) in pairs() {
        store.put(&key, &value, None, 0).expect("a put");
        store.put(b"gone", &value, None, 0).expect("a put");
    }
    store.delete(b"gone", None).expect("a delete");
    (0..memory.words()).map(|word| memory.load(word)).collect()
}

fn memory_of(words: &[u64]) -> Arc<SimMemory> {
    let memory = Arc::new(SimMemory::new(words.len() as u64, 0));
    words.iter().enumerate().filter(|(_, value)| **value != 0).for_each(|(word, value)| {
        memory.store(word as u64, *value);
    });
    memory
}

/// Flips bits of words that are in use; of those that lead somewhere more often than of values.
fn damage(words: &mut [u64], random: &mut Xoshiro256PlusPlus) {
    let used: Vec<usize> = (0..words.len()).filter(|word| words[*word] != 0).collect();
    let leads =
        |word: &usize| *word < 512 || words[*word] >> 48 != 0 && words[*word] & 0x3_ffff_ffff < MEMORY_BYTES / 64;
    let leading: Vec<usize> = used.iter().copied().filter(leads).collect();
    for _ in 0..random.random_range(1..6) {
        let from = if random.random() { &used } else { &leading };
        words[from[random.random_range(0..from.len())]] ^= 1 << random.random_range(0..64);
    }
}

#[test]
fn a_table_file_with_flipped_bits() {
    let good = table();
    let (mut found, mut refused) = (0, 0);
    for seed in 0..150 {
        let mut words = good.clone();
        damage(&mut words, &mut Xoshiro256PlusPlus::seed_from_u64(seed));
        let memory = memory_of(&words);
        let looked = catch_unwind(AssertUnwindSafe(|| {
            let _ = check(&memory);
            for (key, value) in pairs() {
                let (read, _) = look(&memory, &key);
                assert!(read.as_ref().is_none_or(|read| *read == value), "{} has another value", key.escape_ascii());
                found += usize::from(read.is_some());
            }
            // Refused or taken up; if it is taken up it can be used.
            match Store::recover(memory.clone(), &options()) {
                Err(_) => refused += 1,
                Ok((store, _)) => pairs().iter().for_each(|(key, value)| {
                    let _ = store.put(key, value, None, 0);
                    let _ = store.delete(key, None);
                }),
            }
        }));
        assert!(looked.is_ok(), "seed {seed}");
    }
    assert!(found > 10_000 && refused > 5, "{found} found, {refused} refused");
}

/// The server gives values out without a look at their checksums: a recovery must look. Seen to fail without that, with
/// `recovery-believes-bodies.patch`.
#[test]
fn a_value_that_changed_on_the_disk_is_not_served() {
    let memory = Arc::new(SimMemory::new(MEMORY_BYTES / 8, 0));
    let store = Store::create(memory.clone(), &options()).expect("a table");
    store.put(b"key", &[7; 100], None, 0).expect("a put");
    drop(store);
    let value = u64::from_le_bytes([7; 8]);
    let word = (0..memory.words()).find(|word| memory.load(*word) == value).expect("the value");
    memory.store(word, value ^ 1 << 40);
    assert!(!check(&memory).is_sound());
    assert_eq!(look(&memory, b"key"), (None, true));
    let refused = Store::recover(memory.clone(), &options()).expect_err("it is damaged");
    assert!(refused.to_string().starts_with("damaged table"), "{refused}");
    memory.store(word, value);
    assert_eq!(Store::recover(memory, &options()).expect("it is whole").1.keys, 1);
}

/// Slots that the server would look at for ever, and keys where nobody looks. Seen to fail without that, with
/// `recovery-believes-depths.patch`: the server's own GET never returned.
#[test]
fn a_table_that_leads_nowhere_is_not_taken_up() {
    let good = table();
    let current = DirectoryWord(good[root::CURRENT_DIRECTORY_WORD as usize]);
    let entry = DirectoryWord(good[(current.address() * BLOCK_WORDS) as usize]);
    let first = (entry.address() * BLOCK_WORDS) as usize;
    let slots = first..first + (SUBTABLE_BLOCKS * BLOCK_WORDS) as usize;
    let (used, empty) =
        (|slot: &usize| !SlotWord(good[*slot]).is_empty(), |slot: &usize| SlotWord(good[*slot]).is_empty());
    let (one, none) =
        (slots.clone().find(used).expect("a key"), slots.clone().rev().find(empty).expect("an empty slot"));
    let far = slots.clone().rev().find(|slot| empty(slot) && slot.abs_diff(one) > 2 * WINDOW_SLOTS).expect("room");
    let deeper = SlotWord(good[none]).at_depth(entry.depth() + 1).0;
    // Pages at the end, which nobody has: for a directory that was, and what it alone leads to.
    let end = MEMORY_BYTES / BLOCK_BYTES as u64;
    let (directory, nowhere) = (end - 2 * SUBTABLE_BLOCKS, end - SUBTABLE_BLOCKS);
    let depth = current.depth() + 1;
    let mut was: Vec<(usize, u64)> =
        (0..1 << depth).map(|index| ((directory * BLOCK_WORDS) as usize + index, entry.0)).collect();
    was[0].1 = DirectoryWord::new(depth, nowhere).0;
    was.push(((root::DIRECTORIES_WORD + u64::from(depth)) as usize, DirectoryWord::new(depth, directory).0));
    let item = SlotWord(good[one]).location().word() as usize;
    let replaced = Link::forward(good[item + 1], Location::new(nowhere, 1)).0;
    let changes: [(&str, &[(usize, u64)]); 5] = [
        ("a subtable that no directory leads to any more", &was),
        ("an item replaced by nothing", &[(item, replaced)]),
        ("an empty slot of another depth", &[(none, deeper)]),
        ("a key in another window", &[(far, good[one]), (one, good[none])]),
        ("an entry of another depth", &[((current.address() * BLOCK_WORDS) as usize, entry.0 ^ 1 << 58)]),
    ];
    for (what, changes) in changes {
        let mut words = good.clone();
        changes.iter().for_each(|&(word, value)| words[word] = value);
        let refused = Store::recover(memory_of(&words), &options()).expect_err(what);
        assert!(refused.to_string().starts_with("damaged table"), "{what}: {refused}");
        assert!(!check(&memory_of(&words)).is_sound(), "{what}");
    }
    assert!(Store::recover(memory_of(&good), &options()).is_ok());
}

/// Words without any sense behind a directory that leads to them.
#[test]
fn a_reader_of_garbage_ends_soon() {
    let mut asked = 0;
    for seed in 0..200u64 {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let memory = SimMemory::new(8192, seed);
        let blocks = memory.words() / BLOCK_WORDS;
        for word in 0..memory.words() {
            memory.store(word, random.random());
        }
        let (directory, subtable) = (SUBTABLE_BLOCKS, 2 * SUBTABLE_BLOCKS);
        memory.store(root::CURRENT_DIRECTORY_WORD, DirectoryWord::new(0, directory).0);
        memory.store(directory * BLOCK_WORDS, DirectoryWord::new(0, subtable).0);
        let key = seed.to_le_bytes();
        let fingerprint = KeyHash::of(&key, TABLE_ID).fingerprint();
        // Slots that lead anywhere, also to the end of the space and beyond it.
        for slot in 0..SUBTABLE_BLOCKS * BLOCK_WORDS {
            let location = Location::new(random.random_range(1..blocks + 8), random.random_range(1..40));
            memory.store(subtable * BLOCK_WORDS + slot, SlotWord::new(0, fingerprint, location).0);
        }
        let (found, asks) = look(&memory, &key);
        assert!(found.is_none());
        asked += u32::from(asks);
    }
    assert!(asked > 100, "{asked}");
}

/// What no writer leaves behind, and a reader must not wait for.
#[test]
fn a_reader_does_not_wait_for_a_writer() {
    let memory = Arc::new(SimMemory::new(MEMORY_BYTES / 8, 0));
    let store = Store::create(memory.clone(), &options()).expect("a table");
    store.put(b"key", b"value", None, 0).expect("a put");
    let item = (0..memory.words()).find(|word| {
        let checksum = memory.load(word + 1);
        checksum != 0 && memory.load(*word) == Link::bound(LinkState::Current, checksum).0
    });
    let item = item.expect("an item");
    assert_eq!(look(&memory, b"key"), (Some(b"value".to_vec()), false));
    memory.store(item, Link::bound(LinkState::Pending, memory.load(item + 1)).0);
    assert_eq!(look(&memory, b"key"), (None, true));
}

/// Drives a lookup from any step, by a reader that was asleep before it.
fn go_on(memory: &SimMemory, lookup: &mut Lookup<'_>, mut step: Step) -> Option<Vec<u8>> {
    let (mut last, mut kept) = (Vec::new(), Vec::new());
    loop {
        let candidate = lookup.candidates().next();
        step = match step {
            Step::Root => lookup.on_root(DirectoryWord(memory.load(root::CURRENT_DIRECTORY_WORD))),
            Step::Entry { word } => lookup.on_entry(DirectoryWord(memory.load(word))),
            Step::Window { word } => {
                let window: [u64; WINDOW_SLOTS] = std::array::from_fn(|i| memory.load(word + i as u64));
                lookup.on_window(&window)
            }
            Step::Candidates | Step::Next | Step::Item { .. } => {
                let read = match step {
                    Step::Item { read, keep } => {
                        if keep {
                            std::mem::swap(&mut last, &mut kept);
                        }
                        read
                    }
                    _ => candidate?,
                };
                last = vec![0; read.bytes];
                memory.read(read.word, &mut last);
                lookup.on_item(&last)
            }
            Step::Found(found) => {
                let bytes = if found.kept { &kept } else { &last };
                return Some(bytes[found.value_offset..][..found.value_bytes].to_vec());
            }
            Step::Absent | Step::Ask => return None,
        };
    }
}

/// Readers that have read the root and fall asleep before they read the entry that it leads to; restarts and
/// doublings come between, and memory that is free is used.
#[test]
fn a_directory_word_from_before_restarts_and_doublings() {
    let memory = Arc::new(SimMemory::new((4 << 20) / 8, 0));
    let mut store = Store::create(memory.clone(), &options()).expect("a table");
    let crowded = |key: &Vec<u8>| KeyHash::of(key, TABLE_ID).home() == 9;
    let mut keys = (0u64..).map(|i| format!("{i:x}").into_bytes()).filter(crowded);
    let mut sleepers: Vec<(Vec<u8>, Step)> = Vec::new();
    let mut present = Vec::new();
    let depth = || DirectoryWord(memory.load(root::CURRENT_DIRECTORY_WORD)).depth();
    for deeper in 1..8 {
        while depth() < deeper {
            let key = keys.next().expect("there are many");
            store.put(&key, &key, None, 0).expect("a put");
            present.push(key);
        }
        for key in &present {
            let mut lookup = Lookup::new(key, KeyHash::of(key, TABLE_ID), geometry(4 << 20));
            assert_eq!(lookup.start(None), Step::Root);
            sleepers.push((key.clone(), lookup.on_root(DirectoryWord(memory.load(root::CURRENT_DIRECTORY_WORD)))));
        }
        if deeper % 2 == 0 {
            drop(store);
            store = Store::recover(memory.clone(), &options()).expect("a recovery").0;
        }
    }
    for (key, step) in sleepers {
        let mut lookup = Lookup::new(&key, KeyHash::of(&key, TABLE_ID), geometry(4 << 20));
        lookup.start(None);
        assert_eq!(go_on(&memory, &mut lookup, step).as_ref(), Some(&key), "{}", key.escape_ascii());
    }
    assert!(check(&memory).is_sound());
}
