//! The thread that has memory ready before writers need it.

use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use tracing::{error, warn};

use crate::backing::Backing;
use crate::store::Store;

/// A running thread `sidestep-grow`. Ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Upkeep<M: Backing> {
    store: Arc<Store<M>>,
    grow: Option<JoinHandle<()>>,
}

impl<M: Backing> Upkeep<M> {
    pub(crate) fn start(store: Arc<Store<M>>) -> io::Result<Self> {
        let mut upkeep = Self { store: store.clone(), grow: None };
        let grow = move || {
            store.grow_ahead(|error| warn!(%error, "the table cannot grow for now; writes go on while there is room"));
        };
        upkeep.grow = Some(Builder::new().name("sidestep-grow".into()).spawn(grow)?);
        Ok(upkeep)
    }
}

impl<M: Backing> Drop for Upkeep<M> {
    fn drop(&mut self) {
        self.store.stop_growing_ahead();
        if self.grow.take().is_some_and(|thread| thread.join().is_err()) {
            error!("the thread that grows the table panicked");
        }
    }
}
