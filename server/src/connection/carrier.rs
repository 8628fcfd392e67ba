//! What carries a connection's bytes: its socket, TLS over its socket, or a message channel.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::AsFd;

use sidestep_fabric::region::Region;

use super::tls::Tls;
use crate::rdma::{Channel, Messages};

/// The way of a connection's bytes for the moment. It does not block; nothing is sent or received in part of a call.
pub(crate) enum Carrier<'a, S> {
    Socket(&'a mut S),
    Tls(&'a mut S, &'a mut Tls),
    Channel(&'a mut Messages, &'a Channel),
}

impl<S: Read + Write + AsFd> Carrier<'_, S> {
    pub(crate) fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Socket(stream) => stream.read(into),
            Self::Tls(stream, tls) => tls.receive(stream, into),
            Self::Channel(messages, channel) => messages.receive(channel, into),
        }
    }

    /// Into the region, from byte `offset` on.
    pub(crate) fn receive_into(&mut self, region: &Region, offset: u64, bytes: usize) -> io::Result<usize> {
        match self {
            Self::Socket(stream) => region.receive_into(stream.as_fd(), offset, bytes),
            Self::Tls(stream, tls) => tls.receive_into(stream, region, offset, bytes),
            Self::Channel(messages, channel) => messages.receive_into(channel, region, offset, bytes),
        }
    }

    /// Bytes of a value that the client has lent which are in their place now.
    pub(crate) fn pulled(&mut self) -> io::Result<usize> {
        match self {
            Self::Socket(_) | Self::Tls(..) => {
                Err(io::Error::other("a value is read by a queue pair, and there is none any more"))
            }
            Self::Channel(messages, channel) => messages.pulled(channel),
        }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Socket(stream) => stream.write(bytes),
            Self::Tls(stream, tls) => tls.send(stream, &[IoSlice::new(bytes)]),
            Self::Channel(messages, channel) => messages.send(channel, bytes),
        }
    }

    /// `prefix`, and after it bytes of the region.
    pub(crate) fn send_from(&mut self, prefix: &[u8], region: &Region, offset: u64, bytes: usize) -> io::Result<usize> {
        match self {
            Self::Socket(stream) => region.send_to(stream.as_fd(), prefix, offset, bytes),
            Self::Tls(stream, tls) => tls.send_from(stream, prefix, region, (offset, bytes)),
            Self::Channel(messages, channel) => messages.send_from(channel, prefix, region, (offset, bytes)),
        }
    }
}
