//! `sidestep flush --yes`

use crate::failure::Failure;
use crate::operand::print;
use crate::server::ServerArgs;

/// Remove all keys of the server's table; prints how many
///
/// Keys that others write meanwhile may stay. The server goes on to serve; memory is reused, not given back.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Do it: without this, nothing is removed
    #[arg(long)]
    yes: bool,
}

pub(crate) fn run(server: &ServerArgs, args: &Args) -> Result<(), Failure> {
    let mut session = server.session()?;
    if !args.yes {
        let keys = session.stats()?.server("keys").unwrap_or(0);
        let server = server.address();
        return Err(Failure::Usage(format!(
            "expected --yes to remove all {keys} keys of {server}: nothing was removed"
        )));
    }
    let removed = session.flush(|_| {})?;
    print(&format!("{removed}\n"))
}
