//! A running VM as the host sees it, from its first line to its last; nothing here runs in the guest.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::command::{self, Files, text};
use crate::error::VmError;
use crate::script;
use crate::seen::Seen;
use crate::spec::{Accel, VmOutcome, VmSpec};
use crate::udev;

/// Prefix of the kernel's lines in a log.
const KERNEL_MARK: &str = "[kernel] ";

/// Most bytes of a line: a longer one is several. The driver under test can write to the console without a newline.
const MOST_LINE: u64 = 64 << 10;

/// Most lines between a pipe and who takes them: 16 MiB.
const MOST_WAITING: usize = 256;

/// Most bytes of all lines, as they are kept: a VM that writes more is stopped.
const MOST_BYTES: usize = 64 << 20;

/// After a sign of trouble, the time for the rest of the kernel's report to reach the log.
const TROUBLE_GRACE: Duration = Duration::from_secs(3);

/// After the sentinel, the time for the guest to power itself off.
const POWER_OFF_GRACE: Duration = Duration::from_secs(20);

/// Boots, runs the command, and hands each of its lines to `on_line` as it comes.
///
/// # Errors
/// If the command did not run to its end: see [`VmError`]. Its exit code is not an error.
pub fn run(
    spec: &VmSpec,
    accel: Accel,
    on_line: &mut dyn FnMut(&str),
) -> Result<VmOutcome, VmError> {
    // Before the kernel is unpacked, which takes half a second.
    let interrupts = Interrupts::catch()?;
    // A VM that is killed leaves virtme-ng's temporary files behind. Here they are removed.
    let scratch = tempfile::Builder::new().prefix("vng-").tempdir();
    let scratch = scratch.map_err(VmError::file("create a folder in", &std::env::temp_dir()))?;
    // A word that no earlier output can contain.
    let nonce = scratch.path().file_name().unwrap_or_default().to_string_lossy();
    let script = tempfile::Builder::new()
        .prefix(".vm-command-")
        .suffix(".sh")
        .tempfile_in(&spec.shared)
        .map_err(VmError::file("create a script in", &spec.shared))?;
    let body = script::script(&spec.directory, &spec.env, &spec.command, &nonce);
    std::fs::write(script.path(), body).map_err(VmError::file("write", script.path()))?;

    let files = Files {
        script: script.path(),
        rules: udev::rules(scratch.path())?,
        vmlinux: match accel {
            Accel::Tcg => spec.kernel.unpacked_in_memory(),
            Accel::Kvm => None,
        },
    };
    let mut command = command::command(spec, accel, &files);
    command.env("TMPDIR", scratch.path());
    if let Some(folder) = spec.log.parent() {
        std::fs::create_dir_all(folder).map_err(VmError::file("create", folder))?;
    }
    let mut log = File::create(&spec.log).map_err(VmError::file("create", &spec.log))?;
    writeln!(log, "$ {}\n$ in the guest: {}", text(&command), spec.command.join(" "))
        .map_err(VmError::file("write", &spec.log))?;
    interrupts.check()?;
    if accel == Accel::Tcg {
        // QEMU asks for huge pages, and a guest touches a little of each: without them QEMU's system time is half. QEMU inherits
        // this from our process, as do later children (PR_SET_THP_DISABLE in prctl(2)).
        let _ = nix::sys::prctl::set_thp_disable(true);
    }
    let guest = Guest::start(&mut command, spec.timeout, interrupts)?;
    let (code, lines) = guest.watch(&nonce, log, on_line)?;
    Ok(VmOutcome { code, lines, log: spec.log.clone() })
}

/// What the command of a VM has written according to its log, also if the VM failed.
pub fn logged_lines(log: &Path) -> Vec<String> {
    let log = std::fs::read(log).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    log.lines().filter(|line| !line.starts_with(KERNEL_MARK)).map(str::to_owned).collect()
}

/// What a line was written to.
#[derive(Clone, Copy)]
enum Stream {
    Output,
    Console,
}

/// A running VM. All of its processes are killed with the value, and if this program is killed.
struct Guest {
    child: Child,
    events: mpsc::Receiver<(Stream, String)>,
    interrupts: Interrupts,
    started: Instant,
    timeout: Duration,
}

impl Guest {
    fn start(
        command: &mut Command,
        timeout: Duration,
        interrupts: Interrupts,
    ) -> Result<Self, VmError> {
        command.process_group(0);
        let mut child = command
            .spawn()
            .map_err(|error| VmError(format!("cannot run `{}`: {error}", text(command))))?;
        let (sender, events) = mpsc::sync_channel(MOST_WAITING);
        if let Some(stdout) = child.stdout.take() {
            forward(stdout, sender.clone(), Stream::Output);
        }
        if let Some(stderr) = child.stderr.take() {
            forward(stderr, sender, Stream::Console);
        }
        let started = Instant::now();
        Ok(Self { child, events, interrupts, started, timeout })
    }

    /// Follows the VM to its end: the command's exit code and its lines.
    fn watch(
        mut self,
        nonce: &str,
        mut log: File,
        on_line: &mut dyn FnMut(&str),
    ) -> Result<(i32, Vec<String>), VmError> {
        let mut seen = Seen::default();
        let mut deadline = self.started + self.timeout;
        let mut bytes = 0;
        loop {
            match self.events.recv_timeout(Duration::from_millis(100)) {
                Ok((stream, line)) => {
                    let mark = if let Stream::Console = stream { KERNEL_MARK } else { "" };
                    writeln!(log, "{mark}{line}")
                        .map_err(|error| VmError(format!("cannot write the VM's log: {error}")))?;
                    bytes += size_of::<String>() + line.len();
                    if bytes > MOST_BYTES {
                        let what = format!("the VM wrote more than {} MiB", MOST_BYTES >> 20);
                        let _ = writeln!(log, "{what}: the log ends here");
                        self.stop();
                        // The kernel's trouble is the reason for more than its words; a command that has ended has its code.
                        let is_known = seen.is_decided();
                        return if is_known { seen.verdict(None) } else { Err(VmError(what)) };
                    }
                    let grace = match stream {
                        Stream::Output => {
                            seen.output(&line, nonce, on_line).then_some(POWER_OFF_GRACE)
                        }
                        Stream::Console => seen.console(line).then_some(TROUBLE_GRACE),
                    };
                    deadline = grace.map_or(deadline, |grace| deadline.min(Instant::now() + grace));
                }
                Err(RecvTimeoutError::Timeout) => {}
                // Both pipes are closed: every process of the VM is gone.
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.interrupts.check()?;
            if Instant::now() >= deadline {
                break;
            }
        }
        let timed_out = self.started.elapsed() >= self.timeout;
        self.stop();
        seen.verdict(timed_out.then_some(self.timeout))
    }

    fn stop(&mut self) {
        // It leads its group. Fails only if all processes are gone already.
        let _ = killpg(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Signals that ask this process to end, as long as it lives. QEMU is in a process group of its own, so the terminal's Ctrl-C
/// does not reach it.
pub struct Interrupts {
    /// Number of the signal; 0 is none.
    signal: Arc<AtomicUsize>,
    handlers: Vec<signal_hook::SigId>,
}

impl Interrupts {
    /// Catches them from now on.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn catch() -> Result<Self, VmError> {
        let mut caught = Self { signal: Arc::default(), handlers: Vec::new() };
        let hangup = (!hangup_is_ignored()).then_some(Signal::SIGHUP);
        for signal in [Signal::SIGINT, Signal::SIGTERM].into_iter().chain(hangup) {
            let number = signal as i32;
            let flag = Arc::clone(&caught.signal);
            let value = usize::try_from(number).unwrap_or_default();
            let handler = signal_hook::flag::register_usize(number, flag, value);
            caught.handlers.push(handler.map_err(|error| {
                VmError(format!("cannot handle Ctrl-C, SIGTERM and SIGHUP: {error}"))
            })?);
        }
        Ok(caught)
    }

    fn check(&self) -> Result<(), VmError> {
        let Some(number) = self.caught() else { return Ok(()) };
        let name = Signal::try_from(number).map_or("a signal", Signal::as_str);
        Err(VmError(format!("interrupted by {name}: the VM was stopped")))
    }

    /// Number of the last signal that was caught.
    pub fn caught(&self) -> Option<i32> {
        let signal = self.signal.load(Ordering::Relaxed);
        (signal != 0).then(|| i32::try_from(signal).unwrap_or_default())
    }
}

/// Whether this process was started with SIGHUP ignored, as by `nohup`: then it is to go on without its terminal.
pub fn hangup_is_ignored() -> bool {
    // sigaction(2) can tell only by an unsafe call.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 == 1)
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        for handler in self.handlers.drain(..) {
            signal_hook::low_level::unregister(handler);
        }
    }
}

/// Sends the lines of a pipe until it is closed.
fn forward(
    pipe: impl Read + Send + 'static,
    to: mpsc::SyncSender<(Stream, String)>,
    stream: Stream,
) {
    thread::spawn(move || {
        let mut pipe = BufReader::new(pipe);
        let mut line = Vec::new();
        while matches!(pipe.by_ref().take(MOST_LINE).read_until(b'\n', &mut line), Ok(1..)) {
            let text = String::from_utf8_lossy(&line);
            if to.send((stream, text.trim_end_matches(['\r', '\n']).to_owned())).is_err() {
                break;
            }
            line.clear();
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_writes_without_an_end_is_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut command = Command::new("cat");
        command.arg("/dev/zero").stdout(std::process::Stdio::piped());
        let interrupts = Interrupts { signal: Arc::default(), handlers: Vec::new() };
        let guest = Guest::start(&mut command, Duration::from_secs(600), interrupts).unwrap();
        let (log, mut longest) = (File::create(&path).unwrap(), 0);
        let error = guest.watch("n", log, &mut |_| {}).unwrap_err().to_string();
        assert_eq!(error, "the VM wrote more than 64 MiB");
        for line in logged_lines(&path) {
            longest = longest.max(line.len());
        }
        assert_eq!(longest, MOST_LINE as usize);
        let bytes = std::fs::metadata(&path).unwrap().len();
        assert!((60 << 20..65 << 20).contains(&bytes), "{bytes}");
    }

    #[test]
    fn a_hangup_stops_the_vm_unless_it_is_ignored() {
        let interrupts = Interrupts::catch().unwrap();
        nix::sys::signal::raise(Signal::SIGHUP).unwrap();
        // Whoever runs the tests may have it ignored, as `nohup` does.
        match hangup_is_ignored() {
            true => assert!(interrupts.check().is_ok()),
            false => {
                let error = interrupts.check().unwrap_err().to_string();
                assert_eq!(error, "interrupted by SIGHUP: the VM was stopped");
            }
        }
    }
}
