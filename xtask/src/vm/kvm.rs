//! Whether hardware virtualization can be used.
//!
//! A machine may have `/dev/kvm` and yet not boot a stock kernel, as many nested ones, so only a boot decides. The result is kept
//! in `target/vm` until QEMU or the kernel changes.

use std::fs::OpenOptions;
use std::sync::{Mutex, PoisonError};

use anyhow::Result;

use profiler_vm::{Accel, Arch, KernelImage};

use crate::cli::VmArgs;
use crate::paths;
use crate::process;
use crate::stop;

const DEVICE: &str = "/dev/kvm";

/// Seconds: with KVM a kernel boots in a few of them or not at all.
const PROBE_TIMEOUT: u64 = 40;

/// The accelerator to use, with the reason. Boots the kernel once if nothing is known of it and this QEMU.
pub(super) fn choose(args: &VmArgs, kernel: &KernelImage) -> Result<(Accel, String)> {
    // One at a time: the first trial decides for all.
    static TRIAL: Mutex<()> = Mutex::new(());
    if args.icount {
        return Ok((Accel::Tcg, "virtual time needs it".to_owned()));
    }
    if let Err(error) = OpenOptions::new().read(true).write(true).open(DEVICE) {
        return Ok((Accel::Tcg, format!("{DEVICE}: {error}")));
    }
    let _trial = TRIAL.lock().unwrap_or_else(PoisonError::into_inner);
    let qemu = process::version(Arch::X86_64.qemu())?;
    let name = format!("kvm-{} {qemu}", kernel.release);
    let known = paths::vm().join(name.replace('/', "-"));
    let mut works = process::read(&known).unwrap_or_default();
    // A write may have been cut off.
    if !["works", "fails"].contains(&&*works) {
        println!("vm: trying KVM, once for this kernel");
        let name = format!("kvm-{}", args.kernel);
        let trial = VmArgs::script(&name, args.kernel, "true");
        let trial = VmArgs { timeout: PROBE_TIMEOUT, ..trial };
        let code = super::boot(&trial, kernel, Accel::Kvm, &mut |_| {});
        stop::check()?;
        works = if code.is_ok_and(|code| code == 0) { "works" } else { "fails" }.to_owned();
        process::write(&known, &works)?;
    }
    Ok(if works == "works" {
        (Accel::Kvm, "a trial boot worked".to_owned())
    } else {
        (Accel::Tcg, format!("{DEVICE} is there, but a trial boot failed"))
    })
}
