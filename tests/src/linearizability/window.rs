//! The part of a history that shows why it cannot be explained.

use super::operation::Operation;
use super::register::{State, Vanishing};
use super::search::{Entry, Explained, explain};

/// The operation with whose end a key's operations, sorted by their start, became impossible to explain; and the
/// last of the operations up to there that are impossible from any state.
pub(super) fn window(operations: &[Operation], vanishing: Vanishing) -> (Operation, Vec<Operation>) {
    let (new, any) = (State::new(vanishing), State::any(vanishing));
    let mut ends: Vec<u64> = operations.iter().filter(|o| o.did.is_certain()).map(|o| o.end).collect();
    ends.sort_unstable();
    // A history that can be explained can be explained up to any time: the first time that cannot is found by halving.
    let first = ends.partition_point(|&end| explain(&until(operations, end), new) != Explained::No);
    let end = ends.get(first).copied().unwrap_or(u64::MAX);
    let culprit = operations.iter().find(|o| o.did.is_certain() && o.end == end).unwrap_or(&operations[0]);
    let entries = until(operations, end);
    let mut starts: Vec<u64> = entries.iter().map(|entry| entry.operation.start).collect();
    starts.sort_unstable();
    // And it can be explained from any time on, from some state.
    let beyond = starts.partition_point(|&start| explain(&since(&entries, start), any) == Explained::No);
    let mut from = since(&entries, if beyond == 0 { 0 } else { starts[beyond - 1] });
    from.retain(|entry| entry.required || !entry.operation.did.is_observation());
    let from = drop_observations(from, if beyond == 0 { new } else { any });
    (*culprit, from.into_iter().map(|entry| entry.operation).collect())
}

/// What had begun by a time; what had not ended by then may have been done or not.
fn until(operations: &[Operation], time: u64) -> Vec<Entry> {
    let begun = operations.iter().filter(|operation| operation.start <= time);
    begun.map(|&operation| Entry { operation, required: operation.did.is_certain() && operation.end <= time }).collect()
}

/// What had not ended before a time; what had begun before it may have been done before it.
fn since(entries: &[Entry], time: u64) -> Vec<Entry> {
    let still = entries.iter().filter(|entry| !entry.operation.did.is_certain() || entry.operation.end >= time);
    still.map(|entry| Entry { required: entry.required && entry.operation.start >= time, ..*entry }).collect()
}

/// Leaves out operations that change nothing and are not needed for it to be impossible, many at a time at first.
fn drop_observations(mut entries: Vec<Entry>, state: State) -> Vec<Entry> {
    let mut part = entries.len() / 2;
    while part > 0 {
        let mut i = 0;
        while i < entries.len() {
            let end = (i + part).min(entries.len());
            let (before, rest) = (&entries[..i], &entries[i..]);
            let kept = rest[..end - i].iter().filter(|entry| !entry.operation.did.is_observation());
            let fewer: Vec<Entry> = before.iter().chain(kept).chain(&rest[end - i..]).copied().collect();
            let dropped = entries.len() - fewer.len();
            if dropped > 0 && explain(&fewer, state) == Explained::No {
                entries = fewer;
                i += part - dropped.min(part);
            } else {
                i = end;
            }
        }
        part /= 2;
    }
    entries
}
