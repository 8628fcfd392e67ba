use clap::{Args, ValueEnum};

use sidestep_bench::driver::{Plan, Run as Measured, run};
use sidestep_bench::environment::Environment;
use sidestep_bench::error::BenchError;
use sidestep_bench::interrupt;
use sidestep_bench::report::{self, Measurement, PlanLine, Report, Row, SCHEMA};

use super::shared::{DriveOptions, OutputOptions, ServerOptions, TimeOptions, WorkloadOptions, write};

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
        let target = self.server.open_loaded(&self.path, &workload)?;
        let plan = Plan {
            drive: self.drive.drive_or(threads),
            warm_up: self.time.warm_up(),
            measure: self.time.measure(),
            operations: workload.operations,
            rate,
            seed: self.time.seed,
        };
        let measured = run(target.as_ref(), &workload, &plan)?;
        let partial = interrupt::requested();
        if self.format == Format::Ycsb {
            print!("{}", ycsb(&measured));
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
                seed: plan.seed,
            },
            rows: vec![row],
            partial,
        };
        if self.format == Format::Table && !self.output.takes_stdout() {
            print!("{}", report::table(&result));
        }
        if let Some(path) = &self.output.json {
            write(path, &result.json()?)?;
        }
        if let Some(path) = &self.output.csv {
            write(path, &report::csv(&result))?;
        }
        if let Some(path) = &self.output.html {
            write(path, &report::html(&result)?)?;
        }
        Ok(())
    }
}

/// YCSB's summary, in microseconds. Times of all operations are under one name, since they are kept in one histogram.
fn ycsb(run: &Measured) -> String {
    let times = if run.tally.response.is_empty() { &run.tally.service } else { &run.tally.response };
    let microseconds = |ns: u64| ns / 1000;
    let at = |share| microseconds(times.value_at_quantile(share));
    let name = if run.tally.writes == 0 { "READ" } else { "ALL" };
    format!(
        "[OVERALL], RunTime(ms), {}\n[OVERALL], Throughput(ops/sec), {}\n[{name}], Operations, {}\n\
         [{name}], AverageLatency(us), {}\n[{name}], MinLatency(us), {}\n[{name}], MaxLatency(us), {}\n\
         [{name}], 50thPercentileLatency(us), {}\n[{name}], 95thPercentileLatency(us), {}\n\
         [{name}], 99thPercentileLatency(us), {}\n[{name}], Return=OK, {}\n",
        run.elapsed.as_millis(),
        run.tally.rate,
        run.tally.operations,
        times.mean() / 1e3,
        microseconds(times.min()),
        microseconds(times.max()),
        at(0.5),
        at(0.95),
        at(0.99),
        run.tally.operations,
    )
}
