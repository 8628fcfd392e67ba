//! A server whose every store is a fail point, for tests: `sidestep-server` over [`FailPoints`].
//!
//! Prints the line of `sidestep-server` when it is ready. Obeys the commands of [`Points::command`] from standard
//! input, and answers on standard output; says `at STEP` before each store while it halts at them.

use std::io::{BufRead, Write, stdin, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use sidestep_server::config::EvictionPolicy;
use sidestep_server::size::ByteSize;
use sidestep_server::store::Eviction;
use sidestep_server::{Config, LogConfig, Server, SyncMode};
use sidestep_tests::fail_points::{FailPoints, Points, Step};

/// A server whose every store is a fail point
#[derive(Parser)]
struct Cli {
    /// Address to listen on
    #[arg(long)]
    listen: String,
    /// Folder of the table
    #[arg(long)]
    data: PathBuf,
    /// Size of a new table
    #[arg(long)]
    memory: ByteSize,
    /// Size of a new table's segments
    #[arg(long)]
    segment: ByteSize,
    /// What to do when memory is full
    #[arg(long, default_value = "none")]
    evict: EvictionPolicy,
    /// Folder of a log, which every write waits for
    #[arg(long)]
    durable: Option<PathBuf>,
    /// A command that is obeyed before the table is opened
    #[arg(long)]
    first: Option<String>,
}

fn main() -> ExitCode {
    match serve(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fail-server: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whoever reads this may be gone; then standard input ends too.
fn say(line: &str) {
    let _ = writeln!(stdout(), "{line}");
}

fn tell(step: Step) {
    say(&format!("at {step}"));
}

fn serve(cli: Cli) -> Result<(), Box<dyn std::error::Error>> {
    let points = Arc::new(Points::default());
    if let Some(line) = cli.first {
        points.command(&line, tell)?;
    }
    let commanded = points.clone();
    let commands = std::thread::spawn(move || {
        for line in stdin().lock().lines().map_while(Result::ok) {
            match commanded.command(&line, tell) {
                Ok(Some(answer)) => say(&answer),
                Ok(None) => {}
                Err(reason) => say(&format!("error {reason}")),
            }
        }
    });
    let config = Config {
        listen: cli.listen,
        data: Some(cli.data),
        memory_bytes: Some(cli.memory.0),
        segment_bytes: Some(cli.segment.0),
        eviction: match cli.evict {
            EvictionPolicy::None => Eviction::None,
            EvictionPolicy::Clock => Eviction::Clock,
        },
        durable: cli.durable.map(|path| LogConfig { path, sync: SyncMode::Always }),
        workers: 1,
        ..Config::default()
    };
    let server = Server::start_over(config, |region| FailPoints::new(region, points))?;
    say(server.description());
    // The end of standard input is the end of whoever started this.
    let _ = commands.join();
    Ok(())
}
