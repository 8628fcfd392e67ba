use clap::Args;

use sidestep_bench::compare::{Options, compare};
use sidestep_bench::error::BenchError;
use sidestep_bench::report;
use sidestep_bench::target::PeerKind;

use super::shared::{DriveOptions, OutputOptions, ServerOptions, TimeOptions, WorkloadOptions, peer, write};

#[derive(Debug, Args)]
pub(super) struct Compare {
    #[command(flatten)]
    workload: WorkloadOptions,
    #[command(flatten)]
    server: ServerOptions,
    /// Only these paths of the server.
    #[arg(long, value_name = "PATH", value_delimiter = ',')]
    paths: Vec<String>,
    /// Another store to compare with: memcached or redis (an installed one is started and stopped again), or one that
    /// runs: memcached=ADDR, redis=ADDR. May be given several times.
    #[arg(long = "peer", value_name = "NAME[=ADDR]", value_parser = peer)]
    peers: Vec<(PeerKind, Option<String>)>,
    /// Without a server: only the ceiling and the peers.
    #[arg(long, conflicts_with = "server")]
    no_server: bool,
    /// Without the ceiling.
    #[arg(long)]
    no_local: bool,
    /// Server and running peers hold the records already.
    #[arg(long)]
    loaded: bool,
    #[command(flatten)]
    drive: DriveOptions,
    #[command(flatten)]
    time: TimeOptions,
    /// Repetitions, interleaved [default: 5].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    repetitions: Option<u16>,
    #[command(flatten)]
    output: OutputOptions,
}

impl Compare {
    pub(super) fn run(self) -> Result<(), BenchError> {
        let workload = self.workload.workload()?;
        let default_repetitions = if self.time.quick { 3 } else { 5 };
        let options = Options {
            server: if self.no_server { None } else { Some(self.server.address()?) },
            paths: self.paths,
            peers: self.peers,
            drive: self.drive.drive(),
            without_local: self.no_local,
            loaded: self.loaded,
            warm_up: self.time.warm_up(),
            measure: self.time.measure(),
            repetitions: self.repetitions.unwrap_or(default_repetitions).into(),
            rate: self.drive.rate,
            seed: self.time.seed,
            commit: self.time.commit.clone(),
        };
        let result = compare(&options, &workload)?;
        if !self.output.takes_stdout() {
            print!("{}", report::table(&result));
        }
        if let Some(path) = &self.output.json {
            write(path, &result.json()?)?;
        }
        if let Some(path) = &self.output.csv {
            write(path, &report::csv(&result))?;
        }
        if let Some(path) = &self.output.html {
            write(path, &report::html(&result)?)?;
        }
        Ok(())
    }
}
