//! A running VM as the host sees it, from its first line to its last; nothing here runs in the guest.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::command::{self, Files, text};
use crate::error::VmError;
use crate::script;
use crate::seen::Seen;
use crate::spec::{Accel, Time, VmOutcome, VmSpec};
use crate::udev;

/// Prefix of the kernel's lines in a log.
const KERNEL_MARK: &str = "[kernel] ";

/// Most bytes of a line: a longer one is several. The driver under test can write to the console without a newline and
/// without an end.
const MOST_LINE: u64 = 64 << 10;

/// Most lines between a pipe and who takes them: 16 MiB.
const MOST_WAITING: usize = 256;

/// Most bytes of a log.
const MOST_LOG: u64 = 64 << 20;

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
    if spec.time == Time::Virtual && spec.cpus != 1 {
        return Err(VmError::VirtualTimeNeedsOneCpu(spec.cpus));
    }
    // Before the kernel is unpacked, which takes half a second.
    let interrupts = Interrupts::catch()?;
    let nonce = nonce();
    // A VM that is killed leaves virtme-ng's temporary files behind. Here they are removed.
    let scratch = tempfile::Builder::new()
        .prefix("vng-")
        .tempdir_in(&spec.scratch)
        .map_err(VmError::file("create a folder in", &spec.scratch))?;
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
    let mut log = Log::create(&spec.log)?;
    log.line(&format!("$ {}", text(&command)))?;
    log.line(&format!("$ in the guest: {}", spec.command.join(" ")))?;
    interrupts.check()?;
    if accel == Accel::Tcg {
        // QEMU asks for huge pages, and a guest touches a little of each: without them QEMU's system time is half. QEMU inherits
        // this from our process, as do later children (PR_SET_THP_DISABLE in prctl(2)).
        let _ = nix::sys::prctl::set_thp_disable(true);
    }
    let guest = Guest::start(&mut command, spec.timeout, interrupts)?;
    let (code, lines, elapsed) = guest.watch(&nonce, &mut log, on_line)?;
    Ok(VmOutcome { code, lines, log: spec.log.clone(), elapsed })
}

/// What the command of a VM has written according to its log, also if the VM failed.
pub fn logged_lines(log: &Path) -> Vec<String> {
    let log = std::fs::read(log).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    log.lines().filter(|line| !line.starts_with(KERNEL_MARK)).map(str::to_owned).collect()
}

/// A word that no earlier output can contain.
fn nonce() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{:x}-{:x}", std::process::id(), now.as_nanos())
}

struct Log {
    file: File,
    path: PathBuf,
    bytes: u64,
}

impl Log {
    fn create(path: &Path) -> Result<Self, VmError> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(VmError::file("create", folder))?;
        }
        let file = File::create(path).map_err(VmError::file("create", path))?;
        Ok(Self { file, path: path.to_path_buf(), bytes: 0 })
    }

    fn line(&mut self, line: &str) -> Result<(), VmError> {
        if self.bytes > MOST_LOG {
            return Ok(());
        }
        self.bytes += line.len() as u64 + 1;
        let end = format!("The log ends here: the VM wrote more than {} MiB.", MOST_LOG >> 20);
        let line = if self.bytes > MOST_LOG { &end } else { line };
        writeln!(self.file, "{line}").map_err(VmError::file("write", &self.path))
    }
}

enum Event {
    Output(String),
    Console(String),
}

/// A running VM. All of its processes are killed with the value, and if this program is killed.
struct Guest {
    child: Child,
    group: Option<Pid>,
    events: mpsc::Receiver<Event>,
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
            .map_err(|error| VmError::NotStarted { command: text(command), error })?;
        let group = i32::try_from(child.id()).ok().map(Pid::from_raw);
        let (sender, events) = mpsc::sync_channel(MOST_WAITING);
        if let Some(stdout) = child.stdout.take() {
            forward(stdout, sender.clone(), Event::Output);
        }
        if let Some(stderr) = child.stderr.take() {
            forward(stderr, sender, Event::Console);
        }
        let started = Instant::now();
        Ok(Self { child, group, events, interrupts, started, timeout })
    }

    /// Follows the VM to its end: the command's exit code, its lines, and the time until then.
    fn watch(
        mut self,
        nonce: &str,
        log: &mut Log,
        on_line: &mut dyn FnMut(&str),
    ) -> Result<(i32, Vec<String>, Duration), VmError> {
        let mut seen = Seen::default();
        let mut deadline = self.started + self.timeout;
        loop {
            match self.events.recv_timeout(Duration::from_millis(100)) {
                Ok(Event::Output(line)) => {
                    log.line(&line)?;
                    if seen.output(&line, nonce, on_line) {
                        deadline = deadline.min(Instant::now() + POWER_OFF_GRACE);
                    }
                }
                Ok(Event::Console(line)) => {
                    log.line(&format!("{KERNEL_MARK}{line}"))?;
                    if seen.console(line) {
                        deadline = deadline.min(Instant::now() + TROUBLE_GRACE);
                    }
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
        if let Some(group) = self.group {
            // Fails only if all processes are gone already.
            let _ = killpg(group, Signal::SIGKILL);
        }
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
            let handler =
                signal_hook::flag::register_usize(number, flag, value).map_err(VmError::Signals)?;
            caught.handlers.push(handler);
        }
        Ok(caught)
    }

    fn check(&self) -> Result<(), VmError> {
        self.caught().map_or(Ok(()), |signal| Err(VmError::Interrupted(signal)))
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
    to: mpsc::SyncSender<Event>,
    event: fn(String) -> Event,
) {
    thread::spawn(move || {
        let mut pipe = BufReader::new(pipe);
        let mut line = Vec::new();
        while matches!(pipe.by_ref().take(MOST_LINE).read_until(b'\n', &mut line), Ok(1..)) {
            let text = String::from_utf8_lossy(&line);
            if to.send(event(text.trim_end_matches(['\r', '\n']).to_owned())).is_err() {
                break;
            }
            line.clear();
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guest that writes `bytes` without a newline: the longest line, and all bytes that came.
    fn flood(bytes: u64, event: fn(String) -> Event, mut take: impl FnMut(String)) -> (usize, u64) {
        let (sender, events) = mpsc::sync_channel(MOST_WAITING);
        forward(File::open("/dev/zero").unwrap().take(bytes), sender, event);
        let (mut longest, mut all) = (0, 0);
        for event in events {
            let (Event::Output(line) | Event::Console(line)) = event;
            longest = longest.max(line.len());
            all += line.len() as u64;
            take(line);
        }
        (longest, all)
    }

    #[test]
    fn a_guest_that_writes_without_an_end_is_kept_within_bounds() {
        const FLOOD: u64 = 1 << 30;
        assert_eq!(flood(FLOOD, Event::Console, |_| {}), (MOST_LINE as usize, FLOOD));
        let mut seen = Seen::default();
        seen.output("PROFILER-VM-START n", "n", &mut |_| {});
        let output = |line: String| {
            seen.output(&line, "n", &mut |_| {});
        };
        flood(FLOOD >> 5, Event::Output, output);
        seen.output("PROFILER-VM-DONE n rc=0", "n", &mut |_| {});
        let (_, lines, _) = seen.verdict(None).unwrap();
        let kept: usize = lines.iter().map(String::len).sum();
        assert!((1 << 20..16 << 20).contains(&kept), "{kept} bytes");
        assert!(lines[0].ends_with("earlier lines are left out"), "{}", lines[0]);
    }

    #[test]
    fn a_log_ends_at_its_limit_and_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut log = Log::create(&path).unwrap();
        let line = "x".repeat(1 << 20);
        (0..80).for_each(|_| log.line(&line).unwrap());
        let bytes = std::fs::metadata(&path).unwrap().len();
        assert!((60 << 20..65 << 20).contains(&bytes), "{bytes}");
        let last = logged_lines(&path).pop().unwrap();
        assert_eq!(last, "The log ends here: the VM wrote more than 64 MiB.");
    }

    #[test]
    fn a_hangup_stops_the_vm_unless_it_is_ignored() {
        let interrupts = Interrupts::catch().unwrap();
        nix::sys::signal::raise(Signal::SIGHUP).unwrap();
        // Whoever runs the tests may have it ignored, as `nohup` does.
        match hangup_is_ignored() {
            true => assert!(interrupts.check().is_ok()),
            false => assert!(matches!(interrupts.check(), Err(VmError::Interrupted(1)))),
        }
    }
}
