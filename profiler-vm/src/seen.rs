//! The output of a VM so far, and what follows from it.

use std::time::Duration;

use crate::console;
use crate::error::VmError;
use crate::script;

/// Lines that an error carries.
const LAST_LINES: usize = 12;

/// The output of the VM so far.
#[derive(Default)]
pub(crate) struct Seen {
    started: bool,
    code: Option<i32>,
    /// The first sign of trouble on the console.
    trouble: Option<String>,
    lines: Vec<String>,
    console: Vec<String>,
}

impl Seen {
    /// Takes a line of output; true when it was the sentinel.
    pub(crate) fn output(
        &mut self,
        line: &str,
        nonce: &str,
        on_line: &mut dyn FnMut(&str),
    ) -> bool {
        if line == script::start_line(nonce) {
            self.started = true;
            return false;
        }
        // Output without a line end comes before the sentinel. Only that of this run counts.
        let sentinel = line
            .split_once(&script::done_prefix(nonce))
            .and_then(|(rest, code)| Some((rest, code.trim_end().parse().ok()?)));
        let text = sentinel.map_or(line, |(rest, _)| rest);
        // What is printed before the command starts is virtme-ng's.
        if self.started && self.code.is_none() && (sentinel.is_none() || !text.is_empty()) {
            on_line(text);
            self.lines.push(text.to_owned());
        }
        self.code = self.code.or(sentinel.map(|(_, code)| code));
        sentinel.is_some()
    }

    /// Takes a line of the kernel; true when it is the first sign of trouble.
    pub(crate) fn console(&mut self, line: String) -> bool {
        let first = self.trouble.is_none() && console::is_trouble(&line);
        if first {
            self.trouble = Some(line.trim().to_owned());
        }
        self.console.push(line);
        first
    }

    /// Whether the kernel is in trouble, or the command has ended.
    pub(crate) fn is_decided(&self) -> bool {
        self.trouble.is_some() || self.code.is_some()
    }

    /// The command's exit code and its lines.
    pub(crate) fn verdict(
        self,
        timed_out: Option<Duration>,
    ) -> Result<(i32, Vec<String>), VmError> {
        if let Some(trouble) = self.trouble {
            return Err(VmError(format!("the kernel is in trouble: {trouble}")));
        }
        if let Some(code) = self.code {
            return Ok((code, self.lines));
        }
        let what = match (timed_out.map(|limit| limit.as_secs()), self.started) {
            (Some(limit), true) => format!("the command did not end within {limit} s"),
            (Some(limit), false) => format!("no boot within {limit} s"),
            (None, true) => "the VM ended before the command did".to_owned(),
            (None, false) => "the VM ended before the command started".to_owned(),
        };
        let last = |lines: &[String]| lines[lines.len().saturating_sub(LAST_LINES)..].join("\n");
        let text = [what, last(&self.console), last(&self.lines)].join("\n");
        Err(VmError(text.trim_end().to_owned()))
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
        let (code, lines) = seen(&output, &[]).verdict(None).unwrap();
        assert_eq!((code, lines), (3, vec!["hello".to_owned()]));

        let error = seen(&output[..3], &["last words"]).verdict(None).unwrap_err().to_string();
        assert!(error.contains("ended before the command did\nlast words"), "{error}");
        let error = seen(&output[..1], &[]).verdict(None).unwrap_err().to_string();
        assert!(error.contains("before the command started"), "{error}");
    }

    #[test]
    fn the_sentinel_may_follow_output_without_a_line_end() {
        let output = ["PROFILER-VM-START n", "no newlinePROFILER-VM-DONE n rc=0"];
        let (code, lines) = seen(&output, &[]).verdict(None).unwrap();
        assert_eq!((code, lines), (0, vec!["no newline".to_owned()]));
    }

    #[test]
    fn a_foreign_or_broken_sentinel_is_output() {
        let foreign = ["PROFILER-VM-DONE m rc=0", "PROFILER-VM-DONE n rc=", "PROFILER-VM-START m"];
        let output =
            [&["PROFILER-VM-START n"], &foreign[..], &["PROFILER-VM-DONE n rc=7"]].concat();
        let (code, lines) = seen(&output, &[]).verdict(None).unwrap();
        assert_eq!((code, lines), (7, foreign.map(str::to_owned).to_vec()));
    }

    #[test]
    fn trouble_spoils_a_finished_command() {
        let output = ["PROFILER-VM-START n", "PROFILER-VM-DONE n rc=0"];
        let error = seen(&output, &["Oops: 0000 [#1]", "BUG: other"]).verdict(None).unwrap_err();
        assert_eq!(error.to_string(), "the kernel is in trouble: Oops: 0000 [#1]");
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
