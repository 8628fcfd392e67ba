use clap::Args;

use sidestep_bench::driver::load;
use sidestep_bench::error::BenchError;
use sidestep_bench::progress::Progress;
use sidestep_bench::report::grouped;

use super::shared::{ServerOptions, WorkloadOptions};

#[derive(Debug, Args)]
pub(super) struct Load {
    #[command(flatten)]
    workload: WorkloadOptions,
    #[command(flatten)]
    server: ServerOptions,
    /// Where to: a path of the server, memcached=ADDR, redis=ADDR.
    #[arg(long, default_value = "tcp")]
    path: String,
    /// Connections, each with its thread.
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

impl Load {
    pub(super) fn run(self) -> Result<(), BenchError> {
        let workload = self.workload.workload()?;
        let target = self.server.open(&self.path, &workload)?;
        let progress = Progress::records(&format!("load {}", target.name()), workload.records);
        let loaded = load(target.as_ref(), &workload, 0..workload.records, self.threads, &|records| {
            progress.advance(records);
        })?;
        drop(progress);
        let seconds = loaded.elapsed.as_secs_f64();
        println!("workload {}", workload.describe());
        println!(
            "{} records in {seconds:.2} s, {} a second",
            grouped(loaded.records as f64),
            grouped(loaded.records as f64 / seconds.max(1e-9))
        );
        Ok(())
    }
}
