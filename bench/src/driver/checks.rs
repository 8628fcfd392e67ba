//! What every reply is held against. One wrong byte, one stale version, one missing record ends the run.

use crate::error::BenchError;
use crate::target::Reply;
use crate::workload::{WrongValue, verify};

/// Records whose newest version is remembered: few enough to stay in the cache next to the work.
const REMEMBERED: usize = 1024;

/// Checks of one thread.
#[derive(Debug)]
pub(super) struct Checks {
    store: String,
    value_bytes: usize,
    /// Record + 1 and the highest version of it that this thread has seen.
    seen: Vec<(u64, u64)>,
}

impl Checks {
    pub(super) fn new(store: &str, value_bytes: usize) -> Self {
        Self { store: store.to_owned(), value_bytes, seen: vec![(0, 0); REMEMBERED] }
    }

    fn place(record: u64) -> usize {
        (record.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 54) as usize % REMEMBERED
    }

    /// The version that a read submitted now must not fall below; 0 if nothing is remembered.
    #[inline]
    pub(super) fn floor(&self, record: u64) -> u64 {
        let (known, version) = self.seen[Self::place(record)];
        if known == record + 1 { version } else { 0 }
    }

    #[inline]
    pub(super) fn note(&mut self, record: u64, version: u64) {
        let place = &mut self.seen[Self::place(record)];
        if place.0 != record + 1 {
            *place = (record + 1, version);
        } else if place.1 < version {
            place.1 = version;
        }
    }

    /// A read came back that was submitted when [`Checks::floor`] was `floor`.
    #[inline]
    pub(super) fn read(&mut self, record: u64, floor: u64, found: Option<(&[u8], Reply)>) -> Result<Reply, BenchError> {
        let Some((value, reply)) = found else { return Err(self.missing(record)) };
        if let Err(wrong) = verify(record, value, self.value_bytes) {
            return Err(self.wrong(record, wrong));
        }
        if reply.version > 0 {
            if reply.version < floor {
                return Err(self.stale(record, reply.version, floor));
            }
            self.note(record, reply.version);
        }
        Ok(reply)
    }

    /// The same of a read that nothing was submitted after: what is known of the record now is its floor. One look at
    /// what is remembered instead of two.
    #[inline]
    pub(super) fn read_last(&mut self, record: u64, found: Option<(&[u8], Reply)>) -> Result<Reply, BenchError> {
        let Some((value, reply)) = found else { return Err(self.missing(record)) };
        if let Err(wrong) = verify(record, value, self.value_bytes) {
            return Err(self.wrong(record, wrong));
        }
        if reply.version > 0 {
            let place = &mut self.seen[Self::place(record)];
            if place.0 == record + 1 && reply.version < place.1 {
                let seen = place.1;
                return Err(self.stale(record, reply.version, seen));
            }
            *place = (record + 1, reply.version);
        }
        Ok(reply)
    }

    #[cold]
    fn missing(&self, record: u64) -> BenchError {
        BenchError::Missing { store: self.store.clone(), record }
    }

    #[cold]
    fn wrong(&self, record: u64, wrong: WrongValue) -> BenchError {
        BenchError::WrongValue { store: self.store.clone(), record, wrong }
    }

    #[cold]
    fn stale(&self, record: u64, found: u64, seen: u64) -> BenchError {
        BenchError::Stale { store: self.store.clone(), record, found, seen }
    }

    /// An operation that failed.
    #[cold]
    pub(super) fn failed(&self, operation: &'static str, record: u64, reason: impl ToString) -> BenchError {
        BenchError::Operation { store: self.store.clone(), operation, record, reason: reason.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Route;
    use crate::workload::{Stamp, fill};

    fn reply(version: u64) -> Reply {
        Reply { version, route: Route::Tcp }
    }

    #[test]
    fn the_right_value_passes_and_others_do_not() {
        let mut checks = Checks::new("tcp", 64);
        let mut value = vec![0; 64];
        fill(7, Stamp::new(1, 1), &mut value);
        assert!(checks.read(7, 0, Some((&value, reply(3)))).is_ok());
        assert!(matches!(checks.read(8, 0, Some((&value, reply(3)))), Err(BenchError::WrongValue { .. })));
        assert!(matches!(checks.read(7, 0, None), Err(BenchError::Missing { record: 7, .. })));
        value[40] ^= 1;
        assert!(matches!(checks.read(7, 0, Some((&value, reply(3)))), Err(BenchError::WrongValue { .. })));
        assert!(matches!(checks.read_last(7, Some((&value, reply(3)))), Err(BenchError::WrongValue { .. })));
        assert!(matches!(checks.read_last(7, None), Err(BenchError::Missing { record: 7, .. })));
    }

    #[test]
    fn a_version_may_not_fall() {
        let mut checks = Checks::new("shm", 0);
        assert_eq!(checks.floor(7), 0);
        let before = checks.floor(7);
        checks.note(7, 5);
        assert!(matches!(checks.read(7, checks.floor(7), Some((&[], reply(4)))), Err(BenchError::Stale { .. })));
        // One that was on its way when version 5 was seen may be older.
        assert!(checks.read(7, before, Some((&[], reply(4)))).is_ok());
        assert_eq!(checks.floor(7), 5);
        assert!(matches!(checks.read_last(7, Some((&[], reply(4)))), Err(BenchError::Stale { found: 4, seen: 5, .. })));
        assert!(
            checks.read_last(7, Some((&[], reply(5)))).is_ok() && checks.read_last(7, Some((&[], reply(6)))).is_ok()
        );
        assert_eq!(checks.floor(7), 6);
        assert_eq!(checks.floor(8), 0);
    }
}
