//! Whether hardware virtualization can be used.
//!
//! A machine may have `/dev/kvm` and yet not boot a stock kernel, as many nested ones, so only a boot decides. The result is kept
//! in `target/vm/kvm-RELEASE`.

use std::fs::OpenOptions;

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
    if args.icount || OpenOptions::new().read(true).write(true).open("/dev/kvm").is_err() {
        return Ok(Accel::Tcg);
    }
    let known = paths::vm().join(format!("kvm-{}", kernel.release));
    if !known.exists() {
        println!("vm: trying KVM, once for this kernel");
        let name = format!("kvm-{}", args.kernel);
        let probe = VmArgs::script(&name, args.kernel, "true");
        let probe = VmArgs { timeout: PROBE_TIMEOUT, ..probe };
        let works =
            super::boot(&probe, kernel, Accel::Kvm, &mut |_| {}).is_ok_and(|code| code == 0);
        stop::check()?;
        process::write(&known, if works { "works" } else { "fails" })?;
    }
    Ok(if process::read(&known)? == "works" { Accel::Kvm } else { Accel::Tcg })
}
