//! Why a command failed, and with which exit code.

use std::io;
use std::process::ExitCode;

use sidestep_client::Error;
use thiserror::Error as ThisError;

#[derive(Debug, ThisError)]
pub(crate) enum Failure {
    #[error("not found: {0}")]
    NotFound(String),
    #[error("{0}")]
    Usage(String),
    #[error("cannot {attempt}: {source}")]
    Io { attempt: String, source: io::Error },
    #[error("{0}")]
    Client(#[from] Error),
    #[error("RDMA would not work: {0}")]
    NoRdma(String),
    #[error("{done} keys were loaded, then {key} failed: {source}")]
    Load { done: u64, key: String, source: Error },
}

impl Failure {
    /// For `map_err`: what was attempted.
    pub(crate) fn io(attempt: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let attempt = attempt.into();
        move |source| Self::Io { attempt, source }
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::NotFound(_) => 1,
            Self::Usage(_) | Self::Io { .. } => 2,
            Self::NoRdma(_) => 7,
            Self::Client(error) | Self::Load { source: error, .. } => of_error(error),
        })
    }
}

fn of_error(error: &Error) -> u8 {
    match error {
        Error::VersionMismatch { .. } => 1,
        Error::Options(_) | Error::BadRequest(_) => 2,
        Error::Full(_) => 4,
        Error::TooLarge(_) => 5,
        Error::OutcomeUnknown(_) => 6,
        _ => 3,
    }
}
