//! The output of a VM so far, and what follows from it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::console::{self, Trouble};
use crate::error::VmError;
use crate::script::{self, Line};

/// Lines that an error carries.
const LAST_LINES: usize = 12;

/// Most bytes that are kept of a stream: there is no bound to what a guest may write.
const MOST_BYTES: usize = 8 << 20;

/// Lines within [`MOST_BYTES`], the oldest left out.
#[derive(Default)]
struct Kept {
    lines: VecDeque<String>,
    bytes: usize,
    left_out: u64,
}

impl Kept {
    fn push(&mut self, line: String) {
        let bytes = |line: &String| size_of::<String>() + line.len();
        self.bytes += bytes(&line);
        self.lines.push_back(line);
        while self.bytes > MOST_BYTES
            && let Some(oldest) = self.lines.pop_front()
        {
            self.bytes -= bytes(&oldest);
            self.left_out += 1;
        }
    }

    fn tail(&self) -> Vec<String> {
        self.lines.range(self.lines.len().saturating_sub(LAST_LINES)..).cloned().collect()
    }
}

/// The output of the VM so far.
pub(crate) struct Seen {
    begun: Instant,
    started: bool,
    done: Option<(i32, Duration)>,
    /// The console from the first sign of trouble on, without what is beyond the bound.
    trouble: Option<Kept>,
    lines: Kept,
    console: Kept,
}

impl Default for Seen {
    fn default() -> Self {
        Self {
            begun: Instant::now(),
            started: false,
            done: None,
            trouble: None,
            lines: Kept::default(),
            console: Kept::default(),
        }
    }
}

impl Seen {
    /// Takes a line of output; true when it was the sentinel.
    pub(crate) fn output(
        &mut self,
        line: &str,
        nonce: &str,
        on_line: &mut dyn FnMut(&str),
    ) -> bool {
        let mut keep = |line: &str| {
            on_line(line);
            self.lines.push(line.to_owned());
        };
        match script::classify(line, nonce) {
            Line::Start => self.started = true,
            Line::Output(line) if self.started && self.done.is_none() => keep(line),
            // virtme-ng's own output.
            Line::Output(_) => {}
            Line::Done { rest, code } => {
                if !rest.is_empty() {
                    keep(rest);
                }
                self.done = Some((code, self.begun.elapsed()));
                return true;
            }
        }
        false
    }

    /// Takes a line of the kernel; true when it is the first sign of trouble.
    pub(crate) fn console(&mut self, line: String) -> bool {
        let first = self.trouble.is_none() && console::is_trouble(&line);
        if first {
            self.trouble = Some(Kept::default());
        }
        match &mut self.trouble {
            Some(report) if report.bytes + line.len() < MOST_BYTES => report.push(line),
            Some(_) => {}
            None => self.console.push(line),
        }
        first
    }

    /// The command's exit code, its lines, and the time until its end.
    pub(crate) fn verdict(
        self,
        timed_out: Option<Duration>,
    ) -> Result<(i32, Vec<String>, Duration), VmError> {
        if let Some(report) = self.trouble {
            return Err(VmError::Trouble { trouble: Trouble { lines: report.lines.into() } });
        }
        if let Some((code, elapsed)) = self.done {
            let Kept { mut lines, left_out, .. } = self.lines;
            if left_out > 0 {
                lines.push_front(format!("{left_out} earlier lines are left out"));
            }
            return Ok((code, lines.into(), elapsed));
        }
        let started = self.started;
        let mut last = self.console.tail();
        Err(match timed_out {
            Some(limit) => {
                last.extend(self.lines.tail());
                VmError::TimedOut { started, limit, last }
            }
            None => VmError::Ended { started, last },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(output: &[&str], console: &[&str]) -> Seen {
        let mut seen = Seen::default();
        for line in output {
            seen.output(line, "n", &mut |_| {});
        }
        for line in console {
            seen.console((*line).to_owned());
        }
        seen
    }

    #[test]
    fn the_sentinel_alone_is_success() {
        let output = ["booting", "PROFILER-VM-START n", "hello", "PROFILER-VM-DONE n rc=3"];
        let (code, lines, _) = seen(&output, &[]).verdict(None).unwrap();
        assert_eq!((code, lines), (3, vec!["hello".to_owned()]));

        let error = seen(&output[..3], &["last words"]).verdict(None).unwrap_err().to_string();
        assert!(error.contains("ended before the command did\nlast words"), "{error}");
        let error = seen(&output[..1], &[]).verdict(None).unwrap_err().to_string();
        assert!(error.contains("before the command started"), "{error}");
    }

    #[test]
    fn trouble_spoils_a_finished_command() {
        let output = ["PROFILER-VM-START n", "PROFILER-VM-DONE n rc=0"];
        let error = seen(&output, &["Oops: 0000 [#1]", "BUG: other"]).verdict(None).unwrap_err();
        assert_eq!(error.to_string(), "the kernel is in trouble: Oops: 0000 [#1]");
        let VmError::Trouble { trouble } = error else { panic!("{error}") };
        assert_eq!(trouble.lines, ["Oops: 0000 [#1]", "BUG: other"]);
    }

    #[test]
    fn what_the_command_prints_is_no_trouble() {
        let output = ["PROFILER-VM-START n", "BUG: mine", "PROFILER-VM-DONE n rc=0"];
        assert_eq!(seen(&output, &[]).verdict(None).unwrap().0, 0);
    }

    #[test]
    fn a_timeout_says_how_far_it_came() {
        let limit = Some(Duration::from_secs(9));
        let error = seen(&["PROFILER-VM-START n"], &[]).verdict(limit).unwrap_err().to_string();
        assert_eq!(error, "the command did not end within 9 s");
        let error = seen(&[], &[]).verdict(limit).unwrap_err().to_string();
        assert_eq!(error, "no boot within 9 s");
    }
}
