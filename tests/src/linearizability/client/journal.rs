//! What a client that may be killed has done: a file that says of each write what is to be done before it is, and
//! what was done after it.
//!
//! Lines are those of a history, and the end of a write that is to be done is not known. The next line of the same
//! start takes its place; an empty line takes it back. A last line that is not whole says nothing: that of a write which
//! is to be done was not begun.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use crate::linearizability::operation::{Operation, read_history};

/// The journal of one thread.
#[derive(Debug)]
pub(super) struct Journal {
    file: File,
    line: Vec<u8>,
}

impl Journal {
    pub(super) fn create(folder: &Path, client: u32) -> io::Result<Self> {
        let file = File::create_new(folder.join(format!("{client}.jsonl")))?;
        Ok(Self { file, line: Vec::new() })
    }

    /// When this returns the line outlives the process.
    pub(super) fn write(&mut self, operation: &Operation) -> io::Result<()> {
        self.line.clear();
        serde_json::to_writer(&mut self.line, operation)?;
        self.line.push(b'\n');
        self.file.write_all(&self.line)
    }

    /// What was to be done was not done.
    pub(super) fn take_back(&mut self) -> io::Result<()> {
        self.file.write_all(b"\n")
    }
}

/// The history of all journals in a folder.
pub fn read_journals(folder: &Path) -> io::Result<Vec<Operation>> {
    let mut history = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let mut text = Vec::new();
        File::open(entry?.path())?.read_to_end(&mut text)?;
        read_journal(&text, &mut history)?;
    }
    Ok(history)
}

fn read_journal(text: &[u8], history: &mut Vec<Operation>) -> io::Result<()> {
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let mut intended: Option<Operation> = None;
    for line in text[..whole].split_inclusive(|byte| *byte == b'\n') {
        let Some(operation) = read_history(line)?.pop() else {
            intended = None;
            continue;
        };
        if let Some(before) = intended.take()
            && before.start != operation.start
        {
            history.push(before);
        }
        match operation.end {
            u64::MAX => intended = Some(operation),
            _ => history.push(operation),
        }
    }
    history.extend(intended);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linearizability::operation::Did;

    #[test]
    fn what_was_done_takes_the_place_of_what_was_to_be() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = Journal::create(folder.path(), 3).unwrap();
        let intended = |start| Operation {
            client: 3,
            key: 7,
            start,
            end: u64::MAX,
            did: Did::PutUnknown { value: start, expect: None },
            ttl: None,
        };
        let done = Operation { end: 15, did: Did::Put { value: 10, expect: None, version: 1 }, ..intended(10) };
        let read = Operation { start: 20, end: 21, did: Did::Absent, ..done };
        journal.write(&intended(10)).unwrap();
        journal.write(&done).unwrap();
        journal.write(&read).unwrap();
        journal.write(&intended(30)).unwrap();
        journal.take_back().unwrap();
        journal.write(&intended(40)).unwrap();
        journal.write(&intended(50)).unwrap();
        journal.file.write_all(b"{\"client\":3,\"ke").unwrap();
        let history = read_journals(folder.path()).unwrap();
        assert_eq!(history, [done, read, intended(40), intended(50)]);
    }
}
