//! Each file that is no table of this server's has a message of its own, and stays as it is.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::process::Signal;
use sidestep_core::layout::root;
use sidestep_tests::process::{ServerProcess, tmpfs_folder};

use super::{SIZES, Written, check, client, start};

/// Names, lengths, modes and times of change of everything in a folder, and the bytes of its table.
fn state_of(folder: &Path) -> (Vec<String>, Vec<u8>) {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| {
        let entry = entry.expect("an entry");
        let about = entry.metadata().expect("a file");
        format!("{:?} {} {:o} {} {}", entry.file_name(), about.len(), about.mode(), about.ctime(), about.ctime_nsec())
    });
    let mut entries: Vec<String> = entries.collect();
    entries.sort();
    (entries, fs::read(folder.join("table.sidestep")).unwrap_or_default())
}

pub(crate) fn says(text: &str, expected: &[&str]) {
    for expected in expected {
        assert!(text.contains(expected), "expected {expected:?}, found {text}");
    }
    assert_eq!(text.trim_end().lines().count(), 1, "{text}");
}

/// A server with these options does not start, and says this in one line.
pub(crate) fn server_refuses(folder: &Path, options: &[&str], expected: &[&str]) {
    let before = state_of(folder);
    server_says(folder, options, expected);
    assert!(state_of(folder) == before, "a server that did not start left a trace");
}

/// The same, where it has to open the table to find that out.
pub(crate) fn server_says(folder: &Path, options: &[&str], expected: &[&str]) {
    let data = folder.to_str().expect("UTF-8");
    let (code, text) = ServerProcess::refused(&[&["--listen", "127.0.0.1:0", "--data", data], options].concat());
    assert_eq!(code, Some(3), "{text}");
    says(&text, expected);
}

/// Neither a server nor a check takes it, with or without a repair.
fn all_refuse(folder: &Path, expected: &[&str]) {
    // First: a check that finds nothing wrong ends.
    checks_refuse(folder, &[&[], &["--repair"], &["--repair", "--no-backup"]], expected);
    server_refuses(folder, &SIZES, expected);
}

fn checks_refuse(folder: &Path, options: &[&[&str]], expected: &[&str]) {
    let before = state_of(folder);
    for options in options {
        let (code, _, text) = check(folder, options);
        assert_eq!(code, Some(3), "{options:?}: {text}");
        says(&text, expected);
        assert!(state_of(folder) == before, "{options:?} left a trace");
    }
}

fn folder_with(bytes: &[u8]) -> tempfile::TempDir {
    let folder = tmpfs_folder();
    fs::write(folder.path().join("table.sidestep"), bytes).expect("a write");
    folder
}

fn store_word(written: &Written, word: u64, value: u64) {
    let file = File::options().write(true).open(written.table()).expect("a table");
    file.write_all_at(&value.to_le_bytes(), word * 8).expect("a write");
}

#[test]
fn a_table_of_an_older_format() {
    let written = Written::new();
    store_word(&written, root::FORMAT_WORD, root::FORMAT_VERSION - 1);
    all_refuse(written.folder(), &["table.sidestep", "format 0 is older than 1", "`sidestep dump`", "`sidestep load`"]);
}

#[test]
fn a_table_of_a_newer_format() {
    let written = Written::new();
    store_word(&written, root::FORMAT_WORD, root::FORMAT_VERSION + 1);
    all_refuse(written.folder(), &["table.sidestep", "format 2 is newer than 1", "as new as the one that wrote it"]);
}

#[test]
fn a_foreign_file() {
    let folder = folder_with(&b"#!/bin/sh\necho not a table\n".repeat(10_000));
    let expected =
        ["table.sidestep", "not a Sidestep table", "\"SIDESTEP\"", "found \"#!/bin/s\"", "move the file away"];
    all_refuse(folder.path(), &expected);
    let short = folder_with(b"hello");
    all_refuse(short.path(), &["not a Sidestep table", "found \"hello"]);
    let zeros = folder_with(&[0; 1 << 20]);
    all_refuse(zeros.path(), &["not a Sidestep table", r#"found "\x00\x00"#]);
}

#[test]
fn an_empty_file() {
    let folder = folder_with(b"");
    all_refuse(folder.path(), &["table.sidestep", "the file is empty, expected a table", "move it away"]);
}

#[test]
fn a_truncated_file() {
    let written = Written::new();
    let file = File::options().write(true).open(written.table()).expect("a table");
    for bytes in [(8 << 20) - 1, 5_000_000, root::ROOT_BYTES] {
        file.set_len(bytes).expect("a length");
        let found = format!("expected 8388608 bytes, found {bytes}: the file was truncated");
        let expected = ["table.sidestep", &found, "put a copy back", "check --help"];
        server_refuses(written.folder(), &SIZES, &expected);
        checks_refuse(written.folder(), &[&[]], &expected);
    }
    // Without its root nothing can be kept of it.
    for bytes in [root::ROOT_BYTES - 1, 48, 9, 3] {
        file.set_len(bytes).expect("a length");
        all_refuse(written.folder(), &["table.sidestep", &format!("found {bytes}: the file was truncated")]);
    }
}

#[test]
fn a_table_whose_root_makes_no_sense() {
    for word in [root::SEGMENT_BYTES_WORD, root::MEMORY_BYTES_WORD] {
        let written = Written::new();
        store_word(&written, word, 12_345);
        all_refuse(written.folder(), &["table.sidestep", "damaged root", "12345", "put a copy back"]);
    }
}

#[test]
fn a_table_of_another_segment_size() {
    let written = Written::new();
    let expected =
        ["table.sidestep", "was made with --segment 1 MiB", "found --segment 256 KiB", "leave the option out", "dump"];
    server_refuses(written.folder(), &["--segment", "256KiB"], &expected);
    let mut server = start(written.folder(), &["--segment", "1MiB"]);
    server.signal(Signal::TERM);
    assert!(server.wait().success());
}

#[test]
fn a_table_of_another_memory_size() {
    let written = Written::new();
    let expected =
        ["table.sidestep", "was made with --memory 8 MiB", "found --memory 64 MiB", "leave the option out", "dump"];
    server_refuses(written.folder(), &["--memory", "64MiB"], &expected);
    let server = start(written.folder(), &[]);
    let (key, states) = written.history.first_key_value().expect("a key");
    let found = client(&server).get(key).expect("a get").map(|found| found.to_vec());
    assert_eq!(found.as_ref(), states.last().expect("a state").as_ref().map(|(value, _)| value));
}

#[test]
fn what_is_no_file_at_all() {
    let folder = tmpfs_folder();
    fs::create_dir(folder.path().join("table.sidestep")).expect("a folder");
    all_refuse(folder.path(), &["table.sidestep", "expected a file"]);
    let empty = tmpfs_folder();
    checks_refuse(empty.path(), &[&[], &["--repair"]], &["no table", "table.sidestep does not exist"]);
}

/// The disk is not mounted: a new table in its place would hide the one that there is.
#[test]
fn a_symbolic_link_that_leads_nowhere() {
    let folder = tmpfs_folder();
    std::os::unix::fs::symlink("/nowhere/table.sidestep", folder.path().join("table.sidestep")).expect("a link");
    let expected = ["table.sidestep", "expected a file, found a symbolic link to /nowhere/table.sidestep"];
    all_refuse(folder.path(), &expected);
}

#[test]
fn a_table_in_use_is_not_repaired() {
    let written = Written::new();
    let server = start(written.folder(), &[]);
    let (code, _, text) = check(written.folder(), &["--repair"]);
    assert_eq!(code, Some(3));
    says(&text, &["in use by another server"]);
    assert!(client(&server).put("still", "works").is_ok());
}
