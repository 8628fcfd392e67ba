//! An exhaustive small model: the real store, the real lookup machine, every time at which a word can be sampled.
//!
//! A search of our own rather than a model written for a checker: what is searched is the code that ships.
//!
//! - **The server** runs for real on a `tape`, a memory that notes every store. Beside its writes nothing in the
//!   table changes, and readers change nothing: so the tape *is* the state space of one writer. A kill cuts the tape
//!   off at some store, a recovery (real, too) writes on. Every cut is tried, those of recoveries again; cuts that
//!   leave the same memory, the same acknowledgements and the same past for every reader are tried once. The words
//!   of one `write` may come in any order: while it lasts each of them is old or new, and stays so if it is cut.
//! - **Readers** are bare machines that `explore` the tape: each word of a READ is sampled at a time of its own, so
//!   a READ can deliver any combination of the values that its words have from its posting on. Of the ways to one
//!   delivery only the soonest is followed: it can do all that the others can, and it is the hardest to explain.
//!   They begin at every time, from nothing and from every directory entry and location that a cache can hold by then.
//! - **The oracle** takes all lookups that can happen for one history: readers do not influence each other, so if all
//!   of them together are linearizable, any two, or ten, are.
//! - **Two writers** take `turns` at every access to a word that both use. Each order gives a tape, and each tape is
//!   cut and read as above. Where `Second::joins` is set, an order ends at a state that is known.
//!
//! Checked are: each key is linearizable, a value is returned only under the one version that its write got, no
//! acknowledged write is lost, versions grow, the table is sound after every recovery, and a reader that is alone
//! from any state on ends without asking the server.
//!
//! A [`Defence`] is taken away without touching the protocol's code: where it is an order of stores the tape swaps
//! them, where it is a lock the tape holds its last store back beyond the unlock, where it is a rule of the reader
//! the driver feeds it what the rule would have refused. So every defence can be missed in one test binary, and
//! nothing in the product knows of it. The floor that a sibling inherits is in no memory that a tape can reach:
//! there a restart with an old ceiling makes the server forget. `scripts/mutants` changes the code itself.
//!
//! Not searched: more than two writers, long items, expiry, reservations, memory growth, weak memory.

mod explore;
mod keys;
mod oracle;
mod reader;
mod readers;
mod scenario;
pub mod scenarios;
mod server;
mod tape;
mod timeline;
mod turns;
mod writers;

use std::fmt;

pub use scenario::{Scenario, run};

/// A defence of the protocol that can be taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Defence {
    /// The link repeats the checksum of its body.
    LinkChecksum,
    /// An insert is written DEAD.
    InsertBornDead,
    /// An insert's slot names it before it is CURRENT.
    InsertSlotBeforeCurrent,
    /// A PENDING successor is not the value.
    PendingRule,
    /// A PENDING successor lets only the item with the version before it count.
    PendingVersion,
    /// An update says FORWARD before CURRENT.
    ForwardBeforeCurrent,
    /// A delete says DEAD before it empties the slot.
    DeadBeforeEmpty,
    /// A deeper word in a window makes it stale.
    DepthStamp,
    /// After a deeper word the root is read again.
    RootAfterDeeper,
    /// A miss beside a collision looks at the window twice.
    SecondLookAtWindow,
    /// And then at the items.
    SecondLookAtItems,
    /// The version ceiling is stored before a version above it.
    PersistedCeiling,
    /// A sibling inherits the version floor.
    FloorInheritance,
    /// A sibling is locked until the intent is cleared.
    SiblingLock,
    /// The directory lock while the directory is doubled.
    DirectoryLockOfDoubling,
    /// The directory lock while entries are published.
    DirectoryLockOfEntries,
}

/// What is searched.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Kills of the server one after the other, those of recoveries included.
    pub kills: u32,
    /// Readers also begin with what caches remember.
    pub stale: bool,
    /// Words of a window that cannot matter to the lookup are taken for equal.
    pub coarse: bool,
    /// Two writers write the same keys: the order of their writes is that of the versions.
    pub rivals: bool,
}

/// What a search came to.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Different runs of the server, as the readers of one key can tell them apart.
    pub timelines: u64,
    /// Orders of two writers' steps that were followed.
    pub orders: u64,
    /// Points at which the server was killed.
    pub kills: u64,
    /// Different states of a lookup with a READ open, each at its time.
    pub states: u64,
    /// States of lookups that were alone.
    pub alone: u64,
    /// Lookups, by begin, end and result.
    pub lookups: u64,
    /// Most windows that a reader read once nobody wrote any more.
    pub most_windows: u8,
    /// Nothing was cut off.
    pub exhausted: bool,
}

impl Default for Report {
    fn default() -> Self {
        Self { timelines: 0, orders: 0, kills: 0, states: 0, alone: 0, lookups: 0, most_windows: 0, exhausted: true }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { timelines, orders, kills, states, alone, lookups, most_windows, exhausted } = self;
        write!(
            f,
            "{timelines} timelines, {orders} orders, {kills} kills, {states} states and {alone} alone, {lookups} lookups, "
        )?;
        write!(f, "at most {most_windows} windows alone, {}", if *exhausted { "exhausted" } else { "CUT OFF" })
    }
}
