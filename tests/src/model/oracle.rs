//! Whether everything that any number of readers can have seen is explained by the writes.
//!
//! Readers write nothing, so that every lookup that can happen can happen beside every other one. All of them
//! together are one history, the hardest one: it is linearizable exactly if each part of it is. The writes of a
//! key are in order (of their versions), so a lookup is explained by the number of the write that it returned. To
//! each lookup the smallest number is given that its result, its times, and the lookups that ended before it
//! began allow; where there is none, the history has no linearization.

use std::collections::BTreeMap;

use super::reader::End;
use super::timeline::Time;

/// A write to one key, or its state at the beginning.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    /// The value, or none after a delete.
    pub(crate) state: Option<Vec<u8>>,
    /// Version of the value, or of what was deleted, once it is known.
    pub(crate) version: Option<u64>,
    pub(crate) begin: Time,
    /// When it was acknowledged.
    pub(crate) end: Option<Time>,
}

/// A lookup from its begin to its end, both as early or late as makes it hardest to explain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Read {
    pub(crate) begin: Time,
    pub(crate) end: Time,
    pub(crate) result: End,
}

/// Checks the writes alone: versions grow, so that none is given twice.
pub(crate) fn check_versions(writes: &[Write]) -> Result<(), String> {
    let mut last = 0;
    for write in writes.iter().filter(|write| write.state.is_some()) {
        let Some(version) = write.version else { continue };
        if version <= last {
            return Err(format!("version {version} after {last}: {}", list(writes)));
        }
        last = version;
    }
    Ok(())
}

/// Checks all lookups of a key against its writes. The error names the lookup that is not explained.
pub(crate) fn check_reads(writes: &[Write], reads: &[Read]) -> Result<(), (String, Read)> {
    let mut named: BTreeMap<u64, &[u8]> = BTreeMap::new();
    for read in reads {
        if let End::Found { value, version, .. } = &read.result
            && *named.entry(*version).or_insert(value) != *value
        {
            return Err((format!("version {version} names two values"), read.clone()));
        }
    }
    let last = reads.iter().map(|read| read.end).max().unwrap_or(0);
    let mut given: Vec<usize> = vec![0; reads.len()];
    loop {
        // What a lookup that begins at a time must at least return.
        let mut floor = vec![0; last as usize + 1];
        for (read, &number) in reads.iter().zip(&given) {
            floor[read.end as usize] = number.max(floor[read.end as usize]);
        }
        (1..floor.len()).for_each(|time| floor[time] = floor[time].max(floor[time - 1]));
        let mut changed = false;
        for (read, number) in reads.iter().zip(&mut given) {
            if read.result == End::Ask {
                continue;
            }
            let least = floor[read.begin as usize];
            let explained = (least..writes.len()).find(|&i| explains(writes, i, read));
            let Some(explained) = explained else {
                let why = if (0..least).any(|i| explains(writes, i, read)) {
                    "older than what was seen before"
                } else {
                    "not explained"
                };
                return Err((why.to_owned(), read.clone()));
            };
            changed |= explained > *number;
            *number = explained;
        }
        if !changed {
            return Ok(());
        }
    }
}

fn explains(writes: &[Write], i: usize, read: &Read) -> bool {
    let same = match &read.result {
        End::Found { value, version, .. } => {
            writes[i].state.as_ref() == Some(value) && writes[i].version.is_none_or(|known| known == *version)
        }
        End::Absent => writes[i].state.is_none(),
        End::Ask => false,
    };
    let begun = writes[i].begin <= read.end && writes[..i].iter().all(|earlier| earlier.begin <= read.end);
    let replaced = writes[i + 1..].iter().any(|later| later.end.is_some_and(|end| end <= read.begin));
    same && begun && !replaced
}

/// The writes in words.
pub(crate) fn list(writes: &[Write]) -> String {
    let word = |write: &Write| {
        let end = write.end.map_or("never".to_owned(), |end| end.to_string());
        let version = write.version.map_or("?".to_owned(), |version| version.to_string());
        let state =
            write.state.as_ref().map_or("absent".to_owned(), |value| String::from_utf8_lossy(value).into_owned());
        format!("{}..{end} {state} v{version}", write.begin)
    };
    writes.iter().map(word).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use sidestep_core::lookup::CachedLocation;

    use super::*;

    fn write(value: &str, version: u64, begin: Time, end: Option<Time>) -> Write {
        let state = (!value.is_empty()).then(|| value.as_bytes().to_vec());
        Write { state, version: Some(version), begin, end }
    }

    fn read(value: &str, version: u64, begin: Time, end: Time) -> Read {
        let location = CachedLocation { address: 1, bytes: 64 };
        let found = End::Found { value: value.as_bytes().to_vec(), version, location };
        Read { begin, end, result: if value.is_empty() { End::Absent } else { found } }
    }

    fn writes() -> Vec<Write> {
        vec![write("", 0, 0, Some(0)), write("a", 1, 1, Some(4)), write("b", 2, 6, Some(9)), write("", 2, 11, None)]
    }

    #[test]
    fn lookups_beside_a_write_may_see_it_or_not() {
        let reads =
            [read("", 0, 1, 2), read("a", 1, 2, 3), read("a", 1, 5, 7), read("b", 2, 7, 12), read("", 0, 12, 12)];
        assert!(check_reads(&writes(), &reads).is_ok());
    }

    #[test]
    fn broken_histories_are_found() {
        let broken = |reads: &[Read]| check_reads(&writes(), reads).is_err();
        assert!(broken(&[read("", 0, 4, 5)]), "stale");
        assert!(broken(&[read("b", 2, 3, 5)]), "before it was written");
        assert!(broken(&[read("c", 3, 3, 5)]), "never written");
        assert!(broken(&[read("a", 2, 3, 5)]), "under another version");
        assert!(broken(&[read("a", 1, 1, 2), read("", 0, 2, 3)]), "new, then old");
        assert!(broken(&[read("", 0, 11, 12), read("b", 2, 12, 13)]), "absent, then there again");
        let killed = [write("", 0, 0, Some(0)), Write { version: None, ..write("a", 0, 1, None) }];
        assert!(check_reads(&killed, &[read("a", 7, 2, 2), read("a", 7, 9, 9)]).is_ok());
        assert!(check_reads(&killed, &[read("a", 7, 2, 2), read("", 0, 9, 9)]).is_err(), "a seen write lost");
        let two = [killed[0].clone(), killed[1].clone(), Write { version: None, ..write("b", 0, 2, None) }];
        assert!(check_reads(&two, &[read("a", 7, 2, 2), read("b", 7, 9, 9)]).is_err(), "one version, two values");
    }

    #[test]
    fn versions_grow() {
        assert!(check_versions(&writes()).is_ok());
        assert!(check_versions(&[write("a", 2, 0, None), write("", 2, 0, None), write("b", 2, 0, None)]).is_err());
    }
}
