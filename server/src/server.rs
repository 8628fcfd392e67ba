//! A running server: starts its threads in one order and ends them in the other.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use sidestep_core::handshake::Stats;
use sidestep_fabric::region::Region;
use sidestep_fabric::shm::{FdServer, FdServerOptions, host_boot_id};
use tracing::{error, info, warn};

use crate::acceptor::{Acceptor, AcceptorHandle};
use crate::access::{Access, Tokens};
use crate::backing::Backing;
use crate::config::Config;
use crate::durable::Log;
use crate::error::ServerError;
use crate::exporter::Exporter;
use crate::handle::Handle;
use crate::metrics::Metrics;
use crate::rdma::Rdma;
use crate::service::{Service, ShmAddress};
use crate::sessions::Sessions;
use crate::table::{self, Folder, Table};
use crate::tls::{Tls, TlsDoor};
use crate::upkeep::Upkeep;
use crate::worker::Worker;

/// A server in this process. Stops when it is dropped.
#[derive(Debug)]
pub struct Server<M: Backing = Region> {
    address: SocketAddr,
    description: String,
    service: Arc<Service<M>>,
    acceptor: Option<(AcceptorHandle, JoinHandle<Option<mio::net::TcpListener>>)>,
    workers: Arc<[Handle]>,
    worker_threads: Vec<JoinHandle<()>>,
    shm: Option<FdServer>,
    upkeep: Option<Upkeep<M>>,
    exporter: Option<Exporter>,
    /// After everyone who writes.
    log: Option<Log>,
    /// Last, so that the folder is free only when nothing writes to the table any more.
    folder: Option<Folder>,
}

impl Server {
    /// Opens or makes the table and starts to serve it. Returns once clients can connect.
    pub fn start(config: Config) -> Result<Self, ServerError> {
        Self::start_over(config, |region| region)
    }
}

impl<M: Backing> Server<M> {
    /// [`Server::start`] over memory that `wrap` has put something around. For tests that watch or stop its stores.
    pub fn start_over(config: Config, wrap: impl FnOnce(Region) -> M) -> Result<Self, ServerError> {
        config.check()?;
        let unusable = |source| ServerError::Listen { address: config.listen.clone(), source };
        // First, so that a second server on the port touches nothing.
        let listener = TcpListener::bind(&config.listen).map_err(unusable)?;
        let address = listener.local_addr().map_err(unusable)?;
        config.check_address(address)?;
        // Before the table, whose recovery may take its time: whoever watches sees the server live, and not ready.
        let exporter = start_exporter(config.metrics.as_deref())?;
        let rdma = Rdma::start(&config.device, address.ip())?;
        let expose = |region: Region| {
            if let Ok(rdma) = &rdma {
                rdma.expose(&region);
            }
            wrap(region)
        };
        let Table { store, description, lock, log } = table::open(&config, expose)?;
        let rdma = rdma.and_then(Rdma::check);
        if let Err(reason) = &rdma {
            info!(reason, "no rdma path");
        }
        let sessions = Arc::new(Sessions::new(config.timeouts.session));
        let access = Arc::new(Access::new(config.tokens.clone()));
        let (shm, shm_address) = match start_shm(&config, store.memory().region(), &sessions, &access) {
            Ok((server, address)) => (Some(server), Ok(address)),
            Err(error) => {
                warn!(%error, "no shm path");
                (None, Err(format!("the server cannot offer it: {error}")))
            }
        };
        let tls = config.tls.as_ref();
        warn_of_what_tls_leaves_open(&config, address, rdma.is_ok());
        if let Some(open) = exporter.as_ref().map(Exporter::address).filter(|address| !is_here(*address)) {
            warn!("metrics and health are told, in plain text, to anyone who reaches {open}");
        }
        let mut description = describe((address, tls.is_some()), &shm_address, &rdma, &description);
        if let Some(exporter) = &exporter {
            description = format!("{description}; metrics: http://{}/metrics", exporter.address());
        }
        let service = Arc::new(Service {
            store,
            sessions,
            metrics: Metrics::new(config.workers, config.client_memory_bytes),
            access,
            tls: config.tls.clone().map(TlsDoor::new),
            durable: config.data.is_some(),
            log: log.as_ref().map(Log::handle),
            shm: shm_address,
            rdma,
            timeouts: config.timeouts,
        });
        let mut server = Self {
            address,
            description,
            service,
            acceptor: None,
            workers: Arc::new([]),
            worker_threads: Vec::new(),
            shm,
            upkeep: None,
            exporter,
            log,
            folder: lock,
        };
        // From here on dropping the server ends the threads that run already.
        let failed = |source| ServerError::Thread { what: "upkeep of the table", source };
        server.upkeep = Some(Upkeep::start(server.service.store.clone()).map_err(failed)?);
        server.start_workers(&config)?;
        server.start_acceptor(listener, config.max_connections)?;
        if let Some(exporter) = &server.exporter {
            let service = server.service.clone();
            exporter.serving(move || service.stats());
        }
        Ok(server)
    }

    fn start_workers(&mut self, config: &Config) -> Result<(), ServerError> {
        let failed = |source| ServerError::Thread { what: "workers", source };
        let cores = if config.pin { core_affinity::get_core_ids().unwrap_or_default() } else { Vec::new() };
        let workers: io::Result<Vec<_>> =
            (0..config.workers).map(|index| Worker::new(index, self.service.clone())).collect();
        let (workers, handles): (Vec<_>, Vec<_>) = workers.map_err(failed)?.into_iter().unzip();
        self.workers = handles.into();
        if let Some(log) = &self.log {
            let workers = self.workers.clone();
            log.handle().queue.on_progress(move || workers.iter().for_each(Handle::wake));
        }
        for (index, worker) in workers.into_iter().enumerate() {
            let core = cores.get(index % cores.len().max(1)).copied();
            let run = move || {
                if let Some(core) = core
                    && !core_affinity::set_for_current(core)
                {
                    warn!(worker = index, core = core.id, "cannot pin a worker");
                }
                if let Err(error) = worker.run() {
                    error!(%error, worker = index, "a worker ended");
                }
            };
            let thread = Builder::new().name(format!("sidestep-{index}")).spawn(run).map_err(failed)?;
            self.worker_threads.push(thread);
        }
        Ok(())
    }

    fn start_acceptor(&mut self, listener: TcpListener, max_connections: usize) -> Result<(), ServerError> {
        let failed = |source| ServerError::Thread { what: "acceptor", source };
        let (acceptor, handle) =
            Acceptor::new(listener, self.service.clone(), self.workers.clone(), max_connections).map_err(failed)?;
        let run = move || match acceptor.run() {
            Ok(listener) => Some(listener),
            Err(error) => {
                error!(%error, "the acceptor ended");
                None
            }
        };
        let thread = Builder::new().name("sidestep-accept".into()).spawn(run).map_err(failed)?;
        self.acceptor = Some((handle, thread));
        Ok(())
    }

    /// The address that it listens on, with the port that it got.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The address that answers for metrics, if one does.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.exporter.as_ref().map(Exporter::address)
    }

    /// One line for people and scripts: `listening on ADDR; paths: …; table: …`.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// The counters that a client is told too.
    pub fn stats(&self) -> Stats {
        self.service.stats()
    }

    /// From now on these tokens are good and no others. Sessions whose token is gone, or means something else, end at once:
    /// their connections, the queue pairs by which their clients read, and their tickets for the table's memory. What a
    /// client has mapped by then stays mapped for as long as it lives.
    pub fn replace_tokens(&self, tokens: Tokens) {
        self.service.access.replace(tokens);
        for worker in self.workers.iter() {
            worker.wake();
        }
        if let Some((acceptor, _)) = &self.acceptor {
            acceptor.wake();
        }
    }

    /// Connections that come from now on begin with these certificates. Those that stand go on as they began. Where there
    /// was no TLS when the server started, there will be none.
    pub fn replace_tls(&self, tls: Tls) {
        if let Some(door) = &self.service.tls {
            door.replace(tls);
        }
    }

    /// Stops: takes no more connections, answers the requests that have been received, sends the replies,
    /// ends. Returns when all threads have ended, within some seconds, how many writes the log's disk has refused: 0, or there
    /// are some that the next start may know nothing of.
    pub fn stop(mut self) -> u64 {
        self.end()
    }

    fn end(&mut self) -> u64 {
        let running = self.upkeep.is_some();
        if let Some(exporter) = &self.exporter {
            exporter.stopping();
        }
        // Bound until no reader takes this table for the one of whoever is at the address next.
        let _listener = self.acceptor.take().and_then(|(handle, thread)| {
            handle.stop();
            join(thread, "acceptor").flatten()
        });
        for worker in self.workers.iter() {
            worker.stop();
        }
        for thread in self.worker_threads.drain(..) {
            join(thread, "worker");
        }
        if !self.service.durable {
            self.service.store.retire_memory();
        }
        self.upkeep = None;
        let unlogged = self.log.take().map_or(0, |log| self.end_log(log));
        if let Some(shm) = self.shm.take() {
            shm.stop();
        }
        self.exporter = None;
        if running {
            info!("stopped");
        }
        unlogged
    }
}

impl<M: Backing> Server<M> {
    /// Returns how many writes the log's disk has refused to the end. A table in a file has them.
    fn end_log(&self, log: Log) -> u64 {
        let id = log.id();
        let unlogged = log.end();
        if unlogged > 0 {
            error!(writes = unlogged, "ended with writes that are not in the log: its disk does not take them");
            match self.folder.as_ref().map(|folder| folder.keep_whole(&self.service.store, id)) {
                None => {}
                Some(Ok(())) => {
                    info!("the table, which has them, is on the disk: the next start puts them into the log")
                }
                Some(Err(error)) => {
                    error!(%error, "the table, which has them, may not be on the disk: do not start the machine anew before the server");
                }
            }
        }
        unlogged
    }
}

impl<M: Backing> Drop for Server<M> {
    fn drop(&mut self) {
        self.end();
    }
}

fn start_exporter(address: Option<&str>) -> Result<Option<Exporter>, ServerError> {
    let failed = |address: &str, source| ServerError::Metrics { address: address.to_owned(), source };
    address.map(|address| Exporter::start(address).map_err(|source| failed(address, source))).transpose()
}

fn join<T>(thread: JoinHandle<T>, what: &str) -> Option<T> {
    let ended = thread.join().ok();
    if ended.is_none() {
        error!("the {what} panicked");
    }
    ended
}

fn start_shm(
    config: &Config,
    memory: &Region,
    sessions: &Arc<Sessions>,
    access: &Arc<Access>,
) -> io::Result<(FdServer, ShmAddress)> {
    let host_boot_id = host_boot_id()?;
    let fd = memory.read_only_fd().map_err(io::Error::other)?;
    let options = FdServerOptions { allowed_uids: config.allow_uids.clone(), ..FdServerOptions::default() };
    let (sessions, access) = (sessions.clone(), access.clone());
    let is_good = move |ticket: &_| sessions.pass_of(ticket).is_some_and(|pass| access.holds(&pass));
    let server = FdServer::start(fd, options, is_good)?;
    let socket_name = server.socket_name().to_vec();
    Ok((server, ShmAddress { socket_name, host_boot_id }))
}

/// Whether only this host reaches it.
fn is_here(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// What an operator may not expect who asked for TLS.
fn warn_of_what_tls_leaves_open(config: &Config, address: SocketAddr, has_rdma: bool) {
    let Some(tls) = &config.tls else { return };
    if !is_here(address) && config.tokens.is_none() && !tls.asks_for_certificate() && !config.insecure {
        warn!(
            "connections are encrypted, and anyone who reaches {address} may enter: no token or client certificate is asked for"
        );
    }
    if has_rdma {
        warn!("TLS covers TCP and control connections: what travels by RDMA itself is not encrypted");
    }
}

fn describe(
    (address, has_tls): (SocketAddr, bool),
    shm: &Result<ShmAddress, String>,
    rdma: &Result<Rdma, String>,
    table: &str,
) -> String {
    let tcp = if has_tls { "tcp (TLS)" } else { "tcp" };
    let (mut offered, mut lacking) = (vec![tcp.to_owned()], String::new());
    match shm {
        Ok(_) => offered.push("shm (abstract socket)".to_owned()),
        Err(reason) => lacking = format!("; shm not available: {reason}"),
    }
    match rdma {
        Ok(rdma) => offered.push(format!("rdma ({})", rdma.offer().port)),
        Err(reason) => lacking = format!("{lacking}; rdma not available: {reason}"),
    }
    format!("listening on {address}; paths: {}{lacking}; table: {table}", offered.join(", "))
}
