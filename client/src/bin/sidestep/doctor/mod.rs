//! `sidestep doctor`: would RDMA work, and if not, what to do about it.

#[cfg(feature = "rdma")]
mod host;
mod report;
mod server;

use std::path::PathBuf;

use crate::failure::Failure;
use crate::operand::print;
use crate::server::ServerArgs;
use report::Report;

/// Say whether RDMA would work here, and what to do about it if not; with --server also to that server, proven by a READ
///
/// Exit code 0: it works. 7: it does not. 3: the server cannot be reached.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// As one JSON object
    #[arg(long)]
    json: bool,
    /// The device to use instead of the one that owns the address: NAME or NAME/PORT
    #[arg(long, default_value = "auto")]
    device: String,
    /// The folder that is to be a server's --data: can it be registered?
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

pub(crate) fn run(server: &ServerArgs, args: &Args) -> Result<(), Failure> {
    let mut report = Report::default();
    #[cfg(feature = "rdma")]
    host::look(args, &mut report)?;
    #[cfg(not(feature = "rdma"))]
    report.fatal(
        "this program was built without RDMA (Cargo feature `rdma`)",
        "build it with its default features: cargo build --release",
    );
    let reached = if server.is_named() { server::look(server, args, &mut report) } else { Ok(()) };
    print(&if args.json { report.json() } else { report.text() })?;
    reached?;
    match report.first_fatal() {
        None => Ok(()),
        Some(problem) => Err(Failure::NoRdma(problem.to_owned())),
    }
}
