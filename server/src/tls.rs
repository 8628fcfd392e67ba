//! TLS 1.3: what the server shows of itself, and of whose clients it takes certificates.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use thiserror::Error;

use crate::access::exposed_mode;

/// Longer files are none of certificates that anyone means.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Where certificates and keys are, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, and behind it those that lead to its CA.
    pub cert: PathBuf,
    /// The private key of that certificate. Nobody but its owner may be able to read it.
    pub key: PathBuf,
    /// The CAs of which clients must have a certificate; None: none is asked for.
    pub client_ca: Option<PathBuf>,
}

/// Why files give no TLS. Nothing of a key is shown.
#[derive(Debug, Error)]
pub enum TlsFileError {
    /// It cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others can read or change it.
    #[error(
        "expected the key file {} to be its owner's alone, found mode {mode:04o}: chmod 600 {}",
        path.display(), path.display()
    )]
    Mode {
        /// Which file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// It is not what it should be.
    #[error("{}: expected {expected}, found {found}", path.display())]
    Content {
        /// Which file.
        path: PathBuf,
        /// What would be right.
        expected: &'static str,
        /// What was there.
        found: String,
    },
    /// Certificate and key cannot be used together.
    #[error("cannot use the certificate {} with the key {}: {source}", cert.display(), key.display())]
    Pair {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// Why.
        source: rustls::Error,
    },
}

/// Certificate, key and the CAs of clients, as they were when they were read.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ServerConfig>,
    asks_for_certificate: bool,
}

impl Tls {
    /// From files. TLS 1.3 and nothing before it.
    ///
    /// # Errors
    /// A file cannot be read or is not what it should be, others can read the key, or it is another certificate's.
    pub fn read(files: &TlsFiles) -> Result<Self, TlsFileError> {
        let chain = certificates(&files.cert)?;
        let key = private_key(&files.key)?;
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone());
        let pair = |source| TlsFileError::Pair { cert: files.cert.clone(), key: files.key.clone(), source };
        let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]).map_err(pair)?;
        let builder = match &files.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => builder.with_client_cert_verifier(verifier(path, provider)?),
        };
        let mut config = builder.with_single_cert(chain, key).map_err(pair)?;
        if files.client_ca.is_some() {
            // A session that is resumed shows no certificate again, and it may have expired meanwhile.
            config.send_tls13_tickets = 0;
        }
        Ok(Self { config: Arc::new(config), asks_for_certificate: files.client_ca.is_some() })
    }

    /// Whether clients must show a certificate.
    pub fn asks_for_certificate(&self) -> bool {
        self.asks_for_certificate
    }
}

fn verifier(
    path: &Path,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn rustls::server::danger::ClientCertVerifier>, TlsFileError> {
    let content =
        |found: String| TlsFileError::Content { path: path.to_owned(), expected: "certificates of CAs", found };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| content(error.to_string()))?;
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    verifier.build().map_err(|error| content(error.to_string()))
}

fn read(path: &Path, is_secret: bool) -> Result<Vec<u8>, TlsFileError> {
    let unreadable = |source| TlsFileError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(unreadable)?;
    // Of the open file: what is at the path may be another one by now.
    let metadata = file.metadata().map_err(unreadable)?;
    if let Some(mode) = exposed_mode(&metadata).filter(|_| is_secret) {
        return Err(TlsFileError::Mode { path: path.to_owned(), mode });
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsFileError> {
    let content = |found: String| TlsFileError::Content {
        path: path.to_owned(),
        expected: "at least one certificate in PEM",
        found,
    };
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path, false)?).collect();
    match all {
        Ok(certificates) if certificates.is_empty() => Err(content("none".to_owned())),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(content(error.to_string())),
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsFileError> {
    let expected = "a private key in PEM";
    PrivateKeyDer::from_pem_slice(&read(path, true)?).map_err(|error| {
        use rustls::pki_types::pem::Error;
        // Other errors show a piece of what was read.
        let found = if matches!(error, Error::NoItemsFound) { "none" } else { "something else" }.to_owned();
        TlsFileError::Content { path: path.to_owned(), expected, found }
    })
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("asks_for_certificate", &self.asks_for_certificate).finish_non_exhaustive()
    }
}

/// Whether they were read at once.
impl PartialEq for Tls {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.config, &other.config)
    }
}

impl Eq for Tls {}

/// The TLS that new connections begin with; it may change while connections stand.
#[derive(Debug)]
pub(crate) struct TlsDoor(RwLock<Tls>);

impl TlsDoor {
    pub(crate) fn new(tls: Tls) -> Self {
        Self(RwLock::new(tls))
    }

    /// For the connections that come from now on. What an earlier certificate has begun goes on; none of its sessions is
    /// resumed.
    pub(crate) fn replace(&self, tls: Tls) {
        *self.0.write() = tls;
    }

    /// The server's end of a new connection.
    pub(crate) fn open(&self) -> Result<ServerConnection, rustls::Error> {
        ServerConnection::new(self.0.read().config.clone())
    }
}
