//! Several client machines that do one run together: agents, and the coordinator that tells them what to do.
//!
//! One machine often cannot saturate a server. The user starts `sidestep-bench agent` on each client machine and names
//! them to `run` or `compare`; each then drives the store as the row says. Messages are lines of JSON over TCP:
//!
//! | from | message |
//! | --- | --- |
//! | coordinator | `Order::Job`: which store, which workload, which part of the run |
//! | agent | `Word::Ready` once every connection is open |
//! | coordinator | `Order::Begin`, to all at once |
//! | agent | `Word::Done` with what it counted, or `Word::Failed` at any time |
//! | coordinator | `Order::Stop`, or closing the connection, ends a run early |
//!
//! No clock is compared with another machine's: each part takes its own time, and only durations and counts travel. The
//! parts overlap but for the delay of the network and the difference of their connecting.

mod coordinator;
mod serve;
mod tally;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use coordinator::Clients;
pub use serve::serve;
use tally::WireTally;

use crate::driver::Plan;
use crate::target::RemoteStore;
use crate::workload::Workload;

/// Name and version of the protocol: both sides must be of one build of the bench.
const PROTOCOL: &str = concat!("sidestep-bench agent 2, ", env!("CARGO_PKG_VERSION"));
/// Longest message: the histograms of a run take some hundred KiB.
const MAX_MESSAGE_BYTES: u64 = 64 << 20;

/// What an agent is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Job {
    protocol: String,
    store: RemoteStore,
    workload: Workload,
    /// Of this part: its threads, its share of rate and operations.
    plan: Plan,
    first_thread: usize,
    threads: usize,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Order {
    Job(Box<Job>),
    Begin,
    Stop,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Word {
    Ready,
    Done(Box<Done>),
    Failed { code: u8, reason: String },
}

/// A part's result.
#[derive(Debug, Serialize, Deserialize)]
struct Done {
    tally: WireTally,
    elapsed_ns: u64,
    client_cpu_ns: u64,
    other_cores: f64,
    steal_cores: f64,
}

/// A connection that carries one message a line.
#[derive(Debug)]
struct Lines {
    reader: BufReader<TcpStream>,
}

impl Lines {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { reader: BufReader::new(stream) })
    }

    fn stream(&self) -> &TcpStream {
        self.reader.get_ref()
    }

    fn send(&self, message: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.stream().write_all(&line)
    }

    /// The next message; none: the peer has closed the connection.
    fn receive<M: DeserializeOwned>(&mut self) -> io::Result<Option<M>> {
        let mut line = Vec::new();
        self.reader.by_ref().take(MAX_MESSAGE_BYTES).read_until(b'\n', &mut line)?;
        match line.last() {
            None => Ok(None),
            Some(b'\n') => Ok(Some(serde_json::from_slice(&line)?)),
            Some(_) if line.len() as u64 == MAX_MESSAGE_BYTES => {
                Err(io::Error::other(format!("expected messages of less than {MAX_MESSAGE_BYTES} bytes")))
            }
            Some(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}
