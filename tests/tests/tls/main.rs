//! TLS between processes: who is let in, what a stream does in bad hands, what is seen on the wire, other certificates.

mod entry;
mod raw;
mod rotation;
mod stream;
mod wire;

use std::io::{BufRead, BufReader, Lines};
use std::path::Path as File;
use std::process::{Child, ChildStderr, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use sidestep_client::{Client, Error, Options, Path, PathMode, Session, Tls};
use sidestep_tests::certificates::{Authority, Certificate};
use sidestep_tests::process::program;

/// A server process and what it says in its log.
struct Served {
    child: Child,
    address: String,
    line: String,
    log: Lines<BufReader<ChildStderr>>,
}

impl Served {
    fn start(args: &[&str]) -> Self {
        Self::start_at("127.0.0.1:0", args)
    }

    fn start_at(listen: &str, args: &[&str]) -> Self {
        let mut child = Command::new(program("sidestep-server"))
            .args(["--listen", listen, "--memory", "128MiB"])
            .args(args)
            .env("RUST_LOG", "info")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let log = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("the server's line");
        let address = line.strip_prefix("listening on ").and_then(|rest| rest.split(';').next());
        let address = address.unwrap_or_else(|| panic!("expected `listening on ADDR; …`, found {line:?}")).to_owned();
        Self { child, address, line, log }
    }

    /// With this certificate.
    fn with(certificate: &Certificate, args: &[&str]) -> Self {
        Self::start(&[&tls_args(certificate)[..], args].concat())
    }

    /// Waits for a line of the log with this in it.
    fn says(&mut self, what: &str) -> String {
        let mut lines = self.log.by_ref().map(|line| line.expect("its log"));
        lines.find(|line| line.contains(what)).unwrap_or_else(|| panic!("it never said {what:?}"))
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it lives");
    }

    fn hang_up(&self) {
        self.signal(Signal::HUP);
    }

    fn kill(&mut self) {
        self.child.kill().expect("it lives");
        self.child.wait().expect("it ends");
    }

    fn connect(&self, tls: Tls) -> Result<Session, Error> {
        self.connect_with(options().tls(tls))
    }

    fn connect_with(&self, options: Options) -> Result<Session, Error> {
        Client::connect(&self.address, options)?.session()
    }

    /// Why a client with this TLS is not let in.
    fn refused(&self, tls: Tls) -> String {
        refusal(self.connect(tls))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn refusal(connected: Result<Session, Error>) -> String {
    match connected {
        Err(Error::Refused { reason, .. }) => reason,
        Err(error) => panic!("expected a refusal, found {error:?}"),
        Ok(_) => panic!("expected a refusal, found a session"),
    }
}

fn options() -> Options {
    Options::default().path(PathMode::Require(Path::Tcp))
}

fn text(file: &File) -> &str {
    file.to_str().expect("a path in UTF-8")
}

fn tls_args(certificate: &Certificate) -> [&str; 4] {
    ["--tls-cert", text(&certificate.cert), "--tls-key", text(&certificate.key)]
}

/// A CA, a server with a certificate of it, and a session.
fn standing(args: &[&str]) -> (Authority, Served, Session) {
    let authority = Authority::new();
    let server = Served::with(&authority.server(), args);
    let session = server.connect(authority.tls()).expect("it is let in");
    (authority, server, session)
}
