//! A stock Debian kernel on this machine's file tree, through virtme-ng and QEMU: what is written below `target/` stays.

mod command;
mod guest;
mod kvm;

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use profiler_vm::{Accel, KernelImage};

use crate::cargo;
use crate::cli::VmArgs;
use crate::paths;
use crate::process;
use crate::series::Series;
use crate::setup::{self, Part};
use crate::stop;
use crate::testbed;

pub(crate) use profiler_system::quote;

impl VmArgs {
    /// A shell script in a VM with two CPUs, for ten minutes at most.
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

    fn cpus(&self) -> u32 {
        if self.icount { 1 } else { self.cpus }
    }

    /// The log with the command's lines and the kernel's.
    pub(crate) fn log(&self) -> PathBuf {
        paths::vm().join("logs").join(format!("{}.log", self.name))
    }
}

/// Runs a shell script under virtual time, with the test module loaded, the path of a release build in `$profiler`, and that of the
/// file for its result in `$result`; returns its exit code.
pub(crate) fn run_with_module(name: &str, kernel: Series, script: &str) -> Result<i32> {
    // The results of other kernels stay.
    let folder = paths::target().join(name).join(kernel.to_string());
    process::empty_dir(&folder)?;
    let result = folder.join("result.json");
    let profiler = word(&cargo::build_profiler()?);
    let module = word(&testbed::build(kernel, "")?);
    let variables = format!("profiler={profiler} result={}", word(&result));
    let script = format!("insmod {module} || exit\n{variables}\n{script}\n");
    let args = VmArgs { icount: true, ..VmArgs::script(name, kernel, &script) };
    let code = run(&args, &mut Vec::new())?;
    if result.exists() {
        println!("{name}: {}", result.display());
    }
    Ok(code)
}

/// A path as one word for a shell.
pub(crate) fn word(path: &Path) -> String {
    quote(&path.to_string_lossy())
}

/// Boots and runs the command, whose output it prints and adds to `lines`; gives its exit code. Everything but a command that ran to
/// its end is an error.
pub(crate) fn run(args: &VmArgs, lines: &mut Vec<String>) -> Result<i32> {
    // What an earlier VM of this name wrote must not pass for this one's, whatever fails below.
    process::create_dir(&paths::vm().join("logs"))?;
    process::write(&args.log(), "")?;
    setup::ensure(&[setup::VM, Part::kernel(&args.kernel)])?;
    let kernel = KernelImage::open(&setup::kernel(args.kernel)?.image())?;
    let (accel, why) = kvm::choose(args, &kernel)?;
    let time = if args.icount { ", virtual time" } else { "" };
    println!("vm: Linux {}, CPUs: {}{time}, {accel:?} ({why})", kernel.release, args.cpus());
    // Each test's line gets its time by this machine's clock: the guest's may be virtual.
    let begun = Instant::now();
    let mut last = begun;
    let code = boot(args, &kernel, accel, &mut |line| {
        lines.push(line.to_owned());
        if !line.starts_with("test ") {
            return println!("{line}");
        }
        println!("{line} [{:.1} s]", last.elapsed().as_secs_f64());
        last = Instant::now();
    });
    let (seconds, log) = (begun.elapsed().as_secs_f64(), args.log());
    let code = code.with_context(|| format!("VM failed; its log is {}", log.display()))?;
    println!("vm: exit code {code} after {seconds:.1} s; log: {}", log.display());
    Ok(code)
}

/// Boots and runs, and hands each line of the command to `on_line` as it comes.
fn boot(
    args: &VmArgs,
    kernel: &KernelImage,
    accel: Accel,
    on_line: &mut dyn FnMut(&str),
) -> Result<i32> {
    // All files of the VM. One that is killed leaves virtme-ng's temporary files behind, too: here they are removed.
    let folder = TempDir::with_prefix_in("run-", paths::vm())?;
    let folder = folder.path();
    if args.icount {
        command::build_plugin(folder)?;
    }
    process::write(&folder.join(command::SCRIPT), command::script(paths::root(), args, folder))?;
    let mut command = command::command(args, kernel, accel, folder)?;
    let mut log = File::create(args.log()).context("cannot create the VM's log")?;
    let (text, in_guest) = (process::text(&command), args.command.join(" "));
    writeln!(log, "$ {text}\n$ in the guest: {in_guest}").context("cannot write the VM's log")?;
    if accel == Accel::Tcg {
        // QEMU asks for huge pages, and a guest touches a little of each: without them QEMU's system time is half. QEMU inherits
        // this from our process, as do later children (PR_SET_THP_DISABLE in prctl(2)).
        let _ = nix::sys::prctl::set_thp_disable(true);
    }
    let timeout = Duration::from_secs(args.timeout);
    stop::run(&mut command, |vm| Ok(guest::follow(vm, timeout, folder, &mut log, on_line)))?
}
