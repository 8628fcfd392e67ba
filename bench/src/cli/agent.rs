use std::net::TcpListener;

use clap::Args;

use sidestep_bench::agents::serve;
use sidestep_bench::error::BenchError;
use sidestep_bench::target::Credentials;
use sidestep_client::TlsArgs;

use super::shared::{print, tls, token};

#[derive(Debug, Args)]
pub(super) struct Agent {
    /// Where to wait for coordinators: HOST:PORT; port 0 = a free one, which is printed. Whoever reaches it can have this
    /// machine drive a store of their choice.
    #[arg(long, value_name = "ADDR")]
    listen: String,
    /// File with the token of the servers that are driven: it is not sent by the coordinator.
    #[arg(long, value_name = "FILE")]
    token_file: Option<std::path::PathBuf>,
    #[command(flatten)]
    tls: TlsArgs,
}

impl Agent {
    pub(super) fn run(self) -> Result<(), BenchError> {
        let unusable = |error: std::io::Error| {
            BenchError::Usage(format!("cannot listen on {}: {error} (expected HOST:PORT)", self.listen))
        };
        let listener = TcpListener::bind(&self.listen).map_err(unusable)?;
        let address = listener.local_addr().map_err(unusable)?;
        let credentials = Credentials { token: token(self.token_file.as_deref())?, tls: tls(&self.tls)? };
        print(&format!("agent listening on {address}\n"))?;
        serve(&listener, &credentials)
    }
}
