//! The files under the engine: what is written and synced is counted.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use redb::StorageBackend;

use super::counters::Counters;

/// One segment's file.
#[derive(Debug)]
pub(super) struct Disk {
    file: File,
    counters: Arc<Counters>,
}

impl Disk {
    pub(super) fn new(file: File, counters: Arc<Counters>) -> Self {
        Self { file, counters }
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        // With the length of the file, where that has changed: fdatasync(2).
        self.file.sync_data()?;
        self.counters.synced();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset)?;
        self.counters.written_bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}
