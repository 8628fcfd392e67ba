//! The one import that loom swaps: what shared words are made of.

#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicU64, fence};
#[cfg(not(loom))]
pub(super) use std::sync::atomic::{AtomicU64, fence};
