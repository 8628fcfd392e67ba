//! `sidestep get KEY`

use std::ffi::OsString;

use crate::failure::Failure;
use crate::operand::{bytes, print_value, shown};
use crate::server::ServerArgs;

/// Print the value of a key: its bytes as they are, or with --hex in hexadecimal
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The key
    key: OsString,
}

pub(crate) fn run(server: &ServerArgs, args: &Args) -> Result<(), Failure> {
    let key = bytes(&args.key, server.hex)?;
    let Some(value) = server.session()?.get(&key)? else {
        return Err(Failure::NotFound(shown(&key)));
    };
    if server.verbose {
        eprintln!("version {}, {} bytes, by {}", value.version(), value.len(), value.path());
    }
    print_value(&value, server.hex)
}
