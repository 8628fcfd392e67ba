//! The server's threads on one processor, beside a neighbour that never sleeps.

use super::{Data, Found, Host, Options, Point};
use crate::agents::Clients;
use crate::compare::load_into;
use crate::driver::Drive;
use crate::error::BenchError;
use crate::interleave::{Contender, interleaved};
use crate::target::Sidestep;
use crate::undo::{Undo, own_processors, pin, stay_on};

/// What the two halves of the figure are called.
pub(super) const ALONE: &str = "alone";
pub(super) const BESIDE: &str = "busy neighbour";

/// Process of the server, which must be one of this host and nothing else.
pub(super) fn local_process(paths: &[Sidestep]) -> Result<u32, BenchError> {
    let refused = |reason: String| {
        BenchError::Usage(format!("this figure needs a sidestep-server on this host, to act on its process: {reason}"))
    };
    let pid = paths.iter().find_map(Sidestep::pid);
    let pid = pid.ok_or_else(|| refused("the server does not run on this host".into()))?;
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    if name.trim() != "sidestep-server" {
        return Err(refused(format!("it says that it is process {pid}, which is {:?} here", name.trim())));
    }
    Ok(pid)
}

pub(super) fn starve(host: &Host, options: &Options) -> Result<Found, BenchError> {
    let (paths, not_available) = host.paths(options)?;
    let pid = local_process(&paths)?;
    load_into(&paths[0], &options.workload)?;
    let processors = own_processors();
    let Some((&servers, ours)) = processors.split_first() else {
        return Err(BenchError::System { attempted: "choose processors", reason: "none is allowed".into() });
    };
    let mut notes = vec![format!("server on processor {servers}; {} requests/s offered (open loop)", options.rate)];
    if ours.is_empty() {
        notes.push("the only processor is the client's too".into());
    }
    let _pinned = pin(pid, servers)?;
    // Threads of the runs inherit it.
    stay_on(if ours.is_empty() { &processors } else { ours })?;
    let measured = measure(&paths, options, servers);
    stay_on(&processors)?;
    let (points, partial) = measured?;
    Ok(Found {
        axis: "server's processor",
        workloads: vec![options.workload.clone()],
        data: Data::Points(points),
        not_available,
        notes,
        partial,
    })
}

/// Every path alone, every path beside the neighbour, and again.
fn measure(paths: &[Sidestep], options: &Options, processor: usize) -> Result<(Vec<Point>, bool), BenchError> {
    let drive = Drive::calls(options.drive.map_or(1, |drive| drive.threads));
    let neighbour = || Undo::busy_neighbour(processor);
    let (mut contenders, mut places) = (Vec::new(), Vec::new());
    for place in [ALONE, BESIDE] {
        for path in paths {
            let contender = Contender::new(path, &options.workload, drive, Some(options.rate)).labelled(place);
            contenders.push(if place == BESIDE { contender.beside(&neighbour) } else { contender });
            places.push(place);
        }
    }
    let partial = interleaved(&mut contenders, &mut Clients::default(), &options.schedule)?;
    let points = places.into_iter().zip(contenders).map(|(place, contender)| {
        let row = contender.row();
        let overloaded = row.measured.as_ref().is_some_and(|of| of.ops_per_s.median < 0.99 * options.rate);
        Point { offered_per_s: Some(options.rate), overloaded, ..Point::at(place, None, row) }
    });
    Ok((points.collect(), partial))
}
