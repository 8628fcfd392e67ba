//! Options that several commands have.

use std::fs;
use std::io::{ErrorKind, Write, stdout};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use sidestep_bench::compare::{load_into, open_peer};
use sidestep_bench::driver::{Arrivals, Drive};
use sidestep_bench::error::BenchError;
use sidestep_bench::report::{self, Report};
use sidestep_bench::target::{Local, PeerKind, ServerAddress, Sidestep, Target, TargetError};
use sidestep_bench::workload::{PropertyMap, Workload, parse_assignment, parse_file};
use sidestep_client::{Tls, TlsArgs};

/// Port of a server that is given without one.
const DEFAULT_SERVER: &str = "127.0.0.1:7411";

/// YCSB spells long options with one hyphen.
pub(crate) fn as_ours(argument: &str) -> String {
    match argument {
        "-threads" | "-target" => format!("-{argument}"),
        other => other.to_owned(),
    }
}

/// The workload.
#[derive(Debug, Args)]
pub(crate) struct WorkloadOptions {
    /// a, b, c, d, f (YCSB's core workloads), kv64, kv1k, kv16k, kv1m (one value of that size, read-only, uniform,
    /// keys of 24 B).
    #[arg(short, long, default_value = "kv64")]
    workload: String,
    /// A property file of YCSB, instead of a named workload; may be given several times.
    #[arg(short = 'P', value_name = "FILE")]
    files: Vec<PathBuf>,
    /// A property, which replaces what workload or files say; may be given several times.
    #[arg(short = 'p', value_name = "NAME=VALUE")]
    properties: Vec<String>,
    /// Number of records, as -p recordcount=N.
    #[arg(long, value_name = "N")]
    records: Option<u64>,
    /// Request distribution, as -p requestdistribution=NAME: uniform, zipfian, zipfian-exact, latest, hotspot,
    /// sequential, exponential.
    #[arg(long, value_name = "NAME")]
    distribution: Option<String>,
    /// YCSB's -s; progress is always shown.
    #[arg(short = 's', hide = true)]
    status: bool,
}

impl WorkloadOptions {
    pub(crate) fn workload(&self) -> Result<Workload, BenchError> {
        let (name, mut properties) = self.base()?;
        for assignment in &self.properties {
            properties.extend([parse_assignment(assignment)?]);
        }
        if let Some(records) = self.records {
            properties.insert("recordcount".into(), records.to_string());
        }
        if let Some(distribution) = &self.distribution {
            properties.insert("requestdistribution".into(), distribution.clone());
        }
        let unknown = Workload::unknown_properties(&properties);
        if !unknown.is_empty() {
            eprintln!("sidestep-bench: properties without effect here: {}", unknown.join(", "));
        }
        Workload::from_properties(&name, &properties)
    }

    fn base(&self) -> Result<(String, PropertyMap), BenchError> {
        let Some(first) = self.files.first() else {
            return Workload::preset_properties(&self.workload);
        };
        let name = first.file_name().map_or_else(|| "file".into(), |name| name.to_string_lossy().into_owned());
        let mut properties = PropertyMap::new();
        for file in &self.files {
            properties.extend(parse_file(file)?);
        }
        Ok((name, properties))
    }

    /// A property that is an option of ours too.
    pub(crate) fn property(&self, name: &str) -> Result<Option<f64>, BenchError> {
        let (_, mut properties) = self.base()?;
        for assignment in &self.properties {
            properties.extend([parse_assignment(assignment)?]);
        }
        let Some(text) = properties.get(name) else { return Ok(None) };
        match text.parse() {
            Ok(number) if number > 0.0 => Ok(Some(number)),
            Ok(_) => Ok(None),
            Err(_) => Err(BenchError::Usage(format!("property {name}={text}: not a number"))),
        }
    }
}

/// The server.
#[derive(Debug, Args)]
pub(crate) struct ServerOptions {
    /// The server.
    #[arg(long, env = "SIDESTEP_SERVER", value_name = "ADDR")]
    pub(crate) server: Option<String>,
    /// File with the token shared with the server.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    tls: TlsArgs,
    /// Entries of the location cache of each session; 0 = off.
    #[arg(long, value_name = "N", default_value_t = 0)]
    location_cache: usize,
    /// Poll sockets instead of sleeping in them.
    #[arg(long)]
    spin: bool,
}

/// The token in a file; without one, none.
pub(crate) fn token(file: Option<&Path>) -> Result<Vec<u8>, BenchError> {
    let Some(path) = file else { return Ok(Vec::new()) };
    let bytes = fs::read(path).map_err(|source| BenchError::File { path: path.display().to_string(), source })?;
    Ok(bytes.trim_ascii().to_vec())
}

/// What the options say of TLS.
pub(crate) fn tls(args: &TlsArgs) -> Result<Option<Tls>, BenchError> {
    args.tls().map_err(|error| BenchError::Usage(error.to_string()))
}

impl ServerOptions {
    pub(crate) fn address(&self) -> Result<ServerAddress, BenchError> {
        let token = token(self.token_file.as_deref())?;
        Ok(ServerAddress {
            address: self.server.clone().unwrap_or_else(|| DEFAULT_SERVER.into()),
            token,
            tls: tls(&self.tls)?,
            location_cache: self.location_cache,
            spin: self.spin,
        })
    }

    /// The store that `path` names: `local`, a peer (`memcached[=ADDR]`, `redis[=ADDR]`), or a path of the server.
    pub(crate) fn open(&self, path: &str, workload: &Workload) -> Result<Box<dyn Target>, BenchError> {
        let failed = |error: TargetError| BenchError::Unavailable { store: path.to_owned(), reason: error.0 };
        if path == "local" {
            return Ok(Box::new(Local::new(workload.records)));
        }
        if let Ok((kind, address)) = peer(path) {
            return open_peer(kind, address.as_deref(), workload).map_err(failed);
        }
        Ok(Box::new(Sidestep::connect(&self.address()?, path).map_err(failed)?))
    }

    /// The same, loaded first if nobody else can have done so: what lives in this process, or was started by it.
    pub(crate) fn open_loaded(&self, path: &str, workload: &Workload) -> Result<Box<dyn Target>, BenchError> {
        let target = self.open(path, workload)?;
        if path == "local" || matches!(peer(path), Ok((_, None))) {
            load_into(target.as_ref(), workload)?;
        }
        Ok(target)
    }
}

/// Which records go where, over how many connections.
#[derive(Debug, Args)]
pub(crate) struct InsertOptions {
    #[command(flatten)]
    workload: WorkloadOptions,
    #[command(flatten)]
    server: ServerOptions,
    /// Where to: a path of the server, memcached[=ADDR], redis[=ADDR], local.
    #[arg(long, default_value = "tcp")]
    path: String,
    /// Connections, each with its thread.
    #[arg(long, default_value_t = 2)]
    pub(crate) threads: usize,
}

impl InsertOptions {
    /// The workload and the store that they name.
    pub(crate) fn open(&self) -> Result<(Workload, Box<dyn Target>), BenchError> {
        let workload = self.workload.workload()?;
        let target = self.server.open(&self.path, &workload)?;
        Ok((workload, target))
    }
}

/// `memcached`, `memcached=ADDR`, `redis`, `redis=ADDR`.
pub(crate) fn peer(text: &str) -> Result<(PeerKind, Option<String>), String> {
    let (name, address) = text.split_once('=').map_or((text, None), |(name, address)| (name, Some(address.to_owned())));
    Ok((name.parse().map_err(|error: TargetError| error.0)?, address))
}

/// How to drive a store.
#[derive(Debug, Args)]
pub(crate) struct DriveOptions {
    /// Threads.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Connections over all threads; default: one a thread.
    #[arg(long, value_name = "N")]
    connections: Option<usize>,
    /// Requests in flight on each connection.
    #[arg(long, value_name = "N")]
    depth: Option<usize>,
    /// Keys of a multi-get.
    #[arg(long, value_name = "N")]
    batch: Option<usize>,
    /// Open loop: operations per second over all threads; times count from the intended start.
    #[arg(long, alias = "target", value_name = "OPS", value_parser = positive)]
    pub(crate) rate: Option<f64>,
    /// How the operations of an open loop lie in time: poisson, or fixed (evenly spaced).
    #[arg(long, value_name = "poisson|fixed", default_value = "poisson", value_parser = arrivals)]
    pub(crate) arrivals: Arrivals,
}

/// Who drives.
#[derive(Debug, Args)]
pub(crate) struct ClientOptions {
    /// Machines that drive instead of this one, each as the options say, with its share of rate and operations; on each
    /// runs `sidestep-bench agent`.
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    pub(crate) clients: Vec<String>,
}

impl DriveOptions {
    /// What was asked for, if anything was.
    pub(crate) fn drive(&self) -> Option<Drive> {
        let asked = [self.threads, self.connections, self.depth, self.batch];
        asked.iter().any(Option::is_some).then(|| self.drive_or(1))
    }

    /// What was asked for, the rest by default.
    pub(crate) fn drive_or(&self, threads: usize) -> Drive {
        let threads = self.threads.unwrap_or(threads);
        Drive {
            threads,
            connections: self.connections.unwrap_or(threads),
            depth: self.depth.unwrap_or(1),
            batch: self.batch.unwrap_or(1),
        }
    }
}

/// How long to measure.
#[derive(Debug, Args)]
pub(crate) struct TimeOptions {
    /// Seconds of warm-up before a measurement [default: 5; of a figure, 1].
    #[arg(long, value_name = "S", value_parser = not_negative)]
    warm_up: Option<f64>,
    /// Seconds measured [default: 30; of a figure, 5].
    #[arg(long, value_name = "S", value_parser = positive)]
    seconds: Option<f64>,
    /// A first look: 0.3 s of warm-up, 1 s measured, 3 repetitions, unless told otherwise.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Seed of the requests.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// What to say of the commit that is measured [default: that of this build].
    #[arg(long, env = "SIDESTEP_COMMIT", default_value = sidestep_build_info::COMMIT, hide_default_value = true)]
    pub(crate) commit: String,
}

impl TimeOptions {
    pub(crate) fn warm_up(&self) -> Duration {
        self.warm_up_or(5.0)
    }

    pub(crate) fn measure(&self) -> Duration {
        self.measure_or(30.0)
    }

    /// With another default.
    pub(crate) fn warm_up_or(&self, seconds: f64) -> Duration {
        Duration::from_secs_f64(self.warm_up.unwrap_or(if self.quick { 0.3 } else { seconds }))
    }

    /// With another default.
    pub(crate) fn measure_or(&self, seconds: f64) -> Duration {
        Duration::from_secs_f64(self.seconds.unwrap_or(if self.quick { 1.0 } else { seconds }))
    }
}

fn arrivals(text: &str) -> Result<Arrivals, String> {
    text.parse()
}

fn number(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    if (0.0..=1e9).contains(&number) { Ok(number) } else { Err(format!("{text} is not within 0 and 1e9")) }
}

fn positive(text: &str) -> Result<f64, String> {
    number(text).and_then(|number| if number > 0.0 { Ok(number) } else { Err("expected more than 0".into()) })
}

fn not_negative(text: &str) -> Result<f64, String> {
    number(text)
}

/// Files to write beside the table on the terminal.
#[derive(Debug, Args)]
pub(crate) struct OutputOptions {
    /// Write JSON to a file (- = standard output instead of the table).
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write CSV to a file (- = standard output instead of the table).
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write one self-contained page.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the chart of CPU per operation as a picture.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write the times as an interval log of HdrHistogram.
    #[arg(long, value_name = "FILE")]
    hdr: Option<PathBuf>,
}

impl OutputOptions {
    /// Prints the table, unless `table` says that something else was printed, and writes the files that were asked for.
    pub(crate) fn show(&self, report: &Report, table: bool) -> Result<(), BenchError> {
        if table && !self.takes_stdout() {
            print(&report::table(report))?;
        }
        if let Some(path) = &self.json {
            write(path, &report.json()?)?;
        }
        if let Some(path) = &self.csv {
            write(path, &report::csv(report))?;
        }
        if let Some(path) = &self.html {
            write(path, &report::html(report)?)?;
        }
        if let Some(path) = &self.svg {
            write(path, &report::svg(report)?)?;
        }
        if let Some(path) = &self.hdr {
            write(path, &report::hdr(report)?)?;
        }
        Ok(())
    }

    /// Whether standard output is taken by one of the files.
    fn takes_stdout(&self) -> bool {
        let files = [&self.json, &self.csv, &self.html, &self.svg, &self.hdr];
        files.into_iter().flatten().any(|path| path == Path::new("-"))
    }
}

/// Writes to standard output. A reader that has had enough and closed it is no failure: the files are still wanted.
pub(crate) fn print(text: &str) -> Result<(), BenchError> {
    let mut out = stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|source| BenchError::File { path: "standard output".into(), source }),
    }
}

/// Writes a file, or standard output for `-`.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), BenchError> {
    if path == Path::new("-") {
        return print(text);
    }
    fs::write(path, text).map_err(|source| BenchError::File { path: path.display().to_string(), source })
}
