//! A report made up for tests of its forms.

use std::time::Duration;

use super::{Measurement, PlanLine, Report, Row, SCHEMA};
use crate::driver::{Drive, Run, Tally};
use crate::environment::Environment;
use crate::target::{Effort, Route};
use crate::workload::{Operation, Workload};

pub(crate) fn measurement(rate: f64, server_cpu_us: Option<f64>) -> Measurement {
    let runs: Vec<(Run, bool)> = (0..5)
        .map(|repetition| {
            let rate_of_run = rate * (1.0 + 0.01 * f64::from(repetition));
            let mut tally = Tally { operations: 1_000_000, rate: rate_of_run, ..Tally::default() };
            tally.by_operation[Operation::Read as usize] = tally.operations;
            tally.routes[if server_cpu_us == Some(0.0) { Route::Shm } else { Route::Tcp } as usize] = 1_000_000;
            // As if it had met some trouble on its way.
            if server_cpu_us.is_some_and(|cpu| cpu > 0.0) {
                tally.fallbacks = 3;
                tally.effort =
                    Effort { retries: 2, reconnects: 1, bytes_sent: 50_000_000, bytes_received: 100_000_000 };
            }
            for time in 1..2000 {
                tally.service.record(Operation::Read, Duration::from_nanos((time * time) as u64 + (1e9 / rate) as u64));
            }
            let server_cpu = server_cpu_us.map(Duration::from_secs_f64);
            let run = Run {
                tally,
                elapsed: Duration::from_secs(1),
                client_cpu: Duration::from_millis(900),
                server_cpu,
                other_cores: 0.01,
                steal_cores: 0.0,
            };
            (run, false)
        })
        .collect();
    Measurement::of(&runs, 1).expect("five runs")
}

pub(crate) fn report() -> Report {
    let row = |path: &str, drive, rate, server| Row {
        path: path.to_owned(),
        drive: Some(drive),
        measured: Some(measurement(rate, server)),
        not_available: None,
    };
    let one = Drive::calls(1);
    let mut report = Report {
        schema: SCHEMA,
        environment: Environment::here("", "loopback <&>"),
        workload: Workload::preset("kv64").expect("a preset"),
        plan: PlanLine {
            warm_up_s: 1.0,
            measure_s: 5.0,
            repetitions: 5,
            rate: None,
            arrivals: None,
            seed: 1,
            clients: Vec::new(),
        },
        rows: vec![
            row("local", one, 6e6, None),
            row("shm", one, 4e6, Some(0.0)),
            row("shm", Drive { batch: 64, ..one }, 15e6, Some(0.0)),
            row("tcp", Drive { threads: 1, connections: 64, depth: 16, batch: 1 }, 0.8e6, Some(1.2)),
            Row::not_available("rdma", "no verbs device"),
        ],
        partial: false,
    };
    report.relate_to_local();
    report
}
