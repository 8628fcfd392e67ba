//! The threads beside the workers: one has memory ready before writers need it, one removes what has expired.

use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use tracing::{error, info, warn};

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
        let sweep = move || store.sweep_expired(tell_of_clock);
        upkeep.threads.push(Builder::new().name("sidestep-sweep".into()).spawn(sweep)?);
        Ok(upkeep)
    }
}

fn tell_of_clock(ahead_ms: u64) {
    match ahead_ms {
        0 => info!("this machine's clock has caught up with the table's: what expires does so in its time again"),
        ahead_ms => warn!(
            ahead_ms,
            "the table's clock is ahead of this machine's, which was wrong once or is now: until it has caught up nothing \
             expires, and times to live count from the table's; see \"A clock that was wrong\" in OPERATIONS.md"
        ),
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
