//! The byte format: what lies where, one newtype for each packed word.
//!
//! Words are little-endian in memory; of a packed word the field named first is the most significant.

pub mod bucket;
pub mod directory;
pub mod item;
pub mod root;
