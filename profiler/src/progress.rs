//! What a run says on standard error while it goes on: a bar on a terminal, plain lines elsewhere.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Progress of one run.
pub struct Progress {
    bar: Option<ProgressBar>,
    quiet: bool,
}

impl Progress {
    /// Progress on standard error, or none if `quiet`.
    #[must_use]
    pub fn new(quiet: bool) -> Self {
        Self { bar: None, quiet }
    }

    /// Says one thing, on a line of its own.
    pub fn say(&self, text: &str) {
        if self.quiet {
            return;
        }
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{text}")),
            None => eprintln!("{text}"),
        }
    }

    /// Begins a bar over a stretch of time, on a terminal; `None` is a stretch without known end.
    pub fn begin(&mut self, what: &'static str, length: Option<Duration>) {
        let template = match length {
            Some(_) => "{msg} {bar:40} {elapsed}",
            None => "{msg} {spinner} {elapsed}",
        };
        self.begin_as(what, length.map(millis), template);
    }

    /// Begins a bar over the bytes of a file, on a terminal; `None` is a stream without known end.
    pub fn begin_bytes(&mut self, what: &'static str, bytes: Option<u64>) {
        let template = match bytes {
            Some(_) => "{msg} {bar:40} {binary_bytes} of {binary_total_bytes}, {eta} left",
            None => "{msg} {spinner} {binary_bytes} {elapsed}",
        };
        self.begin_as(what, bytes, template);
    }

    fn begin_as(&mut self, what: &'static str, length: Option<u64>, template: &str) {
        self.end();
        if self.quiet || !std::io::stderr().is_terminal() {
            return;
        }
        let target = ProgressDrawTarget::stderr_with_hz(4);
        let bar = ProgressBar::with_draw_target(length, target);
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message(what);
        self.bar = Some(bar);
    }

    /// Moves the bar to a time since its begin.
    pub fn at(&self, elapsed: Duration) {
        if let Some(bar) = &self.bar {
            bar.set_position(millis(elapsed));
        }
    }

    /// Moves the bar to a number of bytes since its begin.
    pub fn at_bytes(&self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(bytes);
        }
    }

    /// Takes the bar away.
    pub fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
