//! A process of clients that keep a history, for tests. Says `ready`, begins when a line comes in, writes a line
//! with the number of operations begun now and then, then `NAME COUNT` for each counter; the history goes to a file.

use std::fs::File;
use std::io::{BufWriter, Write, stdin, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Parser;
use sidestep_tests::linearizability::client::{Plan, Via, run};
use sidestep_tests::linearizability::write_history;

/// Clients that keep a history
#[derive(Parser)]
struct Cli {
    /// The server's address
    #[arg(long)]
    server: String,
    /// tcp, shm, shm-cached, rdma, rdma-cached or rdma-rpc, for each thread
    #[arg(long, value_delimiter = ',', required = true)]
    sessions: Vec<Via>,
    /// Operations of all threads together
    #[arg(long)]
    operations: u64,
    /// Decides what is asked for
    #[arg(long)]
    seed: u64,
    /// Number of the first client
    #[arg(long)]
    first_client: u32,
    /// Keys that half of the operations are on
    #[arg(long, default_value_t = 16)]
    hot_keys: u64,
    /// Write values of 40 KB to 4 MB
    #[arg(long)]
    long_values: bool,
    /// Go on when the server is lost
    #[arg(long)]
    may_lose_server: bool,
    /// Let some of the values expire
    #[arg(long)]
    expiring: bool,
    /// What the names of keys begin with
    #[arg(long, default_value = "key")]
    prefix: String,
    /// Where the history goes
    #[arg(long, required_unless_present = "journals")]
    output: Option<PathBuf>,
    /// A folder where the history goes as it is made, and end when standard input does
    #[arg(long)]
    journals: Option<PathBuf>,
}

fn main() -> ExitCode {
    match keep_history(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("history-client: {error}");
            ExitCode::FAILURE
        }
    }
}

fn keep_history(cli: Cli) -> Result<(), Box<dyn std::error::Error>> {
    let plan = Plan {
        server: cli.server,
        sessions: cli.sessions,
        operations: cli.operations,
        seed: cli.seed,
        first_client: cli.first_client,
        hot_keys: cli.hot_keys,
        long_values: cli.long_values,
        may_lose_server: cli.may_lose_server,
        expiring: cli.expiring,
        prefix: cli.prefix,
        journals: cli.journals,
    };
    println!("ready");
    stdin().read_line(&mut String::new())?;
    let stop = Arc::new(AtomicBool::new(false));
    if plan.journals.is_some() {
        let stop = stop.clone();
        std::thread::spawn(move || {
            // However it ends.
            let _ = stdin().read_line(&mut String::new());
            stop.store(true, Ordering::Relaxed);
        });
    }
    let outcome = run(&plan, &stop, |begun| {
        // Whoever started this may not listen.
        let _ = writeln!(stdout(), "{begun}");
    })?;
    if let Some(output) = cli.output {
        write_history(&outcome.history, BufWriter::new(File::create(output)?))?;
    }
    for (name, count) in outcome.counters {
        println!("{name} {count}");
    }
    Ok(())
}
