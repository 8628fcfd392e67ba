//! Who drives a run: this process, or agents on other machines.

use std::net::{TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{Done, Job, Lines, Order, PROTOCOL, Word};
use crate::driver::{Plan, Run, Tally, run};
use crate::error::BenchError;
use crate::interrupt;
use crate::target::{RemoteStore, Target};
use crate::workload::Workload;

/// Longest wait for an agent to accept.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for an agent's word beyond the time that its part takes: it opens up to thousands of connections.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often Ctrl-C is looked for.
const TICK: Duration = Duration::from_millis(10);
/// Writers are told apart by a number of 16 bits.
const MAX_THREADS: usize = 1 << 15;

/// Who drives.
#[derive(Debug, Default)]
pub struct Clients {
    agents: Vec<Agent>,
}

#[derive(Debug)]
struct Agent {
    address: String,
    lines: Lines,
}

impl Agent {
    fn connect(address: &str) -> Result<Self, BenchError> {
        let failed = |reason: String| BenchError::Unavailable { store: format!("agent {address}"), reason };
        let all = address.to_socket_addrs().map_err(|error| failed(error.to_string()))?;
        let mut last = failed("the name has no address".into());
        for one in all {
            match TcpStream::connect_timeout(&one, CONNECT_TIMEOUT).and_then(Lines::new) {
                Ok(lines) => return Ok(Self { address: address.to_owned(), lines }),
                Err(error) => last = failed(format!("{error} (start `sidestep-bench agent --listen {address}` there)")),
            }
        }
        Err(last)
    }

    fn failed(&self, reason: impl ToString) -> BenchError {
        BenchError::Agent { agent: self.address.clone(), code: 4, reason: reason.to_string() }
    }

    fn tell(&self, order: &Order) -> Result<(), BenchError> {
        self.lines.send(order).map_err(|error| self.failed(error))
    }

    /// The agent's next word within `limit`.
    fn hear(&mut self, limit: Duration) -> Result<Word, BenchError> {
        let heard = self.lines.stream().set_read_timeout(Some(limit)).and_then(|()| self.lines.receive::<Word>());
        match heard {
            Ok(Some(Word::Failed { code, reason })) => {
                Err(BenchError::Agent { agent: self.address.clone(), code, reason })
            }
            Ok(Some(word)) => Ok(word),
            Ok(None) => Err(self.failed("it has ended")),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                Err(self.failed(format!("no word within {} s", limit.as_secs())))
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    fn is_ready(&mut self) -> Result<(), BenchError> {
        match self.hear(PATIENCE)? {
            Word::Ready => Ok(()),
            other => Err(self.failed(format!("expected it to be ready, found {other:?}"))),
        }
    }

    fn is_done(&mut self, limit: Duration) -> Result<Done, BenchError> {
        match self.hear(limit)? {
            Word::Done(done) => Ok(*done),
            other => Err(self.failed(format!("expected a result, found {other:?}"))),
        }
    }
}

impl Clients {
    /// These agents; this process where there are none.
    ///
    /// # Errors
    /// One cannot be reached.
    pub fn connect(agents: &[String]) -> Result<Self, BenchError> {
        let agents = agents.iter().map(|address| Agent::connect(address)).collect::<Result<_, _>>()?;
        Ok(Self { agents })
    }

    /// Whether this process drives.
    #[must_use]
    pub fn are_here(&self) -> bool {
        self.agents.is_empty()
    }

    /// Their addresses.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        self.agents.iter().map(|agent| agent.address.clone()).collect()
    }

    /// Runs `workload`, which is loaded, on `target`. Of several agents each drives as `plan` says, at its share of rate
    /// and operations. CPU time of the clients is the sum of theirs; what others used is the most that any machine saw.
    ///
    /// # Errors
    /// As [`crate::driver::run`], and what an agent says; the others are then stopped.
    pub fn run(&mut self, target: &dyn Target, workload: &Workload, plan: &Plan) -> Result<Run, BenchError> {
        if self.are_here() {
            return run(target, workload, plan);
        }
        let store = target.remote().ok_or_else(|| {
            BenchError::Usage(format!("{} is in this process: agents (--clients) cannot drive it", target.name()))
        })?;
        let result = self.run_parts(target, &store, workload, plan);
        if result.is_err() {
            for agent in &mut self.agents {
                // Whatever it still does is of no use. A new connection leaves its words behind.
                let _ = agent.tell(&Order::Stop);
                if let Ok(fresh) = Agent::connect(&agent.address) {
                    *agent = fresh;
                }
            }
        }
        result
    }

    fn run_parts(
        &mut self,
        target: &dyn Target,
        store: &RemoteStore,
        workload: &Workload,
        plan: &Plan,
    ) -> Result<Run, BenchError> {
        let (parts, each) = (self.agents.len(), plan.drive.threads);
        let threads = parts * each;
        if threads > MAX_THREADS {
            return Err(BenchError::Usage(format!("at most {MAX_THREADS} threads over all agents, not {threads}")));
        }
        let of_part = |index: usize| Plan {
            rate: plan.rate.map(|rate| rate / parts as f64),
            operations: plan.operations.map(|all| (all + index as u64) / parts as u64),
            ..*plan
        };
        for (index, agent) in self.agents.iter().enumerate() {
            agent.tell(&Order::Job(Box::new(Job {
                protocol: PROTOCOL.to_owned(),
                store: store.clone(),
                workload: workload.clone(),
                plan: of_part(index),
                first_thread: index * each,
                threads,
            })))?;
        }
        self.agents.iter_mut().try_for_each(Agent::is_ready)?;
        self.agents.iter().try_for_each(|agent| agent.tell(&Order::Begin))?;
        let limit = plan.warm_up + plan.measure + PATIENCE;
        let is_over = AtomicBool::new(false);
        let (done, server_cpu) = thread::scope(|scope| {
            let hearing: Vec<_> = self
                .agents
                .iter_mut()
                .map(|agent| {
                    let stopping = agent.lines.stream().try_clone();
                    (stopping, scope.spawn(move || agent.is_done(limit)))
                })
                .collect();
            let (streams, threads): (Vec<_>, Vec<_>) = hearing.into_iter().unzip();
            let server_cpu = scope.spawn(|| server_cpu_over(target, plan, &is_over));
            while !threads.iter().all(thread::ScopedJoinHandle::is_finished) {
                if interrupt::requested() && !is_over.swap(true, Ordering::Relaxed) {
                    for stream in streams.iter().flatten() {
                        stop(stream);
                    }
                }
                thread::sleep(TICK);
            }
            is_over.store(true, Ordering::Relaxed);
            let done: Vec<_> = threads
                .into_iter()
                .map(|thread| {
                    thread.join().unwrap_or_else(|_| {
                        Err(BenchError::System { attempted: "hear an agent", reason: "the thread panicked".into() })
                    })
                })
                .collect();
            (done, server_cpu.join().ok().flatten())
        });
        let done = done.into_iter().collect::<Result<Vec<Done>, BenchError>>()?;
        Ok(merged(&done, server_cpu))
    }
}

/// Has an agent end its run early.
fn stop(stream: &TcpStream) {
    if let Ok(lines) = stream.try_clone().and_then(Lines::new) {
        // An agent that is gone has ended its run too.
        let _ = lines.send(&Order::Stop);
    }
}

/// CPU time that the server's process used per second while all parts measured, and that time.
fn server_cpu_over(target: &dyn Target, plan: &Plan, is_over: &AtomicBool) -> Option<(Duration, Duration)> {
    sleep(plan.warm_up, is_over);
    let (start, before) = (Instant::now(), target.server_cpu()?);
    sleep(plan.measure, is_over);
    let after = target.server_cpu()?;
    Some((after.saturating_sub(before), start.elapsed()))
}

fn sleep(time: Duration, is_over: &AtomicBool) {
    let end = Instant::now() + time;
    while !is_over.load(Ordering::Relaxed) {
        match end.checked_duration_since(Instant::now()) {
            Some(left) if !left.is_zero() => thread::sleep(left.min(TICK)),
            _ => break,
        }
    }
}

fn merged(parts: &[Done], server_cpu: Option<(Duration, Duration)>) -> Run {
    let mut tally = Tally::default();
    for part in parts {
        tally.merge(&Tally::from(&part.tally));
    }
    let nanoseconds = |of: fn(&Done) -> u64| parts.iter().map(of);
    let elapsed = Duration::from_nanos(nanoseconds(|part| part.elapsed_ns).max().unwrap_or(0));
    // The server's clock ran a moment longer or shorter than the clients': its time is that of as long as theirs.
    let server_cpu = server_cpu
        .filter(|(_, over)| !over.is_zero())
        .map(|(cpu, over)| cpu.mul_f64(elapsed.as_secs_f64() / over.as_secs_f64()));
    let most = |of: fn(&Done) -> f64| parts.iter().map(of).fold(0.0, f64::max);
    Run {
        tally,
        elapsed,
        client_cpu: Duration::from_nanos(nanoseconds(|part| part.client_cpu_ns).sum()),
        server_cpu,
        other_cores: most(|part| part.other_cores),
        steal_cores: most(|part| part.steal_cores),
    }
}
