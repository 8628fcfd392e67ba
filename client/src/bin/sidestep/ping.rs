//! `sidestep ping`

use crate::failure::Failure;
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
    println!("{}: pid {}, reads by {}", server.address(), info.pid, session.path());
    for (path, state) in &info.paths {
        match state {
            Ok(()) => println!("path {path}: available"),
            Err(reason) => println!("path {path}: not available: {reason}"),
        }
    }
    for _ in 0..args.count {
        println!("round trip {:.1} µs", session.ping()?.as_secs_f64() * 1e6);
    }
    Ok(())
}
