//! The program `sidestep-server`: options, log, signals. Everything else is in the library.

mod check;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{Parser, Subcommand};
use sd_notify::NotifyState;
use sidestep_server::access::Tokens;
use sidestep_server::config::{LogFormat, Options};
use sidestep_server::tls::{Tls, TlsFiles};
use sidestep_server::{Config, Server, ServerError, check_folder, repair_folder};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing::{error, info};
use tracing_subscriber::EnvFilter;

/// A key-value server whose readers read its memory around it
#[derive(Parser)]
#[command(name = "sidestep-server", version = sidestep_server::BUILD.line(), args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    options: Options,
}

#[derive(Subcommand)]
enum Command {
    /// Verify every invariant of the table of a stopped server, and print counts
    #[command(after_help = CHECK_HELP)]
    Check {
        /// The folder that was given as --data
        dir: PathBuf,
        /// Replace a damaged table by a new one with all items that are whole, and say what was not kept
        #[arg(long)]
        repair: bool,
        /// Do not keep the damaged file as table.sidestep.damaged
        #[arg(long, requires = "repair")]
        no_backup: bool,
    },
}

const CHECK_HELP: &str = "\
Exit codes:
  0  the table is sound
  1  it is damaged; with --repair: it was, and is replaced
  2  usage
  3  it cannot be checked or repaired (in use, not a table, another format, no room), and nothing was changed";

/// Descriptors for everything but clients: the table, the log, metrics, devices, and connections that are just being refused.
const OTHER_FILES: usize = 512;

/// Exit codes beside 0; those of the client that have the same meaning.
mod exit {
    pub(crate) const DAMAGED: u8 = 1;
    pub(super) const USAGE: u8 = 2;
    pub(super) const REFUSED: u8 = 3;
    pub(super) const UNLOGGED: u8 = 4;
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        Some(Command::Check { dir, repair: false, .. }) => check_folder(&dir).map(|report| check::print(&report)),
        Some(Command::Check { dir, no_backup, .. }) => {
            repair_folder(&dir, !no_backup).map(|checked| check::print_repair(&checked))
        }
        None => serve(cli.options),
    };
    done.unwrap_or_else(|error| {
        eprintln!("sidestep-server: {}", with_sources(&error));
        ExitCode::from(if error.is_usage() { exit::USAGE } else { exit::REFUSED })
    })
}

/// The error and its causes on one line. Some errors name their cause already.
fn with_sources(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let text = cause.to_string();
        if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
        source = cause.source();
    }
    line
}

fn serve(options: Options) -> Result<ExitCode, ServerError> {
    let options = options.with_file()?;
    start_log(options.log_format.unwrap_or_default());
    let (token_file, tls_files) = (options.token_file.clone(), options.tls_files()?);
    let mut config: Config = options.into_config()?;
    config.max_connections = within_descriptors(config.max_connections);
    // Before the server says that it is ready: whoever reads that may send a signal at once.
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).map_err(signals_failed)?;
    let server = Server::start(config)?;
    // Whoever started the server may have closed the pipe; that is no reason not to serve.
    let _ = writeln!(std::io::stdout(), "{}", server.description());
    tell_systemd(&[NotifyState::Ready, NotifyState::Status(server.description())]);
    let signal = signals.forever().find(|&signal| {
        if signal == SIGHUP {
            read_files_again(&server, token_file.as_deref(), tls_files.as_ref());
        }
        signal != SIGHUP
    });
    info!(?signal, "stopping");
    tell_systemd(&[NotifyState::Stopping]);
    end_at_once_on_a_second_signal()?;
    let unlogged = server.stop();
    Ok(if unlogged == 0 { ExitCode::SUCCESS } else { ExitCode::from(exit::UNLOGGED) })
}

/// What cannot be read or understood changes nothing: those who are in stay in, and nobody else comes.
fn read_files_again(server: &Server, tokens: Option<&Path>, tls: Option<&TlsFiles>) {
    if tokens.is_none() && tls.is_none() {
        info!("SIGHUP: there is no file of tokens or certificates to read again");
    }
    match tokens.map(|file| (Tokens::read(file), file.display())) {
        None => {}
        Some((Ok(tokens), file)) => {
            server.replace_tokens(tokens);
            info!(%file, "SIGHUP: the tokens are those of the file now");
        }
        Some((Err(error), _)) => error!(error = with_sources(&error), "SIGHUP: the tokens stay what they were"),
    }
    match tls.map(|files| (Tls::read(files), files.cert.display())) {
        None => {}
        Some((Ok(tls), file)) => {
            server.replace_tls(tls);
            info!(%file, "SIGHUP: new connections are encrypted with the certificate of the file now");
        }
        Some((Err(error), _)) => error!(error = with_sources(&error), "SIGHUP: the certificates stay what they were"),
    }
}

/// Does nothing unless it is a service of `Type=notify`.
fn tell_systemd(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "cannot tell systemd how the server is");
    }
}

fn signals_failed(source: std::io::Error) -> ServerError {
    ServerError::Thread { what: "signal handler", source }
}

fn end_at_once_on_a_second_signal() -> Result<(), ServerError> {
    let armed = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 1, armed.clone()).map_err(signals_failed)?;
    }
    armed.store(true, Ordering::Release);
    Ok(())
}

/// To stderr; `RUST_LOG` says what, warnings and progress of the server itself by default.
fn start_log(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => log.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => log.json().init(),
    }
}

/// One descriptor a connection: the usual soft limit of 1024 is soon used up, so it becomes the hard one. Returns how many
/// connections there may be: where that is too low for all, those beyond are told so, and metrics still answer.
fn within_descriptors(wanted: usize) -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
    let Some(files) = getrlimit(Resource::Nofile).current.and_then(|files| usize::try_from(files).ok()) else {
        return wanted;
    };
    let most = files.saturating_sub(OTHER_FILES.min(files / 4 * 3)).max(1);
    if most < wanted {
        tracing::warn!(
            files,
            max_clients = wanted,
            allowed = most,
            "the limit of open files is too low for --max-clients: raise it (ulimit -n, LimitNOFILE=)"
        );
    }
    wanted.min(most)
}
