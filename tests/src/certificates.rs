//! CAs and certificates for tests, as PEM files.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, date_time_ymd};
use sidestep_client::Tls;
use sidestep_server::tls::TlsFiles;

/// A CA in a folder of its own.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    folder: tempfile::TempDir,
}

/// A certificate and its key.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// PEM.
    pub cert: PathBuf,
    /// PEM, its owner's alone.
    pub key: PathBuf,
}

/// Writes a file for its owner alone.
pub fn write_secret(path: &Path, content: &str) {
    fs::write(path, content).expect("a file");
    fs::set_permissions(path, Permissions::from_mode(0o600)).expect("its mode");
}

impl Authority {
    /// A new one; all have the same name, so that a mere look at names tells none from another.
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "a test's CA");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().expect("a key");
        let folder = tempfile::tempdir().expect("a folder");
        let certificate = params.self_signed(&key).expect("a certificate");
        fs::write(folder.path().join("ca.pem"), certificate.pem()).expect("a file");
        Self { issuer: Issuer::new(params, key), folder }
    }

    /// Its certificate.
    pub fn ca(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// A certificate for some names, good today or no more. The files are named after the first.
    fn make(&self, name: &str, names: &[&str], is_expired: bool) -> Certificate {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names");
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = if is_expired { date_time_ymd(2021, 1, 1) } else { date_time_ymd(2200, 1, 1) };
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let file = |end: &str| self.folder.path().join(format!("{name}.{end}"));
        let made = Certificate { cert: file("pem"), key: file("key") };
        fs::write(&made.cert, certificate.pem()).expect("a file");
        write_secret(&made.key, &key.serialize_pem());
        made
    }

    /// One for a server on this host.
    pub fn server(&self) -> Certificate {
        self.make("server", &["localhost", "127.0.0.1"], false)
    }

    /// One for a server of another name.
    pub fn stranger(&self) -> Certificate {
        self.make("stranger", &["db.example.org"], false)
    }

    /// One for a server on this host whose time is over.
    pub fn expired(&self) -> Certificate {
        self.make("expired", &["localhost", "127.0.0.1"], true)
    }

    /// One for a client.
    pub fn client(&self) -> Certificate {
        self.make("client", &["client"], false)
    }

    /// One for a client whose time is over.
    pub fn expired_client(&self) -> Certificate {
        self.make("expired-client", &["client"], true)
    }

    /// Trusts this CA and no other.
    pub fn tls(&self) -> Tls {
        Tls::with_ca(self.ca()).expect("a CA")
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl Certificate {
    /// For a server that asks for no certificates.
    pub fn files(&self) -> TlsFiles {
        TlsFiles { cert: self.cert.clone(), key: self.key.clone(), client_ca: None }
    }
}
