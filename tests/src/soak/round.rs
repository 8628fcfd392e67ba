//! One round: clients at work while things happen, then a look at everything.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rand::Rng;
use rand_xoshiro::Xoshiro256PlusPlus;
use rustix::process::Signal;

use super::audit::Audit;
use super::clients::{CLIENTS, Order, SoakClient};
use super::deck::{Event, shuffled};
use super::filler::{Filled, fill};
use super::server::Supervised;
use super::{Settings, Tally};
use crate::linearizability::client::{Via, read_journals};
use crate::linearizability::{Operation, check_evicting_or_keep};

/// Client processes at a time.
const PROCESSES: u32 = 3;
/// First client of those that read when nobody writes.
const READERS: u32 = 1_000_000;

/// Where a round stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub(super) table: u32,
    pub(super) index: u32,
    pub(super) folder: &'a Path,
    pub(super) may_evict: bool,
}

/// Plays a round and checks it.
pub(super) fn play(
    settings: &Settings,
    place: &Place<'_>,
    server: &mut Supervised,
    audit: &mut Audit,
    random: &mut Xoshiro256PlusPlus,
    tally: &mut Tally,
) -> Result<(), String> {
    let prefix = format!("{}-{}", place.table, place.index);
    let journals = place.folder.join(&prefix);
    std::fs::create_dir(&journals).map_err(|error| format!("{}: {error}", journals.display()))?;
    let address = server.address().to_owned();
    let order = Order {
        server: &address,
        sessions: &settings.sessions,
        prefix: &prefix,
        journals: &journals,
        seed: random.random(),
    };
    // Every other round is one of scarcity.
    let fills = place.index % 2 == 1;
    let worked = at_work(&order, settings.round, fills, server, random, tally);
    let paths: BTreeSet<Via> = settings.sessions.iter().copied().collect();
    let paths: Vec<Via> = paths.into_iter().collect();
    let checked = worked.and_then(|()| look(place, &order, &paths, server, audit, tally));
    if let Err(error) = checked {
        return Err(format!("{error}\n{}", keep(settings, &journals)));
    }
    // Room for the others.
    std::fs::remove_dir_all(&journals).map_err(|error| format!("{}: {error}", journals.display()))?;
    if random.random_range(0..4) == 0 {
        empty(server, audit, tally)?;
    }
    tally.rounds += 1;
    Ok(())
}

/// Moves the journals of a round that failed to where they stay.
fn keep(settings: &Settings, journals: &Path) -> String {
    let kept = settings.keep.join(format!("soak-{}", std::process::id()));
    let copied = std::fs::create_dir_all(&kept).and_then(|()| {
        std::fs::read_dir(journals)?.try_for_each(|entry| {
            let entry = entry?;
            std::fs::copy(entry.path(), kept.join(entry.file_name())).map(drop)
        })
    });
    match copied {
        Ok(()) => format!("the journals of its round are in {}", kept.display()),
        Err(error) => format!("its journals could not be kept: {error}"),
    }
}

/// Clients read and write until the events of a deck are over, and are told to end.
fn at_work(
    order: &Order<'_>,
    length: Duration,
    fills: bool,
    server: &mut Supervised,
    random: &mut Xoshiro256PlusPlus,
    tally: &mut Tally,
) -> Result<(), String> {
    let stop = AtomicBool::new(false);
    let filled: Result<Filled, String> = thread::scope(|scope| {
        let filler = scope.spawn(|| if fills { fill(order.server, "fill", &stop) } else { Ok(Filled::default()) });
        let clients = happen(order, length, server, random, tally);
        stop.store(true, Ordering::Relaxed);
        let ended = clients.and_then(|mut clients| {
            clients.iter_mut().for_each(SoakClient::tell);
            clients.into_iter().try_for_each(SoakClient::end)
        });
        let filled = filler.join().map_err(|_| "the filler panicked".to_owned())?;
        ended.and(filled)
    });
    let Filled { puts, refused } = filled?;
    tally.filled = (tally.filled.0 + puts, tally.filled.1 + refused);
    Ok(())
}

/// Starts the clients and lets the events come, about evenly in time. The clients that are there at the end.
fn happen(
    order: &Order<'_>,
    length: Duration,
    server: &mut Supervised,
    random: &mut Xoshiro256PlusPlus,
    tally: &mut Tally,
) -> Result<Vec<SoakClient>, String> {
    let mut clients: Vec<SoakClient> = (0..PROCESSES).map(|number| SoakClient::start(order, number)).collect();
    let mut number = PROCESSES;
    let events = shuffled(random);
    let begun = Instant::now();
    let share = length / (events.len() as u32 + 1);
    for (i, event) in (1u32..).zip(events) {
        let at = share.mul_f64(f64::from(i) + random.random_range(-0.4..0.4));
        thread::sleep(at.saturating_sub(begun.elapsed()));
        match event {
            Event::ClientKilled => {
                clients.swap_remove(random.random_range(0..clients.len())).kill();
                clients.push(SoakClient::start(order, number));
                number += 1;
                tally.client_kills += 1;
            }
            Event::ServerStopped(pause) => {
                server.process().stop();
                thread::sleep(pause);
                server.process().signal(Signal::CONT);
                tally.server_stops += 1;
            }
            Event::ServerKilled => server.kill(tally),
            Event::ServerRestarted => server.restart(tally)?,
        }
    }
    thread::sleep(length.saturating_sub(begun.elapsed()));
    Ok(clients)
}

/// Whether all that was seen can be explained, nothing is left over, and what was there before is there.
fn look(
    place: &Place<'_>,
    order: &Order<'_>,
    paths: &[Via],
    server: &Supervised,
    audit: &mut Audit,
    tally: &mut Tally,
) -> Result<(), String> {
    let mut history = read_journals(order.journals).map_err(|error| format!("the journals: {error}"))?;
    audit.read_again(order.server, paths[place.index as usize % paths.len()])?;
    let done = history.len();
    audit.read_all(order.server, order.prefix, paths, READERS, &mut history)?;
    for operation in &history[..done] {
        *tally.operations.entry(way(operation, order.sessions)).or_default() += 1;
    }
    let report = check_evicting_or_keep(&format!("soak-{}", order.prefix), &history, place.may_evict)?;
    tally.unknown += report.unknown as u64;
    server.settle()
}

/// How the session reads that did an operation.
fn way(operation: &Operation, sessions: &[Via]) -> &'static str {
    sessions.get((operation.client % CLIENTS) as usize).map_or("other", |via| via.name())
}

/// Removes everything, and nothing is left.
fn empty(server: &Supervised, audit: &mut Audit, tally: &mut Tally) -> Result<(), String> {
    let client = server.client()?;
    let flushed = client.session().and_then(|mut session| session.flush(|_| {}));
    flushed.map_err(|error| format!("a flush: {error}"))?;
    let stats = client.stats().map_err(|error| format!("no statistics: {error}"))?;
    let left: Vec<_> = stats.server.into_iter().filter(|(name, count)| name == "keys" && *count > 0).collect();
    if !left.is_empty() {
        return Err(format!("a flush left {left:?}"));
    }
    audit.forget();
    tally.flushes += 1;
    Ok(())
}
