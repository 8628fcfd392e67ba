//! `sidestep del KEY`

use std::ffi::OsString;

use crate::failure::Failure;
use crate::operand::{bytes, shown};
use crate::server::ServerArgs;

/// Remove a key
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The key
    key: OsString,
    /// Only if the key has this version
    #[arg(long, value_name = "VERSION")]
    if_version: Option<u64>,
}

pub(crate) fn run(server: &ServerArgs, args: &Args) -> Result<(), Failure> {
    let key = bytes(&args.key, server.hex)?;
    let mut session = server.session()?;
    let removed = match args.if_version {
        Some(version) => session.delete_if(&key, version)?,
        None => session.delete(&key)?,
    };
    if removed { Ok(()) } else { Err(Failure::NotFound(shown(&key))) }
}
