//! Every decoder of bytes that come from outside, as a function of any bytes: it returns, or it has found a fault.
//!
//! What must hold in each: no panic, no endless loop, no more memory than the bytes that were sent account for
//! ([`MEMORY_PER_BYTE`] for each and [`MEMORY_BYTES`] on top), and what decodes comes out the same once it was encoded
//! again. `scripts/fuzz` runs them under libFuzzer; `cargo test -p sidestep-fuzz` runs each on its corpus, in
//! `fuzz/corpus`, and on some thousands of changed copies of that.

use std::alloc::System;

pub use seeds::seeds;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

mod dump;
mod files;
mod seeds;
mod table;
mod wire;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Bytes that a decoder may allocate in all, those that it frees again included, for each byte that it is given.
pub const MEMORY_PER_BYTE: usize = 64;
/// And besides: buffers of fixed sizes, and the most that a control message may claim.
pub const MEMORY_BYTES: usize = 512 << 10;

/// A decoder and its checks.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, and that of its folder in the corpus.
    pub name: &'static str,
    /// Panics if it finds a fault.
    pub run: fn(&[u8]),
    /// Changed copies of the corpus that the tests try: some seconds' worth.
    pub test_runs: u32,
    /// Whether the memory that it takes is bounded by the bytes. A table is as large as it is.
    pub is_bounded: bool,
}

/// All of them.
pub const TARGETS: [Target; 12] = [
    bounded("handshake", wire::handshake, 60_000),
    bounded("frames", sidestep_server::fuzzing::frames, 100_000),
    bounded("connection", sidestep_server::fuzzing::connection, 20_000),
    bounded("replies", sidestep_client::fuzzing::replies, 30_000),
    bounded("scan", wire::scan, 100_000),
    bounded("item", wire::item, 100_000),
    bounded("http", sidestep_server::fuzzing::http, 60_000),
    bounded("dump", dump::dump, 40_000),
    bounded("files", files::server_files, 30_000),
    bounded("properties", files::properties, 30_000),
    Target { name: "log", run: sidestep_server::fuzzing::log, test_runs: 3000, is_bounded: false },
    Target { name: "table", run: table::table, test_runs: 1500, is_bounded: false },
];

const fn bounded(name: &'static str, run: fn(&[u8]), test_runs: u32) -> Target {
    Target { name, run, test_runs, is_bounded: true }
}

impl Target {
    /// The one of this name.
    pub fn named(name: &str) -> Option<Self> {
        TARGETS.into_iter().find(|target| target.name == name)
    }

    /// Runs it once and looks at the memory that it took. No other thread may allocate meanwhile.
    pub fn check(&self, bytes: &[u8]) {
        let region = Region::new(ALLOCATOR);
        (self.run)(bytes);
        let allocated = region.change().bytes_allocated;
        let allowed = MEMORY_BYTES + MEMORY_PER_BYTE * bytes.len();
        assert!(!self.is_bounded || allocated <= allowed, "{allocated} bytes allocated for {}", bytes.len());
    }
}
