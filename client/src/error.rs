//! Why a request failed.

use std::io;
use std::sync::Arc;

use sidestep_core::handshake::HandshakeError;
use thiserror::Error;

use crate::options::Path;

/// Why a request failed. A key that is absent is not an error.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A conditional write found another version; nothing was changed.
    #[error("version mismatch: found {}", version_text(*found))]
    VersionMismatch {
        /// The version found, 0 if the key is absent.
        found: u64,
    },
    /// The server has no memory for this write; nothing was changed.
    #[error("table full: {0}")]
    Full(String),
    /// Key or value beyond the server's limits; nothing was changed.
    #[error("too large: {0}")]
    TooLarge(String),
    /// A write that may or may not have been applied. It is never repeated in silence: read, then decide.
    #[error("outcome unknown: {0}")]
    OutcomeUnknown(String),
    /// The server did not let us in, or is not the server that we took it for.
    #[error("{server} refused: {reason}")]
    Refused {
        /// As given to [`Client::connect`](crate::Client::connect).
        server: String,
        /// What was expected and what was found.
        reason: String,
    },
    /// No connection. Nothing of this request was applied.
    #[error("cannot reach {server}: {source}")]
    Unreachable {
        /// As given to [`Client::connect`](crate::Client::connect).
        server: String,
        /// From the operating system.
        source: Arc<io::Error>,
    },
    /// The connection stands but brought nothing for the request timeout. Only reads end so; a write's outcome is unknown.
    #[error("{server} did not answer within {waited_ms} ms")]
    TimedOut {
        /// As given to [`Client::connect`](crate::Client::connect).
        server: String,
        /// [`Options::request_timeout`](crate::Options::request_timeout).
        waited_ms: u64,
    },
    /// The path that was required cannot be had.
    #[error("path {path} is not available: {reason}")]
    PathUnavailable {
        /// The path required.
        path: Path,
        /// Why.
        reason: String,
    },
    /// The server is stopping and did not take the request.
    #[error("{server} is stopping")]
    Stopping {
        /// As given to [`Client::connect`](crate::Client::connect).
        server: String,
    },
    /// The token that was given does not allow it; nothing was changed.
    #[error("forbidden: {0}")]
    Forbidden(String),
    /// The server found the request malformed.
    #[error("bad request: {0}")]
    BadRequest(String),
    /// The server broke the protocol; its connection was closed.
    #[error("protocol broken by {server}: {reason}")]
    Protocol {
        /// As given to [`Client::connect`](crate::Client::connect).
        server: String,
        /// What was expected and what was found.
        reason: String,
    },
    /// A submitted write beyond the number that a session may have in flight: poll first.
    #[error("{limit} writes are in flight on this session: poll before submitting more")]
    TooManyInFlight {
        /// [`MAX_WRITES_IN_FLIGHT`](sidestep_core::limits::MAX_WRITES_IN_FLIGHT).
        limit: usize,
    },
    /// The caller's options make no sense.
    #[error("{0}")]
    Options(String),
}

impl Error {
    /// Whether it says that there is no working connection, rather than something about one request.
    pub(crate) fn is_of_connection(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::TimedOut { .. } | Self::Refused { .. } | Self::Protocol { .. })
    }
}

fn version_text(found: u64) -> String {
    if found == 0 { "no item".to_owned() } else { format!("version {found}") }
}

/// Why a connection could not be had.
#[derive(Debug)]
pub(crate) enum ConnectError {
    Io(io::Error),
    /// One side does not take the other for whom it should be, or does not speak TLS as it should.
    Tls(String),
    Handshake(HandshakeError),
}

impl ConnectError {
    /// Whether a later attempt may fare better.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self, Self::Io(_))
    }

    pub(crate) fn into_error(self, server: &str) -> Error {
        let server = server.to_owned();
        match self {
            Self::Io(source) => Error::Unreachable { server, source: Arc::new(source) },
            Self::Tls(reason) | Self::Handshake(HandshakeError::Refused(reason)) => Error::Refused { server, reason },
            Self::Handshake(error) => Error::Refused { server, reason: error.to_string() },
        }
    }
}

impl From<io::Error> for ConnectError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<HandshakeError> for ConnectError {
    fn from(error: HandshakeError) -> Self {
        Self::Handshake(error)
    }
}
