//! Response time against offered load: an open loop at shares of what each path can do.

use super::{Data, Found, Host, Options, Point};
use crate::agents::Clients;
use crate::compare::load_into;
use crate::driver::{Drive, run};
use crate::error::BenchError;
use crate::interleave::{Contender, interleaved};
use crate::interrupt;
use crate::progress::Progress;
use crate::report::grouped;
use crate::target::Target;

/// Shares of the saturation that are offered.
const SHARES: [f64; 8] = [0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1];
/// A rate at which every request is due at once: what is done then is all that an open loop can do.
const ALWAYS_LATE: f64 = 1e9;
/// Below this share of what was offered it is not served.
const SERVED: f64 = 0.99;
/// What an open loop has on each path unless told otherwise.
const THREADS: usize = 2;

pub(super) fn load_latency(host: &Host, options: &Options) -> Result<Found, BenchError> {
    let (paths, not_available) = host.paths(options)?;
    let workload = &options.workload;
    load_into(&paths[0], workload)?;
    let drive = Drive::calls(options.drive.map_or(THREADS, |drive| drive.threads));
    let (mut contenders, mut places, mut notes) = (Vec::new(), Vec::new(), Vec::new());
    let saturation: Vec<f64> = {
        let progress = Progress::runs("saturation of each path", paths.len() as u64);
        let mut rates = Vec::new();
        for path in &paths {
            let plan = options.schedule.plan(drive, Some(ALWAYS_LATE), 0);
            rates.push(run(path, workload, &plan)?.tally.rate);
            progress.advance(1);
        }
        rates
    };
    if interrupt::requested() {
        return Err(BenchError::Interrupted);
    }
    for (path, rate) in paths.iter().zip(&saturation) {
        notes.push(format!("{}: {} operations/s when every request was late", path.name(), grouped(*rate)));
    }
    for share in SHARES {
        for (path, rate) in paths.iter().zip(&saturation) {
            let offered = (rate * share).max(1.0);
            let label = format!("{:.0} % of saturation", share * 100.0);
            contenders.push(Contender::new(path, workload, drive, Some(offered)).labelled(label.as_str()));
            places.push((label, offered));
        }
    }
    let partial = interleaved(&mut contenders, &mut Clients::default(), &options.schedule)?;
    let points = contenders.into_iter().zip(places).map(|(contender, (label, offered))| {
        let row = contender.row();
        let overloaded = row.measured.as_ref().is_some_and(|of| of.ops_per_s.median < SERVED * offered);
        Point { offered_per_s: Some(offered), overloaded, ..Point::at(&label, Some(offered), row) }
    });
    Ok(Found {
        axis: "offered operations/s",
        workloads: vec![workload.clone()],
        data: Data::Points(points.collect()),
        not_available,
        notes,
        partial,
    })
}
