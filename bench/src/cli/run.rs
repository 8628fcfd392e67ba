use clap::{Args, ValueEnum};
use hdrhistogram::Histogram;

use sidestep_bench::agents::Clients;
use sidestep_bench::driver::{Plan, Run as Measured};
use sidestep_bench::environment::Environment;
use sidestep_bench::error::BenchError;
use sidestep_bench::interrupt;
use sidestep_bench::report::{Measurement, PlanLine, Report, Row, SCHEMA};
use sidestep_bench::workload::Operation;

use super::shared::{ClientOptions, DriveOptions, OutputOptions, ServerOptions, TimeOptions, WorkloadOptions, print};

/// Form of what is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A table.
    Table,
    /// YCSB's lines.
    Ycsb,
}

#[derive(Debug, Args)]
pub(super) struct Run {
    #[command(flatten)]
    workload: WorkloadOptions,
    #[command(flatten)]
    server: ServerOptions,
    /// auto, shm, tcp, … ; local; memcached[=ADDR], redis[=ADDR].
    #[arg(long, default_value = "auto")]
    path: String,
    #[command(flatten)]
    drive: DriveOptions,
    #[command(flatten)]
    clients: ClientOptions,
    #[command(flatten)]
    time: TimeOptions,
    /// End after so many operations too, as -p operationcount=N; without a time, only by them.
    #[arg(long, value_name = "N")]
    operations: Option<u64>,
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    #[command(flatten)]
    output: OutputOptions,
}

impl Run {
    pub(super) fn run(self) -> Result<(), BenchError> {
        let mut workload = self.workload.workload()?;
        workload.operations = self.operations.or(workload.operations);
        let threads = self.workload.property("threadcount")?.unwrap_or(1.0) as usize;
        let rate = self.drive.rate.or(self.workload.property("target")?);
        let mut clients = Clients::connect(&self.clients.clients)?;
        let target = self.server.open_loaded(&self.path, &workload)?;
        let plan = Plan {
            drive: self.drive.drive_or(threads),
            warm_up: self.time.warm_up(),
            measure: self.time.measure(),
            operations: workload.operations,
            rate,
            arrivals: self.drive.arrivals,
            seed: self.time.seed,
            companion: None,
        };
        let measured = clients.run(target.as_ref(), &workload, &plan)?;
        let partial = interrupt::requested();
        if self.format == Format::Ycsb {
            print(&ycsb(&measured))?;
        }
        let mut environment = Environment::here(&self.time.commit, "see the store");
        environment.stores = vec![format!("{}: {}", target.name(), target.about())];
        let row = Row {
            path: target.name().to_owned(),
            drive: Some(plan.drive.fitted(workload.value_bytes)),
            measured: Measurement::of(&[(measured, false)], 0),
            not_available: None,
        };
        let result = Report {
            schema: SCHEMA,
            environment,
            workload,
            plan: PlanLine {
                warm_up_s: plan.warm_up.as_secs_f64(),
                measure_s: plan.measure.as_secs_f64(),
                repetitions: 1,
                rate,
                arrivals: rate.map(|_| plan.arrivals),
                seed: plan.seed,
                clients: clients.addresses(),
            },
            rows: vec![row],
            partial,
        };
        self.output.show(&result, self.format == Format::Table)
    }
}

/// YCSB's summary, in microseconds. Of an open loop its `Intended-` lines too, which count from when a request was due.
fn ycsb(run: &Measured) -> String {
    let mut text = format!(
        "[OVERALL], RunTime(ms), {}\n[OVERALL], Throughput(ops/sec), {}\n",
        run.elapsed.as_millis(),
        run.tally.rate
    );
    for operation in Operation::ALL {
        let count = run.tally.by_operation[operation as usize];
        let name = operation.name().to_ascii_uppercase();
        if count > 0 {
            text.push_str(&ycsb_section(&name, count, run.tally.service.of(operation)));
        }
        if !run.tally.response.of(operation).is_empty() {
            text.push_str(&ycsb_section(&format!("Intended-{name}"), count, run.tally.response.of(operation)));
        }
    }
    text
}

fn ycsb_section(name: &str, count: u64, times: &Histogram<u64>) -> String {
    let microseconds = |ns: u64| ns / 1000;
    let lines = [
        ("Operations", count.to_string()),
        ("AverageLatency(us)", (times.mean() / 1e3).to_string()),
        ("MinLatency(us)", microseconds(times.min()).to_string()),
        ("MaxLatency(us)", microseconds(times.max()).to_string()),
        ("50thPercentileLatency(us)", microseconds(times.value_at_quantile(0.5)).to_string()),
        ("95thPercentileLatency(us)", microseconds(times.value_at_quantile(0.95)).to_string()),
        ("99thPercentileLatency(us)", microseconds(times.value_at_quantile(0.99)).to_string()),
        ("Return=OK", count.to_string()),
    ];
    lines.iter().map(|(measure, value)| format!("[{name}], {measure}, {value}\n")).collect()
}
