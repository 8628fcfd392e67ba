//! The options by which the programs are told of TLS.

use std::path::PathBuf;

use crate::error::Error;
use crate::tls::Tls;

/// Options of a command line that make a [`Tls`].
#[derive(Clone, Debug, Default, clap::Args)]
pub struct TlsArgs {
    /// Encrypt the control connection, to a server that these CAs vouch for: a PEM file, or system for those of this system
    #[arg(long, global = true, value_name = "FILE", env = "SIDESTEP_TLS_CA", help_heading = "TLS")]
    tls_ca: Option<PathBuf>,
    /// The name that the server's certificate must have [default: the server's host]
    #[arg(long, global = true, value_name = "NAME", env = "SIDESTEP_TLS_NAME", help_heading = "TLS")]
    tls_name: Option<String>,
    /// Our own certificate in PEM, for a server that asks for one
    #[arg(long, global = true, value_name = "FILE", env = "SIDESTEP_TLS_CERT", help_heading = "TLS")]
    tls_cert: Option<PathBuf>,
    /// The private key of that certificate in PEM
    #[arg(long, global = true, value_name = "FILE", env = "SIDESTEP_TLS_KEY", help_heading = "TLS")]
    tls_key: Option<PathBuf>,
}

impl TlsArgs {
    /// What they say; None: no TLS.
    ///
    /// # Errors
    /// [`Error::Options`]: a file is not what it should be, or the options do not belong together.
    pub fn tls(&self) -> Result<Option<Tls>, Error> {
        let Some(ca) = &self.tls_ca else {
            return match (&self.tls_name, &self.tls_cert, &self.tls_key) {
                (None, None, None) => Ok(None),
                _ => Err(Error::Options("expected --tls-ca FILE beside other options of TLS, found none".to_owned())),
            };
        };
        let mut tls = if ca.as_os_str() == "system" { Tls::with_system_roots() } else { Tls::with_ca(ca) }?;
        if let Some(name) = &self.tls_name {
            tls = tls.server_name(name)?;
        }
        match (&self.tls_cert, &self.tls_key) {
            (None, None) => Ok(Some(tls)),
            (Some(cert), Some(key)) => tls.client_certificate(cert, key).map(Some),
            _ => Err(Error::Options("expected --tls-cert and --tls-key together, found one of them".to_owned())),
        }
    }
}
