//! Whom a client takes for its server, and what it shows of itself: TLS 1.3 on the control connection.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::error::{ConnectError, Error};

/// Encrypts the control connection, and with it everything that travels on `tcp`: TLS 1.3, by
/// [`Options::tls`](crate::Options::tls).
///
/// A server is taken for the one that was meant if a CA that is trusted says so of its name: the host that was given to
/// [`Client::connect`](crate::Client::connect), or [`Tls::server_name`]. Files are read when a `Tls` is made and not again.
///
/// On `rdma` and `rdma-rpc` keys and values do not travel on the control connection, and RDMA encrypts nothing: only rkeys
/// and tokens are kept from whoever listens. [`PathMode::Auto`](crate::PathMode::Auto) takes neither of them over TLS.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ClientConfig>,
    roots: Arc<RootCertStore>,
    name: Option<ServerName<'static>>,
}

impl Tls {
    /// Trusts the CAs of a PEM file and no others. A self-signed certificate is its own CA.
    ///
    /// # Errors
    /// [`Error::Options`]: it cannot be read, or holds no certificate.
    pub fn with_ca(file: impl AsRef<Path>) -> Result<Self, Error> {
        let file = file.as_ref();
        let mut roots = RootCertStore::empty();
        for certificate in certificates(file)? {
            let unusable = |error| Error::Options(format!("{} has no certificate of a CA: {error}", file.display()));
            roots.add(certificate).map_err(unusable)?;
        }
        Self::with_roots(roots)
    }

    /// Trusts the CAs that this system trusts.
    ///
    /// # Errors
    /// [`Error::Options`]: there are none.
    pub fn with_system_roots() -> Result<Self, Error> {
        let found = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        let (added, _) = roots.add_parsable_certificates(found.certs);
        if added == 0 {
            let why = found.errors.first().map_or_else(|| "none found".to_owned(), ToString::to_string);
            return Err(Error::Options(format!("expected CAs that this system trusts: {why}")));
        }
        Self::with_roots(roots)
    }

    fn with_roots(roots: RootCertStore) -> Result<Self, Error> {
        let roots = Arc::new(roots);
        let config = builder(&roots)?.with_no_client_auth();
        Ok(Self { config: Arc::new(config), roots, name: None })
    }

    /// What the server's certificate must say, in place of the host that is connected to: a DNS name or an IP address.
    ///
    /// # Errors
    /// [`Error::Options`]: it is neither.
    pub fn server_name(mut self, name: &str) -> Result<Self, Error> {
        self.name = Some(parse_name(name).map_err(Error::Options)?);
        Ok(self)
    }

    /// Shows this certificate (a PEM file, with those that lead to its CA) to a server that asks for one, and proves it by
    /// its key.
    ///
    /// # Errors
    /// [`Error::Options`]: a file cannot be read or is not what it should be, or the key is another certificate's.
    pub fn client_certificate(mut self, cert: impl AsRef<Path>, key: impl AsRef<Path>) -> Result<Self, Error> {
        let (cert, key) = (cert.as_ref(), key.as_ref());
        let chain = certificates(cert)?;
        let unusable =
            |reason: String| Error::Options(format!("expected a private key in {}: {reason}", key.display()));
        // The parser's own words would show a piece of what it read.
        let bytes = std::fs::read(key).map_err(|error| unusable(error.to_string()))?;
        let secret = PrivateKeyDer::from_pem_slice(&bytes).map_err(|_| unusable("found none in PEM".to_owned()))?;
        let config = builder(&self.roots)?.with_client_auth_cert(chain, secret).map_err(|error| {
            let (cert, key) = (cert.display(), key.display());
            Error::Options(format!("cannot use the certificate {cert} with the key {key}: {error}"))
        })?;
        self.config = Arc::new(config);
        Ok(self)
    }

    /// The client's end of a connection to a host.
    pub(crate) fn open(&self, host: &str) -> Result<ClientConnection, ConnectError> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => parse_name(host).map_err(ConnectError::Tls)?,
        };
        ClientConnection::new(self.config.clone(), name).map_err(|error| ConnectError::Tls(error.to_string()))
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("cas", &self.roots.len()).field("name", &self.name).finish_non_exhaustive()
    }
}

fn builder(
    roots: &Arc<RootCertStore>,
) -> Result<rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>, Error> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| Error::Options(format!("cannot use TLS 1.3: {error}")))?;
    Ok(builder.with_root_certificates(roots.clone()))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let unusable = |reason: String| Error::Options(format!("expected certificates in {}: {reason}", file.display()));
    let bytes = std::fs::read(file).map_err(|error| unusable(error.to_string()))?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match all {
        Ok(all) if all.is_empty() => Err(unusable("found none in PEM".to_owned())),
        Ok(all) => Ok(all),
        Err(error) => Err(unusable(error.to_string())),
    }
}

fn parse_name(name: &str) -> Result<ServerName<'static>, String> {
    let invalid =
        |_| format!("expected a DNS name or an IP address for the server's certificate to have, found {name:?}");
    ServerName::try_from(name).map(|name| name.to_owned()).map_err(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_none_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        for content in [&b""[..], b"no PEM", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            std::fs::write(&file, content).unwrap();
            assert!(Tls::with_ca(&file).unwrap_err().to_string().contains("ca.pem"));
        }
        let error = Tls::with_ca(folder.path().join("absent.pem")).unwrap_err();
        assert!(error.to_string().contains("absent.pem"), "{error}");
    }

    #[test]
    fn names_are_of_hosts_and_addresses() {
        for name in ["localhost", "db.example.org", "10.0.0.1", "::1"] {
            assert!(parse_name(name).is_ok(), "{name}");
        }
        for name in ["", "a b", "host:1", "[::1]"] {
            assert!(parse_name(name).is_err(), "{name}");
        }
    }
}
