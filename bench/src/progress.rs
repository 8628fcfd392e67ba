//! What the user sees while it works: a bar on a terminal, a plain line otherwise. All of it goes to stderr.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Progress of one stage.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    plain: bool,
}

impl Progress {
    /// A stage of `length` steps; `template` is indicatif's.
    #[must_use]
    pub fn new(name: &str, length: u64, template: &str) -> Self {
        let plain = !std::io::stderr().is_terminal();
        let target = if plain { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(Some(length), target).with_message(name.to_owned());
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        if plain {
            eprintln!("{name}");
        }
        Self { bar, plain }
    }

    /// A stage that counts records.
    #[must_use]
    pub fn records(name: &str, length: u64) -> Self {
        Self::new(name, length, "{msg} {wide_bar} {human_pos}/{human_len} ({per_sec})")
    }

    /// A stage that counts runs.
    #[must_use]
    pub fn runs(name: &str, length: u64) -> Self {
        Self::new(name, length, "{wide_bar} {pos}/{len} runs, {elapsed} elapsed, {msg}")
    }

    /// `steps` more are done.
    pub fn advance(&self, steps: u64) {
        self.bar.inc(steps);
    }

    /// What is done now.
    pub fn say(&self, message: String) {
        if self.plain {
            eprintln!("{message}");
        } else {
            self.bar.set_message(message);
        }
    }

    /// One more step than was thought.
    pub fn lengthen(&self) {
        self.bar.inc_length(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
