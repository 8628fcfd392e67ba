//! Drives a store with a workload and measures: threads, phases, what is counted.

mod arrivals;
mod checks;
mod loader;
mod memory;
mod tally;
mod window;
mod worker;

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

pub use arrivals::Arrivals;
pub use loader::{Loaded, load};
pub use tally::{Tally, Times, new_histogram};

use crate::accounting::{machine_cpu, own_cpu, process_cpu};
use crate::error::BenchError;
use crate::interrupt;
use crate::target::Target;
use crate::workload::{Requests, Workload};
use worker::Worker;

/// Most keys of a batch.
pub const MAX_BATCH: usize = 256;
/// Most requests in flight on a connection.
pub const MAX_DEPTH: usize = 256;
/// Most threads.
pub const MAX_THREADS: usize = 1024;
/// Most bytes of values in flight on a connection: a peer that is blocked sending to us does not read from us.
const MAX_WINDOW_BYTES: usize = 1 << 20;
/// How often a running measurement is looked at.
const TICK: Duration = Duration::from_millis(10);
/// How a store is driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drive {
    /// Threads.
    pub threads: usize,
    /// Connections over all threads; each thread drives its own in turn.
    pub connections: usize,
    /// Requests in flight on each: so many are sent in one write and all are awaited before the next.
    pub depth: usize,
    /// Keys of a multi-get; 1 = single gets.
    pub batch: usize,
}

impl Drive {
    /// One call at a time on each of `threads`.
    #[must_use]
    pub fn calls(threads: usize) -> Self {
        Self { threads, connections: threads, depth: 1, batch: 1 }
    }

    /// The same with what the workload's values leave possible.
    #[must_use]
    pub fn fitted(self, value_bytes: usize) -> Self {
        let fits = (MAX_WINDOW_BYTES / value_bytes.max(1)).max(1);
        Self { depth: self.depth.min(fits), batch: self.batch.min(fits), ..self }
    }

    /// What makes it differ from one thread that calls: empty for that one.
    #[must_use]
    pub fn label(self) -> String {
        let plural = |count: usize, name: &str| format!("{count} {name}{}", if count == 1 { "" } else { "s" });
        let mut parts = Vec::new();
        if self.depth > 1 {
            parts.push(format!("{} × {}", plural(self.connections, "connection"), self.depth));
        } else if self.connections > 1 {
            let unit = if self.connections == self.threads { "thread" } else { "connection" };
            parts.push(plural(self.connections, unit));
        }
        if self.batch > 1 {
            parts.push(format!("batches of {}", self.batch));
        }
        parts.join(", ")
    }

    fn check(self) -> Result<(), BenchError> {
        let usage = |text: String| Err(BenchError::Usage(text));
        if self.threads > MAX_THREADS {
            return usage(format!("at most {MAX_THREADS} threads"));
        }
        if self.threads == 0 || self.connections < self.threads {
            return usage(format!("{} threads need at least as many connections", self.threads));
        }
        if !(1..=MAX_DEPTH).contains(&self.depth) || !(1..=MAX_BATCH).contains(&self.batch) {
            return usage(format!("depth is 1 to {MAX_DEPTH}, batch 1 to {MAX_BATCH}"));
        }
        if self.batch > 1 && (self.depth > 1 || self.connections > self.threads) {
            return usage("batches are calls: they need depth 1 and one connection a thread".into());
        }
        Ok(())
    }

    fn pipelines(self) -> bool {
        self.depth > 1 || self.connections > self.threads
    }
}

/// How long, how fast, with which seed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// How the store is driven.
    pub drive: Drive,
    /// Not measured, at first.
    pub warm_up: Duration,
    /// Measured.
    pub measure: Duration,
    /// End after so many operations instead, if that comes first.
    pub operations: Option<u64>,
    /// Open loop: operations per second over all threads.
    pub rate: Option<f64>,
    /// How those of an open loop lie in time.
    pub arrivals: Arrivals,
    /// Of the requests.
    pub seed: u64,
    /// A process of this host that uses CPU on purpose: not counted among the others.
    pub companion: Option<u32>,
}

/// One measured run.
#[derive(Debug)]
pub struct Run {
    /// What the threads counted.
    pub tally: Tally,
    /// How long it was measured.
    pub elapsed: Duration,
    /// CPU time of this process in that time.
    pub client_cpu: Duration,
    /// CPU time of the server's process, if it has one and it can be known.
    pub server_cpu: Option<Duration>,
    /// CPU time of everyone else on this machine, in cores. An unknown server counts as everyone else.
    pub other_cores: f64,
    /// CPU time that the hypervisor took, in cores.
    pub steal_cores: f64,
}

/// Which part of the run it is; threads look at it before every operation.
#[derive(Debug, Default)]
struct Phase(AtomicU8);

impl Phase {
    const MEASURED: u8 = 1;
    const OVER: u8 = 2;

    fn get(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }

    /// Never goes back.
    fn advance_to(&self, phase: u8) {
        self.0.fetch_max(phase, Ordering::Relaxed);
    }
}

/// The part of a run that this process does, where several do one together.
pub struct Part<'p> {
    /// Threads of the parts before this one.
    pub first_thread: usize,
    /// Threads of all parts.
    pub threads: usize,
    /// Called once every connection is open; returns when all parts shall begin.
    pub begin: &'p mut dyn FnMut() -> Result<(), BenchError>,
    /// Ends the run early.
    pub cancelled: &'p AtomicBool,
}

/// Runs `workload`, which is loaded, on `target`.
///
/// # Errors
/// The first operation that fails or returns anything but what was written.
pub fn run(target: &dyn Target, workload: &Workload, plan: &Plan) -> Result<Run, BenchError> {
    let threads = plan.drive.threads;
    let whole = Part { first_thread: 0, threads, begin: &mut || Ok(()), cancelled: &AtomicBool::new(false) };
    run_part(target, workload, plan, whole)
}

/// Runs a part of a run; `plan` is that of the part.
///
/// # Errors
/// As [`run`], and what `begin` says.
pub fn run_part(target: &dyn Target, workload: &Workload, plan: &Plan, part: Part<'_>) -> Result<Run, BenchError> {
    let plan = &Plan { drive: plan.drive.fitted(workload.value_bytes), ..*plan };
    plan.drive.check()?;
    if plan.rate.is_some() && (plan.drive.pipelines() || plan.drive.batch > 1) {
        return Err(BenchError::Usage("an open loop (--rate) needs depth 1, batch 1 and a thread a connection".into()));
    }
    let phase = Phase::default();
    let (ready, go) = (Barrier::new(plan.drive.threads + 1), Barrier::new(plan.drive.threads + 1));
    let at_work = AtomicUsize::new(plan.drive.threads);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..plan.drive.threads)
            .map(|thread| {
                let (phase, ready, go, at_work) = (&phase, &ready, &go, &at_work);
                let place = (part.first_thread + thread, part.threads);
                scope.spawn(move || {
                    let prepared = prepare(target, workload, plan, thread, place, phase);
                    ready.wait();
                    go.wait();
                    let ended = prepared.and_then(Worker::drive);
                    // The first thread that fails ends it for all; else the last that has done its share.
                    if at_work.fetch_sub(1, Ordering::Relaxed) == 1 || ended.is_err() {
                        phase.advance_to(Phase::OVER);
                    }
                    ended
                })
            })
            .collect();
        ready.wait();
        let mut failed = (part.begin)().err();
        if failed.is_some() {
            phase.advance_to(Phase::OVER);
        }
        go.wait();
        let mut measured = Measured::over(target, plan, &phase, part.cancelled);
        for thread in threads {
            match thread.join() {
                Ok(Ok(tally)) => measured.tally.merge(&tally),
                Ok(Err(error)) => failed = failed.or(Some(error)),
                Err(_) => {
                    let reason = "it panicked".to_owned();
                    failed = failed.or(Some(BenchError::System { attempted: "run a thread", reason }));
                }
            }
        }
        failed.map_or(Ok(measured), Err)
    })
}

fn prepare<'r>(
    target: &dyn Target,
    workload: &'r Workload,
    plan: &'r Plan,
    thread: usize,
    (place, of): (usize, usize),
    phase: &'r Phase,
) -> Result<Worker<'r>, BenchError> {
    let Drive { threads, connections, depth, batch } = plan.drive;
    let own = connections / threads + usize::from(thread < connections % threads);
    let connections = (0..own)
        .map(|_| target.connect(depth))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| BenchError::Unavailable { store: target.name().to_owned(), reason: error.0 })?;
    // Windows of all connections go round in turn, so that one is answered before the next but one is submitted.
    let in_flight = if plan.drive.pipelines() { 2 * own * depth } else { batch };
    let requests = Requests::new(workload, plan.seed, place, of, in_flight);
    let in_memory = target.is_memory() && plan.rate.is_none();
    Ok(Worker::new(target, workload, plan, (place, of), requests, connections, in_memory, phase))
}

struct Measured;

impl Measured {
    /// Waits while the threads work, and takes the clocks at both ends of the measured part.
    fn over(target: &dyn Target, plan: &Plan, phase: &Phase, cancelled: &AtomicBool) -> Run {
        wait(plan.warm_up, phase, cancelled);
        let companion_cpu = || plan.companion.and_then(|pid| process_cpu(pid).ok()).unwrap_or_default();
        let (machine, server, companion) = (machine_cpu(), target.server_cpu(), companion_cpu());
        let (start, own) = (Instant::now(), own_cpu());
        phase.advance_to(Phase::MEASURED);
        wait(plan.measure, phase, cancelled);
        phase.advance_to(Phase::OVER);
        let (elapsed, client_cpu) = (start.elapsed(), own_cpu() - own);
        let server_cpu = target.server_cpu().zip(server).map(|(after, before)| after.saturating_sub(before));
        let after = machine_cpu();
        let seconds = elapsed.as_secs_f64().max(1e-9);
        // A server on another machine uses no CPU of this one.
        let here = server_cpu.filter(|_| target.is_on_this_host()).unwrap_or_default();
        let known = client_cpu + here + companion_cpu().saturating_sub(companion);
        Run {
            tally: Tally::default(),
            elapsed,
            client_cpu,
            server_cpu,
            other_cores: after.busy.saturating_sub(machine.busy).saturating_sub(known).as_secs_f64() / seconds,
            steal_cores: after.steal.saturating_sub(machine.steal).as_secs_f64() / seconds,
        }
    }
}

fn wait(time: Duration, phase: &Phase, cancelled: &AtomicBool) {
    let end = Instant::now() + time;
    while phase.get() != Phase::OVER {
        if interrupt::requested() || cancelled.load(Ordering::Relaxed) {
            phase.advance_to(Phase::OVER);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        thread::sleep(left.min(TICK));
    }
}

#[cfg(test)]
#[path = "driver_tests.rs"]
mod tests;
