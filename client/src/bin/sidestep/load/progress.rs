//! How far a load has come: a bar on a terminal, one line at the end anywhere.

use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;
use std::time::Duration;

use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Draws per second.
const DRAWS: u8 = 10;

/// Keys and bytes so far, shared between what reads and what writes.
#[derive(Clone, Default)]
pub(crate) struct Progress {
    inner: Rc<Inner>,
}

struct Inner {
    bar: ProgressBar,
    keys: Cell<u64>,
    bytes: Cell<u64>,
}

impl Default for Inner {
    fn default() -> Self {
        Self { bar: ProgressBar::hidden(), keys: Cell::default(), bytes: Cell::default() }
    }
}

impl Progress {
    /// The input's length; without it there is a spinner instead of a bar.
    pub(crate) fn expect_bytes(&self, bytes: u64) {
        self.inner.bar.set_length(bytes);
    }

    /// Begins to draw, where standard error is a terminal.
    pub(crate) fn start(&self) {
        let template = match self.inner.bar.length() {
            Some(_) => "{msg} [{bar:40}] {bytes}/{total_bytes} {bytes_per_sec} eta {eta}",
            None => "{spinner} {msg} {bytes} {bytes_per_sec}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.inner.bar.set_style(style);
        }
        self.inner.bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(DRAWS));
    }

    /// So much of the input was read.
    pub(crate) fn read(&self, bytes: u64) {
        self.inner.bar.inc(bytes);
    }

    /// So many keys were written.
    pub(crate) fn add(&self, keys: u64, bytes: usize) {
        self.inner.keys.set(self.inner.keys.get() + keys);
        self.inner.bytes.set(self.inner.bytes.get() + bytes as u64);
        self.inner.bar.set_message(format!("{} keys", HumanCount(self.keys())));
    }

    pub(crate) fn keys(&self) -> u64 {
        self.inner.keys.get()
    }

    pub(crate) fn finish(&self, elapsed: Duration) {
        self.inner.bar.finish_and_clear();
        let (keys, bytes) = (HumanCount(self.keys()), HumanBytes(self.inner.bytes.get()));
        eprintln!("{keys} keys, {bytes} loaded in {:.2} s", elapsed.as_secs_f64());
    }
}

/// A reader that tells how much was read.
pub(crate) struct Counted<R> {
    inner: R,
    progress: Progress,
}

impl<R> Counted<R> {
    pub(crate) fn new(inner: R, progress: &Progress) -> Self {
        Self { inner, progress: progress.clone() }
    }
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let bytes = self.inner.read(into)?;
        self.progress.read(bytes as u64);
        Ok(bytes)
    }
}
