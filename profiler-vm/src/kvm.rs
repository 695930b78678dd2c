//! Whether hardware virtualization can be used.
//!
//! A machine may have `/dev/kvm` and yet not boot a stock kernel, as many nested ones, so only a boot
//! decides. The result is kept until QEMU or the kernel changes.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::error::VmError;
use crate::guest;
use crate::spec::{Accel, Time, VmSpec};

const DEVICE: &str = "/dev/kvm";

/// With KVM a kernel boots in a few seconds or not at all.
const PROBE_TIMEOUT: Duration = Duration::from_secs(40);

/// The accelerator to use, with the reason. Boots the kernel of `spec` once if nothing is known of it and this QEMU,
/// and keeps the result in the folder `cache`; `say` gets a message before that boot.
///
/// # Errors
/// If the result cannot be kept.
pub fn choose(
    spec: &VmSpec,
    cache: &Path,
    say: &mut dyn FnMut(&str),
) -> Result<(Accel, String), VmError> {
    if spec.time == Time::Virtual {
        return Ok((Accel::Tcg, "virtual time needs it".to_owned()));
    }
    if let Err(error) = OpenOptions::new().read(true).write(true).open(DEVICE) {
        return Ok((Accel::Tcg, format!("{DEVICE}: {error}")));
    }
    let file = cache.join(format!("{} {}", spec.kernel.release, qemu_version()).replace('/', "-"));
    let works = match fs::read_to_string(&file).as_deref() {
        Ok("works") => true,
        Ok("fails") => false,
        _ => {
            say("trying KVM, once for this kernel");
            let probe = VmSpec {
                timeout: PROBE_TIMEOUT,
                log: spec.log.with_file_name("kvm-probe.log"),
                command: vec!["true".to_owned()],
                ..spec.clone()
            };
            let works = guest::run(&probe, Accel::Kvm, &mut |_| {}).is_ok_and(|vm| vm.code == 0);
            fs::create_dir_all(cache).map_err(VmError::file("create", cache))?;
            fs::write(&file, if works { "works" } else { "fails" })
                .map_err(VmError::file("write", &file))?;
            works
        }
    };
    Ok(if works {
        (Accel::Kvm, "a probe boot worked".to_owned())
    } else {
        (Accel::Tcg, format!("{DEVICE} is there, but a probe boot failed"))
    })
}

fn qemu_version() -> String {
    let output = Command::new("qemu-system-x86_64").arg("--version").output();
    let text = output.map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&text).lines().next().unwrap_or_default().to_owned()
}
