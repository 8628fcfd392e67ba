//! Paths in turn, again and again, so that whatever else happens on the machine hits all of them alike.

use std::time::Duration;

use crate::agents::Clients;
use crate::driver::{Arrivals, Drive, Plan, Run};
use crate::error::BenchError;
use crate::interrupt;
use crate::progress::Progress;
use crate::report::{Gathering, Measurement, Row};
use crate::target::Target;
use crate::undo::Undo;
use crate::workload::Workload;

/// A run in which others used more than this many cores is dropped and repeated.
const OTHER_CORES: f64 = 0.1;
/// What the clock ticks of three counters may add up to by themselves.
const TICKS_S: f64 = 0.05;

/// A path in one way of driving it, and what it did so far.
pub struct Contender<'t> {
    target: &'t dyn Target,
    workload: &'t Workload,
    drive: Drive,
    rate: Option<f64>,
    /// What sets it apart from others of the same path, for the progress.
    label: String,
    /// Starts what uses the machine on purpose during each of its runs.
    beside: Option<&'t dyn Fn() -> Result<Undo, BenchError>>,
    gathering: Gathering,
    dropped: usize,
}

impl<'t> Contender<'t> {
    /// Of a store that is loaded with `workload`.
    #[must_use]
    pub fn new(target: &'t dyn Target, workload: &'t Workload, drive: Drive, rate: Option<f64>) -> Self {
        let drive = drive.fitted(workload.value_bytes);
        let (label, gathering) = (String::new(), Gathering::default());
        Self { target, workload, drive, rate, label, beside: None, gathering, dropped: 0 }
    }

    /// The same under a label.
    #[must_use]
    pub fn labelled(self, label: impl Into<String>) -> Self {
        Self { label: label.into(), ..self }
    }

    /// The same beside a process that `start` starts for each of its runs.
    #[must_use]
    pub fn beside(self, start: &'t dyn Fn() -> Result<Undo, BenchError>) -> Self {
        Self { beside: Some(start), ..self }
    }

    /// What came of it.
    #[must_use]
    pub fn row(self) -> Row {
        Row {
            path: self.target.name().to_owned(),
            drive: Some(self.drive),
            measured: self.measured(),
            not_available: None,
        }
    }

    fn measured(self) -> Option<Measurement> {
        self.gathering.measurement(self.dropped)
    }

    fn name(&self) -> String {
        let row = crate::report::row_name(self.target.name(), Some(self.drive));
        if self.label.is_empty() { row } else { format!("{row}, {}", self.label) }
    }
}

/// How long and how often.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    /// Warm-up before each repetition.
    pub warm_up: Duration,
    /// Measured part.
    pub measure: Duration,
    /// Repetitions.
    pub repetitions: usize,
    /// Disturbed runs that are dropped and repeated, over all contenders; none = the repetitions of each again.
    pub repeats: Option<usize>,
    /// Of the requests.
    pub seed: u64,
    /// Of open loops.
    pub arrivals: Arrivals,
}

impl Schedule {
    /// The run of a repetition.
    #[must_use]
    pub fn plan(&self, drive: Drive, rate: Option<f64>, repetition: usize) -> Plan {
        Plan {
            drive,
            warm_up: self.warm_up,
            measure: self.measure,
            operations: None,
            rate,
            arrivals: self.arrivals,
            // Another stream each time, the same for every contender.
            seed: self.seed.wrapping_add(repetition as u64),
            companion: None,
        }
    }

    /// Whether others used so much of the machine that the run says little.
    #[must_use]
    pub fn disturbed(&self, run: &Run) -> bool {
        let limit = OTHER_CORES + TICKS_S / self.measure.as_secs_f64().max(0.01);
        run.other_cores > limit || run.steal_cores > limit
    }
}

/// Has `clients` run the contenders in turn, again and again. Returns whether it was interrupted.
///
/// # Errors
/// A run that fails, or a store that returns anything but what was written.
pub fn interleaved(
    contenders: &mut [Contender<'_>],
    clients: &mut Clients,
    schedule: &Schedule,
) -> Result<bool, BenchError> {
    let mut repeats = schedule.repeats.unwrap_or(schedule.repetitions * contenders.len());
    let progress = Progress::runs("measure", (schedule.repetitions * contenders.len()) as u64);
    for repetition in 1..=schedule.repetitions {
        for contender in contenders.iter_mut() {
            let companion = contender.beside.map(|start| start()).transpose()?;
            let plan = Plan {
                companion: companion.as_ref().map(Undo::pid),
                ..schedule.plan(contender.drive, contender.rate, repetition)
            };
            loop {
                let measured = clients.run(contender.target, contender.workload, &plan)?;
                if interrupt::requested() {
                    return Ok(true);
                }
                let disturbed = schedule.disturbed(&measured);
                progress.say(line(contender, repetition, schedule, &measured, disturbed));
                progress.advance(1);
                if !disturbed || repeats == 0 || contender.dropped >= schedule.repetitions {
                    contender.gathering.add(&measured, disturbed);
                    break;
                }
                repeats -= 1;
                contender.dropped += 1;
                progress.lengthen();
            }
        }
    }
    Ok(false)
}

fn line(contender: &Contender<'_>, repetition: usize, schedule: &Schedule, run: &Run, disturbed: bool) -> String {
    let note = if disturbed {
        format!(", disturbed: others used {:.2} cores, {:.2} were stolen", run.other_cores, run.steal_cores)
    } else {
        String::new()
    };
    format!("{repetition}/{} {}: {:.0} ops/s{note}", schedule.repetitions, contender.name(), run.tally.rate)
}
