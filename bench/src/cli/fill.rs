use std::path::PathBuf;

use clap::Args;

use sidestep_bench::environment::Environment;
use sidestep_bench::error::BenchError;
use sidestep_bench::fill::fill;

use super::shared::{InsertOptions, print, write};

#[derive(Debug, Args)]
pub(super) struct Fill {
    #[command(flatten)]
    insert: InsertOptions,
    /// What to say of the commit that is measured [default: that of this build].
    #[arg(long, env = "SIDESTEP_COMMIT", default_value = sidestep_build_info::COMMIT, hide_default_value = true)]
    commit: String,
    /// Write JSON to a file (- = standard output instead of the table).
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Fill {
    pub(super) fn run(self) -> Result<(), BenchError> {
        let (workload, target) = self.insert.open()?;
        let filled =
            fill(target.as_ref(), &workload, self.insert.threads, Environment::here(&self.commit, "see the store"))?;
        let to_stdout = self.json.as_ref().is_some_and(|path| path.as_os_str() == "-");
        if !to_stdout {
            print(&filled.table())?;
        }
        if let Some(path) = &self.json {
            let json = serde_json::to_string_pretty(&filled)
                .map_err(|error| BenchError::System { attempted: "write JSON", reason: error.to_string() })?;
            write(path, &json)?;
        }
        Ok(())
    }
}
