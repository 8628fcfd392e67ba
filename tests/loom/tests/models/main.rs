//! The models, one file for each claim. Each claim comes with tests in which an ordering that it rests on
//! is taken away, and which must fail.
#![cfg(loom)]

mod epochs;
mod forwarding;
mod publishing;
mod reuse;
mod splits;
