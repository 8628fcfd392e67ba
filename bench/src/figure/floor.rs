//! Each path against its floor: the same bytes by the same means, without a table.

use super::{Data, Found, Host, Options, Point};
use crate::agents::Clients;
use crate::compare::load_into;
use crate::driver::{Drive, load};
use crate::error::BenchError;
use crate::interleave::{Contender, interleaved};
use crate::target::{Local, Memcpy, Target};

/// What the places are called.
pub(super) const SINGLE: &str = "one at a time";
pub(super) const PIPELINED: &str = "one connection × 16";

pub(super) fn floor(host: &Host, options: &Options) -> Result<Found, BenchError> {
    let (paths, not_available) = host.paths(options)?;
    let workload = options.workload.for_floors();
    load_into(&paths[0], &workload)?;
    let (local, memcpy) = (Local::new(workload.records), Memcpy::new(&workload));
    load(&local, &workload, 0..workload.records, 1, &|_| ())?;
    let echo = memcpy.echo().map_err(super::refused)?;
    let is_there = |name: &str| paths.iter().any(|path| path.name() == name);
    let bare = match is_there("rdma") {
        true => Some(memcpy.bare_read(&host.address.address, host.address.spin).map_err(super::refused)?),
        false => None,
    };
    let mut stores: Vec<&dyn Target> = vec![&memcpy, &local, &echo];
    stores.extend(bare.iter().map(|bare| bare as &dyn Target));
    stores.extend(paths.iter().map(|path| path as &dyn Target));
    let (mut contenders, mut places) = (Vec::new(), Vec::new());
    for store in stores {
        contenders.push(Contender::new(store, &workload, Drive::calls(1), None));
        places.push(SINGLE);
        if !store.is_memory() {
            let drive = Drive { depth: 16, ..Drive::calls(1) };
            contenders.push(Contender::new(store, &workload, drive, None));
            places.push(PIPELINED);
        }
    }
    let partial = interleaved(&mut contenders, &mut Clients::default(), &options.schedule)?;
    let points = places.into_iter().zip(contenders).map(|(place, contender)| Point::at(place, None, contender.row()));
    Ok(Found {
        axis: "drive",
        workloads: vec![workload.clone()],
        data: Data::Points(points.collect()),
        not_available,
        notes: vec![
            "keys are record numbers here, so that the floors need no table; the echo's CPU is the client's; a bare \
             READ goes over the device's own loopback"
                .into(),
        ],
        partial,
    })
}
