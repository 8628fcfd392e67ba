//! The server stopped in mid-run: what each path completes meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::starve::local_process;
use super::{Data, Found, Host, Options, Timeline};
use crate::compare::load_into;
use crate::driver::{Drive, Plan, run};
use crate::error::BenchError;
use crate::interrupt;
use crate::progress::Progress;
use crate::statistics::median;
use crate::target::{Connection, EachCompletion, EachRead, Effort, Reply, Route, Sidestep, Target, TargetError};
use crate::undo::{Undo, signal};
use crate::workload::Workload;

/// Length of a bin.
const BIN: Duration = Duration::from_millis(50);
/// Bins before the stop, during it, and after it.
const BEFORE: usize = 20;
const STOPPED: usize = 40;
const AFTER: usize = 20;
/// Bins that are not counted to either side: of the stop, and of what was under way at its time.
const EDGE: usize = 1;

/// A store that counts what its connections have completed, where another thread can see it.
struct Counted<'t> {
    inner: &'t dyn Target,
    count: Arc<AtomicU64>,
}

struct CountedConnection {
    inner: Box<dyn Connection>,
    count: Arc<AtomicU64>,
}

impl Target for Counted<'_> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn about(&self) -> String {
        self.inner.about()
    }

    fn route(&self) -> Route {
        self.inner.route()
    }

    fn connect(&self, depth: usize) -> Result<Box<dyn Connection>, TargetError> {
        Ok(Box::new(CountedConnection { inner: self.inner.connect(depth)?, count: self.count.clone() }))
    }

    /// Nobody may be asked: the server does not answer while it stands still.
    fn server_cpu(&self) -> Option<Duration> {
        None
    }

    fn is_memory(&self) -> bool {
        self.inner.is_memory()
    }
}

impl Connection for CountedConnection {
    fn read(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<Option<Reply>, TargetError> {
        let found = self.inner.read(key, value)?;
        self.count.fetch_add(1, Ordering::Relaxed);
        Ok(found)
    }

    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<Reply, TargetError> {
        let written = self.inner.write(key, value)?;
        self.count.fetch_add(1, Ordering::Relaxed);
        Ok(written)
    }

    fn read_batch(&mut self, keys: &[&[u8]], each: EachRead<'_>) -> Result<(), TargetError> {
        self.inner.read_batch(keys, each)?;
        self.count.fetch_add(keys.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn submit_read(&mut self, tag: usize, key: &[u8]) -> Result<(), TargetError> {
        self.inner.submit_read(tag, key)
    }

    fn submit_write(&mut self, tag: usize, key: &[u8], value: &[u8]) -> Result<(), TargetError> {
        self.inner.submit_write(tag, key, value)
    }

    fn complete(&mut self, wait: bool, each: EachCompletion<'_>) -> Result<(), TargetError> {
        let count = &self.count;
        self.inner.complete(wait, &mut |completion| {
            count.fetch_add(1, Ordering::Relaxed);
            each(completion);
        })
    }

    fn effort(&mut self) -> Effort {
        self.inner.effort()
    }
}

pub(super) fn freeze(host: &Host, options: &Options) -> Result<Found, BenchError> {
    let (paths, not_available) = host.paths(options)?;
    let pid = local_process(&paths)?;
    load_into(&paths[0], &options.workload)?;
    let repetitions = options.schedule.repetitions;
    let mut counts: Vec<Vec<Vec<u64>>> = vec![Vec::new(); paths.len()];
    let progress = Progress::runs("measure", (repetitions * paths.len()) as u64);
    let mut partial = false;
    'all: for repetition in 1..=repetitions {
        for (path, counts) in paths.iter().zip(&mut counts) {
            let Some(bins) = one(path, pid, options, repetition)? else {
                partial = true;
                break 'all;
            };
            let stopped: u64 = bins[BEFORE..BEFORE + STOPPED].iter().sum();
            progress.say(format!("{repetition}/{repetitions} {}: {stopped} operations meanwhile", path.name()));
            progress.advance(1);
            counts.push(bins);
        }
    }
    let lines = paths.iter().zip(&counts).filter(|(_, bins)| !bins.is_empty());
    Ok(Found {
        axis: "seconds",
        workloads: vec![options.workload.clone()],
        data: Data::Timelines(lines.map(|(path, bins)| Timeline::of(path.name(), bins)).collect()),
        not_available,
        notes: vec![format!("server (process {pid}) stopped by SIGSTOP for {} s", BIN.as_secs_f64() * STOPPED as f64)],
        partial,
    })
}

/// One run of one path; operations completed in each bin, or none if it was interrupted.
fn one(path: &Sidestep, pid: u32, options: &Options, repetition: usize) -> Result<Option<Vec<u64>>, BenchError> {
    let count = Arc::new(AtomicU64::new(0));
    let target = Counted { inner: path, count: count.clone() };
    let drive = options.drive.unwrap_or(Drive::calls(1));
    let drive = if path.is_memory() { Drive { connections: drive.threads, depth: 1, ..drive } } else { drive };
    let bins = BEFORE + STOPPED + AFTER;
    let plan = Plan {
        // Longer than it will take: it ends when the bins are full.
        measure: BIN * bins as u32,
        warm_up: options.schedule.warm_up + BIN,
        ..options.schedule.plan(drive, None, repetition)
    };
    // Before anything is stopped, what lets it go on.
    let undo = Undo::stop(pid)?;
    let workload: &Workload = &options.workload;
    let over = AtomicBool::new(false);
    let (measured, sampled) = thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let measured = run(&target, workload, &plan);
            over.store(true, Ordering::Relaxed);
            measured
        });
        let sampled = sample(&count, pid, options.schedule.warm_up, &over);
        // Whatever happened to the sampling, the worker needs a server to come to its end.
        drop(undo);
        (worker.join(), sampled)
    });
    let panicked = || BenchError::System { attempted: "run a thread", reason: "it panicked".into() };
    measured.map_err(|_| panicked())??;
    let sampled = sampled?;
    Ok(if interrupt::requested() || sampled.len() < bins { None } else { Some(sampled) })
}

/// Counts bin by bin from the end of the warm-up, and stops the server in the middle.
fn sample(count: &AtomicU64, pid: u32, warm_up: Duration, over: &AtomicBool) -> Result<Vec<u64>, BenchError> {
    let ended = || over.load(Ordering::Relaxed) || interrupt::requested();
    while count.load(Ordering::Relaxed) == 0 && !ended() {
        thread::sleep(Duration::from_millis(1));
    }
    let start = Instant::now() + warm_up;
    sleep_until(start);
    let (mut bins, mut last) = (Vec::new(), count.load(Ordering::Relaxed));
    for bin in 0..BEFORE + STOPPED + AFTER {
        match bin {
            BEFORE => signal(pid, Signal::STOP)?,
            bin if bin == BEFORE + STOPPED => signal(pid, Signal::CONT)?,
            _ => {}
        }
        sleep_until(start + BIN * (bin as u32 + 1));
        // The last bin ends with the run or before it.
        if interrupt::requested() {
            break;
        }
        let now = count.load(Ordering::Relaxed);
        bins.push(now - last);
        last = now;
    }
    Ok(bins)
}

fn sleep_until(time: Instant) {
    thread::sleep(time.saturating_duration_since(Instant::now()));
}

impl Timeline {
    /// From the counts of each repetition.
    pub(super) fn of(path: &str, repetitions: &[Vec<u64>]) -> Self {
        let bins = repetitions.iter().map(Vec::len).min().unwrap_or_default();
        let in_bin = |bin: usize| repetitions.iter().map(|counts| counts[bin] as f64).collect::<Vec<_>>();
        let rate = |counts: &[u64]| counts.iter().sum::<u64>() as f64 / counts.len().max(1) as f64;
        let stopped = BEFORE + EDGE..BEFORE + STOPPED - EDGE;
        Self {
            path: path.to_owned(),
            bin_ms: BIN.as_millis() as u64,
            stopped_s: BIN.as_secs_f64() * BEFORE as f64,
            continued_s: BIN.as_secs_f64() * (BEFORE + STOPPED) as f64,
            completed: (0..bins).filter_map(|bin| median(&in_bin(bin))).collect(),
            share_while_stopped: repetitions
                .iter()
                .map(|counts| rate(&counts[stopped.clone()]) / rate(&counts[..BEFORE]).max(f64::MIN_POSITIVE))
                .collect(),
            completed_while_stopped: repetitions.iter().map(|counts| counts[stopped.clone()].iter().sum()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeline_tells_the_stop() {
        let counts = |while_stopped: u64| -> Vec<u64> {
            (0..BEFORE + STOPPED + AFTER)
                .map(|bin| if (BEFORE..BEFORE + STOPPED).contains(&bin) { while_stopped } else { 100 })
                .collect()
        };
        let line = Timeline::of("tcp", &[counts(0), counts(50), counts(0)]);
        assert_eq!(line.share_while_stopped, [0.0, 0.5, 0.0]);
        assert_eq!(line.completed.len(), BEFORE + STOPPED + AFTER);
        assert_eq!((line.completed[0], line.completed[BEFORE]), (100.0, 0.0));
        assert_eq!((line.stopped_s, line.continued_s), (1.0, 3.0));
    }
}
