//! What is done to another process is undone whatever happens: by a process of our own that waits for the end of its
//! standard input, which comes when we let go of it, and also when we are killed.

use std::fmt::Write as _;
use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::error::BenchError;

/// The hidden command of this program that such a process runs.
pub const COMMAND: &str = "helper";

/// A process that undoes something when this is dropped, or this process ends.
#[derive(Debug)]
pub struct Undo {
    child: Child,
}

impl Undo {
    /// Lets process `pid` go on if it is stopped.
    ///
    /// # Errors
    /// The helper cannot be started.
    pub fn stop(pid: u32) -> Result<Self, BenchError> {
        Self::arm(&["continue".into(), pid.to_string()])
    }

    /// Ends process `pid`.
    ///
    /// # Errors
    /// The helper cannot be started.
    pub fn start(pid: u32) -> Result<Self, BenchError> {
        Self::arm(&["end".into(), pid.to_string()])
    }

    /// Keeps `processor` busy meanwhile.
    ///
    /// # Errors
    /// The helper cannot be started.
    pub fn busy_neighbour(processor: usize) -> Result<Self, BenchError> {
        Self::arm(&["burn".into(), processor.to_string()])
    }

    /// The helper's process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn arm(arguments: &[String]) -> Result<Self, BenchError> {
        let child = Command::new("/proc/self/exe")
            .arg(COMMAND)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // Ctrl-C is for us alone.
            .process_group(0)
            .spawn()
            .map_err(|error| system("start a helper process", &error))?;
        Ok(Self { child })
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

fn system(attempted: &'static str, reason: &dyn std::fmt::Display) -> BenchError {
    BenchError::System { attempted, reason: reason.to_string() }
}

/// What the helper process does.
///
/// # Errors
/// Arguments that nobody but this module gives.
pub fn help(arguments: &[String]) -> Result<(), BenchError> {
    let usage = || BenchError::Usage(format!("{COMMAND} is for the bench itself; found {arguments:?}"));
    let (action, rest) = arguments.split_first().ok_or_else(usage)?;
    if let ("burn", [processor]) = (action.as_str(), rest) {
        stay_on(&[processor.parse().map_err(|_| usage())?])?;
        std::thread::spawn(|| {
            loop {
                std::hint::spin_loop();
            }
        });
    }
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    match (action.as_str(), rest) {
        ("burn", [_]) => Ok(()),
        ("continue", [pid]) => signal(pid.parse().map_err(|_| usage())?, Signal::CONT),
        ("end", [pid]) => signal(pid.parse().map_err(|_| usage())?, Signal::TERM),
        ("spread", [pid, threads @ ..]) => {
            let masks: Option<Vec<Mask>> = threads.iter().map(|text| Mask::parse(text)).collect();
            restore(pid.parse().map_err(|_| usage())?, &masks.ok_or_else(usage)?);
            Ok(())
        }
        _ => Err(usage()),
    }
}

/// Sends a signal.
///
/// # Errors
/// No such process, or it is not ours.
pub fn signal(pid: u32, signal: Signal) -> Result<(), BenchError> {
    let pid = Pid::from_raw(pid.cast_signed()).ok_or_else(|| system("send a signal", &"process 0"))?;
    kill_process(pid, signal).map_err(|error| system("send a signal", &error))
}

/// Processors that a thread may run on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mask {
    thread: i32,
    processors: Vec<usize>,
}

impl Mask {
    fn of(thread: i32) -> Option<Self> {
        let set = sched_getaffinity(Pid::from_raw(thread)).ok()?;
        Some(Self { thread, processors: (0..CpuSet::MAX_CPU).filter(|&processor| set.is_set(processor)).collect() })
    }

    fn apply_to(&self, thread: i32) -> rustix::io::Result<()> {
        let mut set = CpuSet::new();
        self.processors.iter().for_each(|&processor| set.set(processor));
        sched_setaffinity(Pid::from_raw(thread), &set)
    }

    fn text(&self) -> String {
        let mut text = format!("{}=", self.thread);
        for (index, processor) in self.processors.iter().enumerate() {
            let _ = write!(text, "{}{processor}", if index > 0 { "," } else { "" });
        }
        text
    }

    fn parse(text: &str) -> Option<Self> {
        let (thread, processors) = text.split_once('=')?;
        let processors = processors.split(',').map(str::parse).collect::<Result<_, _>>().ok()?;
        Some(Self { thread: thread.parse().ok()?, processors })
    }
}

fn threads_of(pid: u32) -> Vec<i32> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Threads that have come since get what the first thread had.
fn restore(pid: u32, masks: &[Mask]) {
    for thread in threads_of(pid) {
        let own = masks.iter().find(|mask| mask.thread == thread);
        if let Some(mask) = own.or_else(|| masks.iter().find(|mask| mask.thread == pid.cast_signed())) {
            // A thread that has ended needs nothing.
            let _ = mask.apply_to(thread);
        }
    }
}

/// Processors that this thread may run on.
#[must_use]
pub fn own_processors() -> Vec<usize> {
    Mask::of(0).map_or_else(Vec::new, |mask| mask.processors)
}

/// Keeps this thread, and threads that it starts from now on, on `processors`.
///
/// # Errors
/// The system does not allow it.
pub fn stay_on(processors: &[usize]) -> Result<(), BenchError> {
    let mask = Mask { thread: 0, processors: processors.to_vec() };
    mask.apply_to(0).map_err(|error| system("choose processors", &error))
}

/// Keeps every thread of process `pid` on one processor for as long as what is returned lives.
///
/// # Errors
/// The process is not ours, or the helper that undoes it cannot be started.
pub fn pin(pid: u32, processor: usize) -> Result<Undo, BenchError> {
    let masks: Vec<Mask> = threads_of(pid).into_iter().filter_map(Mask::of).collect();
    if masks.is_empty() {
        return Err(system("find the server's threads", &format!("no process {pid} on this host")));
    }
    let mut arguments = vec!["spread".to_owned(), pid.to_string()];
    arguments.extend(masks.iter().map(Mask::text));
    let undo = Undo::arm(&arguments)?;
    for mask in masks {
        let pinned = Mask { thread: mask.thread, processors: vec![processor] };
        pinned.apply_to(mask.thread).map_err(|error| system("pin the server", &error))?;
    }
    Ok(undo)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_survive_as_text() {
        let mask = Mask { thread: 42, processors: vec![0, 3, 17] };
        assert_eq!(Mask::parse(&mask.text()), Some(mask));
        assert_eq!(Mask::parse("42"), None);
        assert_eq!(Mask::parse("42=x"), None);
    }

    #[test]
    fn threads_are_pinned_and_restored() {
        std::thread::spawn(|| {
            let thread = rustix::thread::gettid().as_raw_nonzero().get();
            let before = Mask::of(thread).expect("this thread");
            let last = *before.processors.last().expect("one at least");
            Mask { thread, processors: vec![last] }.apply_to(thread).expect("allowed");
            assert_eq!(own_processors(), [last]);
            restore(std::process::id(), std::slice::from_ref(&before));
            assert_eq!(own_processors(), before.processors);
        })
        .join()
        .expect("done");
    }
}
