//! Getting a queue pair to the server, over the control connection.

use std::sync::Arc;
use std::time::Duration;

use sidestep_core::handshake::{QueuePairReply, QueuePairRequest, decode_body, encode_body};
use sidestep_core::message::Op;
use sidestep_fabric::rdma::{BufferPool, DeviceChoice, Domain, Port, RdmaError, Unconnected, Waiting};

use super::messages::{Messages, Patience};
use super::reader::RdmaReader;
use super::remote::Remote;
use crate::client::{PortInfo, Shared};
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
    pub(super) port: Port,
    pub(super) domain: Domain,
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

    pub(crate) fn info(&self) -> PortInfo {
        PortInfo { description: self.port.to_string(), is_software: self.port.device().is_software() }
    }
}

/// Connects what is missing: a message channel for the session's frames, unless they travel so already, and if it is to
/// read, a queue pair for READs. A queue pair of its own: on that of the messages a request would wait for the 16 MiB of
/// a READ that was posted before it.
pub(crate) fn connect(
    shared: &Shared,
    counters: &Arc<Counters>,
    control: &mut Control,
    keep: Handler<'_>,
    is_to_read: bool,
) -> Result<Option<RdmaReader>, NoView> {
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
    // Behind the request for a channel nothing may follow on the socket, and what was asked before is answered there.
    while control.waiting() > 0 {
        control.drive(true, keep);
    }
    let spin = if options.spin { Duration::MAX } else { SPIN };
    let patience = Patience { spin, most: options.request_timeout };
    let (messages, our_messages) = match control.has_messages() {
        true => (None, None),
        false => {
            let opened = Messages::open(&nic, patience, options.buffer_pool_bytes).map_err(failed)?;
            (Some(opened.0), Some(opened.1))
        }
    };
    let unconnected = match is_to_read {
        true => Some(Unconnected::new(&nic.domain, &nic.port, options.queue_depth).map_err(failed)?),
        false => None,
    };
    let request = QueuePairRequest { reads: unconnected.as_ref().map(Unconnected::end), messages: our_messages };
    let reply = exchange(control, &request, keep).map_err(NoView::here)?;
    if let Some(mut messages) = messages {
        let theirs = reply.messages.ok_or_else(|| NoView::here("the server's reply has no message channel"))?;
        let connected = messages.connect(&theirs).map_err(failed);
        // Either way the server answers over the channel from now on.
        control.carry_by(messages);
        connected?;
    } else if !control.has_messages() {
        return Err(NoView::here("the connection was lost before the message channel was used"));
    }
    let Some(unconnected) = unconnected else { return Ok(None) };
    let theirs = reply.reads.ok_or_else(|| NoView::here("the server's reply has no queue pair to read by"))?;
    let waiting = Waiting { spin, most: options.request_timeout };
    let reads = unconnected.connect(&theirs.end, waiting).map_err(failed)?;
    let pool = BufferPool::new(&nic.domain, options.buffer_pool_bytes);
    // As of the connection that answered, which may be another one than before.
    let welcome = control.welcome();
    let remote = Remote::new(reads, pool, welcome, (theirs.root_address, theirs.root_rkey)).map_err(NoView::here)?;
    let watched = control.watched().ok_or_else(|| NoView::here("the control connection is lost"))?;
    Ok(Some(RdmaReader::new(remote, welcome, watched, options.location_cache, counters.clone())))
}

/// Tells the server of our ends and is told of its.
fn exchange(control: &mut Control, request: &QueuePairRequest, keep: Handler<'_>) -> Result<QueuePairReply, Error> {
    let protocol = |control: &Control, reason| Error::Protocol { server: control.server().to_owned(), reason };
    let body = encode_body(request).map_err(|reason| protocol(control, reason))?;
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
