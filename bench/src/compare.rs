//! `compare`: every path that works here, the ceiling and the peers asked for, on the same workload, interleaved.

use std::time::Duration;

use crate::agents::Clients;
use crate::driver::{Drive, Plan, Run, load};
use crate::environment::Environment;
use crate::error::BenchError;
use crate::interrupt;
use crate::progress::Progress;
use crate::report::{Measurement, PlanLine, Report, Row, SCHEMA};
use crate::target::{Local, Memcached, Peer, PeerKind, Redis, ServerAddress, Sidestep, Target, TargetError, paths_of};
use crate::workload::Workload;

/// A run in which others used more than this many cores is dropped and repeated.
const OTHER_CORES: f64 = 0.1;
/// What the clock ticks of three counters may add up to by themselves.
const TICKS_S: f64 = 0.05;
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
    /// Agents that drive instead of this process.
    pub clients: Vec<String>,
    /// Of the requests.
    pub seed: u64,
    /// What to say of the commit.
    pub commit: String,
}

/// A path in one way of driving it, and what it did so far.
struct Contender {
    target: usize,
    drive: Drive,
    runs: Vec<(Run, bool)>,
    dropped: usize,
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
        open_paths(server, options, workload, &mut targets, &mut unavailable)?;
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
    let mut contenders = contenders(&targets, options, workload);
    let partial = measure(&targets, &mut contenders, &mut clients, options, workload)?;
    let mut environment = Environment::here(&options.commit, &network(options));
    environment.stores = targets.iter().map(|target| format!("{}: {}", target.name(), target.about())).collect();
    let mut rows = rows(&targets, contenders);
    rows.extend(unavailable);
    let mut report = Report {
        schema: SCHEMA,
        environment,
        workload: workload.clone(),
        plan: PlanLine {
            warm_up_s: options.warm_up.as_secs_f64(),
            measure_s: options.measure.as_secs_f64(),
            repetitions: options.repetitions,
            rate: options.rate,
            seed: options.seed,
            clients: clients.addresses(),
        },
        rows,
        partial,
    };
    report.relate_to_local();
    Ok(report)
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

fn open_paths(
    server: &ServerAddress,
    options: &Options,
    workload: &Workload,
    targets: &mut Vec<Box<dyn Target>>,
    unavailable: &mut Vec<Row>,
) -> Result<(), BenchError> {
    let refused = |error: TargetError| BenchError::Unavailable { store: "server".into(), reason: error.0 };
    let mut loaded = options.loaded;
    let mut open = Vec::new();
    for path in paths_of(server).map_err(refused)? {
        if !options.paths.is_empty() && !options.paths.iter().any(|name| name == path.name) {
            continue;
        }
        match path.available.map_err(TargetError).and_then(|()| Sidestep::connect(server, path.name)) {
            Ok(target) => open.push(target),
            Err(reason) => unavailable.push(Row::not_available(path.name, reason.0)),
        }
    }
    // Writes take the same way on every path, so that any of them loads the table for all.
    for target in open {
        if !loaded {
            load_into(&target, workload)?;
            loaded = true;
        }
        targets.push(Box::new(target));
    }
    Ok(())
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
fn contenders(targets: &[Box<dyn Target>], options: &Options, workload: &Workload) -> Vec<Contender> {
    let in_memory = vec![Drive::calls(1), Drive { batch: 64, ..Drive::calls(1) }];
    let by_socket = vec![Drive::calls(1), Drive::calls(8), Drive { threads: 1, connections: 64, depth: 16, batch: 1 }];
    let mut contenders = Vec::new();
    for (target, store) in targets.iter().enumerate() {
        let drives = match options.drive {
            // The ceiling has no multi-get.
            Some(drive) if store.name() == "local" => vec![Drive::calls(drive.threads)],
            None if store.name() == "local" => vec![Drive::calls(1)],
            // What answers within the call has nothing in flight, and one connection a thread.
            Some(drive) if store.is_memory() => vec![Drive { connections: drive.threads, depth: 1, ..drive }],
            Some(drive) => vec![drive],
            None if options.rate.is_some() => vec![Drive::calls(1)],
            None if store.is_memory() => in_memory.clone(),
            None => by_socket.clone(),
        };
        for drive in drives {
            let drive = drive.fitted(workload.value_bytes);
            contenders.push(Contender { target, drive, runs: Vec::new(), dropped: 0 });
        }
    }
    contenders
}

/// Runs the contenders in turn, again and again. Returns whether it was interrupted.
fn measure(
    targets: &[Box<dyn Target>],
    contenders: &mut [Contender],
    clients: &mut Clients,
    options: &Options,
    workload: &Workload,
) -> Result<bool, BenchError> {
    let mut repeats = options.repeats.unwrap_or(options.repetitions * contenders.len());
    let progress = Progress::runs("measure", (options.repetitions * contenders.len()) as u64);
    for repetition in 1..=options.repetitions {
        for contender in contenders.iter_mut() {
            let target = targets[contender.target].as_ref();
            let plan = Plan {
                drive: contender.drive,
                warm_up: options.warm_up,
                measure: options.measure,
                operations: None,
                rate: options.rate,
                // Another stream each time, the same for every contender.
                seed: options.seed.wrapping_add(repetition as u64),
            };
            loop {
                let measured = clients.run(target, workload, &plan)?;
                if interrupt::requested() {
                    return Ok(true);
                }
                let limit = OTHER_CORES + TICKS_S / options.measure.as_secs_f64().max(0.01);
                let disturbed = measured.other_cores > limit || measured.steal_cores > limit;
                progress.say(line(target, contender, repetition, options, &measured, disturbed));
                progress.advance(1);
                if !disturbed || repeats == 0 || contender.dropped >= options.repetitions {
                    contender.runs.push((measured, disturbed));
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

fn line(
    target: &dyn Target,
    contender: &Contender,
    repetition: usize,
    options: &Options,
    run: &Run,
    disturbed: bool,
) -> String {
    let row = Row { path: target.name().to_owned(), drive: Some(contender.drive), measured: None, not_available: None };
    let note = if disturbed {
        format!(", disturbed: others used {:.2} cores, {:.2} were stolen", run.other_cores, run.steal_cores)
    } else {
        String::new()
    };
    format!("{repetition}/{} {}: {:.0} ops/s{note}", options.repetitions, row.name(), run.tally.rate)
}

fn rows(targets: &[Box<dyn Target>], contenders: Vec<Contender>) -> Vec<Row> {
    contenders
        .into_iter()
        .map(|contender| Row {
            path: targets[contender.target].name().to_owned(),
            drive: Some(contender.drive),
            measured: Measurement::of(&contender.runs, contender.dropped),
            not_available: None,
        })
        .collect()
}
