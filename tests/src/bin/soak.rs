//! Everything at once, for as long as it is told to; see [`sidestep_tests::soak`]. `scripts/soak` builds what it needs.
//!
//! Exit codes: 0 all held, 1 something did not, 2 usage, 3 a run that did not meet everything that it should.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use sidestep_tests::linearizability::client::Via;
use sidestep_tests::soak::{Settings, run};

/// Real processes on mixed paths, killed, stopped and started again; all that they saw is checked
#[derive(Parser)]
struct Cli {
    /// Length of the run
    #[arg(long, default_value_t = 20.0)]
    minutes: f64,
    /// Length of a round, after which its history is checked
    #[arg(long, default_value_t = 10.0)]
    round_seconds: f64,
    /// Decides what is asked for and what happens [default: random]
    #[arg(long)]
    seed: Option<u64>,
    /// Sessions of each client process [default: shm-cached,shm,tcp,tcp, and those by RDMA where there is a device]
    #[arg(long, value_delimiter = ',')]
    sessions: Vec<Via>,
    /// Folder for the journals of a round that fails [default: that of temporary files]
    #[arg(long)]
    keep: Option<PathBuf>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let seed = cli.seed.unwrap_or_else(rand::random);
    let sessions = if cli.sessions.is_empty() { default_sessions() } else { cli.sessions };
    let names: Vec<&str> = sessions.iter().map(|via| via.name()).collect();
    println!("soak: --seed {seed} --minutes {} --sessions {}", cli.minutes, names.join(","));
    let settings = Settings {
        length: Duration::from_secs_f64(cli.minutes * 60.0),
        round: Duration::from_secs_f64(cli.round_seconds),
        seed,
        sessions,
        keep: cli.keep.unwrap_or_else(std::env::temp_dir),
    };
    match run(&settings) {
        Ok(tally) => {
            println!("soak: {tally}");
            let missed = tally.missed();
            if missed.is_empty() {
                return ExitCode::SUCCESS;
            }
            eprintln!("soak: all held, but the run met no {}", missed.join(", no "));
            ExitCode::from(3)
        }
        Err(error) => {
            eprintln!("soak: {error}\nsoak: failed with --seed {seed}");
            ExitCode::FAILURE
        }
    }
}

fn default_sessions() -> Vec<Via> {
    let mut sessions = vec![Via::ShmCached, Via::Shm, Via::Tcp, Via::Tcp];
    let has_device = std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some());
    if has_device {
        sessions.extend([Via::RdmaCached, Via::Rdma, Via::RdmaRpc]);
    }
    sessions
}
