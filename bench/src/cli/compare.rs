use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;

use sidestep_bench::compare::{Options, compare};
use sidestep_bench::difference::{Saved, difference};
use sidestep_bench::error::BenchError;
use sidestep_bench::target::PeerKind;

use super::shared::{
    ClientOptions, DriveOptions, OutputOptions, ServerOptions, TimeOptions, WorkloadOptions, peer, print,
};

#[derive(Debug, Args)]
pub(super) struct Compare {
    /// Instead of measuring: two reports that --json wrote, the earlier one first, and what changed.
    #[arg(value_name = "A.json B.json", num_args = 2)]
    reports: Vec<PathBuf>,
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
    /// Without the floors: the same bytes out of an array, and by an echo over loopback, by bare READs.
    #[arg(long)]
    no_floors: bool,
    /// Server and running peers hold the records already.
    #[arg(long)]
    loaded: bool,
    #[command(flatten)]
    drive: DriveOptions,
    #[command(flatten)]
    clients: ClientOptions,
    #[command(flatten)]
    time: TimeOptions,
    /// Repetitions, interleaved [default: 5].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    repetitions: Option<u16>,
    /// Runs that are repeated in all because others used the machine meanwhile; then they are kept and marked [default:
    /// the repetitions of each row again].
    #[arg(long, value_name = "N")]
    repeats: Option<usize>,
    #[command(flatten)]
    output: OutputOptions,
}

impl Compare {
    pub(super) fn run(self) -> Result<(), BenchError> {
        if let [before, after] = self.reports.as_slice() {
            return print(&difference(&saved(before)?, &saved(after)?)?);
        }
        let workload = self.workload.workload()?;
        let default_repetitions = if self.time.quick { 3 } else { 5 };
        let options = Options {
            server: if self.no_server { None } else { Some(self.server.address()?) },
            paths: self.paths,
            peers: self.peers,
            drive: self.drive.drive(),
            without_local: self.no_local,
            without_floors: self.no_floors,
            loaded: self.loaded,
            warm_up: self.time.warm_up(),
            measure: self.time.measure(),
            repetitions: self.repetitions.unwrap_or(default_repetitions).into(),
            repeats: self.repeats,
            rate: self.drive.rate,
            arrivals: self.drive.arrivals,
            clients: self.clients.clients,
            seed: self.time.seed,
            commit: self.time.commit.clone(),
        };
        let result = compare(&options, &workload)?;
        self.output.show(&result, true)
    }
}

fn saved(path: &Path) -> Result<Saved, BenchError> {
    let name = path.display().to_string();
    match fs::read_to_string(path) {
        Ok(text) => Saved::parse(&name, &text),
        Err(source) => Err(BenchError::File { path: name, source }),
    }
}
