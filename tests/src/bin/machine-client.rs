//! Clients of a server that may be paused, killed, or on another machine, for tests: a thread for each path writes and
//! reads keys of its own, and compares what it reads with what was acknowledged.
//!
//! Writes lines: `ready`; `PATH done ROUNDS`, now and then; `PATH lost MS REASON` for the first error after a success,
//! with the time that the call took, and `PATH again MS` for the first success after it, with that of the longest call;
//! with `--watch`, `server` and what it has, whenever that has changed; at the end `left` and what is left of its own.
//! Ends with an error if it read anything else than it should.

use std::collections::HashMap;
use std::io::{Write, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use sidestep_client::{Client, Error, Options, Path, PathMode, Session};
use sidestep_tests::process::verbs_objects;

/// Keys of each path.
const KEYS: u64 = 24;
/// Rounds between two lines that say so.
const EVERY: u64 = 20;
/// For a server's machine to come up.
const START: Duration = Duration::from_secs(120);

/// Clients of a server that may be paused, killed, or on another machine
#[derive(Parser)]
struct Cli {
    /// The server's address
    #[arg(long)]
    server: String,
    /// One thread each
    #[arg(long, value_delimiter = ',', required = true)]
    paths: Vec<Path>,
    /// First part of every key
    #[arg(long)]
    name: String,
    /// Tell of the server's connections, sessions, memory and verbs objects
    #[arg(long)]
    watch: bool,
    /// Ends when this file is there
    #[arg(long)]
    end: PathBuf,
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("WRONG {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Whoever reads this may be gone.
fn say(line: &str) {
    let _ = writeln!(stdout(), "{line}");
}

/// Short times: a test waits for them.
fn options(path: Path) -> Options {
    Options::default()
        .path(PathMode::Require(path))
        .request_timeout(Duration::from_secs(3))
        .connect_timeout(Duration::from_secs(2))
        .reconnect_timeout(Duration::from_secs(2))
        .path_pause(Duration::from_secs(1))
        .location_cache(if path == Path::Rdma { 16 } else { 0 })
}

/// As soon as the server is there.
fn connect(server: &str, path: Path) -> Result<Client, Error> {
    let until = Instant::now() + START;
    loop {
        match Client::connect(server, options(path)) {
            Err(Error::Unreachable { .. } | Error::TimedOut { .. }) if Instant::now() < until => {
                thread::sleep(Duration::from_millis(200));
            }
            result => return result,
        }
    }
}

fn run(cli: &Cli) -> Result<(), String> {
    let clients: Vec<Client> = cli
        .paths
        .iter()
        .map(|&path| connect(&cli.server, path).map_err(|error| format!("{path}: {error}")))
        .collect::<Result<_, _>>()?;
    say("ready");
    let (over, quiet) = (AtomicBool::new(false), AtomicBool::new(false));
    let wrong = thread::scope(|scope| {
        let threads: Vec<_> = cli
            .paths
            .iter()
            .zip(&clients)
            .map(|(&path, client)| {
                let over = &over;
                scope.spawn(move || One::new(&cli.name, path, client)?.until(over))
            })
            .collect();
        let watching = cli.watch.then(|| scope.spawn(|| watch(&cli.server, &quiet)));
        while !cli.end.exists() && !threads.iter().any(thread::ScopedJoinHandle::is_finished) {
            thread::sleep(Duration::from_millis(50));
        }
        over.store(true, Ordering::Relaxed);
        let ended: Vec<_> =
            threads.into_iter().map(|thread| thread.join().unwrap_or(Err("a panic".to_owned()))).collect();
        quiet.store(true, Ordering::Relaxed);
        let watched = watching.map_or(Ok(()), |thread| thread.join().unwrap_or(Err("a panic".to_owned())));
        ended.into_iter().chain([watched]).find_map(Result::err)
    });
    drop(clients);
    if !cli.watch {
        say(&format!("left {}", objects()));
    }
    wrong.map_or(Ok(()), Err)
}

/// Verbs objects of all processes on this machine.
fn objects() -> String {
    ["qp", "cq", "pd"].map(|kind| format!("{kind} {}", verbs_objects(kind).len())).join(" ")
}

/// Tells what the server has, whenever that has changed: until all is quiet, and then until all memory is keys'.
fn watch(server: &str, quiet: &AtomicBool) -> Result<(), String> {
    let client = connect(server, Path::Tcp).map_err(|error| error.to_string())?;
    let mut last = String::new();
    let mut quiet_since = None;
    loop {
        // It cannot say while it is paused.
        if let Ok(stats) = client.stats() {
            let count = |name: &str| stats.server(name).unwrap_or_else(|| panic!("no counter {name}"));
            let loose = count("extents").saturating_sub(count("keys"));
            let (connections, sessions, held) = (count("connections"), count("sessions"), count("extents_held"));
            let objects = objects();
            let now =
                format!("server connections {connections} sessions {sessions} {objects} loose {loose} held {held}");
            if now != last {
                say(&now);
                last = now;
            }
            if quiet_since.is_some() && loose == 0 && held == 0 {
                return Ok(());
            }
        }
        if quiet.load(Ordering::Relaxed) && quiet_since.get_or_insert_with(Instant::now).elapsed() > START {
            return Err(format!("memory that is no key's stays: {last}"));
        }
        // What was replaced last is freed by whoever comes next.
        let _ = client.get("nothing");
        thread::sleep(Duration::from_millis(100));
    }
}

/// What is known of a key.
#[derive(Default)]
struct Known {
    /// Number of the last value that was acknowledged; 0 = none.
    acknowledged: u64,
    /// Numbers of values of which it is not known whether they were written since; 0 = whether it was deleted.
    in_doubt: Vec<u64>,
}

/// One thread.
struct One {
    name: String,
    path: Path,
    session: Session,
    known: HashMap<u64, Known>,
    /// The longest call since the last success, if the last one was none.
    lost: Option<Duration>,
}

/// Its number, repeated; now and then a long one.
fn value_of(number: u64) -> Vec<u8> {
    let words = if number.is_multiple_of(16) { 20_000 } else { 1 + number as usize % 90 };
    number.to_le_bytes().repeat(words)
}

impl One {
    fn new(name: &str, path: Path, client: &Client) -> Result<Self, String> {
        let session = client.session().map_err(|error| format!("{path}: {error}"))?;
        Ok(Self { name: format!("{name} {path}"), path, session, known: HashMap::new(), lost: None })
    }

    fn key(&self, number: u64) -> String {
        format!("{} {number}", self.name)
    }

    fn until(mut self, over: &AtomicBool) -> Result<(), String> {
        let mut round = 0;
        while !over.load(Ordering::Relaxed) {
            round += 1;
            self.write(round % KEYS, if round % 11 == 0 { 0 } else { round })?;
            self.read(round % KEYS)?;
            self.read((round * 7) % KEYS)?;
            if round % 8 == 0 {
                self.read_all()?;
            }
            if round % EVERY == 0 && self.lost.is_none() {
                say(&format!("{} done {round}", self.path));
            }
        }
        Ok(())
    }

    /// Writes the value of a number; 0 deletes.
    fn write(&mut self, key: u64, number: u64) -> Result<(), String> {
        let (name, since) = (self.key(key), Instant::now());
        let done = match number {
            0 => self.session.delete(name).map(|_| ()),
            _ => self.session.put(name, value_of(number)).map(|_| ()),
        };
        let is_unknown = matches!(done, Err(Error::OutcomeUnknown(_)));
        let known = self.known.entry(key).or_default();
        if done.is_ok() {
            *known = Known { acknowledged: number, in_doubt: Vec::new() };
        } else if is_unknown {
            known.in_doubt.push(number);
        }
        self.note(since, done).map(|_| ())
    }

    fn read(&mut self, key: u64) -> Result<(), String> {
        let (name, since) = (self.key(key), Instant::now());
        let read = self.session.get(name).map(|value| value.map(|value| (value.path(), value.to_vec())));
        match self.note(since, read)? {
            Some(found) => self.compare(key, found),
            None => Ok(()),
        }
    }

    fn read_all(&mut self) -> Result<(), String> {
        let names: Vec<String> = (0..KEYS).map(|key| self.key(key)).collect();
        let since = Instant::now();
        let read = self.session.multi_get(&names);
        let Some(values) = self.note(since, read)? else { return Ok(()) };
        (0..KEYS)
            .zip(values)
            .try_for_each(|(key, value)| self.compare(key, value.map(|value| (value.path(), value.to_vec()))))
    }

    fn compare(&self, key: u64, found: Option<(Path, Vec<u8>)>) -> Result<(), String> {
        let nothing = Known::default();
        let known = self.known.get(&key).unwrap_or(&nothing);
        let number =
            found.as_ref().map_or(0, |(_, value)| value.first_chunk().map_or(u64::MAX, |b| u64::from_le_bytes(*b)));
        if number != known.acknowledged && !known.in_doubt.contains(&number) {
            let Known { acknowledged, in_doubt } = known;
            return Err(format!("{}: {number}, expected {acknowledged} or one of {in_doubt:?}", self.key(key)));
        }
        match found {
            Some((_, value)) if value != value_of(number) => {
                Err(format!("{}: not the value of {number}", self.key(key)))
            }
            // What was in flight when a message channel broke is repeated over TCP.
            Some((path, _)) if path != self.path && self.path != Path::RdmaRpc => {
                Err(format!("{}: by {path}", self.key(key)))
            }
            _ => Ok(()),
        }
    }

    /// Says what has changed. None: the call failed as it may.
    fn note<T>(&mut self, since: Instant, done: Result<T, Error>) -> Result<Option<T>, String> {
        let took = since.elapsed();
        match done {
            Ok(done) => {
                if let Some(longest) = self.lost.take() {
                    say(&format!("{} again {}", self.path, longest.max(took).as_millis()));
                }
                Ok(Some(done))
            }
            Err(
                error @ (Error::Unreachable { .. }
                | Error::TimedOut { .. }
                | Error::PathUnavailable { .. }
                | Error::OutcomeUnknown(_)),
            ) => {
                if self.lost.is_none() {
                    say(&format!("{} lost {} {error}", self.path, took.as_millis()));
                }
                self.lost = Some(self.lost.unwrap_or_default().max(took));
                Ok(None)
            }
            Err(error) => Err(format!("{}: {error}", self.path)),
        }
    }
}
