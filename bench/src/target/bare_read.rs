//! Bare READs over the device: the floor of `rdma`.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use sidestep_core::memory::MemoryMut;
use sidestep_fabric::rdma::{
    Accepted, Acceptor, BufferPool, DeviceChoice, Domain, Port, RdmaError, Reads, RemoteRange, RemoteReadable,
    Unconnected, Waiting,
};
use sidestep_fabric::region::Region;

use super::floor::{Values, read_only};
use super::{Completion, Connection, EachCompletion, EachRead, Effort, Reply, Route, Target, TargetError};

/// As of the clients: polls for so long before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// Longest wait for a READ.
const MOST: Duration = Duration::from_secs(10);
/// Requests that a queue pair has room for.
const DEPTH: u32 = 128;
/// Registered memory that a connection keeps for values.
const POOL_BYTES: usize = 4 << 20;
const REPLY: Reply = Reply { version: 0, route: Route::Rdma };

/// The values of a workload in registered memory of this process, read through the device's own loopback: two queue
/// pairs of one port, and no wire.
#[derive(Debug)]
pub struct BareRead {
    port: Port,
    waiting: Waiting,
    served: Arc<Served>,
}

/// What the queue pairs read.
#[derive(Debug)]
struct Served {
    acceptor: Acceptor,
    exposed: RemoteReadable,
    values: Arc<Values>,
}

impl BareRead {
    /// On the port by which the server at `HOST:PORT` is spoken to. `spin` polls instead of sleeping.
    ///
    /// # Errors
    /// There is no such port, or its device cannot have so much memory.
    pub(super) fn start(values: &Arc<Values>, server: &str, spin: bool) -> Result<Self, TargetError> {
        let refused = |error: RdmaError| TargetError::new(error);
        let local = speaks_from(server).map_err(TargetError::new)?;
        let port = Port::find(&DeviceChoice::default(), local).map_err(refused)?;
        let bytes = (values.bytes.len() as u64).next_multiple_of(4096);
        let region = Region::memfd(bytes).map_err(TargetError::new)?;
        region.allocate(0, bytes).map_err(TargetError::new)?;
        region.write_at(0, &values.bytes);
        let domain = Domain::new(port.device()).map_err(refused)?;
        let exposed = domain.expose(&region, 0, bytes).map_err(refused)?;
        let acceptor = Acceptor::new(&domain, &port).map_err(refused)?;
        let waiting = Waiting { spin: if spin { Duration::MAX } else { SPIN }, most: MOST };
        Ok(Self { port, waiting, served: Arc::new(Served { acceptor, exposed, values: values.clone() }) })
    }
}

/// The address of this host from which packets go there.
fn speaks_from(server: &str) -> io::Result<IpAddr> {
    let server = server.to_socket_addrs()?.next().ok_or(io::ErrorKind::NotFound)?;
    let any: IpAddr = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(server)?;
    Ok(socket.local_addr()?.ip())
}

impl Target for BareRead {
    fn name(&self) -> &str {
        "bare READ"
    }

    fn about(&self) -> String {
        format!("READs of the same bytes by record number out of this process, over the loopback of {}", self.port)
    }

    fn route(&self) -> Route {
        Route::Rdma
    }

    fn connect(&self, _depth: usize) -> Result<Box<dyn Connection>, TargetError> {
        let connected = || {
            let domain = Domain::new(self.port.device())?;
            let unconnected = Unconnected::new(&domain, &self.port, DEPTH)?;
            let accepted = self.served.acceptor.accept(&unconnected.end())?;
            let reads = unconnected.connect(&accepted.end(), self.waiting)?;
            Ok((reads, BufferPool::new(&domain, POOL_BYTES), accepted))
        };
        let (reads, pool, accepted) = connected().map_err(|error: RdmaError| TargetError::new(error))?;
        let served = self.served.clone();
        Ok(Box::new(BareReads { reads, pool, served, _accepted: accepted, submitted: VecDeque::new(), bytes: 0 }))
    }

    fn server_cpu(&self) -> Option<Duration> {
        None
    }
}

struct BareReads {
    reads: Reads,
    pool: BufferPool,
    served: Arc<Served>,
    /// Serves as long as it lives.
    _accepted: Accepted,
    /// Tags of what is under way, oldest first; whether it leads anywhere.
    submitted: VecDeque<(usize, bool)>,
    bytes: u64,
}

impl BareReads {
    /// Adds the READ of a record to the chain. False: there is no such record.
    fn push(&mut self, key: &[u8]) -> Result<bool, TargetError> {
        let Some(place) = self.served.values.place(key) else { return Ok(false) };
        let (address, rkey) = (self.served.exposed.address() + place.start as u64, self.served.exposed.rkey());
        let range = RemoteRange { address, rkey, bytes: place.len() };
        self.bytes += range.bytes as u64;
        let buffer = self.pool.take(range.bytes).map_err(TargetError::new)?;
        self.reads.push(range.bytes as u64, buffer, 0, range).map_err(TargetError::new)?;
        Ok(true)
    }

    /// Waits for the oldest READ under way.
    fn next<T>(&mut self, take: impl FnOnce(&[u8]) -> T) -> Result<T, TargetError> {
        match self.reads.wait().map_err(TargetError::new)? {
            Some((bytes, buffer)) => Ok(take(&buffer[..bytes as usize])),
            None => Err(TargetError::new("a READ was lost")),
        }
    }
}

impl Connection for BareReads {
    fn read(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<Option<Reply>, TargetError> {
        if !self.push(key)? {
            return Ok(None);
        }
        self.next(|bytes| {
            value.clear();
            value.extend_from_slice(bytes);
        })?;
        Ok(Some(REPLY))
    }

    fn write(&mut self, _key: &[u8], _value: &[u8]) -> Result<Reply, TargetError> {
        Err(read_only())
    }

    fn read_batch(&mut self, keys: &[&[u8]], each: EachRead<'_>) -> Result<(), TargetError> {
        let mut found = Vec::with_capacity(keys.len());
        for key in keys {
            found.push(self.push(key)?);
        }
        for (index, found) in found.into_iter().enumerate() {
            match found {
                true => self.next(|bytes| each(index, Some((bytes, REPLY))))?,
                false => each(index, None),
            }
        }
        Ok(())
    }

    fn submit_read(&mut self, tag: usize, key: &[u8]) -> Result<(), TargetError> {
        let found = self.push(key)?;
        self.submitted.push_back((tag, found));
        Ok(())
    }

    fn submit_write(&mut self, _tag: usize, _key: &[u8], _value: &[u8]) -> Result<(), TargetError> {
        Err(read_only())
    }

    /// All that was submitted: one chain, one doorbell.
    fn complete(&mut self, _wait: bool, each: EachCompletion<'_>) -> Result<(), TargetError> {
        while let Some((tag, found)) = self.submitted.pop_front() {
            match found {
                true => self.next(|bytes| each(Completion { tag, outcome: Ok(Some((bytes, REPLY))) }))?,
                false => each(Completion { tag, outcome: Ok(None) }),
            }
        }
        Ok(())
    }

    fn effort(&mut self) -> Effort {
        Effort { bytes_received: self.bytes, ..Effort::default() }
    }
}
