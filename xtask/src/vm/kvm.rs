//! Whether hardware virtualization can be used.
//!
//! A machine may have `/dev/kvm` and yet not boot a stock kernel, as many nested ones, so only a boot
//! decides. The result is kept until QEMU or the kernel changes.

use std::fs::OpenOptions;
use std::sync::Mutex;

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
    // One at a time: the first trial boot decides for all.
    static PROBE: Mutex<()> = Mutex::new(());
    if args.icount {
        return Ok((Accel::Tcg, "virtual time needs it".to_owned()));
    }
    if let Err(error) = OpenOptions::new().read(true).write(true).open(DEVICE) {
        return Ok((Accel::Tcg, format!("{DEVICE}: {error}")));
    }
    let _probe = PROBE.lock().unwrap_or_else(|broken| broken.into_inner());
    let name = format!("{} {}", kernel.release, process::version(Arch::X86_64.qemu())?);
    let folder = paths::vm().join("kvm-probe");
    let known = folder.join(name.replace('/', "-"));
    let mut works = process::read(&known).unwrap_or_default();
    if !["works", "fails"].contains(&&*works) {
        println!("vm: trying KVM, once for this kernel");
        let probe = VmArgs::script("kvm-probe", args.kernel, "true");
        let probe = VmArgs { timeout: PROBE_TIMEOUT, ..probe };
        let code = super::boot(&probe, kernel, Accel::Kvm, &mut |_| {});
        stop::check()?;
        process::create_dir(&folder)?;
        works = if code.is_ok_and(|code| code == 0) { "works" } else { "fails" }.to_owned();
        process::write(&known, &works)?;
    }
    Ok(match works.as_str() {
        "works" => (Accel::Kvm, "a probe boot worked".to_owned()),
        _ => (Accel::Tcg, format!("{DEVICE} is there, but a probe boot failed")),
    })
}
