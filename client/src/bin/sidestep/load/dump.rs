//! A file that `sidestep dump` wrote.

use std::io::{BufRead, Seek};
use std::time::Instant;

use sidestep_client::{Record, Session};

use crate::dump::file::{DumpError, Reader};
use crate::dump::now_ms;
use crate::failure::Failure;
use crate::load::progress::Progress;
use crate::load::{BATCH_BYTES, BATCH_PAIRS};
use crate::operand::shown;
use crate::server::ServerArgs;

/// Reads all of a dump, and goes back to its beginning: what is damaged is to be known before anything is written.
pub(super) fn check(mut input: impl BufRead + Seek) -> Result<(), Failure> {
    let mut whole = || -> Result<(), DumpError> {
        let mut reader = Reader::new(&mut input)?;
        while reader.next()?.is_some() {}
        Ok(())
    };
    whole().map_err(|error| Failure::Usage(format!("{error}: nothing was loaded")))?;
    input.rewind().map_err(Failure::io("read the dump again"))
}

/// Writes what a dump holds. Keys that have expired by now are left out.
pub(super) fn load(server: &ServerArgs, input: impl BufRead, progress: &Progress) -> Result<(), Failure> {
    let mut session = server.session()?;
    progress.start();
    let started = Instant::now();
    let mut expired = 0;
    let outcome = write_all(&mut session, input, progress, &mut expired);
    if let Err(Stopped::Dump(error)) = outcome {
        return Err(Failure::Usage(format!("{error}: {} keys were loaded before", progress.keys())));
    }
    if let Err(Stopped::Server(failure)) = outcome {
        return Err(failure);
    }
    progress.finish(started.elapsed());
    if expired > 0 {
        eprintln!("{expired} keys had expired and were left out");
    }
    Ok(())
}

enum Stopped {
    Dump(DumpError),
    Server(Failure),
}

fn write_all(
    session: &mut Session,
    input: impl BufRead,
    progress: &Progress,
    expired: &mut u64,
) -> Result<(), Stopped> {
    let mut reader = Reader::new(input).map_err(Stopped::Dump)?;
    while let Some(records) = reader.next().map_err(Stopped::Dump)? {
        let now = now_ms();
        let before = records.len();
        let live: Vec<Record<'_>> = records.into_iter().filter(|r| r.expires_ms == 0 || r.expires_ms > now).collect();
        *expired += (before - live.len()) as u64;
        let mut rest = &live[..];
        while !rest.is_empty() {
            let batch;
            (batch, rest) = rest.split_at(batch_records(rest));
            write(session, batch, progress).map_err(Stopped::Server)?;
        }
    }
    Ok(())
}

/// How many of these records to write at once; at least one.
fn batch_records(records: &[Record<'_>]) -> usize {
    let mut bytes = 0;
    let fit = |record: &&Record<'_>| {
        bytes += record.key.len() + record.value.len();
        bytes < BATCH_BYTES
    };
    records.iter().take(BATCH_PAIRS).take_while(fit).count().max(1)
}

fn write(session: &mut Session, batch: &[Record<'_>], progress: &Progress) -> Result<(), Failure> {
    let entries: Vec<_> = batch.iter().map(|r| (r.key, r.value, r.expires_ms)).collect();
    let failed = |key: &[u8], source| Failure::Load { done: progress.keys(), key: shown(key), source };
    let results = session.multi_put_until(&entries).map_err(|error| failed(entries[0].0, error))?;
    for ((key, value, _), result) in entries.into_iter().zip(results) {
        result.map_err(|error| failed(key, error))?;
        progress.add(1, key.len() + value.len());
    }
    Ok(())
}
