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
    /// A file, or - for standard output; a pipe or a device is written as it is
    file: PathBuf,
}

pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
}

pub(crate) fn run(server: &ServerArgs, args: &Args) -> Result<(), Failure> {
    if args.file.as_os_str() == "-" {
        return whole(dump(server, stdout().lock()).map(drop));
    }
    let attempt = |file: &Path| format!("write {}", file.display());
    // Of a link the file that it leads to; one that is not there yet has a folder that is.
    let file = std::fs::canonicalize(&args.file).unwrap_or_else(|_| args.file.clone());
    if std::fs::metadata(&file).is_ok_and(|about| !about.is_file() && !about.is_dir()) {
        // A pipe or a device takes it as it comes, and stays what it is.
        let pipe = OpenOptions::new().write(true).open(&file).map_err(Failure::io(attempt(&file)))?;
        return whole(dump(server, pipe).map(drop));
    }
    let mut part = file.clone().into_os_string();
    part.push(".part");
    let part = PathBuf::from(part);
    let create = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part);
    let written = create.map_err(Failure::io(attempt(&part))).and_then(|written| {
        let written = dump(server, written)?;
        written.sync_all().map_err(Failure::io(attempt(&part)))
    });
    let renamed = written.and_then(|()| rename(&part, &file).map_err(Failure::io(attempt(&part))));
    if renamed.is_err() {
        // What is there is no dump, and the error says why.
        let _ = std::fs::remove_file(&part);
    }
    renamed
}

/// Whoever reads a dump wants all of it: that they closed the pipe is no success, as it is elsewhere.
fn whole(done: Result<(), Failure>) -> Result<(), Failure> {
    match done {
        Err(Failure::Io { attempt, source }) if source.kind() == io::ErrorKind::BrokenPipe => {
            let closed = io::Error::other("its reader has closed the pipe; what it has is no whole dump");
            Err(Failure::Io { attempt, source: closed })
        }
        done => done,
    }
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
