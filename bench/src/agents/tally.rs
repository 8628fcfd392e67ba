//! What a part counted, as it travels: nothing is lost, so that merged parts equal one run of all.

use serde::{Deserialize, Serialize};

use crate::driver::{Tally, Times};
use crate::target::{Effort, Route};
use crate::workload::Operation;

/// A histogram: (time in ns, how many).
type Counts = Vec<(u64, u64)>;

/// A [`Tally`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WireTally {
    operations: u64,
    by_operation: [u64; Operation::ALL.len()],
    routes: [u64; Route::ALL.len()],
    fallbacks: u64,
    effort: Effort,
    service: [Counts; Operation::ALL.len()],
    wait: [Counts; Operation::ALL.len()],
    response: [Counts; Operation::ALL.len()],
    rate: f64,
}

fn counts(times: &Times) -> [Counts; Operation::ALL.len()] {
    Operation::ALL.map(|operation| {
        let recorded = times.of(operation).iter_recorded();
        recorded.map(|each| (each.value_iterated_to(), each.count_at_value())).collect()
    })
}

fn times(counts: &[Counts; Operation::ALL.len()]) -> Times {
    let mut times = Times::default();
    for (operation, counts) in Operation::ALL.into_iter().zip(counts) {
        for &(nanoseconds, count) in counts {
            times.record_n(operation, std::time::Duration::from_nanos(nanoseconds), count);
        }
    }
    times
}

impl From<&Tally> for WireTally {
    fn from(tally: &Tally) -> Self {
        Self {
            operations: tally.operations,
            by_operation: tally.by_operation,
            routes: tally.routes,
            fallbacks: tally.fallbacks,
            effort: tally.effort,
            service: counts(&tally.service),
            wait: counts(&tally.wait),
            response: counts(&tally.response),
            rate: tally.rate,
        }
    }
}

impl From<&WireTally> for Tally {
    fn from(wire: &WireTally) -> Self {
        Self {
            operations: wire.operations,
            by_operation: wire.by_operation,
            routes: wire.routes,
            fallbacks: wire.fallbacks,
            effort: wire.effort,
            service: times(&wire.service),
            wait: times(&wire.wait),
            response: times(&wire.response),
            rate: wire.rate,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_tally_travels_whole() {
        let mut tally = Tally { operations: 7, by_operation: [4, 1, 1, 1], rate: 12.5, ..Tally::default() };
        tally.routes[2] = 7;
        tally.fallbacks = 3;
        tally.effort = Effort { retries: 1, reconnects: 2, bytes_sent: 1 << 40, bytes_received: 5 };
        let (mut service, mut wait, mut response) = (Times::default(), Times::default(), Times::default());
        for step in 1..5000_u64 {
            let operation = Operation::ALL[step as usize % Operation::ALL.len()];
            service.record(operation, Duration::from_nanos(step * step * 37));
            wait.record(operation, Duration::from_nanos(step));
            response.record(operation, Duration::from_nanos(step * step * step));
        }
        // Longer than a histogram tells apart.
        service.record(Operation::Read, Duration::from_secs(3600));
        tally.service = service;
        tally.wait = wait;
        tally.response = response;
        let text = serde_json::to_string(&WireTally::from(&tally)).unwrap();
        let back = Tally::from(&serde_json::from_str::<WireTally>(&text).unwrap());
        for operation in Operation::ALL {
            assert_eq!(back.service.of(operation), tally.service.of(operation));
            assert_eq!(back.wait.of(operation), tally.wait.of(operation));
            assert_eq!(back.response.of(operation), tally.response.of(operation));
        }
        assert_eq!((back.operations, back.by_operation, back.routes), (7, [4, 1, 1, 1], tally.routes));
        assert_eq!((back.fallbacks, back.effort), (3, tally.effort));
        assert!((back.rate - 12.5).abs() < f64::EPSILON);
    }
}
