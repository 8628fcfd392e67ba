//! What was written to a key, when, and which of it a read may return.
//!
//! With one writer the writes of a key are in order, and a history is linearizable exactly if each read
//! returns a write that had begun by the read's end, was not replaced before the read's start, and is not
//! older than what a read that ended before returned.

use std::collections::BTreeMap;

/// A value, or none after a delete.
pub(crate) type State = Option<Vec<u8>>;

#[derive(Clone, Debug)]
struct Write {
    end: Option<u64>,
    state: State,
}

/// The writes to one key.
#[derive(Debug)]
struct KeyHistory {
    writes: Vec<Write>,
    newest_returned: usize,
    last_version: u64,
    /// Version of the newest state; 0 = absent.
    version: u64,
    /// What each version was read as.
    named: BTreeMap<u64, Vec<u8>>,
}

/// The writes to all keys.
#[derive(Debug, Default)]
pub(crate) struct History {
    keys: BTreeMap<usize, KeyHistory>,
}

impl History {
    fn key(&mut self, key: usize) -> &mut KeyHistory {
        self.keys.entry(key).or_insert_with(|| KeyHistory {
            writes: vec![Write { end: Some(0), state: None }],
            newest_returned: 0,
            last_version: 0,
            version: 0,
            named: BTreeMap::new(),
        })
    }

    /// A write begins: a reader may return it from now on.
    pub(crate) fn begin(&mut self, key: usize, state: State) {
        self.key(key).writes.push(Write { end: None, state });
    }

    /// The write that was begun last is acknowledged: what it replaced may not be returned any more by reads that begin later.
    pub(crate) fn end(&mut self, key: usize, now: u64) {
        if let Some(write) = self.key(key).writes.last_mut() {
            write.end = Some(now);
        }
    }

    /// The write that was begun last was refused.
    pub(crate) fn undo(&mut self, key: usize) -> Result<(), String> {
        let history = self.key(key);
        history.writes.pop();
        if history.newest_returned >= history.writes.len() {
            return Err(format!("key {key}: a read returned a write that was never done"));
        }
        Ok(())
    }

    /// The newest state, the one of a write under way included.
    pub(crate) fn newest(&mut self, key: usize) -> State {
        self.key(key).writes.last().and_then(|write| write.state.clone())
    }

    /// Whether a key was ever written and its newest state is a value.
    pub(crate) fn is_present(&mut self, key: usize) -> bool {
        self.newest(key).is_some()
    }

    /// The server may evict the key from now on: a reader may find it absent.
    pub(crate) fn may_evict(&mut self, key: usize) {
        if self.is_present(key) {
            self.begin(key, None);
        }
    }

    /// What the server was doing is over, at the latest `now`, and this is what the table says of the key: what was
    /// acknowledged last, or what came of what was begun after it, evictions and a write.
    pub(crate) fn settle(&mut self, key: usize, found: &State, version: u64, now: u64) -> Result<(), String> {
        let history = self.key(key);
        history.version = version;
        let acknowledged = history.writes.iter().rposition(|write| write.end.is_some()).unwrap_or(0);
        let Some(last) = (acknowledged..history.writes.len()).rfind(|&i| history.writes[i].state == *found) else {
            return Err(format!("key {key}: neither what was written last is there nor what it may have become"));
        };
        history.writes.truncate(last + 1);
        history.writes.iter_mut().for_each(|write| write.end = write.end.or(Some(now)));
        if history.newest_returned > last {
            return Err(format!("key {key}: a read returned what was not done in the end"));
        }
        Ok(())
    }

    /// Versions of a key only grow.
    pub(crate) fn version(&mut self, key: usize, version: u64) -> Result<(), String> {
        let history = self.key(key);
        if version <= history.last_version {
            return Err(format!("key {key}: version {version} after {}", history.last_version));
        }
        history.last_version = version;
        history.version = version;
        Ok(())
    }

    /// The newest state is absence.
    pub(crate) fn absent(&mut self, key: usize) {
        self.key(key).version = 0;
    }

    /// Version of the newest state that was acknowledged or settled; 0 = absent.
    pub(crate) fn version_of(&mut self, key: usize) -> u64 {
        self.key(key).version
    }

    /// A read found this value under this version: no other ever had it.
    pub(crate) fn names(&mut self, key: usize, version: u64, value: &[u8]) -> Result<(), String> {
        let named = self.key(key).named.entry(version).or_insert_with(|| value.to_vec());
        if named != value {
            return Err(format!("key {key}: version {version} names two values"));
        }
        Ok(())
    }

    /// What a read that begins now must at least return.
    pub(crate) fn oldest_allowed(&mut self, key: usize) -> usize {
        self.key(key).newest_returned
    }

    /// A read that began at `start`, when `oldest` was the oldest write it might return, returned `state`.
    pub(crate) fn read(&mut self, key: usize, start: u64, oldest: usize, state: &State) -> Result<(), String> {
        let history = self.key(key);
        let replaced_before =
            |index: usize| history.writes.get(index + 1).and_then(|next| next.end).is_some_and(|end| end < start);
        let returned = (oldest..history.writes.len())
            .find(|&index| history.writes[index].state == *state && !replaced_before(index));
        let Some(returned) = returned else {
            let show = |state: &State| state.as_ref().map(|value| (value.len(), value.first().copied()));
            return Err(format!(
                "key {key}: a read that began at {start} returned {:?} (length, first byte); the writes were {:?}",
                show(state),
                history.writes.iter().map(|write| (write.end, show(&write.state))).collect::<Vec<_>>()
            ));
        };
        history.newest_returned = history.newest_returned.max(returned);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history() -> History {
        let mut history = History::default();
        history.begin(1, Some(vec![1]));
        history.end(1, 10);
        history.begin(1, Some(vec![2]));
        history
    }

    #[test]
    fn a_write_under_way_may_be_seen_or_not() {
        let mut history = history();
        history.read(1, 11, 0, &Some(vec![1])).unwrap();
        history.read(1, 11, 0, &Some(vec![2])).unwrap();
    }

    #[test]
    fn what_may_be_evicted_is_settled_by_what_is_there() {
        let evicting = || {
            let mut history = History::default();
            history.begin(1, Some(vec![1]));
            history.end(1, 10);
            history.may_evict(1);
            history
        };
        let mut kept = evicting();
        kept.read(1, 11, 0, &Some(vec![1])).unwrap();
        kept.settle(1, &Some(vec![1]), 7, 20).unwrap();
        assert!(kept.read(1, 21, 0, &None).is_err(), "absent, though it was kept");
        let mut gone = evicting();
        gone.read(1, 11, 0, &None).unwrap();
        gone.settle(1, &None, 0, 20).unwrap();
        assert!(gone.read(1, 21, 0, &Some(vec![1])).is_err(), "there, though it was evicted");
        let mut seen = evicting();
        seen.read(1, 11, 0, &None).unwrap();
        assert!(seen.settle(1, &Some(vec![1]), 7, 20).is_err(), "back after it was absent");
        let mut written = evicting();
        written.begin(1, Some(vec![2]));
        written.read(1, 11, 0, &Some(vec![2])).unwrap();
        assert!(written.settle(1, &None, 0, 20).is_err(), "a write that was seen is not there");
        let mut lost = evicting();
        lost.begin(1, Some(vec![2]));
        lost.end(1, 15);
        assert!(lost.settle(1, &None, 0, 20).is_err(), "an acknowledged write is not there");
        assert!(evicting().settle(1, &Some(vec![3]), 9, 20).is_err(), "never written");
    }

    #[test]
    fn broken_histories_are_found() {
        assert!(history().read(1, 11, 0, &None).is_err(), "stale");
        assert!(history().read(1, 11, 0, &Some(vec![3])).is_err(), "never written");
        let mut inverted = history();
        inverted.read(1, 11, 0, &Some(vec![2])).unwrap();
        let oldest = inverted.oldest_allowed(1);
        assert!(inverted.read(1, 12, oldest, &Some(vec![1])).is_err(), "new then old");
        let mut replaced = history();
        replaced.end(1, 20);
        assert!(replaced.read(1, 21, 0, &Some(vec![1])).is_err(), "replaced before");
        replaced.read(1, 20, 0, &Some(vec![1])).unwrap();
        assert!(replaced.version(1, 5).and_then(|()| replaced.version(1, 5)).is_err(), "a version twice");
        let mut undone = history();
        undone.read(1, 11, 0, &Some(vec![2])).unwrap();
        assert!(undone.undo(1).is_err(), "returned and then not done");
        assert!(history().settle(1, &None, 0, 30).is_err(), "an acknowledged write lost");
        let mut named = history();
        named.names(1, 5, &[1]).unwrap();
        assert!(named.names(1, 5, &[2]).is_err(), "one version, two values");
    }
}
