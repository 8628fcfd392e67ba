//! What TLS changes for a connection. Without it all of this is a look at an empty field.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;

use tracing::info;

use super::tls::Tls;
use super::{Connection, Phase};
use crate::backing::Backing;
use crate::metrics::WorkerMetrics;
use crate::output::Output;

impl<S: Read + Write + AsFd, M: Backing> Connection<S, M> {
    /// The TLS that its frames travel in now.
    fn carrying_tls(&self) -> Option<&Tls> {
        self.tls.as_deref().filter(|_| self.channel.is_none())
    }

    /// Whether anything waits to be sent.
    pub(super) fn is_unsent(&self) -> bool {
        !self.output.is_empty() || self.carrying_tls().is_some_and(Tls::is_waiting)
    }

    /// Whether its carrier may take more, after it was given all that it took, and may have refused the rest.
    pub(super) fn is_writable(&self, has_refused: bool) -> bool {
        self.carrying_tls().map_or(!has_refused, Tls::is_writable)
    }

    /// Whether the last sending, which took `sent` bytes off the output, has brought the client anything.
    pub(super) fn has_moved(&mut self, sent: usize) -> bool {
        match &mut self.tls {
            Some(tls) if self.channel.is_none() => tls.take_moved(),
            _ => sent > 0,
        }
    }

    /// Whether a part of a record has come.
    pub(super) fn is_within_record(&self) -> bool {
        self.carrying_tls().is_some_and(Tls::is_partial)
    }

    /// Whether the socket may have more than the last read of it has brought.
    pub(super) fn has_more_records(&self) -> bool {
        self.carrying_tls().is_some_and(Tls::has_more)
    }

    /// Sends what waits in records. The socket's being full is no error.
    pub(super) fn push(stream: &mut S, tls: &mut Tls) -> io::Result<()> {
        match tls.push(stream) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }

    /// The last thing that is sent.
    pub(super) fn say_goodbye(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.say_goodbye(&mut self.stream);
        }
    }

    /// Looks whether a client that should speak TLS does. False: it is told, in words that it understands, that it should;
    /// or nothing has come yet.
    pub(super) fn speaks_as_expected(&mut self, metrics: &WorkerMetrics) -> io::Result<bool> {
        let Some(tls) = &mut self.tls else { return Ok(true) };
        match tls.begins(&self.stream) {
            Ok(true) => Ok(true),
            Ok(false) => {
                info!(from = %tls.from(), "a client without TLS was refused");
                self.tls = None;
                self.refuse(
                    "expected TLS, found none: this server takes encrypted connections only (--tls-ca)",
                    metrics,
                );
                Ok(false)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.readable = false;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// What becomes of it after a failed read: where TLS has failed, its alert is still sent.
    pub(super) fn lost(&mut self, error: io::Error, metrics: &WorkerMetrics) -> io::Result<usize> {
        let Some(tls) = self.tls.as_ref().filter(|tls| tls.has_failed()) else { return Err(error) };
        if matches!(self.phase, Phase::Closing(_)) {
            return Err(error);
        }
        info!(from = %tls.from(), %error, "a connection ends: its TLS has failed");
        metrics.refused.add(1);
        // Nothing can be encrypted any more.
        self.output = Output::default();
        self.phase = Phase::Closing(false);
        Ok(super::INTERRUPTION_BYTES)
    }
}
