//! `sidestep cas KEY VERSION VALUE`

use std::ffi::OsString;

use crate::failure::Failure;
use crate::operand::{bytes, print, value};
use crate::server::ServerArgs;

/// Write a value if the key has a version (0: if it is absent); prints the new version
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The key
    key: OsString,
    /// The version that the key must have; `get --verbose` tells it
    version: u64,
    /// The value, - for standard input, @FILE for the contents of a file
    #[arg(allow_hyphen_values = true)]
    value: OsString,
}

pub(crate) fn run(server: &ServerArgs, args: &Args) -> Result<(), Failure> {
    let key = bytes(&args.key, server.hex)?;
    let value = value(Some(&args.value), server.hex)?;
    print(&format!("{}\n", server.session()?.put_if(&key, &value, args.version)?))
}
