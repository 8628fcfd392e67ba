//! In place of the `rdma` path where the server is built without it.

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::Arc;

use sidestep_core::handshake::RdmaOffer;
use sidestep_core::message::LentValue;
use sidestep_fabric::region::Region;

use crate::error::ServerError;

/// Never exists.
#[derive(Debug)]
pub(crate) struct QueuePair(Infallible);

/// Never exists.
#[derive(Debug)]
pub(crate) struct Rdma(Infallible);

impl Rdma {
    pub(crate) fn start(device: &str, _: IpAddr) -> Result<Result<Self, String>, ServerError> {
        let reason = "this server was built without it (Cargo feature `rdma`)".to_owned();
        match device {
            "auto" | "none" => Ok(Err(reason)),
            _ => Err(ServerError::Device { device: device.to_owned(), reason }),
        }
    }

    pub(crate) fn expose(&self, _: &Region) {
        match self.0 {}
    }

    pub(crate) fn check(self) -> Result<Self, String> {
        match self.0 {}
    }

    pub(crate) fn offer(&self) -> RdmaOffer {
        match self.0 {}
    }

    pub(crate) fn pull(
        &self,
        _: (&mut Messages, &Channel),
        _: &LentValue,
        _: u64,
        _: Arc<dyn Send + Sync>,
    ) -> Result<(), String> {
        match self.0 {}
    }

    pub(crate) fn connect(
        &self,
        _: &[u8],
        _: Result<(&mut Messages, usize), &str>,
    ) -> Result<(Connected, Vec<u8>), String> {
        match self.0 {}
    }
}

pub(crate) struct Connected {
    pub(crate) reads: Option<QueuePair>,
    pub(crate) channel: Option<Channel>,
}

/// Never exists.
#[derive(Debug)]
pub(crate) struct Channel(Infallible);

/// Never has a channel.
#[derive(Debug, Default)]
pub(crate) struct Messages(());

impl Messages {
    pub(crate) fn raw_fd(&self) -> Option<RawFd> {
        None
    }

    pub(crate) fn channels(&self) -> usize {
        0
    }

    pub(crate) fn counts(&self) -> (u64, u64) {
        (0, 0)
    }

    pub(crate) fn poll(&mut self, _: impl FnMut(usize)) -> bool {
        false
    }

    pub(crate) fn arm(&mut self) {}

    pub(crate) fn tidy(&mut self) -> bool {
        false
    }

    pub(crate) fn wake(&mut self) {}

    pub(crate) fn receive(&mut self, channel: &Channel, _: &mut [u8]) -> io::Result<usize> {
        match channel.0 {}
    }

    pub(crate) fn receive_into(&mut self, channel: &Channel, _: &Region, _: u64, _: usize) -> io::Result<usize> {
        match channel.0 {}
    }

    pub(crate) fn pulled(&mut self, channel: &Channel) -> io::Result<usize> {
        match channel.0 {}
    }

    pub(crate) fn send(&mut self, channel: &Channel, _: &[u8]) -> io::Result<usize> {
        match channel.0 {}
    }

    pub(crate) fn send_from(&mut self, channel: &Channel, _: &[u8], _: &Region, _: (u64, usize)) -> io::Result<usize> {
        match channel.0 {}
    }

    pub(crate) fn is_delivered(&mut self, channel: &Channel) -> bool {
        match channel.0 {}
    }

    pub(crate) fn close(&mut self, channel: Channel) {
        match channel.0 {}
    }
}
