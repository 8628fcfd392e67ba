//! Histories of many keys.

use std::fmt;
use std::fs::File;
use std::io::BufWriter;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::operation::{Operation, write_history};
use super::register::{State, Vanishing};
use super::search::{Entry, Explained, explain};
use super::window::window;

/// What was checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Operations.
    pub operations: usize,
    /// Keys.
    pub keys: usize,
    /// Operations on the key that had most of them.
    pub hottest: usize,
    /// Pairs of operations on one key of which one began before the other had ended, neighbours in time only.
    pub overlaps: usize,
    /// Operations of unknown outcome.
    pub unknown: usize,
}

/// A key whose operations cannot be explained.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The key.
    pub key: u64,
    /// Operations on it.
    pub operations: usize,
    /// The operation with whose end it became impossible.
    pub culprit: Operation,
    /// As few operations before and with the culprit as are impossible from any state of the key. Those that
    /// reach into the window from before it are part of it, and may have been done or not.
    pub window: Vec<Operation>,
    /// Whether the search gave up: no claim is made then.
    pub gave_up: bool,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.gave_up {
            return writeln!(f, "key {}: {} operations, too many orders to try", self.key, self.operations);
        }
        writeln!(f, "key {}: not linearizable once this has ended: {:?}", self.key, self.culprit)?;
        writeln!(f, "these {} of its {} operations suffice, from any state:", self.window.len(), self.operations)?;
        let zero = self.window.first().map_or(0, |operation| operation.start);
        for Operation { client, start, end, did, .. } in &self.window {
            let end = if did.is_certain() { (end - zero).to_string() } else { "?".to_owned() };
            writeln!(f, "  {:>12} .. {end:<12} client {client:<4} {did:?}", start - zero)?;
        }
        Ok(())
    }
}

/// Checks every key of a history, on all processors.
pub fn check(history: &[Operation]) -> Result<Report, Vec<Violation>> {
    check_evicting(history, false)
}

/// The same, of a server that may evict: any value may be gone at any time. What is gone does not come back, and no
/// version either.
pub fn check_evicting(history: &[Operation], may_evict: bool) -> Result<Report, Vec<Violation>> {
    let mut sorted = history.to_vec();
    sorted.sort_unstable_by_key(|operation| (operation.key, operation.start, operation.end));
    let keys: Vec<&[Operation]> = sorted.chunk_by(|a, b| a.key == b.key).collect();
    let (next, violations) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(keys.len());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(operations) = keys.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Some(violation) = check_key(operations, may_evict) {
                        violations.lock().unwrap_or_else(PoisonError::into_inner).push(violation);
                    }
                }
            });
        }
    });
    let mut violations = violations.into_inner().unwrap_or_else(PoisonError::into_inner);
    if violations.is_empty() {
        let overlap = |pair: &[Operation]| pair[1].start <= pair[0].end;
        return Ok(Report {
            operations: sorted.len(),
            keys: keys.len(),
            hottest: keys.iter().map(|operations| operations.len()).max().unwrap_or(0),
            overlaps: keys.iter().map(|key| key.windows(2).filter(|pair| overlap(pair)).count()).sum(),
            unknown: sorted.iter().filter(|operation| !operation.did.is_certain()).count(),
        });
    }
    violations.sort_by_key(|violation| violation.key);
    Err(violations)
}

/// Checks the operations of one key.
fn check_key(operations: &[Operation], by_eviction: bool) -> Option<Violation> {
    let by_expiry = operations.iter().any(|operation| operation.ttl.is_some());
    let vanishing = Vanishing { by_eviction, by_expiry };
    let entry = |&operation: &Operation| Entry { operation, required: operation.did.is_certain() };
    let entries: Vec<Entry> = operations.iter().map(entry).collect();
    let explained = explain(&entries, State::new(vanishing));
    if explained == Explained::Yes {
        return None;
    }
    let (key, gave_up) = (operations[0].key, explained == Explained::GaveUp);
    let (culprit, window) = if gave_up { (operations[0], Vec::new()) } else { window(operations, vanishing) };
    Some(Violation { key, operations: operations.len(), culprit, window, gave_up })
}

/// [`check`], but keeps a history that fails as a file, in `sidestep-histories` of the folder for temporary
/// files, and says how to look at it.
pub fn check_or_keep(name: &str, history: &[Operation]) -> Result<Report, String> {
    check_evicting_or_keep(name, history, false)
}

/// [`check_evicting`], and a history that fails is kept.
pub fn check_evicting_or_keep(name: &str, history: &[Operation], may_evict: bool) -> Result<Report, String> {
    check_evicting(history, may_evict).map_err(|violations| {
        let more = if may_evict { " --evicting" } else { "" };
        let mut text = match keep(name, history) {
            Ok(file) => format!("not linearizable; cargo run -p sidestep-tests --bin check-history{more} {file}"),
            Err(error) => format!("not linearizable; it could not be kept: {error}"),
        };
        for violation in &violations {
            text += &format!("\n{violation}");
        }
        text
    })
}

fn keep(name: &str, history: &[Operation]) -> std::io::Result<String> {
    let folder = std::env::temp_dir().join("sidestep-histories");
    std::fs::create_dir_all(&folder)?;
    let file = folder.join(format!("{name}-{}.jsonl", std::process::id()));
    write_history(history, BufWriter::new(File::create(&file)?))?;
    Ok(file.display().to_string())
}
