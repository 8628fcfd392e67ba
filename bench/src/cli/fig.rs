use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;

use sidestep_bench::error::BenchError;
use sidestep_bench::figure::{self, Figure, Name, Options};
use sidestep_bench::interleave::Schedule;
use sidestep_bench::interrupt;

use super::shared::{DriveOptions, ServerOptions, TimeOptions, WorkloadOptions, print, write};

/// Rate of `starve`'s open loop unless told otherwise.
const RATE: f64 = 2000.0;
/// Bytes of values in the tables of `value-size`, and of a first look at it.
const PAYLOAD_BYTES: u64 = 256 << 20;
const QUICK_PAYLOAD_BYTES: u64 = 64 << 20;
/// Where the files go if there is such a folder.
const BUILD_FOLDER: &str = "target";

#[derive(Debug, Args)]
pub(super) struct Fig {
    /// bypass, starve, freeze, load-latency, clients, value-size, read-ratio, skew, cache, fill, floor, ycsb; all.
    #[arg(value_name = "NAME", value_parser = names)]
    name: Names,
    #[command(flatten)]
    workload: WorkloadOptions,
    /// Without --server the sidestep-server beside this program is started, and stopped again.
    #[command(flatten)]
    server: ServerOptions,
    /// Only these paths of the server.
    #[arg(long, value_name = "PATH", value_delimiter = ',')]
    paths: Vec<String>,
    #[command(flatten)]
    drive: DriveOptions,
    #[command(flatten)]
    time: TimeOptions,
    /// Repetitions, interleaved [default: 5].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    repetitions: Option<u16>,
    /// Runs that are repeated in all because others used the machine meanwhile; then they are kept and marked [default:
    /// the repetitions of each point again].
    #[arg(long, value_name = "N")]
    repeats: Option<usize>,
    /// Folder of NAME.svg, NAME-phone.svg, NAME.csv and NAME.json [default: target/figures, or . without a target].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// A figure, or all of them.
#[derive(Clone, Debug)]
struct Names(Vec<Name>);

fn names(text: &str) -> Result<Names, String> {
    if text == "all" { Ok(Names(Name::ALL.into())) } else { Ok(Names(vec![text.parse()?])) }
}

impl Fig {
    pub(super) fn run(self) -> Result<(), BenchError> {
        let folder = self.out.clone().unwrap_or_else(|| {
            let built = Path::new(BUILD_FOLDER);
            if built.is_dir() { built.join("figures") } else { PathBuf::from(".") }
        });
        fs::create_dir_all(&folder)
            .map_err(|source| BenchError::File { path: folder.display().to_string(), source })?;
        let options = self.options()?;
        for name in &self.name.0 {
            show(&figure::measure(*name, &options)?, &folder)?;
            if interrupt::requested() {
                break;
            }
        }
        Ok(())
    }

    fn options(&self) -> Result<Options, BenchError> {
        let quick = self.time.quick;
        Ok(Options {
            server: self.server.server.is_some().then(|| self.server.address()).transpose()?,
            paths: self.paths.clone(),
            drive: self.drive.drive(),
            rate: self.drive.rate.unwrap_or(RATE),
            schedule: Schedule {
                warm_up: self.time.warm_up_or(1.0),
                measure: self.time.measure_or(5.0),
                repetitions: self.repetitions.unwrap_or(if quick { 3 } else { 5 }).into(),
                repeats: self.repeats,
                seed: self.time.seed,
                arrivals: self.drive.arrivals,
            },
            workload: self.workload.workload()?,
            payload_bytes: if quick { QUICK_PAYLOAD_BYTES } else { PAYLOAD_BYTES },
            commit: self.time.commit.clone(),
        })
    }
}

/// Writes the files, then prints the table and where they are.
fn show(figure: &Figure, folder: &Path) -> Result<(), BenchError> {
    let file = |suffix: &str, form: &str| folder.join(format!("{}{suffix}.{form}", figure.figure));
    write(&file("", "json"), &figure::json(figure)?)?;
    write(&file("", "csv"), &figure::csv(figure))?;
    for (suffix, picture) in figure::pictures(figure)? {
        write(&file(suffix, "svg"), &picture)?;
    }
    print(&format!("{}written: {}\n\n", figure::table(figure), file("", "{svg,csv,json}").display()))
}
