use clap::Args;

use sidestep_bench::driver::load;
use sidestep_bench::error::BenchError;
use sidestep_bench::progress::Progress;
use sidestep_bench::report::grouped;

use super::shared::{InsertOptions, print};

#[derive(Debug, Args)]
pub(super) struct Load {
    #[command(flatten)]
    insert: InsertOptions,
}

impl Load {
    pub(super) fn run(self) -> Result<(), BenchError> {
        let (workload, target) = self.insert.open()?;
        let progress = Progress::records(&format!("load {}", target.name()), workload.records);
        let loaded = load(target.as_ref(), &workload, 0..workload.records, self.insert.threads, &|records| {
            progress.advance(records);
        })?;
        drop(progress);
        let seconds = loaded.elapsed.as_secs_f64();
        print(&format!(
            "workload {}\n{} records in {seconds:.2} s, {} a second\n",
            workload.describe(),
            grouped(loaded.records as f64),
            grouped(loaded.records as f64 / seconds.max(1e-9))
        ))
    }
}
