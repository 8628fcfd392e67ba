//! The threads beside the workers: one has memory ready before writers need it, one removes what has expired.

use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use tracing::{error, warn};

use crate::backing::Backing;
use crate::store::Store;

/// Running threads `sidestep-grow` and `sidestep-sweep`. They end when it is dropped.
#[derive(Debug)]
pub(crate) struct Upkeep<M: Backing> {
    store: Arc<Store<M>>,
    threads: Vec<JoinHandle<()>>,
}

impl<M: Backing> Upkeep<M> {
    pub(crate) fn start(store: Arc<Store<M>>) -> io::Result<Self> {
        let mut upkeep = Self { store: store.clone(), threads: Vec::new() };
        let growing = store.clone();
        let grow = move || {
            growing
                .grow_ahead(|error| warn!(%error, "the table cannot grow for now; writes go on while there is room"));
        };
        upkeep.threads.push(Builder::new().name("sidestep-grow".into()).spawn(grow)?);
        let sweep = move || store.sweep_expired();
        upkeep.threads.push(Builder::new().name("sidestep-sweep".into()).spawn(sweep)?);
        Ok(upkeep)
    }
}

impl<M: Backing> Drop for Upkeep<M> {
    fn drop(&mut self) {
        self.store.stop_growing_ahead();
        self.store.stop_sweeping();
        for thread in self.threads.drain(..) {
            let name = thread.thread().name().unwrap_or_default().to_owned();
            if thread.join().is_err() {
                error!("the thread {name} panicked");
            }
        }
    }
}
