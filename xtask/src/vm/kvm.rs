//! Whether hardware virtualization can be used.
//!
//! A machine may have `/dev/kvm` and yet not boot a stock kernel, as many nested ones, so only a boot decides. The result is kept
//! in `target/vm/kvm-probe`.

use std::fs::OpenOptions;
use std::sync::Mutex;

use anyhow::Result;

use profiler_vm::{Accel, KernelImage};

use crate::cli::VmArgs;
use crate::paths;
use crate::process;
use crate::stop;

/// Seconds: with KVM a kernel boots in a few of them or not at all.
const PROBE_TIMEOUT: u64 = 40;

/// The accelerator to use. Boots the kernel once if nothing is known of it. Virtual time needs the translator.
pub(super) fn choose(args: &VmArgs, kernel: &KernelImage) -> Result<Accel> {
    // One at a time: the first trial boot decides for all.
    static PROBE: Mutex<()> = Mutex::new(());
    if args.icount || OpenOptions::new().read(true).write(true).open("/dev/kvm").is_err() {
        return Ok(Accel::Tcg);
    }
    let _probe = PROBE.lock().unwrap_or_else(|broken| broken.into_inner());
    let folder = paths::vm().join("kvm-probe");
    let known = folder.join(&kernel.release);
    if !known.exists() {
        println!("vm: trying KVM, once for this kernel");
        let probe = VmArgs::script("kvm-probe", args.kernel, "true");
        let probe = VmArgs { timeout: PROBE_TIMEOUT, ..probe };
        let code = super::boot(&probe, kernel, Accel::Kvm, &mut |_| {});
        stop::check()?;
        process::create_dir(&folder)?;
        let works = code.is_ok_and(|code| code == 0);
        process::write(&known, if works { "works" } else { "fails" })?;
    }
    Ok(if process::read(&known)? == "works" { Accel::Kvm } else { Accel::Tcg })
}
