//! In place of the `rdma` path where the server is built without it.

use std::convert::Infallible;
use std::net::IpAddr;

use sidestep_core::handshake::RdmaOffer;
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

    pub(crate) fn connect(&self, _: &[u8]) -> Result<(QueuePair, Vec<u8>), String> {
        match self.0 {}
    }
}
