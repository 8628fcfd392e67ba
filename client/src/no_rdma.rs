//! In place of the `rdma` path where the client is built without it: a reader that cannot be had.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use crate::client::Shared;
use crate::control::{Control, Handler};
use crate::counters::Counters;
use crate::pipeline::Lent;
use crate::shm::{Looked, NoView};
use crate::value::Meta;
use crate::watch::Watched;

/// Never exists.
pub(crate) struct RdmaReader(Infallible);
/// Never exists.
pub(crate) struct Item(Infallible);
/// Never exists.
#[derive(Debug)]
pub(crate) struct Registered(Infallible);

impl Registered {
    pub(crate) fn value(&self) -> &[u8] {
        match self.0 {}
    }
}

impl Item {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self.0 {}
    }
    pub(crate) fn is_scarce(&self) -> bool {
        match self.0 {}
    }
    pub(crate) fn meta(&self) -> Meta {
        match self.0 {}
    }
}

impl RdmaReader {
    pub(crate) fn goes_on(&self) -> bool {
        match self.0 {}
    }
    pub(crate) fn take_error(&mut self) -> Option<String> {
        match self.0 {}
    }
    pub(crate) fn look(&mut self, _: &[u8], _: &mut dyn FnMut(&[u8], Meta)) -> Looked {
        match self.0 {}
    }
    pub(crate) fn find(&mut self, _: &[u8], _: &mut Option<Item>) -> Looked {
        match self.0 {}
    }
    pub(crate) fn look_batch<K>(&mut self, _: &[K], _: &mut Vec<usize>, _: &mut impl FnMut(usize, Option<Item>)) {
        match self.0 {}
    }
    pub(crate) fn look_into(
        &mut self,
        _: &[u8],
        _: &mut Option<Registered>,
        _: usize,
        _: &mut dyn FnMut(&[u8]),
    ) -> (Looked, Option<Meta>) {
        match self.0 {}
    }
    pub(crate) fn publish_trace(&mut self) {
        match self.0 {}
    }
}

/// Never exists.
pub(crate) struct Messages(Infallible);

impl Messages {
    pub(crate) fn send(&mut self, _: &[u8]) -> io::Result<usize> {
        match self.0 {}
    }
    pub(crate) fn lend(&mut self, _: usize, _: &[u8]) -> Result<Option<Lent>, String> {
        match self.0 {}
    }
    pub(crate) fn try_receive(&mut self, _: &mut [u8]) -> io::Result<usize> {
        match self.0 {}
    }
    pub(crate) fn wait(&mut self, _: &Watched) -> io::Result<()> {
        match self.0 {}
    }
}

pub(crate) fn connect(
    _: &Shared,
    _: &Arc<Counters>,
    _: &mut Control,
    _: Handler<'_>,
    _: bool,
) -> Result<Option<RdmaReader>, NoView> {
    Err(NoView { is_elsewhere: true, reason: "this client was built without it (Cargo feature `rdma`)".to_owned() })
}
