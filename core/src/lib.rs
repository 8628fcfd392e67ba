//! Sidestep's format and protocol, without input or output.
#![forbid(unsafe_code)]

pub mod handshake;
pub mod hash;
pub mod layout;
pub mod limits;
pub mod location;
pub mod lookup;
pub mod memory;
pub mod message;
pub mod scan;
pub mod uses;
