//! Ctrl-C and SIGTERM: the first ends the run and prints what there is, the second ends the process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::error::BenchError;

static REQUESTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Catches the signals from now on.
///
/// # Errors
/// The system does not allow it.
pub fn catch() -> Result<(), BenchError> {
    let requested = REQUESTED.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, 128 + signal, requested.clone())
            .and_then(|_| flag::register(signal, requested.clone()))
            .map_err(|error| BenchError::System { attempted: "catch Ctrl-C", reason: error.to_string() })?;
    }
    Ok(())
}

/// Whether one came.
#[must_use]
pub fn requested() -> bool {
    REQUESTED.get().is_some_and(|requested| requested.load(Ordering::Relaxed))
}
