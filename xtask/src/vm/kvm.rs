//! Whether hardware virtualization can be used.
//!
//! `/dev/kvm` may be there and still not run a stock kernel, as on many nested machines, so only
//! a boot decides. The verdict is kept until QEMU or the kernel changes.

use std::fs::{self, OpenOptions};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use super::{Accel, VmSpec};
use crate::paths::Paths;
use crate::process;
use crate::setup::Kernel;

const DEVICE: &str = "/dev/kvm";

/// A kernel boots in a few seconds with KVM or it does not at all.
const PROBE_TIMEOUT: Duration = Duration::from_secs(40);

/// The accelerator to use, with the reason. Boots the kernel once if nothing is known.
pub(crate) fn choose(paths: &Paths, spec: &VmSpec, kernel: &Kernel) -> Result<(Accel, String)> {
    if spec.icount {
        return Ok((Accel::Tcg, "virtual time needs it".to_owned()));
    }
    if let Err(error) = OpenOptions::new().read(true).write(true).open(DEVICE) {
        return Ok((Accel::Tcg, format!("{DEVICE}: {error}")));
    }
    let mut qemu = Command::new("qemu-system-x86_64");
    let qemu = process::stdout(qemu.arg("--version"))?;
    let key = format!("{} / {}\n", qemu.lines().next().unwrap_or_default(), kernel.release);
    let cache = paths.vm().join("kvm-probe").join(spec.series.as_str());
    let works = match fs::read_to_string(&cache).ok().as_deref().map(|text| verdict(text, &key)) {
        Some(Some(works)) => works,
        _ => {
            println!("vm: trying KVM, once for this kernel");
            let probe = VmSpec {
                name: "kvm-probe".to_owned(),
                timeout: PROBE_TIMEOUT,
                echo: false,
                ..VmSpec::new("kvm-probe", spec.series, ["true"])
            };
            let works = super::boot(paths, &probe, kernel, Accel::Kvm).is_ok_and(|vm| vm.code == 0);
            process::create_dir(&paths.vm().join("kvm-probe"))?;
            process::write(&cache, format!("{key}{}\n", if works { "works" } else { "fails" }))?;
            works
        }
    };
    Ok(if works {
        (Accel::Kvm, "a probe boot worked".to_owned())
    } else {
        (Accel::Tcg, format!("{DEVICE} is there, but a probe boot failed"))
    })
}

/// The kept verdict, unless it is about something else.
fn verdict(text: &str, key: &str) -> Option<bool> {
    match text.strip_prefix(key)?.trim_end() {
        "works" => Some(true),
        "fails" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::verdict;

    #[test]
    fn a_verdict_holds_for_its_own_qemu_and_kernel_alone() {
        let key = "QEMU 7.2 / 6.1.0-56-amd64\n";
        assert_eq!(verdict(&format!("{key}works\n"), key), Some(true));
        assert_eq!(verdict(&format!("{key}fails\n"), key), Some(false));
        assert_eq!(verdict("QEMU 8.0 / 6.1.0-56-amd64\nworks\n", key), None);
        assert_eq!(verdict(&format!("{key}wor"), key), None);
    }
}
