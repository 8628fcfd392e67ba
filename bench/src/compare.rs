//! `compare`: every path that works here, the ceiling and the peers asked for, on the same workload, interleaved.

use std::time::Duration;

use crate::agents::Clients;
use crate::driver::{Arrivals, Drive, load};
use crate::environment::Environment;
use crate::error::BenchError;
use crate::interleave::{Contender, Schedule, interleaved};
use crate::progress::Progress;
use crate::report::{PlanLine, Report, Row, SCHEMA};
use crate::target::{
    Local, Memcached, Memcpy, Peer, PeerKind, Redis, ServerAddress, Sidestep, Target, TargetError, paths_of,
};
use crate::workload::Workload;

/// Connections of a load.
const LOAD_CONNECTIONS: usize = 2;
/// Bytes beside key and value that a peer needs for an entry, to have room for all.
const PEER_ENTRY_BYTES: u64 = 128;

/// What to compare and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The server; without it only the ceiling and the peers.
    pub server: Option<ServerAddress>,
    /// Paths of the server to leave out all others; empty = all.
    pub paths: Vec<String>,
    /// Peers, each with the address of one that runs, or none to start one.
    pub peers: Vec<(PeerKind, Option<String>)>,
    /// One way of driving everything, instead of those that suit each path.
    pub drive: Option<Drive>,
    /// Whether the `local` ceiling is left out.
    pub without_local: bool,
    /// Whether the floors of the paths are left out.
    pub without_floors: bool,
    /// Whether server and running peers hold the records already.
    pub loaded: bool,
    /// Warm-up before each repetition.
    pub warm_up: Duration,
    /// Measured part.
    pub measure: Duration,
    /// Repetitions.
    pub repetitions: usize,
    /// Disturbed runs that are dropped and repeated, over all rows; none = the repetitions of each row again.
    pub repeats: Option<usize>,
    /// Open loop.
    pub rate: Option<f64>,
    /// Of an open loop.
    pub arrivals: Arrivals,
    /// Agents that drive instead of this process.
    pub clients: Vec<String>,
    /// Of the requests.
    pub seed: u64,
    /// What to say of the commit.
    pub commit: String,
}

impl Options {
    fn schedule(&self) -> Schedule {
        let Self { warm_up, measure, repetitions, repeats, seed, arrivals, .. } = *self;
        Schedule { warm_up, measure, repetitions, repeats, seed, arrivals }
    }
}

/// Compares.
///
/// # Errors
/// The server cannot be reached, a load or a run fails, or a store returns anything but what was written.
pub fn compare(options: &Options, workload: &Workload) -> Result<Report, BenchError> {
    let mut clients = Clients::connect(&options.clients)?;
    let mut targets: Vec<Box<dyn Target>> = Vec::new();
    let mut unavailable = Vec::new();
    if !clients.are_here() {
        unavailable.push(Row::not_available("local", "it would be in this process, and agents drive"));
    } else if !options.without_local {
        let local = Local::new(workload.records);
        load_over(&local, workload, 1)?;
        targets.push(Box::new(local));
    }
    if let Some(server) = &options.server {
        let (open, closed) = open_paths(server, &options.paths)?;
        unavailable.extend(closed);
        // Writes take the same way on every path, so that any of them loads the table for all.
        if let Some(target) = open.first().filter(|_| !options.loaded) {
            load_into(target, workload)?;
        }
        targets.extend(open.into_iter().map(|target| Box::new(target) as Box<dyn Target>));
    }
    for (kind, address) in &options.peers {
        match open_peer(*kind, address.as_deref(), workload) {
            Ok(peer) => {
                if !(options.loaded && address.is_some()) {
                    load_into(peer.as_ref(), workload)?;
                }
                targets.push(peer);
            }
            Err(reason) => unavailable.push(Row::not_available(kind.name(), reason.0)),
        }
    }
    if targets.is_empty() {
        return Err(BenchError::Usage("nothing to compare: give --server, --peer, or leave out --no-local".into()));
    }
    let floor_workload = workload.for_floors();
    let (floors, without) = floors(options, &clients, &targets, &floor_workload);
    unavailable.extend(without);
    let mut contenders = contenders(&targets, options.drive, options.rate, workload);
    contenders.extend(self::contenders(&floors, options.drive, options.rate, &floor_workload));
    let partial = interleaved(&mut contenders, &mut clients, &options.schedule())?;
    let mut environment = Environment::here(&options.commit, &network(options));
    environment.stores =
        targets.iter().chain(&floors).map(|target| format!("{}: {}", target.name(), target.about())).collect();
    let mut rows: Vec<Row> = contenders.into_iter().map(Contender::row).collect();
    rows.extend(unavailable);
    let mut report = Report {
        schema: SCHEMA,
        environment,
        workload: workload.clone(),
        plan: PlanLine { clients: clients.addresses(), ..PlanLine::of(&options.schedule(), options.rate) },
        rows,
        partial,
    };
    report.relate_to_local();
    Ok(report)
}

/// The floors of the paths that are compared, which this process can drive alone, and why of those that there are not.
fn floors(
    options: &Options,
    clients: &Clients,
    targets: &[Box<dyn Target>],
    workload: &Workload,
) -> (Vec<Box<dyn Target>>, Vec<Row>) {
    let (mut floors, mut without): (Vec<Box<dyn Target>>, _) = (Vec::new(), Vec::new());
    if options.without_floors || !clients.are_here() {
        return (floors, without);
    }
    let compared = |name: &str| targets.iter().any(|target| target.name() == name);
    if !["shm", "tcp", "rdma"].into_iter().any(compared) {
        return (floors, without);
    }
    let memcpy = Memcpy::new(workload);
    if compared("tcp") {
        match memcpy.echo() {
            Ok(echo) => floors.push(Box::new(echo)),
            Err(reason) => without.push(Row::not_available("tcp echo", reason.0)),
        }
    }
    let server = options.server.as_ref().filter(|_| compared("rdma"));
    match server.map(|server| memcpy.bare_read(&server.address, server.spin)) {
        Some(Ok(bare)) => floors.push(Box::new(bare)),
        Some(Err(reason)) => without.push(Row::not_available("bare READ", reason.0)),
        None => {}
    }
    if compared("shm") {
        floors.insert(0, Box::new(memcpy));
    }
    (floors, without)
}

/// Writes all records, with a progress bar.
///
/// # Errors
/// The first write that fails.
pub fn load_into(target: &dyn Target, workload: &Workload) -> Result<(), BenchError> {
    load_over(target, workload, LOAD_CONNECTIONS)
}

fn load_over(target: &dyn Target, workload: &Workload, connections: usize) -> Result<(), BenchError> {
    let progress = Progress::records(&format!("load {}", target.name()), workload.records);
    load(target, workload, 0..workload.records, connections, &|records| progress.advance(records))?;
    Ok(())
}

/// Opens the server's paths that `only` names, or all of them, and says why of those that cannot be had.
///
/// # Errors
/// The server cannot be reached.
pub fn open_paths(server: &ServerAddress, only: &[String]) -> Result<(Vec<Sidestep>, Vec<Row>), BenchError> {
    let refused = |error: TargetError| BenchError::Unavailable { store: "server".into(), reason: error.0 };
    let (mut open, mut unavailable) = (Vec::new(), Vec::new());
    for path in paths_of(server).map_err(refused)? {
        if !only.is_empty() && !only.iter().any(|name| name == path.name) {
            continue;
        }
        match path.available.map_err(TargetError).and_then(|()| Sidestep::connect(server, path.name)) {
            Ok(target) => open.push(target),
            Err(reason) => unavailable.push(Row::not_available(path.name, reason.0)),
        }
    }
    Ok((open, unavailable))
}

/// Connects to a peer, or starts an installed one.
///
/// # Errors
/// It cannot be reached or started.
pub fn open_peer(kind: PeerKind, address: Option<&str>, workload: &Workload) -> Result<Box<dyn Target>, TargetError> {
    let peer = match address {
        Some(address) => Peer::running(address),
        None => {
            let entry = workload.value_bytes as u64 + workload.key_shape().max_bytes() as u64 + PEER_ENTRY_BYTES;
            Peer::start(kind, workload.records.saturating_mul(entry), workload.value_bytes)?
        }
    };
    Ok(match kind {
        PeerKind::Memcached => Box::new(Memcached::new(peer)?),
        PeerKind::Redis => Box::new(Redis::new(peer)?),
    })
}

fn network(options: &Options) -> String {
    let server = options.server.as_ref().map(|server| server.address.as_str());
    let peers = options.peers.iter().filter_map(|(_, address)| address.as_deref());
    if server.into_iter().chain(peers).all(crate::target::is_loopback) {
        "loopback and shared memory: client and server share this machine's CPUs".into()
    } else {
        "see the addresses of the stores".into()
    }
}

/// In memory one thread shows what an operation costs; over a socket it mostly shows how fast an idle core wakes, so
/// that there are rows with more at once.
pub(crate) fn contenders<'t>(
    targets: &'t [Box<dyn Target>],
    drive: Option<Drive>,
    rate: Option<f64>,
    workload: &'t Workload,
) -> Vec<Contender<'t>> {
    let in_memory = vec![Drive::calls(1), Drive { batch: 64, ..Drive::calls(1) }];
    let by_socket = vec![Drive::calls(1), Drive::calls(8), Drive { threads: 1, connections: 64, depth: 16, batch: 1 }];
    let mut contenders = Vec::new();
    for store in targets {
        let drives = match drive {
            // The ceiling has no multi-get.
            Some(drive) if store.name() == "local" => vec![Drive::calls(drive.threads)],
            None if store.name() == "local" => vec![Drive::calls(1)],
            // What answers within the call has nothing in flight, and one connection a thread.
            Some(drive) if store.is_memory() => vec![Drive { connections: drive.threads, depth: 1, ..drive }],
            Some(drive) => vec![drive],
            None if rate.is_some() => vec![Drive::calls(1)],
            None if store.is_memory() => in_memory.clone(),
            None => by_socket.clone(),
        };
        contenders.extend(drives.into_iter().map(|drive| Contender::new(store.as_ref(), workload, drive, rate)));
    }
    contenders
}
