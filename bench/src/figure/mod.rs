//! Figures: one question each, asked of every path that works here, answered by a picture, a table and a sentence.

mod floor;
mod forms;
mod freeze;
mod load;
mod picture;
mod reading;
mod starve;
mod sweep;
mod tenths;

use std::str::FromStr;

use serde::Serialize;

pub use forms::{csv, json, table};
pub use picture::pictures;

use crate::driver::Drive;
use crate::environment::Environment;
use crate::error::BenchError;
use crate::fill::Part;
use crate::interleave::Schedule;
use crate::report::{PlanLine, Row};
use crate::target::{OwnServer, ServerAddress, Sidestep, TargetError};
use crate::workload::Workload;

/// Name and version of the JSON form.
pub const SCHEMA: &str = "sidestep-bench/figure/1";
/// Least address space of a server of our own.
const LEAST_MEMORY: u64 = 256 << 20;

/// A figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "question() says it of each")]
pub enum Name {
    Bypass,
    Starve,
    Freeze,
    LoadLatency,
    Clients,
    ValueSize,
    ReadRatio,
    Skew,
    Cache,
    Fill,
    Floor,
    Ycsb,
}

impl Name {
    /// Every figure.
    pub const ALL: [Self; 12] = [
        Self::Bypass,
        Self::Starve,
        Self::Freeze,
        Self::LoadLatency,
        Self::Clients,
        Self::ValueSize,
        Self::ReadRatio,
        Self::Skew,
        Self::Cache,
        Self::Fill,
        Self::Floor,
        Self::Ycsb,
    ];

    /// Its name on the command line and of its files.
    #[must_use]
    pub fn text(self) -> &'static str {
        self.both().0
    }

    /// What it asks.
    #[must_use]
    pub fn question(self) -> &'static str {
        self.both().1
    }

    fn both(self) -> (&'static str, &'static str) {
        match self {
            Self::Bypass => ("bypass", "throughput, latency and server CPU per operation of every path"),
            Self::Starve => {
                ("starve", "tail latency of each path when the server shares its processor with a busy one")
            }
            Self::Freeze => ("freeze", "what each path serves while the server stands still"),
            Self::LoadLatency => ("load-latency", "response time against offered load, to saturation"),
            Self::Clients => ("clients", "operations per second against clients, one request at a time each"),
            Self::ValueSize => ("value-size", "operations per second against the size of the value"),
            Self::ReadRatio => ("read-ratio", "operations per second against the share of reads"),
            Self::Skew => ("skew", "operations per second by distribution of the requests"),
            Self::Cache => ("cache", "operations per second against entries of the location cache"),
            Self::Fill => ("fill", "insert rate and memory of each tenth of the way"),
            Self::Floor => ("floor", "each path against the same bytes by the same means without a table"),
            Self::Ycsb => ("ycsb", "YCSB's workloads on every path"),
        }
    }
}

impl FromStr for Name {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|name| name.text() == text);
        found.ok_or_else(|| format!("there are {} and all", Self::ALL.map(Self::text).join(", ")))
    }
}

/// What to measure on, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The server; without it one of our own.
    pub server: Option<ServerAddress>,
    /// Paths of the server to leave out all others; empty = all.
    pub paths: Vec<String>,
    /// One way of driving everything, instead of those that suit figure and path.
    pub drive: Option<Drive>,
    /// Operations per second of `starve`'s open loop.
    pub rate: f64,
    /// How long and how often.
    pub schedule: Schedule,
    /// What is asked, where the figure does not say so itself.
    pub workload: Workload,
    /// Bytes of values that the tables of `value-size` hold at most.
    pub payload_bytes: u64,
    /// What to say of the commit.
    pub commit: String,
}

/// A path in one place of the figure.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// The place, as text.
    pub at: String,
    /// The place as a number, where it is one.
    pub x: Option<f64>,
    /// Operations per second asked of an open loop.
    pub offered_per_s: Option<f64>,
    /// Whether less than 99 % of them were done.
    pub overloaded: bool,
    /// Path, drive and what was measured, as in the JSON of `compare`.
    #[serde(flatten)]
    pub row: Row,
}

/// What a path completed over time while the server stood still for a part of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Timeline {
    /// The path.
    pub path: String,
    /// Length of a bin.
    pub bin_ms: u64,
    /// Seconds from the first bin at which the server was stopped.
    pub stopped_s: f64,
    /// And went on.
    pub continued_s: f64,
    /// Operations that were completed in each bin, the median of the repetitions.
    pub completed: Vec<f64>,
    /// Rate while the server stood still as a share of the rate before, in each repetition.
    pub share_while_stopped: Vec<f64>,
    /// Operations that were completed while it stood still, in each repetition.
    pub completed_while_stopped: Vec<u64>,
}

/// What a figure shows.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Data {
    /// Paths in places.
    Points(Vec<Point>),
    /// Paths over time.
    Timelines(Vec<Timeline>),
    /// For each repetition, the tenths of a fill.
    Tenths(Vec<Vec<Part>>),
}

/// A figure's result.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// Its name.
    pub figure: &'static str,
    /// What it asks.
    pub question: &'static str,
    /// What every output must say of these numbers; none if nothing.
    pub stamp: Option<String>,
    /// The result in a sentence.
    pub reading: String,
    /// Whether it was cut short.
    pub partial: bool,
    /// Where it was measured.
    pub environment: Environment,
    /// What was asked, of each place that differs.
    pub workloads: Vec<Workload>,
    /// How it was measured.
    pub plan: PlanLine,
    /// What the places are.
    pub axis: &'static str,
    /// The numbers: `points`, `timelines` or `tenths`.
    #[serde(flatten)]
    pub data: Data,
    /// Paths that cannot run here, with the reason.
    pub not_available: Vec<Row>,
    /// What else to know.
    pub notes: Vec<String>,
}

/// What a figure's own code returns.
struct Found {
    axis: &'static str,
    workloads: Vec<Workload>,
    data: Data,
    not_available: Vec<Row>,
    notes: Vec<String>,
    partial: bool,
}

/// The server that a figure is measured on.
struct Host {
    address: ServerAddress,
    memory_bytes: u64,
    own: Option<OwnServer>,
}

impl Host {
    fn new(server: Option<&ServerAddress>, memory_bytes: u64) -> Result<Self, BenchError> {
        let mut host = Self { address: server.cloned().unwrap_or_default(), memory_bytes, own: None };
        if server.is_none() {
            host.renew()?;
        }
        Ok(host)
    }

    /// An empty server, if it is one of our own; whether it is.
    fn renew(&mut self) -> Result<bool, BenchError> {
        if !self.address.address.is_empty() && self.own.is_none() {
            return Ok(false);
        }
        self.own = None;
        let own = OwnServer::start(self.memory_bytes).map_err(refused)?;
        self.address = own.address();
        self.own = Some(own);
        Ok(true)
    }

    fn paths(&self, options: &Options) -> Result<(Vec<Sidestep>, Vec<Row>), BenchError> {
        let (open, closed) = crate::compare::open_paths(&self.address, &options.paths)?;
        if open.is_empty() {
            let reasons =
                closed.iter().filter_map(|row| Some(format!("{}: {}", row.path, row.not_available.as_ref()?)));
            return Err(BenchError::Usage(format!("no path to measure: {}", reasons.collect::<Vec<_>>().join("; "))));
        }
        Ok((open, closed))
    }
}

fn refused(error: TargetError) -> BenchError {
    BenchError::Unavailable { store: "server".into(), reason: error.0 }
}

/// Measures a figure.
///
/// # Errors
/// The server cannot be reached or started, a run fails, or a store returns anything but what was written.
pub fn measure(name: Name, options: &Options) -> Result<Figure, BenchError> {
    let mut environment = Environment::here(&options.commit, "client and server as the stores' addresses say");
    let memory = (environment.memory_bytes / 2).max(LEAST_MEMORY);
    let mut host = Host::new(options.server.as_ref(), memory)?;
    let found = match name {
        Name::Bypass => sweep::bypass(&host, options),
        Name::Starve => starve::starve(&host, options),
        Name::Freeze => freeze::freeze(&host, options),
        Name::LoadLatency => load::load_latency(&host, options),
        Name::Fill => tenths::fill_tenths(&mut host, options),
        Name::Floor => floor::floor(&host, options),
        Name::Clients | Name::ValueSize | Name::ReadRatio | Name::Skew | Name::Cache | Name::Ycsb => {
            sweep::sweep(name, &host, options)
        }
    }?;
    let started = if host.own.is_some() { "started for this figure" } else { "found running" };
    environment.stores = vec![format!("sidestep server at {}, {started}", host.address.address)];
    if crate::target::is_loopback(&host.address.address) {
        environment.network = "loopback and shared memory: client and server share this machine's CPUs".into();
    }
    let is_open = matches!(&found.data, Data::Points(all) if all.iter().any(|point| point.offered_per_s.is_some()));
    let arrivals = is_open.then_some(options.schedule.arrivals);
    let mut figure = Figure {
        schema: SCHEMA,
        figure: name.text(),
        question: name.question(),
        stamp: environment.stamp.clone(),
        reading: String::new(),
        partial: found.partial,
        environment,
        workloads: found.workloads,
        plan: PlanLine { arrivals, ..PlanLine::of(&options.schedule, None) },
        axis: found.axis,
        data: found.data,
        not_available: found.not_available,
        notes: found.notes,
    };
    figure.reading = reading::reading(name, &figure);
    Ok(figure)
}
