//! `sidestep put KEY [VALUE|-|@FILE]`

use std::ffi::OsString;
use std::time::Duration;

use sidestep_client::PutOptions;

use crate::failure::Failure;
use crate::operand::{bytes, print, value};
use crate::server::ServerArgs;

/// Write a value; prints its version
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The key
    key: OsString,
    /// The value, - or nothing for standard input, @FILE for the contents of a file
    #[arg(allow_hyphen_values = true)]
    value: Option<OsString>,
    /// Let the value expire after so many milliseconds, by the server's clock
    #[arg(long, value_name = "MS")]
    ttl_ms: Option<u64>,
}

pub(crate) fn run(server: &ServerArgs, args: &Args) -> Result<(), Failure> {
    let key = bytes(&args.key, server.hex)?;
    let value = value(args.value.as_deref(), server.hex)?;
    let options = PutOptions { expect: None, ttl: args.ttl_ms.map(Duration::from_millis) };
    print(&format!("{}\n", server.session()?.put_with(&key, &value, options)?))
}
