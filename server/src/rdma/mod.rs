//! The `rdma` path: segments that clients' NICs read, and the queue pairs they do it by.
//!
//! After a queue pair is connected this process has nothing to do with what is read.

mod segments;

use std::net::IpAddr;
use std::sync::Arc;

use sidestep_core::handshake::{QueuePairEnd, QueuePairReply, QueuePairRequest, RdmaOffer, decode_body, encode_body};
use sidestep_fabric::rdma::{Accepted, Acceptor, DeviceChoice, Domain, Endpoint, Port, RdmaError};
use sidestep_fabric::region::Region;

use crate::error::ServerError;
use segments::Segments;

/// A client's way to read. Dropping it ends that.
pub(crate) type QueuePair = Accepted;

/// The device, and what is exposed on it.
#[derive(Debug)]
pub(crate) struct Rdma {
    acceptor: Acceptor,
    segments: Arc<Segments>,
}

impl Rdma {
    /// Opens the device that `device` asks for. Within: why there is none; that is an error only of one that is named.
    pub(crate) fn start(device: &str, listening_on: IpAddr) -> Result<Result<Self, String>, ServerError> {
        let unusable = |reason| ServerError::Device { device: device.to_owned(), reason };
        let choice: DeviceChoice = device.parse().map_err(unusable)?;
        match Self::open(&choice, listening_on) {
            Ok(rdma) => Ok(Ok(rdma)),
            Err(error) if matches!(choice, DeviceChoice::Named { .. }) => Err(unusable(error.to_string())),
            Err(error) => Ok(Err(error.to_string())),
        }
    }

    fn open(choice: &DeviceChoice, listening_on: IpAddr) -> Result<Self, RdmaError> {
        let port = Port::find(choice, listening_on)?;
        let domain = Domain::new(port.device())?;
        let acceptor = Acceptor::new(&domain, &port)?;
        Ok(Self { acceptor, segments: Arc::new(Segments::new(domain)) })
    }

    /// Has the segments of this region exposed as they are taken into use.
    pub(crate) fn expose(&self, region: &Region) {
        region.expose_by(self.segments.clone());
    }

    /// Once the table is open: without segment 0 no client can begin.
    pub(crate) fn check(self) -> Result<Self, String> {
        match self.segments.root() {
            Some(_) => Ok(self),
            None => Err(self.segments.failure().unwrap_or_else(|| "the first segment is not registered".to_owned())),
        }
    }

    /// What a client is told when it is let in.
    pub(crate) fn offer(&self) -> RdmaOffer {
        RdmaOffer { port: self.acceptor.port().to_string() }
    }

    /// Connects a new queue pair to the one that a client tells of. Returns it with the body of the reply.
    pub(crate) fn connect(&self, request: &[u8]) -> Result<(QueuePair, Vec<u8>), String> {
        let QueuePairRequest { end } = decode_body(request)?;
        let (root_address, root_rkey) = self.segments.root().ok_or("the first segment is not registered")?;
        let pair = self.acceptor.accept(&endpoint(&end)).map_err(|error| error.to_string())?;
        let body = encode_body(&QueuePairReply { end: end_of(&pair.endpoint()), root_address, root_rkey })?;
        Ok((pair, body))
    }
}

fn endpoint(end: &QueuePairEnd) -> Endpoint {
    let QueuePairEnd { number, first_packet, gid, lid, mtu, reads_served, reads_issued } = *end;
    Endpoint { number, first_packet, gid, lid, mtu, reads_served, reads_issued }
}

fn end_of(endpoint: &Endpoint) -> QueuePairEnd {
    let Endpoint { number, first_packet, gid, lid, mtu, reads_served, reads_issued } = *endpoint;
    QueuePairEnd { number, first_packet, gid, lid, mtu, reads_served, reads_issued }
}
