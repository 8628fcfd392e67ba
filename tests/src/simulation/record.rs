//! The run as a history for the checker of linearizability: a second judge, that knows nothing of the first one's ways.

use crate::linearizability::{Did, MALFORMED, Operation};

/// The one writer; a reader's number is more.
const WRITER: u32 = 0;

/// What was done so far, on the world's clock.
#[derive(Debug, Default)]
pub(super) struct Record {
    operations: Vec<Operation>,
    /// The write under way, as it would be if it were never heard of again.
    open: Option<Operation>,
}

impl Record {
    /// A put begins, or a delete if there is no value.
    pub(super) fn begin(&mut self, key: usize, start: u64, value: Option<u64>, expect: Option<u64>) {
        let did = match value {
            Some(value) => Did::PutUnknown { value, expect },
            None => Did::DeleteUnknown { expect },
        };
        self.open = Some(Operation { client: WRITER, key: key as u64, start, end: start, did, ttl: None });
    }

    /// The write under way was done; a put got this version.
    pub(super) fn done(&mut self, end: u64, version: u64) {
        self.close(end, |did| match did {
            Did::PutUnknown { value, expect } => Did::Put { value, expect, version },
            Did::DeleteUnknown { expect } => Did::Deleted { expect },
            other => other,
        });
    }

    /// The write under way was refused for its condition.
    pub(super) fn mismatch(&mut self, end: u64, expect: u64, found: u64) {
        self.close(end, |_| Did::Mismatch { expect, found });
    }

    /// The write under way changed nothing.
    pub(super) fn nothing(&mut self) {
        self.open = None;
    }

    /// The server was killed: nobody knows what became of the write under way.
    pub(super) fn killed(&mut self, end: u64) {
        self.close(end, |did| did);
    }

    fn close(&mut self, end: u64, did: impl FnOnce(Did) -> Did) {
        if let Some(open) = self.open.take() {
            self.operations.push(Operation { end, did: did(open.did), ..open });
        }
    }

    /// A read found this version and value, or nothing.
    pub(super) fn read(&mut self, key: usize, start: u64, end: u64, found: Option<(u64, &[u8])>) {
        let did = match found {
            Some((version, value)) => Did::Found { version, value: number(value) },
            None => Did::Absent,
        };
        self.operations.push(Operation { client: WRITER + 1, key: key as u64, start, end, did, ttl: None });
    }

    pub(super) fn take(&mut self) -> Vec<Operation> {
        std::mem::take(&mut self.operations)
    }
}

/// The operation that a value names, whose bytes are then known.
fn number(value: &[u8]) -> u64 {
    match value.split_first_chunk() {
        Some((first, rest)) if rest.iter().all(|byte| *byte == first[0]) => u64::from_le_bytes(*first),
        _ => MALFORMED,
    }
}
