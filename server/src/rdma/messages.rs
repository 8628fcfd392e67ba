//! The message channels of a worker: frames that travel in SENDs instead of over the socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;

use sidestep_core::handshake::MessagesEnd;
use sidestep_fabric::rdma::{Channel, Exchange, LocalRange, RdmaError, RemoteRange};
use sidestep_fabric::region::Region;
use tracing::warn;

use super::Rdma;

/// Channels that a worker has at most, as far as the device has room for them.
const CHANNELS: u32 = 1024;
/// Messages of 8 KiB that each client may have under way to the server. Registered memory, and no more than keeps a
/// client busy that sends without a pause.
const RECEIVES: u16 = 16;

/// A worker's channels, if it ever had one.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    exchange: Option<Exchange>,
}

impl Messages {
    /// Opens a channel to the peer's end. `seat` is told of what happens on it.
    pub(super) fn accept(
        &mut self,
        rdma: &Rdma,
        peer: &MessagesEnd,
        seat: usize,
    ) -> Result<(Channel, MessagesEnd), RdmaError> {
        let exchange = match &mut self.exchange {
            Some(exchange) => exchange,
            none => none.insert(Exchange::new(&rdma.domain, rdma.acceptor.port(), CHANNELS, RECEIVES)?),
        };
        let (channel, end) = exchange.open(seat, false)?;
        match exchange.connect(&channel, peer) {
            Ok(()) => Ok((channel, end)),
            Err(error) => {
                exchange.close(channel);
                Err(error)
            }
        }
    }

    /// What to wait for once there is a channel.
    pub(crate) fn raw_fd(&self) -> Option<RawFd> {
        self.exchange.as_ref().map(|exchange| exchange.as_fd().as_raw_fd())
    }

    pub(crate) fn channels(&self) -> usize {
        self.exchange.as_ref().map_or(0, Exchange::channels)
    }

    /// Messages received and sent.
    pub(crate) fn counts(&self) -> (u64, u64) {
        self.exchange.as_ref().map_or((0, 0), Exchange::counts)
    }

    /// Tells `on` the seats on whose channels something happened. False: on none. No system call.
    pub(crate) fn poll(&mut self, mut on: impl FnMut(usize)) -> bool {
        let Some(exchange) = &mut self.exchange else { return false };
        match exchange.poll(&mut on) {
            Ok(count) => count > 0,
            Err(error) => {
                warn!(%error, "all message channels of a worker are lost");
                exchange.tags().for_each(on);
                self.exchange = None;
                true
            }
        }
    }

    /// Has the descriptor become readable with what happens next; what happened before is found by polling again.
    pub(crate) fn arm(&mut self) {
        if let Some(exchange) = &mut self.exchange
            && let Err(error) = exchange.arm()
        {
            warn!(%error, "cannot wait for messages");
        }
    }

    /// The descriptor became readable.
    pub(crate) fn wake(&mut self) {
        if let Some(exchange) = &mut self.exchange {
            exchange.wake();
        }
    }

    fn exchange(&mut self) -> io::Result<&mut Exchange> {
        self.exchange.as_mut().ok_or_else(|| io::Error::other("the message channels are lost"))
    }

    pub(crate) fn receive(&mut self, channel: &Channel, into: &mut [u8]) -> io::Result<usize> {
        some(self.exchange()?.receive(channel, into))
    }

    pub(crate) fn receive_into(
        &mut self,
        channel: &Channel,
        region: &Region,
        offset: u64,
        bytes: usize,
    ) -> io::Result<usize> {
        some(self.exchange()?.receive_into(channel, region, (offset, bytes)))
    }

    pub(super) fn pull(
        &mut self,
        channel: &Channel,
        from: RemoteRange,
        into: LocalRange,
        extent: Arc<dyn Send + Sync>,
    ) -> io::Result<()> {
        self.exchange()?.pull(channel, from, into, extent).map_err(io::Error::other)
    }

    /// Bytes of the value that is being read that have arrived since the last call.
    pub(crate) fn pulled(&mut self, channel: &Channel) -> io::Result<usize> {
        some(self.exchange()?.pulled(channel))
    }

    pub(crate) fn send(&mut self, channel: &Channel, bytes: &[u8]) -> io::Result<usize> {
        some(self.exchange()?.send(channel, bytes))
    }

    pub(crate) fn send_from(
        &mut self,
        channel: &Channel,
        prefix: &[u8],
        region: &Region,
        range: (u64, usize),
    ) -> io::Result<usize> {
        some(self.exchange()?.send_from(channel, prefix, region, range))
    }

    /// Whether the client has all that was sent, or never will. If not, the seat is told later.
    pub(crate) fn is_delivered(&mut self, channel: &Channel) -> bool {
        self.exchange.as_mut().is_none_or(|exchange| exchange.is_delivered(channel))
    }

    /// Gives up what is left of closed channels once it is time. False: nothing is.
    pub(crate) fn tidy(&mut self) -> bool {
        self.exchange.as_mut().is_some_and(Exchange::tidy)
    }

    pub(crate) fn close(&mut self, channel: Channel) {
        if let Some(exchange) = &mut self.exchange {
            exchange.close(channel);
        }
    }
}

/// As of a socket that does not block.
fn some(bytes: Result<usize, RdmaError>) -> io::Result<usize> {
    match bytes {
        Ok(0) => Err(io::ErrorKind::WouldBlock.into()),
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(io::Error::other(error)),
    }
}
