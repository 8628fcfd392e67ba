//! `sidestep-bench`: see the library for what it does.

mod cli;

use std::env;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use sidestep_bench::environment::{HEAP_ON_HUGE_PAGES, HEAP_TUNABLES};

/// Starts this program again with a heap on huge pages, unless glibc's allocator was told something already: the
/// ceiling is worth its name only with the pages that the server's table has. glibc reads this at the start alone.
fn use_huge_pages_for_the_heap() {
    if env::var_os(HEAP_TUNABLES).is_none()
        && let Ok(program) = env::current_exe()
    {
        // Returns only if it fails, and then the environment line says that there are none.
        let _ = Command::new(program).args(env::args_os().skip(1)).env(HEAP_TUNABLES, HEAP_ON_HUGE_PAGES).exec();
    }
}

fn main() -> ExitCode {
    use_huge_pages_for_the_heap();
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env()
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn")),
        )
        .with_writer(std::io::stderr)
        .init();
    match cli::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sidestep-bench: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
