//! virtme-ng's command line.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::cpu;
use crate::spec::{Accel, Time, VmSpec};
use crate::udev;

/// Drivers that the system's own rules of udev would load, where ours come too late (see [`udev`]), for QEMU's devices or CPU flags
/// and that nothing here needs. Under TCG they are half of such a boot; KVM's alone takes eight seconds.
const UNWANTED_MODULES: &str = "kvm_amd,kvm_intel,kvm,powernow_k8,acpi_cpufreq,pcspkr,iTCO_wdt,\
    i6300esb,lpc_ich,i2c_i801,ahci,libahci,libata,ata_generic,sr_mod,sg,cdrom,joydev,evdev,psmouse,\
    button,intel_rapl_msr,intel_rapl_common,aesni_intel,ghash_clmulni_intel,crct10dif_pclmul,\
    crc32_pclmul,sha1_ssse3,sha256_ssse3,sha512_ssse3,qemu_fw_cfg,edac_mce_amd,amd64_edac,ccp";

/// The leader of the VM's process group, for `sh`. When its standard input closes, which the kernel does for a program that is
/// killed, the group is killed; meanwhile it becomes the command.
const LEADER: &str = "exec 3<&0 </dev/null\n\
    (trap '' TERM HUP; read -r end <&3; kill -KILL 0) >/dev/null 2>&1 &\n\
    exec 3<&-\n\
    exec \"$@\"";

/// The files that a VM is booted with.
pub(crate) struct Files<'a> {
    /// What the guest runs.
    pub(crate) script: &'a Path,
    /// Rules in place of the system's; `None` if there is no folder of these.
    pub(crate) rules: Option<PathBuf>,
    /// The kernel unpacked; `None` boots it as it is.
    pub(crate) vmlinux: Option<PathBuf>,
}

/// The command that boots the VM and runs the script.
pub(crate) fn command(spec: &VmSpec, accel: Accel, files: &Files<'_>) -> Command {
    // With the program's own folder.
    let own = spec.vng.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut path = own.map_or(OsString::new(), |folder| folder.as_os_str().into());
    // An empty one would be the directory that it runs in.
    path.push(if own.is_some() { ":" } else { "" });
    path.push(search_path());
    let mut command = Command::new("sh");
    command
        .args(["-c", LEADER, "sh"])
        .arg(&spec.vng)
        .arg("--run")
        .arg(&spec.kernel.path)
        .args(["--user", "root", "--cpus", &spec.cpus.to_string(), "--memory", &spec.memory])
        // The root is read-only with overlays on top; this folder alone is the host's own.
        .arg("--rwdir")
        .arg(&spec.shared)
        // Without it virtme-ng waits for a virtiofsd that Debian 12 does not have in its form.
        .arg("--force-9p")
        .args(["--disable-monitor", "--disable-microvm"])
        // The kernel's console goes to the error output, where we search it.
        .arg("--verbose")
        .args(["--append", "loglevel=5"])
        // Two boots have to run the same instructions.
        .args(["--append", "nokaslr"])
        // The kernel checks its timer against the CPU's speed, which QEMU adjusts under virtual time. The
        // check fails, with a panic, if the host was busy meanwhile.
        .args(["--append", "no_timer_check"])
        // Twice this many seconds without a turn are a lockup for the kernel: a busy host has taken 22, as all functions were patched.
        .args(["--append", "watchdog_thresh=60"])
        .args(["--append", &format!("modprobe.blacklist={UNWANTED_MODULES}")])
        .arg("--qemu-opts=-nodefaults")
        // virtme-ng has a device with one port for each stream. With room for 31 ports, the default, each has 64 queues with
        // an event each that QEMU polls and the guest sets up: a quarter of a boot's CPU time, a tenth of what follows.
        .args(["--qemu-opts=-global", "--qemu-opts=virtio-serial-pci.max_ports=2"])
        .current_dir(&spec.directory)
        .env("HOME", &spec.home)
        .env("PATH", path);
    if let Some(rules) = &files.rules {
        let mut mapped = OsString::from(format!("--rodir={}=", udev::RULES));
        mapped.push(rules);
        command.arg(mapped);
    }
    for word in &spec.kernel_args {
        command.args(["--append", word]);
    }
    if accel == Accel::Tcg {
        command.arg("--disable-kvm");
        // After virtme-ng's own: of two, QEMU takes the last.
        command.arg("--qemu-opts=-cpu").arg(format!("--qemu-opts={}", cpu::translated()));
    }
    if let Some(vmlinux) = &files.vmlinux {
        let mut given = OsString::from("--qemu-opts=");
        given.push(vmlinux);
        // After virtme-ng's own, too.
        command.arg("--qemu-opts=-kernel").arg(given);
    }
    if spec.time == Time::Virtual {
        command.args(["--qemu-opts=-icount", "--qemu-opts=shift=0,sleep=off"]);
    }
    for word in &spec.qemu_args {
        command.arg(format!("--qemu-opts={word}"));
    }
    command.args(["--", "sh"]).arg(files.script);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// PATH of the caller, and the folders of system programs, which an ordinary user's may lack.
pub fn search_path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/sbin:/sbin");
    path
}

/// The file of a program, as a shell finds it by [`search_path`].
pub fn find_program(name: &str) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| {
        let found = std::fs::metadata(path);
        found.is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
    };
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(is_program);
    }
    std::env::split_paths(&search_path()).map(|folder| folder.join(name)).find(is_program)
}

/// The command as a user would type it.
pub fn text(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| crate::quote(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_a_shell_would_split_them() {
        let mut command = Command::new("vng");
        command.args(["--run", "/boot/vmlinuz", "a b", ""]);
        assert_eq!(text(&command), "vng --run /boot/vmlinuz 'a b' ''");
    }
}
