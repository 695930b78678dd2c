//! A stock Debian kernel on this machine's file tree: what is written below `target/` stays.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use profiler_vm::{Accel, KernelImage, Time, kvm};
use tempfile::TempDir;

use crate::paths::Paths;
use crate::process;
use crate::series::Series;
use crate::setup::{self, Part};

pub(crate) use profiler_vm::{VmOutcome, quote};

/// What to run, and where.
#[derive(Debug, Clone)]
pub(crate) struct VmSpec {
    /// Names the log.
    pub(crate) name: String,
    /// The kernel.
    pub(crate) series: Series,
    /// Virtual CPUs; `icount` wants one.
    pub(crate) cpus: u32,
    /// Those that the kernel takes for possible, if more.
    pub(crate) max_cpus: Option<u32>,
    /// Memory as QEMU takes it, such as `2G`.
    pub(crate) memory: String,
    /// Virtual time: the guest's clock advances 1 ns for each instruction.
    pub(crate) icount: bool,
    /// The VM is stopped after this time on the host's clock.
    pub(crate) timeout: Duration,
    /// Words for the kernel's command line.
    pub(crate) kernel_args: Vec<String>,
    /// The command and its arguments; it runs as root in the checkout's root.
    pub(crate) command: Vec<String>,
}

impl VmSpec {
    /// Two CPUs, 2 GiB, ten minutes.
    pub(crate) fn new(
        name: impl Into<String>,
        series: Series,
        command: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        Self {
            name: name.into(),
            series,
            cpus: 2,
            max_cpus: None,
            memory: "2G".to_owned(),
            icount: false,
            timeout: Duration::from_secs(600),
            kernel_args: Vec::new(),
            command: command.into_iter().map(Into::into).collect(),
        }
    }

    /// A shell script under virtual time.
    pub(crate) fn virtual_time(name: &str, series: Series, script: &str) -> Self {
        Self { cpus: 1, icount: true, ..Self::new(name, series, ["sh", "-c", script]) }
    }
}

/// Has the CPUs of a guest take turns on one CPU of the host. Where QEMU 7.2 translates for two at once, now
/// and then it runs code that the kernel has changed meanwhile: a breakpoint that was taken back is an oops
/// `int3` on 6.12 and 7.2, and on 6.1 a CPU that comes back to it for ever.
const TURNS: [&str; 2] = ["-accel", "tcg,thread=single"];

const PLUGIN: &str = "profiler-qemu.so";

/// The folder of a VM under virtual time with the plugin that counts its instructions, whose files go there. As long
/// as nothing in the guest asks for it, the plugin changes nothing.
fn counting(paths: &Paths) -> Result<TempDir> {
    let folder = TempDir::with_prefix_in("counting-", paths.vm())?;
    let mut rustc = Command::new("rustc");
    rustc.args(["--edition=2024", "--crate-name=profiler_qemu", "--crate-type=cdylib"]);
    rustc.args(["-Copt-level=3", "-Cpanic=abort"]).arg("-o").arg(folder.path().join(PLUGIN));
    process::run(rustc.arg(paths.root().join("profiler-qemu/src/lib.rs")))?;
    Ok(folder)
}

/// A path as one word for a shell.
pub(crate) fn word(path: &Path) -> String {
    quote(&path.to_string_lossy())
}

static KVM_PROBE: Mutex<()> = Mutex::new(());

/// Boots and runs. Everything but a command that ran to its end is an error.
pub(crate) fn run(paths: &Paths, spec: &VmSpec) -> Result<VmOutcome> {
    setup::ensure(paths, &[Part::Vm, Part::Kernel(spec.series)])?;
    let kernel = setup::kernel(paths, spec.series)?;
    if spec.icount && spec.cpus != 1 {
        bail!("virtual time needs one CPU, not {}: leave out --cpus or say --cpus 1", spec.cpus);
    }
    let home = paths.vm().join("home");
    process::create_dir(&home)?;
    let mut vm = profiler_vm::VmSpec {
        kernel: KernelImage::open(&kernel.image())?,
        cpus: spec.cpus,
        memory: spec.memory.clone(),
        time: if spec.icount { Time::Virtual } else { Time::Wall },
        timeout: spec.timeout,
        env: Vec::new(),
        command: spec.command.clone(),
        directory: paths.root().to_owned(),
        shared: paths.target(),
        log: log_path(paths, spec),
        vng: paths.venv().join("bin/vng"),
        home,
        kernel_args: spec.kernel_args.clone(),
        qemu_args: Vec::new(),
    };
    let counting = if spec.icount { Some(counting(paths)?) } else { None };
    if let Some(counting) = &counting {
        let counting = counting.path();
        let word = |file: &str| counting.join(file).to_string_lossy().replace(',', ",,");
        let (plugin, symbols, counts) = (word(PLUGIN), word("symbols"), word("counts"));
        let files = format!("{plugin},symbols={symbols},counts={counts}");
        vm.qemu_args.extend(["-plugin".to_owned(), files]);
        vm.env.push(("PROFILER_VM_COUNTING".to_owned(), counting.to_string_lossy().into_owned()));
    }
    let say = &mut |text: &str| println!("vm: {text}");
    // One at a time: the first finds it out for all.
    let choosing = KVM_PROBE.lock().unwrap_or_else(|broken| broken.into_inner());
    let (accel, reason) = kvm::choose(&vm, &paths.vm().join("kvm-probe"), say)?;
    drop(choosing);
    if accel == Accel::Tcg && spec.cpus > 1 {
        vm.qemu_args = TURNS.map(str::to_owned).to_vec();
    }
    if let Some(max) = spec.max_cpus {
        // QEMU takes both together with virtme-ng's own.
        vm.qemu_args.extend(["-smp".to_owned(), format!("{},maxcpus={max}", spec.cpus)]);
    }
    println!(
        "vm: Linux {}, {} CPU{}{}, {accel:?} ({reason})",
        kernel.release,
        spec.cpus,
        if spec.cpus == 1 { "" } else { "s" },
        if spec.icount { ", virtual time" } else { "" },
    );
    // Lines of tests with what each took by this machine's clock: a guest's may be virtual.
    let mut last = Instant::now();
    let mut print = |line: &str| {
        if !line.starts_with("test ") {
            return println!("{line}");
        }
        println!("{line} [{:.1} s]", last.elapsed().as_secs_f64());
        last = Instant::now();
    };
    profiler_vm::run(&vm, accel, &mut print)
        .with_context(|| format!("VM failed; its log is {}", vm.log.display()))
}

/// What the command of a VM has written according to its log, also if the VM failed.
pub(crate) fn logged_lines(paths: &Paths, spec: &VmSpec) -> Vec<String> {
    profiler_vm::logged_lines(&log_path(paths, spec))
}

fn log_path(paths: &Paths, spec: &VmSpec) -> PathBuf {
    paths.vm().join("logs").join(format!("{}.log", spec.name))
}
