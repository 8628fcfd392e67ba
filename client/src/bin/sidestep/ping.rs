//! `sidestep ping`

use crate::failure::Failure;
use crate::operand::print;
use crate::server::ServerArgs;

/// Ask the server for an answer; prints the round-trip time and the paths
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How often
    #[arg(long, short, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
}

pub(crate) fn run(server: &ServerArgs, args: &Args) -> Result<(), Failure> {
    let mut session = server.session()?;
    let info = session.server_info();
    print(&format!("{}: pid {}, reads by {}\n", server.address(), info.pid, session.path()))?;
    for (path, state) in &info.paths {
        match state {
            Ok(()) => print(&format!("path {path}: available\n"))?,
            Err(reason) => print(&format!("path {path}: not available: {reason}\n"))?,
        }
    }
    for _ in 0..args.count {
        print(&format!("round trip {:.1} µs\n", session.ping()?.as_secs_f64() * 1e6))?;
    }
    Ok(())
}
