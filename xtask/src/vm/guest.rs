//! A running VM as the host sees it, from its first line to its last; nothing here runs in the guest.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::path::Path;
use std::process::Child;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use profiler_vm::is_trouble;

use super::command::{done_prefix, start_line};
use crate::stop;

/// Prefix of the kernel's lines in a log.
const KERNEL_MARK: &str = "[kernel] ";

/// After a sign of trouble, the time for the rest of the kernel's report to reach the log.
const TROUBLE_GRACE: Duration = Duration::from_secs(3);

/// After the command's end, the time for the guest to power itself off.
const POWER_OFF_GRACE: Duration = Duration::from_secs(20);

/// A VM's processes, which lead a group. All are killed with the value, and if this program is killed.
struct Vm(Child);

impl Drop for Vm {
    fn drop(&mut self) {
        // Fails only if all processes are gone already.
        let _ = killpg(Pid::from_raw(self.0.id().cast_signed()), Signal::SIGKILL);
        let _ = self.0.wait();
    }
}

/// Follows a VM that was started to its end: hands each line of the command to `on_line`, and writes all to `log`. Gives the
/// command's exit code; whether it has ended is decided by the script's last line alone.
pub(super) fn follow(
    mut child: Child,
    timeout: Duration,
    folder: &Path,
    log: &mut File,
    on_line: &mut dyn FnMut(&str),
) -> Result<i32> {
    let begun = Instant::now();
    let (sender, lines) = mpsc::sync_channel(MOST_WAITING);
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let vm = Vm(child);
    forward(stdout.context("a VM without output")?, "", sender.clone());
    forward(stderr.context("a VM without a console")?, KERNEL_MARK, sender);
    let mut seen = Seen::default();
    let (mut deadline, mut bytes) = (begun + timeout, 0);
    while bytes <= MOST_BYTES && Instant::now() < deadline {
        stop::check()?;
        let (mark, line) = match lines.recv_timeout(Duration::from_millis(100)) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => continue,
            // Both pipes are closed: every process of the VM is gone.
            Err(RecvTimeoutError::Disconnected) => break,
        };
        writeln!(log, "{mark}{line}").context("cannot write the VM's log")?;
        bytes += line.len();
        let grace = match mark {
            KERNEL_MARK => seen.console(&line).then_some(TROUBLE_GRACE),
            _ => seen.output(&line, folder, on_line).then_some(POWER_OFF_GRACE),
        };
        deadline = grace.map_or(deadline, |grace| deadline.min(Instant::now() + grace));
    }
    drop(vm);
    seen.verdict(&if bytes > MOST_BYTES {
        format!("the VM wrote more than {} MiB", MOST_BYTES >> 20)
    } else if begun.elapsed() >= timeout {
        format!("timeout after {} s", timeout.as_secs())
    } else {
        "the VM ended".to_owned()
    })
}

/// Most bytes of all lines: a VM that writes more is stopped.
const MOST_BYTES: usize = 64 << 20;

/// Most bytes of a line: a longer one is several. A driver can write to the console without a newline.
const MOST_LINE: u64 = 64 << 10;

/// Most lines between a pipe and who takes them: 16 MiB.
const MOST_WAITING: usize = 256;

/// Sends the lines of a pipe until it is closed.
fn forward(
    pipe: impl Read + Send + 'static,
    mark: &'static str,
    to: mpsc::SyncSender<(&'static str, String)>,
) {
    thread::spawn(move || {
        let mut pipe = BufReader::new(pipe);
        let mut line = Vec::new();
        while pipe.by_ref().take(MOST_LINE).read_until(b'\n', &mut line).is_ok_and(|read| read > 0)
        {
            let text = String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']).to_owned();
            line.clear();
            if to.send((mark, text)).is_err() {
                break;
            }
        }
    });
}

/// What follows from the output of a VM so far.
#[derive(Default)]
struct Seen {
    started: bool,
    code: Option<i32>,
    /// The first sign of trouble on the console.
    trouble: Option<String>,
}

impl Seen {
    /// Takes a line of output; true when it says that the command has ended.
    fn output(&mut self, line: &str, folder: &Path, on_line: &mut dyn FnMut(&str)) -> bool {
        // What is printed before the command starts is virtme-ng's.
        if !self.started || self.code.is_some() {
            self.started |= line == start_line(folder);
            return false;
        }
        // Output without a line end comes before it.
        let end = line
            .split_once(&done_prefix(folder))
            .and_then(|(rest, code)| Some((rest, code.parse().ok()?)));
        let text = end.map_or(line, |(rest, _)| rest);
        if end.is_none() || !text.is_empty() {
            on_line(text);
        }
        self.code = end.map(|(_, code)| code);
        end.is_some()
    }

    /// Takes a line of the kernel; true when it is the first sign of trouble.
    fn console(&mut self, line: &str) -> bool {
        let first = self.trouble.is_none() && is_trouble(line);
        if first {
            self.trouble = Some(line.trim().to_owned());
        }
        first
    }

    /// The command's exit code, or that it has none because of `why`.
    fn verdict(self, why: &str) -> Result<i32> {
        if let Some(trouble) = self.trouble {
            bail!("the kernel is in trouble: {trouble}");
        }
        if let Some(code) = self.code {
            return Ok(code);
        }
        let what = if self.started { "the command did not end" } else { "no boot" };
        bail!("{what}: {why}");
    }
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    /// The verdict on a VM with these lines, and the command's lines.
    fn verdict(output: &[&str], console: &[&str], why: &str) -> (Result<i32, String>, Vec<String>) {
        let (mut seen, mut lines) = (Seen::default(), Vec::new());
        for line in output {
            seen.output(line, Path::new("n"), &mut |line| lines.push(line.to_owned()));
        }
        for line in console {
            seen.console(line);
        }
        (seen.verdict(why).map_err(|error| error.to_string()), lines)
    }

    #[test]
    fn a_vm_is_followed_to_its_end_or_its_timeout_and_leaves_nothing() {
        let run = |end: &str, timeout| {
            let folder = tempfile::tempdir().unwrap();
            let log = folder.path().join("log");
            let script = "echo PROFILER-VM-START n; echo $$; printf 'BUG\\r\\n' >&2; ";
            let mut command = std::process::Command::new("sh");
            command.arg("-c").arg(script.to_owned() + end);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let (mut file, mut lines) = (File::create(&log).unwrap(), Vec::new());
            let mut take = |line: &str| lines.push(line.to_owned());
            let follow = |vm| Ok(follow(vm, timeout, Path::new("n"), &mut file, &mut take));
            let code = stop::run(&mut command, follow).unwrap().map_err(|error| error.to_string());
            let log = std::fs::read_to_string(log).unwrap();
            assert!(log.contains("[kernel] BUG\n") && log.contains(&lines[0]), "{log}");
            let gone = nix::sys::signal::kill(Pid::from_raw(lines[0].parse().unwrap()), None);
            assert_eq!(gone, Err(nix::errno::Errno::ESRCH));
            code
        };
        let long = Duration::from_secs(600);
        assert_eq!(run("echo PROFILER-VM-DONE n rc=3", long), Ok(3));
        assert_eq!(run("exit 0", long).unwrap_err(), "the command did not end: the VM ended");
        let error = run("exec sleep 1000", Duration::from_secs(1)).unwrap_err();
        assert_eq!(error, "the command did not end: timeout after 1 s");
    }

    #[test]
    fn a_vm_that_writes_without_an_end_is_stopped() {
        let run = |begin: &str| {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("log");
            let mut command = std::process::Command::new("sh");
            command.arg("-c").arg(format!("{begin} exec cat /dev/zero"));
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut log = File::create(&path).unwrap();
            let long = Duration::from_secs(600);
            let follow = |vm| Ok(follow(vm, long, Path::new("n"), &mut log, &mut |_| {}));
            let code = stop::run(&mut command, follow).unwrap().map_err(|error| error.to_string());
            let log = std::fs::read(&path).unwrap();
            let longest = log.split(|byte| *byte == b'\n').map(<[u8]>::len).max();
            assert_eq!(longest, Some(MOST_LINE as usize));
            assert!((60 << 20..65 << 20).contains(&log.len()), "{}", log.len());
            code
        };
        assert_eq!(run("").unwrap_err(), "no boot: the VM wrote more than 64 MiB");
        // What is known by then counts.
        assert_eq!(run("echo PROFILER-VM-START n; echo PROFILER-VM-DONE n rc=3;"), Ok(3));
    }

    #[test]
    fn the_last_line_of_the_script_alone_is_success() {
        let output = ["booting", "PROFILER-VM-START n", "hello", "PROFILER-VM-DONE n rc=3", "off"];
        assert_eq!(verdict(&output, &[], "the VM ended"), (Ok(3), vec!["hello".to_owned()]));
        let error = verdict(&output[..3], &["last words"], "the VM ended").0.unwrap_err();
        assert_eq!(error, "the command did not end: the VM ended");
        let error = verdict(&output[..1], &[], "the VM ended").0.unwrap_err();
        assert_eq!(error, "no boot: the VM ended");
    }

    #[test]
    fn it_may_follow_output_without_a_line_end() {
        let output = ["PROFILER-VM-START n", "no newlinePROFILER-VM-DONE n rc=0"];
        assert_eq!(verdict(&output, &[], "the VM ended"), (Ok(0), vec!["no newline".to_owned()]));
    }

    #[test]
    fn a_foreign_or_broken_one_is_output() {
        let foreign = ["PROFILER-VM-DONE m rc=0", "PROFILER-VM-DONE n rc=", "PROFILER-VM-START m"];
        let output =
            [&["PROFILER-VM-START n"], &foreign[..], &["PROFILER-VM-DONE n rc=7"]].concat();
        assert_eq!(
            verdict(&output, &[], "the VM ended"),
            (Ok(7), foreign.map(str::to_owned).to_vec())
        );
    }

    #[test]
    fn trouble_spoils_a_finished_command_unless_the_command_printed_it() {
        let output = ["PROFILER-VM-START n", "BUG: mine", "PROFILER-VM-DONE n rc=0"];
        assert_eq!(verdict(&output, &[], "the VM ended").0, Ok(0));
        let (error, _) = verdict(&output, &["Oops: 0000 [#1]", "BUG: other"], "the VM ended");
        assert_eq!(error.unwrap_err(), "the kernel is in trouble: Oops: 0000 [#1]");
    }

    #[test]
    fn a_timeout_says_how_far_it_came() {
        let error = verdict(&["PROFILER-VM-START n"], &[], "timeout").0.unwrap_err();
        assert_eq!(error, "the command did not end: timeout");
        assert_eq!(verdict(&[], &[], "timeout").0.unwrap_err(), "no boot: timeout");
    }
}
