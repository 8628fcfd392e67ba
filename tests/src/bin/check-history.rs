//! Checks a history that was kept as a file: `check-history FILE`.
//!
//! Exit codes: 0 linearizable, 1 not linearizable (each key's minimal window is printed), 2 not a history.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use sidestep_tests::linearizability::{check_evicting, read_history};

/// Checks whether a history is linearizable
#[derive(Parser)]
struct Cli {
    /// JSON lines, as the documentation of sidestep_tests::linearizability gives them
    file: PathBuf,
    /// The server may have evicted any value at any time
    #[arg(long)]
    evicting: bool,
}

fn main() -> ExitCode {
    let Cli { file, evicting } = Cli::parse();
    let history = match File::open(&file).and_then(|file| read_history(BufReader::new(file))) {
        Ok(history) => history,
        Err(error) => {
            eprintln!("check-history: {}: {error}", file.display());
            return ExitCode::from(2);
        }
    };
    match check_evicting(&history, evicting) {
        Ok(report) => {
            println!("linearizable: {report:?}");
            ExitCode::SUCCESS
        }
        Err(violations) => {
            violations.iter().for_each(|violation| println!("{violation}"));
            println!("{} keys are not linearizable", violations.len());
            ExitCode::FAILURE
        }
    }
}
