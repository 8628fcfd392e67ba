//! The command line.

mod agent;
mod compare;
mod fig;
mod fill;
mod load;
mod run;
mod shared;

use clap::{Parser, Subcommand};

use sidestep_bench::error::BenchError;
use sidestep_bench::{interrupt, undo};

/// What does bypassing the server's CPU change, on this machine, for this workload?
///
/// Exit codes: 0 done, 1 a store returned wrong data, 2 usage, 3 cannot reach or start a store, 4 an operation failed.
#[derive(Debug, Parser)]
#[command(name = "sidestep-bench", version = sidestep_client::BUILD.line())]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write a workload's records.
    Load(load::Load),
    /// Run a workload on one path of a loaded store.
    Run(run::Run),
    /// Every path that works here, the ceiling and the peers asked for, interleaved.
    Compare(compare::Compare),
    /// Drive stores as a coordinator (run or compare with --clients) says, until Ctrl-C.
    Agent(agent::Agent),
    /// Insert until N: insert rate and memory of each tenth.
    Fill(fill::Fill),
    /// One figure, or all: what it asks, as a picture, numbers and a sentence.
    Fig(Box<fig::Fig>),
    /// What the bench starts for itself, so that whatever it did to other processes is undone when it ends.
    #[command(name = undo::COMMAND, hide = true)]
    Helper {
        #[arg(trailing_var_arg = true)]
        arguments: Vec<String>,
    },
}

/// Does what the command line says.
pub(crate) fn run() -> Result<(), BenchError> {
    let arguments = Arguments::parse_from(std::env::args().map(|argument| shared::as_ours(&argument)));
    if let Command::Helper { arguments } = &arguments.command {
        return undo::help(arguments);
    }
    interrupt::catch()?;
    match arguments.command {
        Command::Load(load) => load.run(),
        Command::Run(run) => run.run(),
        Command::Compare(compare) => compare.run(),
        Command::Agent(agent) => agent.run(),
        Command::Fill(fill) => fill.run(),
        Command::Fig(fig) => fig.run(),
        Command::Helper { .. } => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn ycsbs_spellings_are_taken() {
        let line = "sidestep-bench run -P /dev/null -p recordcount=5 -threads 4 -target 1000 -s --path local";
        let arguments = Arguments::try_parse_from(line.split(' ').map(shared::as_ours)).expect("parsed");
        assert!(matches!(arguments.command, Command::Run(_)));
    }
}
