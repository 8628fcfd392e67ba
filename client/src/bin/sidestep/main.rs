//! `sidestep`: a Sidestep table from the command line. Bytes in, bytes out.

mod cas;
mod del;
mod doctor;
mod dump;
mod failure;
mod flush;
mod get;
mod load;
mod mget;
mod operand;
mod ping;
mod put;
mod server;
mod stats;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use crate::failure::Failure;
use crate::server::ServerArgs;

/// Reads and writes a Sidestep table.
#[derive(Debug, Parser)]
#[command(
    name = "sidestep",
    version = sidestep_client::BUILD.line(),
    after_help = "Exit codes: 0 done, 1 not found or version mismatch, 2 usage, 3 cannot reach or refused, 4 full, \
                  5 too large, 6 outcome unknown, 7 RDMA would not work (doctor).\nRUST_LOG sets what is logged on standard error (default: warn)."
)]
struct Args {
    #[command(flatten)]
    server: ServerArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Get(get::Args),
    Put(put::Args),
    Del(del::Args),
    Cas(cas::Args),
    Mget(mget::Args),
    Load(load::Args),
    Dump(dump::Args),
    Flush(flush::Args),
    Stats(stats::Args),
    Ping(ping::Args),
    Doctor(doctor::Args),
}

fn main() -> ExitCode {
    let args = Args::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).without_time().init();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads our output has had enough: `sidestep mget … | head`.
        Err(Failure::Io { source, .. }) if source.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("sidestep: {failure}");
            failure.exit_code()
        }
    }
}

fn run(args: &Args) -> Result<(), Failure> {
    let server = &args.server;
    match &args.command {
        Command::Get(args) => get::run(server, args),
        Command::Put(args) => put::run(server, args),
        Command::Del(args) => del::run(server, args),
        Command::Cas(args) => cas::run(server, args),
        Command::Mget(args) => mget::run(server, args),
        Command::Load(args) => load::run(server, args),
        Command::Dump(args) => dump::run(server, args),
        Command::Flush(args) => flush::run(server, args),
        Command::Stats(args) => stats::run(server, args),
        Command::Ping(args) => ping::run(server, args),
        Command::Doctor(args) => doctor::run(server, args),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_arguments_are_consistent() {
        super::Args::command().debug_assert();
    }
}
