//! Options that every command has: which server, which path, how bytes are written.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use sidestep_client::{Client, Options, Path, PathMode, Session, TlsArgs};

use crate::failure::Failure;

const DEFAULT_SERVER: &str = "127.0.0.1:7411";

#[derive(Debug, clap::Args)]
pub(crate) struct ServerArgs {
    /// The server: HOST or HOST:PORT, an IPv6 address with a port in brackets [default: 127.0.0.1:7411]
    #[arg(long, global = true, value_name = "ADDR", env = "SIDESTEP_SERVER")]
    server: Option<String>,
    /// The path that reads take; auto is shm on the server's host, else rdma, else tcp
    #[arg(long, global = true, default_value = "auto",
          value_parser = PossibleValuesParser::new(["auto", "tcp", "shm", "rdma", "rdma-rpc"]))]
    path: String,
    /// Fail where the path cannot be had, instead of falling back to tcp
    #[arg(long, global = true)]
    require: bool,
    /// Keys and values among the arguments and in the output are hexadecimal
    #[arg(long, global = true)]
    pub(crate) hex: bool,
    /// A file with the secret shared with the server, without the white space around it
    #[arg(long, global = true, value_name = "FILE", env = "SIDESTEP_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    tls: TlsArgs,
    /// Say on standard error which version was read or written, and on which path
    #[arg(long, short, global = true)]
    pub(crate) verbose: bool,
}

impl ServerArgs {
    pub(crate) fn address(&self) -> &str {
        self.server.as_deref().unwrap_or(DEFAULT_SERVER)
    }

    /// Whether one was named.
    pub(crate) fn is_named(&self) -> bool {
        self.server.is_some()
    }

    pub(crate) fn connect(&self) -> Result<Client, Failure> {
        self.connect_with(Options::default().path(self.mode()?))
    }

    /// With the token and the TLS that were given.
    pub(crate) fn connect_with(&self, mut options: Options) -> Result<Client, Failure> {
        if let Some(tls) = self.tls.tls()? {
            options = options.tls(tls);
        }
        Ok(Client::connect(self.address(), options.token(self.token()?))?)
    }

    pub(crate) fn session(&self) -> Result<Session, Failure> {
        Ok(self.connect()?.session()?)
    }

    fn mode(&self) -> Result<PathMode, Failure> {
        match (self.path.as_str(), self.require) {
            ("auto", false) => Ok(PathMode::Auto),
            ("auto", true) => Err(Failure::Usage("--require needs a --path other than auto".to_owned())),
            (path, true) => Ok(PathMode::Require(path.parse::<Path>()?)),
            (path, false) => Ok(PathMode::Prefer(path.parse::<Path>()?)),
        }
    }

    fn token(&self) -> Result<Vec<u8>, Failure> {
        let Some(file) = &self.token_file else { return Ok(Vec::new()) };
        let attempt = format!("read the token file {}", file.display());
        // As the server does: editors and `echo` end a file with white space that nobody means.
        let token = std::fs::read(file).map_err(Failure::io(&attempt))?.trim_ascii().to_vec();
        if token.is_empty() {
            return Err(Failure::Usage(format!("the token file {} is empty", file.display())));
        }
        Ok(token)
    }
}
