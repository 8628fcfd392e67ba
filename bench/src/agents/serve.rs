//! The agent: does its part of one run after the other.

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use tracing::{info, warn};

use super::{Done, Job, Lines, Order, PROTOCOL, Word};
use crate::driver::{Part, Run, run_part};
use crate::error::BenchError;
use crate::interrupt;
use crate::target::Credentials;

/// How often a waiting agent looks for Ctrl-C.
const TICK: Duration = Duration::from_millis(50);

/// Serves one coordinator after the other until Ctrl-C; `credentials` are for the servers that jobs name.
///
/// # Errors
/// The listener fails.
pub fn serve(listener: &TcpListener, credentials: &Credentials) -> Result<(), BenchError> {
    let failed = |error: io::Error| BenchError::System { attempted: "accept a coordinator", reason: error.to_string() };
    listener.set_nonblocking(true).map_err(failed)?;
    while !interrupt::requested() {
        match listener.accept() {
            Ok((stream, coordinator)) => {
                info!(%coordinator, "a coordinator has come");
                if let Err(error) = attend(stream, credentials) {
                    warn!(%coordinator, %error, "the coordinator is lost");
                }
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                thread::sleep(TICK);
            }
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(())
}

/// One coordinator's jobs, in turn.
fn attend(stream: TcpStream, credentials: &Credentials) -> io::Result<()> {
    // Where nonblocking is inherited from the listener.
    stream.set_nonblocking(false)?;
    let (lines, writer) = (Lines::new(stream.try_clone()?)?, Lines::new(stream)?);
    let cancelled = AtomicBool::new(false);
    let (sender, orders) = channel();
    thread::scope(|scope| {
        let listening = scope.spawn(|| listen(lines, sender, &cancelled));
        let result = work(&writer, &orders, &cancelled, credentials);
        // Wakes the thread that listens, whatever it waits for.
        let _ = writer.stream().shutdown(Shutdown::Both);
        let heard = listening.join().unwrap_or(Ok(()));
        result.and(heard)
    })
}

/// Forwards what the coordinator says. While a run is under way it is heard too: `Stop` and the end of the connection
/// cut it short.
fn listen(mut lines: Lines, orders: Sender<Order>, cancelled: &AtomicBool) -> io::Result<()> {
    let heard = loop {
        match lines.receive::<Order>() {
            Ok(Some(Order::Stop)) => cancelled.store(true, Ordering::Relaxed),
            Ok(Some(order)) => {
                // A `Stop` from before it was meant for an earlier run.
                if matches!(order, Order::Job(_)) {
                    cancelled.store(false, Ordering::Relaxed);
                }
                if orders.send(order).is_err() {
                    break Ok(());
                }
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    cancelled.store(true, Ordering::Relaxed);
    heard
}

fn work(writer: &Lines, orders: &Receiver<Order>, cancelled: &AtomicBool, credentials: &Credentials) -> io::Result<()> {
    loop {
        let job = match orders.recv_timeout(TICK) {
            Ok(Order::Job(job)) => job,
            // Of a run that has failed here.
            Ok(Order::Begin | Order::Stop) => continue,
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) if !interrupt::requested() => continue,
            Err(_) => return Ok(()),
        };
        let word = match part(&job, writer, orders, cancelled, credentials) {
            Ok(run) => Word::Done(Box::new(Done::from(&run))),
            Err(error) => Word::Failed { code: error.exit_code(), reason: error.to_string() },
        };
        writer.send(&word)?;
    }
}

/// Does a part: connects, says so, and runs when it is told to.
fn part(
    job: &Job,
    writer: &Lines,
    orders: &Receiver<Order>,
    cancelled: &AtomicBool,
    credentials: &Credentials,
) -> Result<Run, BenchError> {
    if job.protocol != PROTOCOL {
        let found = &job.protocol;
        return Err(BenchError::Usage(format!("expected a coordinator of {PROTOCOL:?}, found {found:?}")));
    }
    let store = job.store.open(credentials).map_err(|error| BenchError::Unavailable {
        store: format!("{} as seen from here", job.store.name()),
        reason: error.0,
    })?;
    let mut begin = || {
        writer
            .send(&Word::Ready)
            .map_err(|error| BenchError::System { attempted: "answer the coordinator", reason: error.to_string() })?;
        match orders.recv() {
            Ok(Order::Begin) => Ok(()),
            _ => Err(BenchError::Interrupted),
        }
    };
    let part = Part { first_thread: job.first_thread, threads: job.threads, begin: &mut begin, cancelled };
    run_part(store.as_ref(), &job.workload, &job.plan, part)
}

impl From<&Run> for Done {
    fn from(run: &Run) -> Self {
        Self {
            tally: (&run.tally).into(),
            elapsed_ns: run.elapsed.as_nanos() as u64,
            client_cpu_ns: run.client_cpu.as_nanos() as u64,
            other_cores: run.other_cores,
            steal_cores: run.steal_cores,
        }
    }
}
