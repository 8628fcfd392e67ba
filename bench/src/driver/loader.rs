//! The load phase: every record once, pipelined.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::BenchError;
use crate::interrupt;
use crate::target::{Connection, Target};
use crate::workload::{Stamp, Workload, fill};

/// Bytes of values that are in flight at most.
const WINDOW_BYTES: usize = 512 << 10;
/// Writes that are in flight at most.
const WINDOW: usize = 128;

/// What a load took.
#[derive(Clone, Copy, Debug)]
pub struct Loaded {
    /// Records written.
    pub records: u64,
    /// How long it took.
    pub elapsed: Duration,
}

/// Writes records `range` of `workload` over `threads` connections, telling `progress` how many were written.
///
/// # Errors
/// The first write that fails.
pub fn load(
    target: &dyn Target,
    workload: &Workload,
    range: std::ops::Range<u64>,
    threads: usize,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Loaded, BenchError> {
    let (start, next) = (Instant::now(), AtomicU64::new(range.start));
    let records = range.end.saturating_sub(range.start);
    let window = (WINDOW_BYTES / workload.value_bytes.max(1)).clamp(1, WINDOW);
    thread::scope(|scope| {
        let part = || load_windows(target, workload, &next, range.end, window, progress);
        let threads: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(part)).collect();
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err(BenchError::System { attempted: "load", reason: "a thread panicked".into() }))
        })
    })?;
    Ok(Loaded { records, elapsed: start.elapsed() })
}

fn load_windows(
    target: &dyn Target,
    workload: &Workload,
    next: &AtomicU64,
    end: u64,
    window: usize,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<(), BenchError> {
    let mut connection = target
        .connect(window)
        .map_err(|error| BenchError::Unavailable { store: target.name().to_owned(), reason: error.0 })?;
    let mut value = vec![0; workload.value_bytes];
    loop {
        let first = next.fetch_add(window as u64, Ordering::Relaxed);
        let last = end.min(first.saturating_add(window as u64));
        if first >= last {
            return Ok(());
        }
        if interrupt::requested() {
            return Err(BenchError::Interrupted);
        }
        load_window(connection.as_mut(), target.name(), workload, first..last, &mut value)?;
        progress(last - first);
    }
}

fn load_window(
    connection: &mut dyn Connection,
    store: &str,
    workload: &Workload,
    records: std::ops::Range<u64>,
    value: &mut [u8],
) -> Result<(), BenchError> {
    let failed =
        |record, reason: String| BenchError::Operation { store: store.to_owned(), operation: "insert", record, reason };
    let mut key = Vec::with_capacity(workload.key_shape().max_bytes());
    let first = records.start;
    let mut outstanding = records.end - first;
    for record in records {
        key.clear();
        let _ = workload.key_shape().render(record, &mut key);
        fill(record, Stamp::LOADED, value);
        connection.submit_write((record - first) as usize, &key, value).map_err(|error| failed(record, error.0))?;
    }
    while outstanding > 0 {
        let mut refused = None;
        connection
            .complete(true, &mut |completion| {
                outstanding = outstanding.saturating_sub(1);
                if let Err(error) = completion.outcome {
                    refused = Some((first + completion.tag as u64, error.0));
                }
            })
            .map_err(|error| failed(first, error.0))?;
        if let Some((record, reason)) = refused {
            return Err(failed(record, reason));
        }
    }
    Ok(())
}
