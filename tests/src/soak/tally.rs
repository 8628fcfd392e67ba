//! What a run came to.

use std::collections::BTreeMap;
use std::fmt;

/// Counters of a server that are summed over all its starts.
const COUNTERS: [&str; 6] =
    ["splits", "directory_doublings", "evicted", "expired_removed", "writes_refused_full", "updates"];

/// Sums of a run.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Tables that were checked at their end.
    pub tables: u32,
    /// Rounds whose histories were checked.
    pub rounds: u32,
    /// Operations in all histories, by the way of reading of the session that did them.
    pub operations: BTreeMap<&'static str, u64>,
    /// Of these, writes whose outcome is not known.
    pub unknown: u64,
    /// Client processes killed.
    pub client_kills: u32,
    /// Servers killed.
    pub server_kills: u32,
    /// Servers asked to end.
    pub server_restarts: u32,
    /// Servers stopped for a while.
    pub server_stops: u32,
    /// Tables emptied by a flush.
    pub flushes: u32,
    /// Long values written to fill the memory, and refused.
    pub filled: (u64, u64),
    /// What the servers counted.
    pub counters: BTreeMap<&'static str, u64>,
}

impl Tally {
    pub(super) fn add_counters(&mut self, counters: &[(String, u64)]) {
        for name in COUNTERS {
            let count = counters.iter().find(|counter| counter.0 == name).map_or(0, |counter| counter.1);
            *self.counters.entry(name).or_default() += count;
        }
    }

    /// What a run of this kind must have met, and did not.
    pub fn missed(&self) -> Vec<&'static str> {
        let counted = |name| self.counters.get(name).copied().unwrap_or(0);
        let mut met = vec![
            ("a killed client", u64::from(self.client_kills)),
            ("a killed server", u64::from(self.server_kills)),
            ("a stopped server", u64::from(self.server_stops)),
            ("a full memory", self.filled.1),
            ("a write of unknown outcome", self.unknown),
            ("a split", counted("splits")),
            ("an eviction", counted("evicted")),
            ("an expiry", counted("expired_removed")),
        ];
        met.extend(self.operations.iter().map(|(name, count)| (*name, *count)));
        met.into_iter().filter(|(_, count)| *count == 0).map(|(name, _)| name).collect()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operations: u64 = self.operations.values().sum();
        write!(f, "{operations} operations (")?;
        for (i, (name, count)) in self.operations.iter().enumerate() {
            write!(f, "{}{name} {count}", if i == 0 { "" } else { ", " })?;
        }
        write!(f, "), {} of unknown outcome; {} tables, {} rounds; ", self.unknown, self.tables, self.rounds)?;
        write!(f, "killed: {} clients, {} servers; ", self.client_kills, self.server_kills)?;
        write!(f, "servers stopped {}, restarted {}; ", self.server_stops, self.server_restarts)?;
        write!(f, "flushes {}; filled with {}, {} refused", self.flushes, self.filled.0, self.filled.1)?;
        self.counters.iter().try_for_each(|(name, count)| write!(f, ", {name} {count}"))
    }
}
