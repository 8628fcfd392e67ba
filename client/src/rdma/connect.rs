//! Getting a queue pair to the server, over the control connection.

use std::sync::Arc;
use std::time::Duration;

use sidestep_core::handshake::{QueuePairEnd, QueuePairReply, QueuePairRequest, decode_body, encode_body};
use sidestep_core::message::Op;
use sidestep_fabric::rdma::{BufferPool, DeviceChoice, Domain, Endpoint, Port, RdmaError, Unconnected, Waiting};

use super::reader::RdmaReader;
use super::remote::Remote;
use crate::client::Shared;
use crate::control::{Control, Handler};
use crate::counters::Counters;
use crate::error::Error;
use crate::pipeline::Request;
use crate::shm::NoView;
use crate::value::Answer;

/// Polls for so long before it sleeps: a READ that takes longer than this is worth a system call.
const SPIN: Duration = Duration::from_micros(50);

/// A port of this host and what its queue pairs share, for all sessions of a client.
#[derive(Debug)]
pub(crate) struct Nic {
    port: Port,
    domain: Domain,
}

impl Nic {
    fn open(choice: &DeviceChoice, control: &Control) -> Result<Self, NoView> {
        let local = control
            .watched()
            .and_then(|watched| watched.stream().local_addr().ok())
            .ok_or_else(|| NoView::here("the control connection is lost"))?;
        let port = Port::find(choice, local.ip())
            .map_err(|error| NoView { is_elsewhere: error.is_absence(), reason: format!("this host: {error}") })?;
        let domain = Domain::new(port.device()).map_err(NoView::here)?;
        Ok(Self { port, domain })
    }
}

/// Connects a queue pair and makes a reader of it.
pub(crate) fn connect(
    shared: &Shared,
    counters: &Arc<Counters>,
    control: &mut Control,
    keep: Handler<'_>,
) -> Result<RdmaReader, NoView> {
    if let Err(reason) = &control.welcome().rdma {
        return Err(NoView { is_elsewhere: true, reason: format!("the server does not offer it: {reason}") });
    }
    let options = shared.options();
    let choice: DeviceChoice = options.device.parse().map_err(NoView::here)?;
    let nic = shared.nic(|| Nic::open(&choice, control))?;
    // The port may have changed under us: the next attempt looks again.
    let failed = |error: RdmaError| {
        shared.forget_nic();
        NoView::here(error)
    };
    let unconnected = Unconnected::new(&nic.domain, &nic.port, options.queue_depth).map_err(failed)?;
    let reply = exchange(control, &unconnected.endpoint(), keep).map_err(NoView::here)?;
    let spin = if options.spin { Duration::MAX } else { SPIN };
    let waiting = Waiting { spin, most: options.request_timeout };
    let reads = unconnected.connect(&endpoint(&reply.end), waiting).map_err(failed)?;
    let pool = BufferPool::new(&nic.domain, options.buffer_pool_bytes);
    // As of the connection that answered, which may be another one than before.
    let welcome = control.welcome();
    let remote = Remote::new(reads, pool, welcome, (reply.root_address, reply.root_rkey)).map_err(NoView::here)?;
    let watched = control.watched().ok_or_else(|| NoView::here("the control connection is lost"))?;
    Ok(RdmaReader::new(remote, welcome, watched, options.location_cache, counters.clone()))
}

/// Tells the server of our end and is told of its.
fn exchange(control: &mut Control, ours: &Endpoint, keep: Handler<'_>) -> Result<QueuePairReply, Error> {
    let protocol = |control: &Control, reason| Error::Protocol { server: control.server().to_owned(), reason };
    let body = encode_body(&QueuePairRequest { end: end(ours) }).map_err(|reason| protocol(control, reason))?;
    let id = control.push(&Request { op: Op::Connect, value: &body, ..Request::get(&[]) });
    let mut reply: Option<Result<Vec<u8>, Error>> = None;
    while reply.is_none() {
        control.drive(true, &mut |other, answer| match answer {
            answer if other != id => keep(other, answer),
            Ok(Answer::Echo(bytes)) => reply = Some(Ok(bytes.to_vec())),
            Ok(_) => reply = Some(Ok(Vec::new())),
            Err(error) => reply = Some(Err(error)),
        });
    }
    let bytes = reply.unwrap_or_else(|| Ok(Vec::new()))?;
    decode_body(&bytes).map_err(|reason| protocol(control, reason))
}

fn end(endpoint: &Endpoint) -> QueuePairEnd {
    let Endpoint { number, first_packet, gid, lid, mtu, reads_served, reads_issued } = *endpoint;
    QueuePairEnd { number, first_packet, gid, lid, mtu, reads_served, reads_issued }
}

fn endpoint(end: &QueuePairEnd) -> Endpoint {
    let QueuePairEnd { number, first_packet, gid, lid, mtu, reads_served, reads_issued } = *end;
    Endpoint { number, first_packet, gid, lid, mtu, reads_served, reads_issued }
}
