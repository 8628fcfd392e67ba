//! The RDMA paths: segments that clients' NICs read, the queue pairs they do it by, and message channels.
//!
//! After a queue pair for READs is connected this process has nothing to do with what is read. Large values that clients
//! write are read by this process out of their memory, by the queue pair of the message channel.

mod messages;
mod segments;

use std::net::IpAddr;
use std::sync::Arc;

use sidestep_core::handshake::{
    QueuePairEnd, QueuePairReply, QueuePairRequest, RdmaOffer, ReadsReply, decode_body, encode_body,
};
use sidestep_core::message::LentValue;
pub(crate) use sidestep_fabric::rdma::Channel;
use sidestep_fabric::rdma::{Accepted, Acceptor, DeviceChoice, Domain, Port, RdmaError, RemoteRange};
use sidestep_fabric::region::Region;

use crate::error::ServerError;
pub(crate) use messages::Messages;
use segments::Segments;

/// A client's way to read. Dropping it ends that.
pub(crate) type QueuePair = Accepted;

/// The device, and what is exposed on it.
#[derive(Debug)]
pub(crate) struct Rdma {
    domain: Domain,
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
        Ok(Self { segments: Arc::new(Segments::new(domain.clone())), domain, acceptor })
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

    /// Connects what a client's request asks for. `messages` has the channel that may be opened for the seat, or why none
    /// may be. Returns it all with the body of the reply.
    pub(crate) fn connect(
        &self,
        request: &[u8],
        messages: Result<(&mut Messages, usize), &str>,
    ) -> Result<(Connected, Vec<u8>), String> {
        let QueuePairRequest { reads, messages: wanted } = decode_body(request)?;
        let reads = reads.map(|end| self.accept_reads(&end)).transpose()?;
        let (reads, reads_reply) = reads.unzip();
        let mut reply = QueuePairReply { reads: reads_reply, messages: None };
        let Some(peer) = wanted else {
            return Ok((Connected { reads, channel: None }, encode_body(&reply)?));
        };
        let (messages, seat) = messages?;
        let (channel, ours) = messages.accept(self, &peer, seat).map_err(|error| error.to_string())?;
        reply.messages = Some(ours);
        match encode_body(&reply) {
            Ok(body) => Ok((Connected { reads, channel: Some(channel) }, body)),
            Err(reason) => {
                messages.close(channel);
                Err(reason)
            }
        }
    }

    /// Begins to read a value from the client's memory to `offset` of the table, where it has no more bytes than the client
    /// said. `extent` keeps that place from any other use.
    pub(crate) fn pull(
        &self,
        (messages, channel): (&mut Messages, &Channel),
        from: &LentValue,
        offset: u64,
        extent: Arc<dyn Send + Sync>,
    ) -> Result<(), String> {
        let bytes = from.value_bytes.get() as usize;
        let into = self.segments.range(offset, bytes).ok_or("the segment of the item is not registered")?;
        let from = RemoteRange { address: from.address.get(), rkey: from.rkey.get(), bytes };
        messages.pull(channel, from, into, extent).map_err(|error| error.to_string())
    }

    fn accept_reads(&self, end: &QueuePairEnd) -> Result<(QueuePair, ReadsReply), String> {
        let (root_address, root_rkey) = self.segments.root().ok_or("the first segment is not registered")?;
        let pair = self.acceptor.accept(end).map_err(|error| error.to_string())?;
        let reply = ReadsReply { end: pair.end(), root_address, root_rkey };
        Ok((pair, reply))
    }
}

/// What a client asked for.
pub(crate) struct Connected {
    pub(crate) reads: Option<QueuePair>,
    pub(crate) channel: Option<Channel>,
}
