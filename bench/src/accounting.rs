//! CPU time of processes and of the machine, from `/proc`.

use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::error::BenchError;

/// User and system time of this process, all threads, to the nanosecond.
#[must_use]
pub fn own_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

/// User and system time of process `pid`, all threads, to a clock tick (10 ms as a rule).
///
/// # Errors
/// No such process on this host.
pub fn process_cpu(pid: u32) -> Result<Duration, BenchError> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).map_err(|source| BenchError::File { path: path.clone(), source })?;
    let ticks = parse_process(&text).ok_or_else(|| BenchError::System {
        attempted: "read a process's CPU time",
        reason: format!("{path}: {text}"),
    })?;
    Ok(ticks_to_time(ticks))
}

/// Clock ticks of user and system time in the text of `/proc/PID/stat`.
fn parse_process(text: &str) -> Option<u64> {
    // The name is in parentheses and may hold anything, parentheses too.
    let after_name = text.rsplit_once(')')?.1;
    let mut fields = after_name.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

fn ticks_to_time(ticks: u64) -> Duration {
    Duration::from_nanos(ticks * (1_000_000_000 / rustix::param::clock_ticks_per_second().max(1)))
}

/// What all of the machine's CPUs did since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineCpu {
    /// Busy for anyone, interrupts included.
    pub busy: Duration,
    /// Taken by the hypervisor for someone else.
    pub steal: Duration,
}

/// The machine's CPU time so far; zero where `/proc/stat` is not to be had.
#[must_use]
pub fn machine_cpu() -> MachineCpu {
    fs::read_to_string("/proc/stat").ok().and_then(|text| parse_machine(&text)).unwrap_or_default()
}

fn parse_machine(text: &str) -> Option<MachineCpu> {
    let fields: Vec<u64> = text
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_ascii_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()
        .ok()?;
    // user nice system idle iowait irq softirq steal; guest times are in user and nice already.
    let &[user, nice, system, _idle, _wait, interrupt, soft, steal, ..] = fields.as_slice() else {
        return None;
    };
    Some(MachineCpu { busy: ticks_to_time(user + nice + system + interrupt + soft), steal: ticks_to_time(steal) })
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::Instant;

    use super::*;

    #[test]
    fn names_with_parentheses_do_not_confuse() {
        let text = "42 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 17 4 0 0 20 0 1 0 100 1000 10";
        assert_eq!(parse_process(text), Some(21));
        assert_eq!(parse_process("42 (cut"), None);
    }

    #[test]
    fn the_machines_line_is_read() {
        let cpu = parse_machine("cpu  100 0 50 900 5 1 2 7 0 0\ncpu0 …").expect("parsed");
        assert_eq!((cpu.busy, cpu.steal), (ticks_to_time(153), ticks_to_time(7)));
    }

    /// A peer that burns CPU is reported: `/proc` agrees with what the process says of itself when it ends.
    #[test]
    fn a_burning_process_is_seen() {
        let mut child = Command::new("sh")
            .args(["-c", "i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done; times; cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let mut said = std::io::BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        std::io::BufRead::read_line(&mut said, &mut line).expect("its own count");
        let counted = process_cpu(child.id()).expect("it is still there");
        drop(child.stdin.take());
        let _ = child.wait();
        let own: f64 = line.split_whitespace().filter_map(seconds).sum();
        let difference = (counted.as_secs_f64() - own).abs();
        // Two counters of 10 ms each, and 5 %.
        assert!(difference <= 0.05 * own + 0.04, "/proc says {counted:?}, the shell {own} s");
    }

    /// `0m1.234s`
    fn seconds(text: &str) -> Option<f64> {
        let (minutes, seconds) = text.strip_suffix('s')?.split_once('m')?;
        Some(minutes.parse::<f64>().ok()? * 60.0 + seconds.parse::<f64>().ok()?)
    }

    #[test]
    fn own_time_grows_with_work() {
        let (start, before) = (Instant::now(), own_cpu());
        while own_cpu() - before < Duration::from_millis(20) {
            assert!(start.elapsed() < Duration::from_secs(20), "20 ms of CPU never passed");
        }
    }
}
