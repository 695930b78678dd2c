//! What a run says on standard error while it goes on: a bar on a terminal, plain lines elsewhere.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::terminal::{clean_lines, say};

/// Progress of one run.
pub struct Progress {
    bar: Option<ProgressBar>,
    quiet: bool,
    /// Whether bars and tables are drawn where there is a terminal.
    drawn: bool,
}

impl Progress {
    /// Progress on standard error, or none if `quiet`.
    pub fn new(quiet: bool) -> Self {
        Self { bar: None, quiet, drawn: true }
    }

    /// Prints lines alone, without bars and tables, unless `drawn`.
    pub fn drawn(mut self, drawn: bool) -> Self {
        self.drawn = drawn;
        self
    }

    /// Whether there is a terminal to draw on, and drawing is wanted.
    pub fn is_drawn(&self) -> bool {
        self.drawn && !self.quiet && std::io::stderr().is_terminal()
    }

    /// Prints a line.
    pub fn say(&self, text: &str) {
        if self.quiet {
            return;
        }
        match &self.bar {
            Some(bar) => bar.suspend(|| say(text)),
            None => say(text),
        }
    }

    /// Begins a bar over a stretch of time, on a terminal; `None` is a stretch without known end.
    pub fn begin(&mut self, what: &'static str, length: Option<Duration>) {
        let template = match length {
            Some(_) => "{msg} {bar:40} {elapsed}{prefix}",
            None => "{msg} {spinner} {elapsed}{prefix}",
        };
        self.begin_as(what, length.map(millis), template);
    }

    /// Begins a bar over a number of steps, on a terminal.
    pub fn begin_steps(&mut self, what: &'static str, steps: u64) {
        self.begin_as(what, Some(steps), "{msg} {bar:40} {pos} of {len}, {elapsed}");
    }

    fn begin_as(&mut self, what: &'static str, length: Option<u64>, template: &str) {
        self.end();
        if !self.is_drawn() {
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

    /// Moves the bar to a time since its start.
    pub fn at(&self, elapsed: Duration) {
        self.at_count(millis(elapsed));
    }

    /// Moves the bar to a number of steps since its start.
    pub fn at_count(&self, count: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(count);
        }
    }

    /// Shows a table below the bar, made for as many lines as the terminal has for it.
    pub fn table(&self, text: impl FnOnce(usize) -> String) {
        if let Some(bar) = &self.bar {
            let lines = terminal_size::terminal_size_of(std::io::stderr())
                .map_or(24, |(_, height)| usize::from(height.0));
            // The bar itself, and the line that the cursor is on.
            bar.set_prefix(format!("\n{}", clean_lines(&text(lines.saturating_sub(2)))));
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
