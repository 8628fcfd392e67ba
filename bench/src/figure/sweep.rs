//! Figures of one swept thing: places × paths × repetitions, interleaved.

use super::{Data, Found, Host, Name, Options, Point};
use crate::agents::Clients;
use crate::compare::{contenders, load_into};
use crate::driver::Drive;
use crate::error::BenchError;
use crate::interleave::{Contender, interleaved};
use crate::report::Row;
use crate::target::{ServerAddress, Sidestep, Target};
use crate::workload::{Distribution, Mix, Workload};

/// One thread that keeps this many connections busy, this many requests in flight on each.
pub(super) const PIPELINED: Drive = Drive { threads: 1, connections: 64, depth: 16, batch: 1 };
/// Fewest records of a table of large values.
const FEWEST_RECORDS: u64 = 16;

/// How a place is driven.
#[derive(Clone, Copy, Debug)]
enum How {
    /// One thread; in memory it calls, elsewhere it keeps many requests in flight.
    Suited,
    /// So many threads, each with one request at a time.
    Clients(usize),
    /// One thread with many requests in flight on every path.
    Pipelined,
}

impl How {
    fn drive(self, is_memory: bool, asked: Option<Drive>) -> Drive {
        match (asked, self) {
            (Some(drive), Self::Clients(clients)) => Drive { threads: clients, connections: clients, ..drive },
            (Some(drive), Self::Pipelined) => drive,
            // What answers within the call has nothing in flight.
            (Some(drive), Self::Suited) if is_memory => Drive { connections: drive.threads, depth: 1, ..drive },
            (Some(drive), Self::Suited) => drive,
            (None, Self::Clients(clients)) => Drive::calls(clients),
            (None, Self::Suited) if is_memory => Drive::calls(1),
            (None, Self::Suited | Self::Pipelined) => PIPELINED,
        }
    }
}

/// A place of the figure.
struct Spot {
    at: String,
    x: Option<f64>,
    workload: Workload,
    how: How,
    location_cache: usize,
}

impl Spot {
    /// Whether the same table serves both.
    fn shares_table(&self, other: &Self) -> bool {
        let table = |spot: &Self| {
            (spot.workload.records, spot.workload.value_bytes, spot.workload.ordered_keys, spot.workload.zero_padding)
        };
        table(self) == table(other)
    }
}

fn spots(name: Name, options: &Options, cache: usize) -> (&'static str, Vec<Spot>) {
    let workload = &options.workload;
    let spot =
        |at: String, x: Option<f64>, workload: Workload, how| Spot { at, x, workload, how, location_cache: cache };
    match name {
        Name::ValueSize => ("bytes of a value", value_sizes(options, spot)),
        Name::ReadRatio => {
            let at = |percent: u32| {
                let read = f64::from(percent) / 100.0;
                let mix = Mix { read, update: 1.0 - read, insert: 0.0, read_modify_write: 0.0 };
                let workload = Workload { mix, ..workload.clone() };
                spot(format!("{percent} % reads"), Some(f64::from(percent)), workload, How::Pipelined)
            };
            ("% of reads, the rest updates", [0, 25, 50, 75, 90, 95, 100].map(at).into())
        }
        Name::Skew => {
            let (hotspot, exponential) = (
                Distribution::Hotspot { data: 0.2, operations: 0.8 },
                Distribution::Exponential { percentile: 95.0, fraction: 0.857_142_857_1 },
            );
            let all = [
                ("uniform", Distribution::Uniform),
                ("zipfian", Distribution::ScrambledZipfian),
                ("zipfian-exact", Distribution::ZipfianExact),
                ("latest", Distribution::Latest),
                ("hotspot", hotspot),
                ("exponential", exponential),
                ("sequential", Distribution::Sequential),
            ];
            let at = |(name, distribution): (&str, Distribution)| {
                spot(name.into(), None, Workload { distribution, ..workload.clone() }, How::Suited)
            };
            ("distribution", all.map(at).into())
        }
        Name::Cache => {
            let at = |percent: u64| {
                let entries = workload.records * percent / 100;
                let place = spot(entries.to_string(), Some(entries as f64), workload.clone(), How::Suited);
                Spot { location_cache: entries as usize, ..place }
            };
            ("entries of the location cache", [0, 1, 10, 25, 50, 100].map(at).into())
        }
        Name::Ycsb => {
            let names = ["a", "b", "c", "d", "f"];
            let presets = names.iter().filter_map(|name| Workload::preset(name).ok());
            let at = |preset: Workload| {
                // Its own mix, keys and values; as many records as were asked for, and no more than YCSB has.
                let records = preset.records.min(workload.records);
                spot(preset.name.to_ascii_uppercase(), None, Workload { records, ..preset }, How::Pipelined)
            };
            ("workload", presets.map(at).collect())
        }
        _ => {
            let at = |clients: usize| {
                spot(clients.to_string(), Some(clients as f64), workload.clone(), How::Clients(clients))
            };
            ("clients", [1, 2, 4, 8, 16, 32, 64].map(at).into())
        }
    }
}

fn value_sizes(options: &Options, spot: impl Fn(String, Option<f64>, Workload, How) -> Spot) -> Vec<Spot> {
    let at = |value_bytes: usize| {
        let records = (options.payload_bytes / value_bytes as u64).clamp(FEWEST_RECORDS, u64::MAX);
        let records = records.min(options.workload.records);
        let workload = Workload { value_bytes, records, ..options.workload.clone() };
        spot(value_bytes.to_string(), Some(value_bytes as f64), workload, How::Suited)
    };
    (0..8).map(|step| at(64 << (2 * step))).collect()
}

/// Measures a sweep. Places that share a table are interleaved with each other; where the table must differ, the paths
/// of one place are.
pub(super) fn sweep(name: Name, host: &Host, options: &Options) -> Result<Found, BenchError> {
    let (axis, spots) = spots(name, options, host.address.location_cache);
    let (mut points, mut not_available, mut partial) = (Vec::new(), Vec::new(), false);
    let mut rest = spots.as_slice();
    while let Some(first) = rest.first().filter(|_| !partial) {
        let (block, others) = rest.split_at(rest.iter().take_while(|spot| spot.shares_table(first)).count());
        rest = others;
        partial = measure_block(host, options, block, &mut points, &mut not_available)?;
    }
    let mut workloads: Vec<Workload> = Vec::new();
    for spot in spots {
        if !workloads.contains(&spot.workload) {
            workloads.push(spot.workload);
        }
    }
    Ok(Found { axis, workloads, data: Data::Points(points), not_available, notes: Vec::new(), partial })
}

fn measure_block(
    host: &Host,
    options: &Options,
    block: &[Spot],
    points: &mut Vec<Point>,
    not_available: &mut Vec<Row>,
) -> Result<bool, BenchError> {
    let (paths, closed) = host.paths(options)?;
    *not_available = closed;
    load_into(&paths[0], &block[0].workload)?;
    let stores: Vec<Vec<Sidestep>> =
        block.iter().map(|spot| with_cache(host, &paths, spot.location_cache)).collect::<Result<_, _>>()?;
    let mut contenders = Vec::new();
    let mut places = Vec::new();
    for (spot, stores) in block.iter().zip(&stores) {
        for store in stores {
            let drive = spot.how.drive(store.is_memory(), options.drive);
            contenders.push(Contender::new(store, &spot.workload, drive, None).labelled(spot.at.as_str()));
            places.push(spot);
        }
    }
    let partial = interleaved(&mut contenders, &mut Clients::default(), &options.schedule)?;
    for (spot, contender) in places.into_iter().zip(contenders) {
        points.push(Point::at(&spot.at, spot.x, contender.row()));
    }
    Ok(partial)
}

fn with_cache(host: &Host, paths: &[Sidestep], location_cache: usize) -> Result<Vec<Sidestep>, BenchError> {
    let server = ServerAddress { location_cache, ..host.address.clone() };
    paths.iter().map(|path| Sidestep::connect(&server, path.name()).map_err(super::refused)).collect()
}

impl Point {
    pub(super) fn at(at: &str, x: Option<f64>, row: Row) -> Self {
        Self { at: at.to_owned(), x, offered_per_s: None, overloaded: false, row }
    }
}

/// The rows of `compare`.
pub(super) fn bypass(host: &Host, options: &Options) -> Result<Found, BenchError> {
    let (paths, not_available) = host.paths(options)?;
    load_into(&paths[0], &options.workload)?;
    let targets: Vec<Box<dyn Target>> = paths.into_iter().map(|path| Box::new(path) as Box<dyn Target>).collect();
    let mut contenders = contenders(&targets, options.drive, None, &options.workload);
    let partial = interleaved(&mut contenders, &mut Clients::default(), &options.schedule)?;
    let rows = contenders.into_iter().map(Contender::row);
    let points = rows.map(|row| Point::at(&row.name(), None, row)).collect();
    Ok(Found {
        axis: "path and drive",
        workloads: vec![options.workload.clone()],
        data: Data::Points(points),
        not_available,
        notes: Vec::new(),
        partial,
    })
}
