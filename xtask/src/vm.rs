//! A stock Debian kernel on this machine's file tree: what is written below `target/` stays.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use profiler_vm::debian::Unpacked;
use profiler_vm::{Accel, KernelImage, Time, VmSpec, kvm};
use tempfile::TempDir;

use crate::cargo;
use crate::cli::VmArgs;
use crate::paths::Paths;
use crate::process;
use crate::series::Series;
use crate::setup::{self, Part};
use crate::testbed::{self, Variant};

pub(crate) use profiler_vm::{VmOutcome, quote};

impl VmArgs {
    /// A shell script in a VM with two CPUs and 2 GiB, for ten minutes at most.
    pub(crate) fn script(name: &str, kernel: Series, script: &str) -> Self {
        Self {
            kernel,
            icount: false,
            cpus: 2,
            timeout: 600,
            name: name.to_owned(),
            kernel_args: Vec::new(),
            command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        }
    }
}

/// Runs a shell script under virtual time, with the test module loaded and the path of a release build in `$profiler`;
/// returns its exit code.
pub(crate) fn run_with_module(
    paths: &Paths,
    name: &str,
    kernel: Series,
    script: &str,
) -> Result<i32> {
    setup::ensure(paths, &[setup::VM, setup::MODULE_BUILD, Part::kernel(&kernel)])?;
    let profiler = word(&cargo::build_profiler(paths)?);
    let module = word(&testbed::build(paths, kernel, &Variant::default())?);
    let script = format!("insmod {module} || exit\nprofiler={profiler}\n{script}\n");
    let outcome = run(paths, &VmArgs { icount: true, ..VmArgs::script(name, kernel, &script) })?;
    println!("{name}: exit code {}; log: {}", outcome.code, outcome.log.display());
    Ok(outcome.code)
}

/// The guest's CPUs take turns on one CPU of the host. With a thread for each, QEMU 7.2 now and then runs a stale
/// translation of code that the kernel has patched: a removed breakpoint is an oops `int3` on 6.12 and 7.2, and on 6.1
/// a CPU that hits it for ever.
const TURNS: [&str; 2] = ["-accel", "tcg,thread=single"];

const PLUGIN: &str = "profiler-qemu.so";

/// Builds the plugin that counts a guest's instructions into a folder, which holds its files, too. It changes nothing
/// until the guest asks for counts.
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

/// The VM of these arguments.
fn spec(paths: &Paths, args: &VmArgs, kernel: &Unpacked) -> Result<VmSpec> {
    let home = paths.vm().join("home");
    process::create_dir(&home)?;
    Ok(VmSpec {
        kernel: KernelImage::open(&kernel.image())?,
        cpus: if args.icount { 1 } else { args.cpus },
        memory: "2G".to_owned(),
        time: if args.icount { Time::Virtual } else { Time::Wall },
        timeout: Duration::from_secs(args.timeout),
        env: Vec::new(),
        command: args.command.clone(),
        directory: paths.root().to_owned(),
        shared: paths.target(),
        log: log_path(paths, args),
        vng: setup::venv::VIRTME.program(paths, "vng"),
        home,
        kernel_args: args.kernel_args.clone(),
        qemu_args: Vec::new(),
    })
}

/// Boots and runs. Everything but a command that ran to its end is an error.
pub(crate) fn run(paths: &Paths, args: &VmArgs) -> Result<VmOutcome> {
    // What an earlier VM of this name wrote must not pass for this one's, whatever fails below.
    process::create_dir(&paths.vm().join("logs"))?;
    process::write(&log_path(paths, args), "")?;
    setup::ensure(paths, &[setup::VM, Part::kernel(&args.kernel)])?;
    let kernel = setup::kernel(paths, args.kernel)?;
    let mut vm = spec(paths, args, &kernel)?;
    let counting = args.icount.then(|| counting(paths)).transpose()?;
    if let Some(counting) = &counting {
        let counting = counting.path().to_string_lossy();
        let folder = counting.replace(',', ",,");
        let files = format!("{folder}/{PLUGIN},symbols={folder}/symbols,counts={folder}/counts");
        vm.qemu_args.extend(["-plugin".to_owned(), files]);
        vm.env.push(("PROFILER_VM_COUNTING".to_owned(), counting.into_owned()));
    }
    let say = &mut |text: &str| println!("vm: {text}");
    // One at a time: the first trial boot decides for all.
    let choosing = KVM_PROBE.lock().unwrap_or_else(|broken| broken.into_inner());
    let (accel, reason) = kvm::choose(&vm, &paths.vm().join("kvm-probe"), say)?;
    drop(choosing);
    if accel == Accel::Tcg && vm.cpus > 1 {
        vm.qemu_args = TURNS.map(str::to_owned).to_vec();
    }
    println!(
        "vm: Linux {}, CPUs: {}{}, {accel:?} ({reason})",
        kernel.release,
        vm.cpus,
        if args.icount { ", virtual time" } else { "" },
    );
    // Each test's line gets its time by this machine's clock: the guest's may be virtual.
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

/// What the command wrote according to the log, also if the VM failed.
pub(crate) fn logged_lines(paths: &Paths, args: &VmArgs) -> Vec<String> {
    profiler_vm::logged_lines(&log_path(paths, args))
}

fn log_path(paths: &Paths, args: &VmArgs) -> PathBuf {
    paths.vm().join("logs").join(format!("{}.log", args.name))
}
