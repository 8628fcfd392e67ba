//! A damaged table is repaired: everything that a server on it returns was once written, what was not damaged is all there,
//! and what is not kept is said.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use rustix::process::Signal;
use sidestep_core::layout::directory::DirectoryWord;
use sidestep_core::layout::item::{Link, LinkState};
use sidestep_core::layout::root::{self, IntentWord};
use sidestep_core::location::Location;
use sidestep_tests::process::{ServerProcess, program};

use super::file::{Found, TableFile};
use super::{Written, check, client, damage, start};

impl Written {
    pub(crate) fn file(&self) -> TableFile {
        TableFile { bytes: self.bytes() }
    }

    pub(crate) fn save(&self, file: &TableFile) {
        std::fs::write(self.table(), &file.bytes).expect("a write");
    }

    /// Some keys that there are, and where.
    fn some(&self, file: &TableFile, count: usize) -> Vec<(Vec<u8>, Found)> {
        let keys = file.keys();
        assert_eq!(keys.len(), self.history.keys().filter(|key| self.now(key).is_some()).count());
        // Values long enough for their last byte to be one of theirs, not of their padding.
        let long = keys.into_iter().filter(|(key, _)| self.now(key).is_some_and(|(value, _)| !value.is_empty()));
        long.step_by(7).take(count).collect()
    }

    /// Repairs it, starts a server on it, and compares all with what was written. `damaged`: keys that may be lost; returns
    /// those that are.
    pub(crate) fn repair(&self, damaged: &BTreeSet<Vec<u8>>) -> Repaired {
        let before = self.bytes();
        let (code, _, _) = check(self.folder(), &[]);
        assert!(self.bytes() == before, "a check changes nothing");
        let (repaired, text, said) = check(self.folder(), &["--repair"]);
        assert_eq!(repaired, Some(1), "{text}{said}");
        assert!(text.contains("repaired: kept "), "{text}");
        let kept_file = self.folder().join("table.sidestep.damaged");
        assert!(std::fs::read(&kept_file).expect("the damaged file") == before, "the damaged file is as it was");
        std::fs::remove_file(kept_file).expect("a file");
        let (after, sound, said) = check(self.folder(), &["--repair"]);
        assert!(after == Some(0) && sound.contains("nothing to repair"), "{sound}{said}");
        let lost = self.compare(damaged, &text);
        Repaired { was_unsound: code != Some(0), text, lost }
    }

    /// With a server.
    fn compare(&self, damaged: &BTreeSet<Vec<u8>>, text: &str) -> BTreeSet<Vec<u8>> {
        let mut server = start(self.folder(), &[]);
        let client = client(&server);
        let mut session = client.session().expect("a session");
        let listed: BTreeSet<&str> = text.lines().filter_map(|line| line.strip_prefix("  ")).collect();
        let mut lost = BTreeSet::new();
        for key in self.history.keys() {
            let found = session.get(key).expect("a get").map(|found| (found.to_vec(), found.version()));
            let name = key.escape_ascii().to_string();
            if found.as_ref() == self.now(key) {
                continue;
            }
            assert!(damaged.contains(key), "{name} was not damaged: expected {:?}, found {found:?}", self.now(key));
            match found {
                None => {
                    assert!(listed.contains(&name[..]) || text.contains("not kept: "), "{name} is lost: {text}");
                    lost.insert(key.clone());
                }
                Some(found) => {
                    let was = self.history[key].contains(&Some(found.clone()));
                    assert!(was, "{name} never had version {} with {} bytes", found.1, found.0.len());
                }
            }
        }
        for (key, states) in self.history.iter().step_by(20) {
            let version = session.put(key, "after").expect("a put");
            let given = states.iter().flatten().map(|state| state.1).max().expect("a value");
            assert!(version > given, "{}: version {version} may have been given before", key.escape_ascii());
        }
        server.signal(Signal::TERM);
        assert!(server.wait().success());
        lost
    }
}

pub(crate) struct Repaired {
    was_unsound: bool,
    text: String,
    lost: BTreeSet<Vec<u8>>,
}

impl Repaired {
    /// The keys that were lost are these, and are listed.
    fn lost(&self, keys: &[&Vec<u8>], reason: &str) {
        assert!(self.was_unsound);
        assert_eq!(self.lost, keys.iter().map(|key| (*key).clone()).collect());
        let text = &self.text;
        assert!(text.contains(&format!("not kept: {}\n  {}: {reason}\n", keys.len(), keys.len())), "{text}");
        for key in keys {
            assert!(
                text.contains(&format!("\n  {}\n", key.escape_ascii())),
                "{} is not listed: {text}",
                key.escape_ascii()
            );
        }
    }

    /// No key was lost.
    pub(crate) fn nothing_lost(&self) {
        assert!(self.was_unsound && self.lost.is_empty(), "{}", self.text);
    }
}

fn names(keys: &[(Vec<u8>, Found)]) -> BTreeSet<Vec<u8>> {
    keys.iter().map(|(key, _)| key.clone()).collect()
}

/// Damages a table so that these keys may be lost.
fn damaged(count: usize, change: impl Fn(&mut TableFile, &[u8], &Found)) -> (Written, Vec<(Vec<u8>, Found)>) {
    let written = Written::new();
    let mut file = written.file();
    let keys = written.some(&file, count);
    keys.iter().for_each(|(key, found)| change(&mut file, key, found));
    written.save(&file);
    (written, keys)
}

#[test]
fn torn_items_are_dropped_and_listed() {
    let (written, keys) = damaged(5, |file, _, found| damage::tear(file, found));
    let repaired = written.repair(&names(&keys));
    repaired.lost(&keys.iter().map(|(key, _)| key).collect::<Vec<_>>(), "the bytes are not those that were written");
}

#[test]
fn items_to_which_no_slot_leads_any_more_are_kept() {
    for block in [(1 << 34) - 1, 131_072, 3] {
        let (written, _) = damaged(5, |file, _, found| damage::lead_to(file, found, block));
        let repaired = written.repair(&BTreeSet::new());
        repaired.nothing_lost();
        assert!(repaired.text.contains("  5 keys of these to which no slot led any more"), "{}", repaired.text);
        assert!(repaired.text.contains("not kept: 5\n  5: the slot leads out of the table"), "{}", repaired.text);
    }
}

#[test]
fn of_a_key_that_is_there_twice_the_newer_value_is_kept() {
    let twice = Cell::new(0);
    let (written, _) = damaged(40, |file, key, found| {
        // All but the very first have higher ones.
        twice.set(twice.get() + usize::from(damage::add_older_value(file, key, found, 1)));
    });
    assert!(twice.get() > 0);
    let repaired = written.repair(&BTreeSet::new());
    let expected = format!("  {} older values of keys that were there twice", twice.get());
    assert!(repaired.lost.is_empty() && repaired.text.contains(&expected), "{}", repaired.text);
    assert!(repaired.text.contains("not kept: 0\n"), "{}", repaired.text);
}

#[test]
fn links_that_say_something_else_do_not_cost_the_item() {
    let pending = |_, checksum| Link::bound(LinkState::Pending, checksum).0;
    let garbage = |link, _| link ^ 0x1234_5678;
    let astray = |_, checksum: u64| Link::forward(!checksum, Location::new(700, 1)).0;
    let links: [&dyn Fn(u64, u64) -> u64; 3] = [&pending, &garbage, &astray];
    for link in links {
        let (written, _) = damaged(5, |file, _, found| damage::relink(file, found, link));
        written.repair(&BTreeSet::new()).nothing_lost();
    }
}

/// What a link says rightly is believed, also if nothing else is as it was.
#[test]
fn removed_and_replaced_items_do_not_come_back() {
    let dead = |_, checksum| Link::bound(LinkState::Dead, checksum).0;
    let (written, keys) = damaged(5, |file, _, found| damage::relink(file, found, dead));
    // By itself that is what a kill in a delete leaves, and a recovery finishes it.
    assert_eq!(check(written.folder(), &["--repair"]).0, Some(0));
    let mut file = written.file();
    let entry = file.current_directory().address() * 8;
    file.store(entry, 0);
    written.save(&file);
    let keys: Vec<_> = keys.iter().map(|(key, _)| key).collect();
    let all = keys.iter().map(|key| (*key).clone()).collect();
    let repaired = written.repair(&all);
    assert_eq!(repaired.lost, all);

    let replaced = |_, checksum| Link::forward(checksum, Location::new(700, 1)).0;
    let (written, keys) = damaged(5, |file, _, found| damage::relink(file, found, replaced));
    let repaired = written.repair(&names(&keys));
    repaired.lost(&keys.iter().map(|(key, _)| key).collect::<Vec<_>>(), "was replaced by an item that is not whole");
}

#[test]
fn directory_entries_that_lead_nowhere_cost_nothing() {
    let (written, _) = damaged(5, |file, key, _| damage::lose_entry(file, key));
    written.repair(&BTreeSet::new()).nothing_lost();
    // All of them, and the root's own words of directories.
    let (written, _) = damaged(1, |file, _, _| {
        for depth in 0..35 {
            file.store(root::DIRECTORIES_WORD + depth, DirectoryWord::new(depth as u8, (1 << 34) - 64).0);
        }
        file.store(root::CURRENT_DIRECTORY_WORD, 0);
    });
    written.repair(&BTreeSet::new()).nothing_lost();
}

#[test]
fn a_split_intent_out_of_nowhere_costs_nothing() {
    let (written, _) = damaged(1, |file, _, _| {
        file.store(root::INTENTS_WORD + 5, IntentWord::new(9, 64 * 3, 64 * 70_000).0);
        let subtable = file.entry(b"key 1").1.address();
        file.store(root::INTENTS_WORD + 9, IntentWord::new(33, subtable, subtable).0);
    });
    written.repair(&BTreeSet::new()).nothing_lost();
}

/// No version is given twice, whatever the root says of them.
#[test]
fn versions_go_on_above_all_that_were_given() {
    for ceiling in [0, 5, u64::MAX, 1 << 63] {
        let (written, keys) = damaged(1, |file, _, found| {
            file.store(root::VERSION_CEILING_WORD, ceiling);
            damage::tear(file, found);
        });
        let repaired = written.repair(&names(&keys));
        assert!(repaired.text.contains("the version ceiling in the root was wrong"), "{}", repaired.text);
    }
}

/// The rest of the file is looked through all the same, and the new table has the file's size.
#[test]
fn a_root_that_says_too_little_memory_costs_nothing() {
    let (written, _) = damaged(1, |file, _, _| file.store(root::MEMORY_BYTES_WORD, 1 << 20));
    written.repair(&BTreeSet::new()).nothing_lost();
    assert_eq!(std::fs::metadata(written.table()).expect("a table").len(), 8 << 20);
}

/// As `sidestep-server check DIR | head` does, which has seen enough.
#[test]
fn nobody_has_to_read_the_report() {
    let (written, _) = damaged(1, |file, _, found| damage::tear(file, found));
    for (more, code) in [(&[][..], 1), (&["--repair"], 1), (&["--repair"], 0)] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = Command::new(program("sidestep-server"));
        let output = command.arg("check").arg(written.folder()).args(more).stdout(writer).output().expect("it runs");
        assert_eq!((output.status.code(), &output.stderr[..]), (Some(code), &b""[..]));
    }
}

#[test]
fn of_a_truncated_file_what_is_there_is_kept() {
    for part in [2, 5] {
        let written = Written::new();
        let mut file = written.file();
        let keys = file.keys();
        let used = keys.values().map(|found| found.bytes.end).max().expect("keys");
        let length = used * part / 6 + 13;
        file.bytes.truncate(length);
        written.save(&file);
        let gone = keys.iter().filter(|(_, found)| found.bytes.end > length / 64 * 64).map(|(key, _)| key.clone());
        let gone: BTreeSet<_> = gone.collect();
        let repaired = written.repair(&gone);
        assert!(!gone.is_empty() && repaired.lost == gone, "{}", repaired.text);
        assert_eq!(std::fs::metadata(written.table()).expect("a table").len(), 8 << 20);
    }
}

#[test]
fn without_its_id_nothing_of_a_table_can_be_told() {
    let (written, _) = damaged(1, |file, _, _| file.store(root::TABLE_ID_WORD, 5));
    let before = written.bytes();
    let (code, _, said) = check(written.folder(), &["--repair"]);
    assert!(code == Some(3) && said.contains("no item is whole, though ") && said.contains("table's id"), "{said}");
    assert!(written.bytes() == before);
    assert_eq!(std::fs::read_dir(written.folder()).expect("a folder").count(), 1, "nothing is left behind");
}

#[test]
fn the_damaged_file_is_kept_unless_asked_otherwise() {
    let (written, _) = damaged(1, |file, _, found| damage::tear(file, found));
    let torn = written.bytes();
    std::fs::write(written.folder().join("table.sidestep.damaged"), "of another time").expect("a write");
    assert_eq!(check(written.folder(), &["--repair"]).0, Some(1));
    assert!(std::fs::read(written.folder().join("table.sidestep.damaged-2")).expect("a file") == torn);
    written.save(&TableFile { bytes: torn });
    assert_eq!(check(written.folder(), &["--repair", "--no-backup"]).0, Some(1));
    assert_eq!(std::fs::read_dir(written.folder()).expect("a folder").count(), 3);
}

/// Of a table with a log the log knows better: after a repair the two are not mixed up.
#[test]
fn a_repaired_table_does_not_go_on_with_its_log_by_itself() {
    let written = Written::new();
    let log = written.folder().join("log");
    let with_log = ["--durable", log.to_str().expect("UTF-8")];
    let mut server = start(written.folder(), &with_log);
    server.signal(Signal::TERM);
    assert!(server.wait().success());
    let mut file = written.file();
    let (key, found) = written.some(&file, 1).remove(0);
    damage::tear(&mut file, &found);
    written.save(&file);
    let (code, text, _) = check(written.folder(), &["--repair"]);
    assert!(code == Some(1) && text.contains("the table has a log, which may have all of it"), "{text}");
    let data = written.folder().to_str().expect("UTF-8");
    let (code, said) = ServerProcess::refused(&[&["--listen", "127.0.0.1:0", "--data", data], &with_log[..]].concat());
    assert!(code == Some(3) && said.contains("was written without the log in"), "{said}");
    // As the message says.
    std::fs::rename(written.table(), written.folder().join("away")).expect("a table");
    let server = start(written.folder(), &with_log);
    let found = client(&server).get(&key).expect("a get").map(|found| (found.to_vec(), found.version()));
    assert_eq!(found.as_ref(), written.now(&key));
}

/// Whatever is damaged: the repair succeeds, a server starts, undamaged keys are there and nothing else ever was.
#[test]
fn damage_at_random_places() {
    let seed = std::env::var("SIDESTEP_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("SIDESTEP_SEED={seed}");
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let written = Written::new();
    let whole = written.file();
    let keys = whole.keys();
    let (mut unsound, mut lost) = (0, 0);
    for round in 0..25 {
        let mut file = whole.clone();
        let round_seed = random.random();
        println!("round {round}: {round_seed}");
        let changed = damage::at_random(&mut file, &mut Xoshiro256PlusPlus::seed_from_u64(round_seed));
        let is_hit = |found: &Found| changed.iter().any(|at| at.start < found.bytes.end && found.bytes.start < at.end);
        let hit: BTreeSet<_> = keys.iter().filter(|(_, found)| is_hit(found)).map(|(key, _)| key.clone()).collect();
        written.save(&file);
        if check(written.folder(), &["--repair"]).0 == Some(0) {
            // What was hit says nothing, or what a kill in a delete could have left.
            written.compare(&hit, "not kept: ");
            continue;
        }
        clear(written.folder());
        written.save(&file);
        let repaired = written.repair(&hit);
        unsound += u32::from(repaired.was_unsound);
        lost += repaired.lost.len();
    }
    println!("{unsound} were not sound, {lost} keys lost");
    assert!(unsound > 10 && lost > 0);
}

fn clear(folder: &Path) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        std::fs::remove_file(entry.expect("an entry").path()).expect("a file");
    }
}
