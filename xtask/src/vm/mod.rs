//! A stock kernel on this machine's file tree, through virtme-ng.
//!
//! The guest sees the host's files. What it writes is lost with it, except below `target/`.
//! Whether the command ran is decided by one sentinel line that its wrapper prints at the end:
//! no sentinel, no success, whatever the exit status of QEMU.

mod console;
mod kvm;
mod script;

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::paths::Paths;
use crate::process;
use crate::series::Series;
use crate::setup::{self, Kernel, Part};

pub(crate) use script::quote;

use script::Line;

/// Drivers that udev would load for QEMU's devices or CPU flags and that no test here needs.
/// Under TCG they are half of the boot; KVM's alone takes eight seconds.
const UNWANTED_MODULES: &str = "kvm_amd,kvm_intel,kvm,powernow_k8,acpi_cpufreq,pcspkr,iTCO_wdt,\
    i6300esb,lpc_ich,i2c_i801,ahci,libahci,libata,ata_generic,sr_mod,sg,cdrom,joydev,evdev,psmouse,\
    button,intel_rapl_msr,intel_rapl_common,aesni_intel,ghash_clmulni_intel,crct10dif_pclmul,\
    crc32_pclmul,sha1_ssse3,sha256_ssse3,sha512_ssse3,qemu_fw_cfg,edac_mce_amd,amd64_edac,ccp";

/// Begins the kernel's lines in a log.
const KERNEL_MARK: &str = "[kernel] ";

/// After a sign of trouble, the time for the rest of the kernel's report to reach the log.
const TROUBLE_GRACE: Duration = Duration::from_secs(3);

/// After the sentinel, the time for the guest to power itself off.
const POWER_OFF_GRACE: Duration = Duration::from_secs(20);

/// What to run, and where.
#[derive(Debug, Clone)]
pub(crate) struct VmSpec {
    /// Names the log.
    pub(crate) name: String,
    /// The kernel.
    pub(crate) series: Series,
    /// Virtual CPUs; `icount` wants one.
    pub(crate) cpus: u32,
    /// Memory as QEMU takes it, such as `2G`.
    pub(crate) memory: String,
    /// Virtual time: the guest's clock advances 1 ns for each instruction.
    pub(crate) icount: bool,
    /// The VM is stopped after this time on the host's clock.
    pub(crate) timeout: Duration,
    /// Variables for the command.
    pub(crate) env: Vec<(String, String)>,
    /// The command and its arguments; it runs as root in the checkout's root.
    pub(crate) command: Vec<String>,
    /// Print the command's output as it comes.
    pub(crate) echo: bool,
}

impl VmSpec {
    /// Two CPUs, 2 GiB, ten minutes, output shown.
    pub(crate) fn new(
        name: impl Into<String>,
        series: Series,
        command: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        Self {
            name: name.into(),
            series,
            cpus: 2,
            memory: "2G".to_owned(),
            icount: false,
            timeout: Duration::from_secs(600),
            env: Vec::new(),
            command: command.into_iter().map(Into::into).collect(),
            echo: true,
        }
    }
}

/// How the guest's instructions are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Accel {
    /// By the hardware.
    Kvm,
    /// By QEMU's translator.
    Tcg,
}

impl fmt::Display for Accel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kvm => "KVM",
            Self::Tcg => "TCG",
        })
    }
}

/// A command that ran to its end.
#[derive(Debug)]
pub(crate) struct VmOutcome {
    /// Exit code of the command.
    pub(crate) code: i32,
    /// Lines the command wrote, to either output.
    pub(crate) lines: Vec<String>,
    /// These lines and the kernel's.
    pub(crate) log: PathBuf,
    /// From the start of QEMU to the sentinel.
    pub(crate) elapsed: Duration,
}

/// Boots and runs. Everything but a command that ran to its end is an error.
pub(crate) fn run(paths: &Paths, spec: &VmSpec) -> Result<VmOutcome> {
    setup::ensure(paths, &[Part::Vm, Part::Kernel(spec.series)])?;
    let Some(kernel) = Kernel::open(paths, spec.series) else {
        bail!("no kernel in {}", paths.kernel(spec.series).display());
    };
    if spec.icount && spec.cpus != 1 {
        bail!("virtual time needs one CPU, not {}: leave out --cpus or say --cpus 1", spec.cpus);
    }
    let (accel, reason) = kvm::choose(paths, spec, &kernel)?;
    println!(
        "vm: Linux {}, {} CPU{}{}, {accel} ({reason})",
        kernel.release,
        spec.cpus,
        if spec.cpus == 1 { "" } else { "s" },
        if spec.icount { ", virtual time" } else { "" },
    );
    boot(paths, spec, &kernel, accel)
}

/// What the command of a VM has written according to its log, also if the VM failed.
pub(crate) fn logged_lines(paths: &Paths, spec: &VmSpec) -> Vec<String> {
    let log = std::fs::read(log_path(paths, spec)).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    log.lines().filter(|line| !line.starts_with(KERNEL_MARK)).map(str::to_owned).collect()
}

fn log_path(paths: &Paths, spec: &VmSpec) -> PathBuf {
    paths.vm().join("logs").join(format!("{}.log", spec.name))
}

fn boot(paths: &Paths, spec: &VmSpec, kernel: &Kernel, accel: Accel) -> Result<VmOutcome> {
    let nonce = nonce();
    let vm = paths.vm();
    let scratch = vm.join("tmp").join(&nonce);
    for folder in [vm.join("logs"), vm.join("run"), vm.join("home"), scratch.clone()] {
        process::create_dir(&folder)?;
    }
    let log_path = log_path(paths, spec);
    let script_path = vm.join("run").join(format!("{nonce}.sh"));
    process::write(&script_path, script::script(paths.root(), &spec.env, &spec.command, &nonce))?;

    let mut command = command(paths, spec, kernel, accel, &script_path)?;
    // A VM that is killed leaves virtme-ng's temporary files behind.
    command.env("TMPDIR", &scratch);
    let mut log = Log::create(&log_path)?;
    log.line(&format!("$ {}", process::text(&command)))?;
    log.line(&format!("$ in the guest: {}", spec.command.join(" ")))?;
    let outcome = Guest::start(&mut command, spec.timeout)?.watch(spec, &nonce, &mut log);
    let _ = std::fs::remove_file(&script_path);
    let _ = std::fs::remove_dir_all(&scratch);
    let (code, lines, elapsed) =
        outcome.with_context(|| format!("VM failed; its log is {}", log_path.display()))?;
    Ok(VmOutcome { code, lines, log: log_path, elapsed })
}

fn command(
    paths: &Paths,
    spec: &VmSpec,
    kernel: &Kernel,
    accel: Accel,
    script: &Path,
) -> Result<Command> {
    let bin = paths.venv().join("bin");
    let path = std::env::var("PATH").unwrap_or_default();
    // coreutils' timeout stops QEMU even if we are killed before we can.
    let mut command = Command::new("timeout");
    command
        .args(["--signal=KILL", &(spec.timeout.as_secs() + 60).to_string()])
        .arg(bin.join("vng"))
        .arg("--run")
        .arg(kernel.image())
        .args(["--user", "root", "--cpus", &spec.cpus.to_string(), "--memory", &spec.memory])
        // The root is read-only with overlays on top; this folder alone is the host's own.
        .arg("--rwdir")
        .arg(paths.target())
        // Without it virtme-ng waits for a virtiofsd that Debian 12 does not have in its form.
        .arg("--force-9p")
        .args(["--disable-monitor", "--disable-microvm"])
        // The kernel's console goes to the error output, where we search it.
        .arg("--verbose")
        .args(["--append", "loglevel=5"])
        // Two boots shall run the same instructions.
        .args(["--append", "nokaslr"])
        .args(["--append", &format!("modprobe.blacklist={UNWANTED_MODULES}")])
        .arg("--qemu-opts=-nodefaults")
        .current_dir(paths.root())
        .env("PATH", format!("{}:{path}:/usr/sbin:/sbin", bin.display()))
        .env("HOME", paths.vm().join("home"));
    if accel == Accel::Tcg {
        command.arg("--disable-kvm");
    }
    if spec.icount {
        command.args(["--qemu-opts=-icount", "--qemu-opts=shift=0,sleep=off"]);
    }
    let script = script.strip_prefix(paths.root()).context("script outside of the checkout")?;
    command.args(["--", "sh"]).arg(script);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    Ok(command)
}

/// A word that no earlier output can contain.
fn nonce() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{:x}-{:x}", std::process::id(), now.as_nanos())
}

struct Log {
    file: File,
    path: PathBuf,
}

impl Log {
    fn create(path: &Path) -> Result<Self> {
        let file =
            File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self { file, path: path.to_path_buf() })
    }

    fn line(&mut self, line: &str) -> Result<()> {
        writeln!(self.file, "{line}")
            .with_context(|| format!("cannot write {}", self.path.display()))
    }
}

enum Event {
    Output(String),
    Console(String),
}

/// A running VM. All of its processes are killed with the value.
struct Guest {
    child: Child,
    group: Pid,
    events: mpsc::Receiver<Event>,
    interrupted: Arc<AtomicBool>,
    handlers: Vec<signal_hook::SigId>,
    started: Instant,
    timeout: Duration,
}

impl Guest {
    fn start(command: &mut Command, timeout: Duration) -> Result<Self> {
        let text = process::text(command);
        let mut child = command.spawn().with_context(|| format!("cannot run `{text}`"))?;
        let group = Pid::from_raw(i32::try_from(child.id()).context("process id out of range")?);
        let (sender, events) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            forward(stdout, sender.clone(), Event::Output);
        }
        if let Some(stderr) = child.stderr.take() {
            forward(stderr, sender, Event::Console);
        }
        let interrupted = Arc::new(AtomicBool::new(false));
        let mut guest = Self {
            child,
            group,
            events,
            interrupted,
            handlers: Vec::new(),
            started: Instant::now(),
            timeout,
        };
        // QEMU is in a process group of its own, so the terminal's Ctrl-C does not reach it.
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            let flag = Arc::clone(&guest.interrupted);
            let handler = signal_hook::flag::register(signal, flag)
                .context("cannot handle Ctrl-C and SIGTERM")?;
            guest.handlers.push(handler);
        }
        Ok(guest)
    }

    /// Follows the VM to its end: the command's exit code, its lines, and the time until then.
    fn watch(
        mut self,
        spec: &VmSpec,
        nonce: &str,
        log: &mut Log,
    ) -> Result<(i32, Vec<String>, Duration)> {
        let mut seen = Seen::default();
        let mut deadline = self.started + self.timeout;
        loop {
            match self.events.recv_timeout(Duration::from_millis(100)) {
                Ok(Event::Output(line)) => {
                    log.line(&line)?;
                    if seen.output(&line, nonce, spec.echo) {
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
            if self.interrupted.load(Ordering::Relaxed) {
                bail!("interrupted: the VM was stopped");
            }
            if Instant::now() >= deadline {
                break;
            }
        }
        let timed_out = self.started.elapsed() >= self.timeout;
        self.stop();
        seen.verdict(timed_out.then_some(self.timeout))
    }

    fn stop(&mut self) {
        // Fails only if all processes are gone already.
        let _ = killpg(self.group, Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.stop();
        for handler in self.handlers.drain(..) {
            signal_hook::low_level::unregister(handler);
        }
    }
}

/// What the VM has said so far.
struct Seen {
    begun: Instant,
    started: bool,
    done: Option<(i32, Duration)>,
    trouble: Option<String>,
    lines: Vec<String>,
    console: Vec<String>,
}

impl Default for Seen {
    fn default() -> Self {
        Self {
            begun: Instant::now(),
            started: false,
            done: None,
            trouble: None,
            lines: Vec::new(),
            console: Vec::new(),
        }
    }
}

impl Seen {
    /// Takes a line of output; true when it was the sentinel.
    fn output(&mut self, line: &str, nonce: &str, echo: bool) -> bool {
        let mut keep = |line: &str| {
            if echo {
                println!("{line}");
            }
            self.lines.push(line.to_owned());
        };
        match script::classify(line, nonce) {
            Line::Start => self.started = true,
            Line::Output(line) if self.started && self.done.is_none() => keep(line),
            // virtme-ng's own words.
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
    fn console(&mut self, line: String) -> bool {
        let first = self.trouble.is_none() && console::is_trouble(&line);
        if first {
            self.trouble = Some(line.clone());
        }
        self.console.push(line);
        first
    }

    fn verdict(self, timed_out: Option<Duration>) -> Result<(i32, Vec<String>, Duration)> {
        if let Some(trouble) = self.trouble {
            bail!("the kernel is in trouble: {}", trouble.trim());
        }
        if let Some((code, elapsed)) = self.done {
            return Ok((code, self.lines, elapsed));
        }
        if let Some(timeout) = timed_out {
            let where_ = if self.started { "the command did not end" } else { "no boot" };
            bail!("{where_} within {} s", timeout.as_secs());
        }
        let last = self.console[self.console.len().saturating_sub(5)..].join("\n");
        if self.started {
            bail!("the VM ended before the command did\n{last}");
        }
        bail!("the VM ended before the command started\n{last}");
    }
}

/// Sends what comes out of a pipe line by line; ends with the pipe.
fn forward(pipe: impl Read + Send + 'static, to: mpsc::Sender<Event>, event: fn(String) -> Event) {
    thread::spawn(move || {
        let mut pipe = BufReader::new(pipe);
        let mut line = Vec::new();
        while matches!(pipe.read_until(b'\n', &mut line), Ok(read) if read > 0) {
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

    fn seen(output: &[&str], console: &[&str]) -> Seen {
        let mut seen = Seen::default();
        for line in output {
            seen.output(line, "n", false);
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
