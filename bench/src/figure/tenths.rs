//! Insert until N, again and again into an empty server: what each tenth of the way costs.

use super::{Data, Found, Host, Options};
use crate::environment::Environment;
use crate::error::BenchError;
use crate::fill::fill;
use crate::interrupt;

/// Connections of the inserts.
const CONNECTIONS: usize = 2;

pub(super) fn fill_tenths(host: &mut Host, options: &Options) -> Result<Found, BenchError> {
    let (mut repetitions, mut notes, mut not_available) = (Vec::new(), Vec::new(), Vec::new());
    for repetition in 0..options.schedule.repetitions {
        if repetition > 0 && !host.renew()? {
            notes.push("one repetition: a server that runs already is empty only once".into());
            break;
        }
        let (paths, closed) = host.paths(options)?;
        not_available = closed;
        // Writes take the same way on every path.
        let filled = fill(&paths[0], &options.workload, CONNECTIONS, Environment::here("", ""))?;
        if let Some(reason) = filled.refused {
            notes.push(format!("the store was full: {reason}"));
        }
        repetitions.push(filled.parts);
        if interrupt::requested() {
            break;
        }
    }
    Ok(Found {
        axis: "records",
        workloads: vec![options.workload.clone()],
        data: Data::Tenths(repetitions),
        not_available,
        notes,
        partial: interrupt::requested(),
    })
}
