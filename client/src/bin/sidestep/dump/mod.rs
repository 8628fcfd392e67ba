//! `sidestep dump FILE`

pub(crate) mod file;
#[cfg(test)]
mod file_tests;

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write, stdout};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressDrawTarget, ProgressStyle};
use sidestep_client::{Record, ScanCursor};

use crate::dump::file::Writer;
use crate::failure::Failure;
use crate::server::ServerArgs;

/// Steps of the bar.
const STEPS: u64 = 1000;
/// Draws per second.
const DRAWS: u8 = 10;

/// Write all keys with values, versions and expiry to a file, which `load` takes back
///
/// The table is served and written on. Each key is what it was at some moment of the dump; those that are there from
/// beginning to end are in it, once. The file is written under the name FILE.part and renamed when it is whole and on
/// disk; only its owner can read it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A file, or - for standard output
    file: PathBuf,
}

pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
}

pub(crate) fn run(server: &ServerArgs, args: &Args) -> Result<(), Failure> {
    if args.file.as_os_str() == "-" {
        return dump(server, stdout().lock()).map(|_| ());
    }
    let mut part = args.file.clone().into_os_string();
    part.push(".part");
    let part = PathBuf::from(part);
    let attempt = || format!("write {}", part.display());
    let create = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part);
    let written = create.map_err(Failure::io(attempt())).and_then(|file| {
        let file = dump(server, file)?;
        file.sync_all().map_err(Failure::io(attempt()))
    });
    let renamed = written.and_then(|()| rename(&part, &args.file).map_err(Failure::io(attempt())));
    if renamed.is_err() {
        // What is there is no dump, and the error says why.
        let _ = std::fs::remove_file(&part);
    }
    renamed
}

/// Also on disk when it returns.
fn rename(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::rename(from, to)?;
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

fn dump<W: Write>(server: &ServerArgs, output: W) -> Result<W, Failure> {
    let mut session = server.session()?;
    let started = Instant::now();
    let cannot_write = || Failure::io("write the dump");
    let mut writer = Writer::new(BufWriter::new(output), now_ms()).map_err(cannot_write())?;
    let bar = bar();
    let (mut cursor, mut bytes) = (ScanCursor::new(), 0);
    while !cursor.is_done() {
        let mut written = Ok(());
        session.scan(&mut cursor, |record: Record<'_>| {
            bytes += (record.key.len() + record.value.len()) as u64;
            if written.is_ok() {
                written = writer.add(&record);
            }
        })?;
        written.map_err(cannot_write())?;
        bar.set_position((cursor.progress() * STEPS as f64) as u64);
        bar.set_message(format!("{} keys, {}", HumanCount(writer.records()), HumanBytes(bytes)));
    }
    let records = writer.records();
    let output = writer.finish().map_err(cannot_write())?.into_inner();
    let output = output.map_err(|error| cannot_write()(error.into_error()))?;
    bar.finish_and_clear();
    let seconds = started.elapsed().as_secs_f64();
    eprintln!("{} keys, {} dumped in {seconds:.2} s", HumanCount(records), HumanBytes(bytes));
    Ok(output)
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(STEPS), ProgressDrawTarget::stderr_with_hz(DRAWS));
    match ProgressStyle::with_template("{msg} [{bar:40}] {percent} % eta {eta}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
