//! Words of the root that have no checksum: one that cannot be right is refused, reported and repaired.

use std::collections::BTreeSet;
use std::fs::File;

use sidestep_core::layout::root;

use super::{SIZES, Written, check, client, start};
use crate::wrong::{says, server_refuses, server_says};

const YEAR_MS: u64 = 366 * 24 * 3_600_000;

/// With this word in its root a server does not start, a check says why, and a repair loses nothing.
fn refused_and_repaired(word: u64, value: impl Fn(u64) -> u64, expected: &[&str]) {
    let written = Written::new();
    let mut file = written.file();
    file.store(word, value(file.load(word)));
    written.save(&file);
    server_says(written.folder(), &[], expected);
    let (code, text, _) = check(written.folder(), &[]);
    assert_eq!(code, Some(1), "{text}");
    written.repair(&BTreeSet::new()).nothing_lost();
    let server = start(written.folder(), &[]);
    let client = client(&server);
    let highest = written.history.values().flatten().flatten().map(|(_, version)| *version).max().expect("versions");
    assert!(client.put("a new key", "v").expect("a put") > highest);
}

#[test]
fn a_ceiling_that_cannot_be() {
    let repair = "check --repair";
    refused_and_repaired(root::VERSION_CEILING_WORD, |_| u64::MAX, &["version ceiling is 0xffffffffffffffff", repair]);
    refused_and_repaired(root::VERSION_CEILING_WORD, |_| 1 << 63, &["version ceiling is 0x8", repair]);
    refused_and_repaired(root::VERSION_CEILING_WORD, |_| 3, &["above the version ceiling 3", repair]);
    refused_and_repaired(
        root::VERSION_FLOOR_WORD,
        |_| 1 << 60,
        &["version floor", "above the version ceiling", repair],
    );
}

#[test]
fn a_clock_floor_that_cannot_be() {
    refused_and_repaired(root::CLOCK_FLOOR_WORD, |_| u64::MAX, &["more than a year ahead", "set this machine's clock"]);
    let ahead = super::clock::now_ms() + YEAR_MS + 60_000;
    refused_and_repaired(root::CLOCK_FLOOR_WORD, |_| ahead, &["more than a year ahead"]);
}

/// There are items in more of the space than the segments that are in use would then be.
#[test]
fn a_segment_size_that_cannot_be() {
    refused_and_repaired(root::SEGMENT_BYTES_WORD, |bytes| bytes / 2, &["past the", "that are in use"]);
    refused_and_repaired(root::SEGMENT_BYTES_WORD, |bytes| bytes * 8, &["segments are in use, expected at most 1"]);
}

#[test]
fn a_file_that_is_longer_than_its_table() {
    let written = Written::new();
    let file = File::options().write(true).open(written.table()).expect("a table");
    file.set_len(9 << 20).expect("a length");
    let expected = ["table.sidestep", "expected 8388608 bytes, found 9437184: the file was truncated or made longer"];
    for options in [&SIZES[..], &[]] {
        server_refuses(written.folder(), options, &expected);
    }
    let (code, _, text) = check(written.folder(), &[]);
    assert_eq!(code, Some(3));
    says(&text, &expected);
    written.repair(&BTreeSet::new()).nothing_lost();
    start(written.folder(), &[]);
}

/// As of a table that was made so: a rest behind whole segments is not used, and nobody is told that it was asked for.
#[test]
fn a_rest_behind_the_segments_is_no_other_size() {
    let written = Written::new();
    let file = File::options().write(true).open(written.table()).expect("a table");
    file.set_len((8 << 20) + (1 << 19)).expect("a length");
    assert_eq!(check(written.folder(), &[]).0, Some(0));
    for memory in ["8MiB", "8704KiB"] {
        start(written.folder(), &["--memory", memory]);
    }
    server_refuses(written.folder(), &["--memory", "9MiB"], &["was made with --memory 8 MiB", "found --memory 9 MiB"]);
}
