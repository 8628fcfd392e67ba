//! `sidestep load FILE`

mod dump;
mod folder;
mod jsonl;
mod progress;
mod tsv;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, stdin};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::ValueEnum;
use sidestep_client::Session;

use crate::failure::Failure;
use crate::load::progress::{Counted, Progress};
use crate::operand::shown;
use crate::server::ServerArgs;

/// Pairs, and bytes of them, that are gathered before they are written.
const BATCH_PAIRS: usize = 1024;
const BATCH_BYTES: usize = 4 << 20;

/// Write many keys: from lines of key, tab, value; from lines of JSON; from the files of a folder; or from a dump
///
/// tsv: KEY TAB VALUE a line; \t \n \r \\ stand for tab, line feed, carriage return and backslash; with --hex both
/// are hexadecimal. jsonl: {"key": …, "value": …} a line, either as key_hex or value_hex in hexadecimal; a value
/// that is no string is stored as its JSON text. Folder: a file's path in the folder is its key, its content the value.
/// dump: what `sidestep dump` wrote, with the expiry of each key; versions are new. It is told by its first bytes. A file
/// is checked from end to end before anything is written; of standard input, each block before it is written.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// A file, a folder, or - for standard input
    file: PathBuf,
    /// What the file holds, where its name does not tell
    #[arg(long)]
    format: Option<Format>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Tsv,
    Jsonl,
    Dump,
}

/// A key and its value.
type Pair = (Vec<u8>, Vec<u8>);
/// What a file holds, one pair at a time.
type Pairs = Box<dyn Iterator<Item = Result<Pair, Failure>>>;

pub(crate) fn run(server: &ServerArgs, args: &Args) -> Result<(), Failure> {
    let progress = Progress::default();
    if let Some(input) = open_dump(&args.file, args.format, &progress)? {
        return dump::load(server, input, &progress);
    }
    let pairs = open(&args.file, args.format, server.hex, &progress)?;
    let mut session = server.session()?;
    progress.start();
    let started = Instant::now();
    let mut loader = Loader { session: &mut session, progress: &progress, batch: Vec::new(), bytes: 0 };
    for pair in pairs {
        loader.push(pair?)?;
    }
    loader.flush()?;
    progress.finish(started.elapsed());
    Ok(())
}

/// The input, if it is a dump. One in a file is whole.
fn open_dump(file: &Path, format: Option<Format>, progress: &Progress) -> Result<Option<Box<dyn BufRead>>, Failure> {
    let attempt = || format!("read {}", file.display());
    if file.is_dir() || !matches!(format, None | Some(Format::Dump)) {
        return Ok(None);
    }
    if file.as_os_str() == "-" {
        // Peeked at through the buffer that standard input keeps.
        let begins = begins_as_dump(stdin().lock().fill_buf().map_err(Failure::io(attempt()))?);
        let input = || Box::new(BufReader::new(Counted::new(stdin().lock(), progress))) as Box<dyn BufRead>;
        return Ok((format.is_some() || begins).then(input));
    }
    let opened = File::open(file).map_err(Failure::io(format!("open {}", file.display())))?;
    let file_bytes = opened.metadata().ok().filter(|meta| meta.is_file()).map(|meta| meta.len());
    // What is taken out of a pipe to look at it is gone.
    if format.is_none() && file_bytes.is_none() {
        return Ok(None);
    }
    let mut input = BufReader::with_capacity(1 << 20, opened);
    if format.is_none() && !begins_as_dump(input.fill_buf().map_err(Failure::io(attempt()))?) {
        return Ok(None);
    }
    if let Some(bytes) = file_bytes {
        progress.expect_bytes(bytes);
        dump::check(&mut input)?;
    }
    Ok(Some(Box::new(BufReader::new(Counted::new(input, progress)))))
}

fn begins_as_dump(bytes: &[u8]) -> bool {
    bytes.starts_with(&crate::dump::file::MAGIC)
}

fn open(file: &Path, format: Option<Format>, hex: bool, progress: &Progress) -> Result<Pairs, Failure> {
    if file.is_dir() {
        return folder::pairs(file, progress);
    }
    let input: Box<dyn Read> = if file.as_os_str() == "-" {
        Box::new(stdin())
    } else {
        let attempt = format!("open {}", file.display());
        let file = File::open(file).map_err(Failure::io(attempt))?;
        progress.expect_bytes(file.metadata().map_or(0, |meta| meta.len()));
        Box::new(file)
    };
    let lines = BufReader::with_capacity(1 << 20, Counted::new(input, progress));
    let is_jsonl = file.extension().is_some_and(|extension| extension == "jsonl" || extension == "ndjson");
    Ok(match format {
        Some(Format::Jsonl) => jsonl::pairs(lines),
        None if is_jsonl => jsonl::pairs(lines),
        _ => tsv::pairs(lines, hex),
    })
}

struct Loader<'a> {
    session: &'a mut Session,
    progress: &'a Progress,
    batch: Vec<Pair>,
    bytes: usize,
}

impl Loader<'_> {
    fn push(&mut self, pair: Pair) -> Result<(), Failure> {
        self.bytes += pair.0.len() + pair.1.len();
        self.batch.push(pair);
        if self.batch.len() >= BATCH_PAIRS || self.bytes >= BATCH_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), Failure> {
        let results = self.session.multi_put(&self.batch)?;
        for ((key, value), result) in self.batch.drain(..).zip(results) {
            if let Err(source) = result {
                return Err(Failure::Load { done: self.progress.keys(), key: shown(&key), source });
            }
            self.progress.add(1, key.len() + value.len());
        }
        self.bytes = 0;
        Ok(())
    }
}
