//! What boots: virtme-ng's command line, and the script that runs the command in the guest.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Result;

use profiler_system::search_path;
use profiler_vm::{Accel, Arch, KernelImage};

use crate::cli::VmArgs;
use crate::paths;
use crate::process;
use crate::setup::tools::VIRTME;

use super::{quote, word};

/// Drivers that the system's own rules of udev would load, where ours come too late (see [`RULES`]), for QEMU's devices or CPU flags
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

/// Where the rules of udev are (`udev(7)`); those of the administrator, in `/etc/udev/rules.d`, are kept.
///
/// virtme-ng's init mounts ours there in one thread and starts udev in another: if udev is first, the system's rules apply, and the
/// kernel's `modprobe.blacklist` alone keeps drivers out.
const RULES: &str = "/usr/lib/udev/rules.d";

/// What udev does in the guest: drivers of QEMU's devices, if they are modules, and names of the ports over which virtme-ng runs the
/// command. The rules of a system that boots on hardware are a third of the boot under TCG, and what they start runs beside what is
/// measured.
const WANTED: &str = r#"ACTION!="remove", SUBSYSTEM=="virtio", ENV{MODALIAS}=="?*", RUN{builtin}+="kmod load '$env{MODALIAS}'"
SUBSYSTEM=="virtio-ports", ATTR{name}=="?*", SYMLINK+="virtio-ports/$attr{name}"
"#;

/// Options of virtme-ng for each VM.
const OPTIONS: &[&str] = &[
    "--user=root",
    "--memory=2G",
    // Without it virtme-ng waits for a virtiofsd that Debian 12 does not have in its form.
    "--force-9p",
    "--disable-monitor",
    "--disable-microvm",
    // The kernel's console goes to the error output, where we search it.
    "--verbose",
    "--append=loglevel=5",
    // Two boots have to run the same instructions.
    "--append=nokaslr",
    // The kernel checks its timer against the CPU's speed, which QEMU adjusts under virtual time. The
    // check fails, with a panic, if the host was busy meanwhile.
    "--append=no_timer_check",
    // Twice this many seconds without a turn are a lockup for the kernel: a busy host has taken 22, as all functions were patched.
    "--append=watchdog_thresh=60",
    "--qemu-opts=-nodefaults",
    // virtme-ng has a device with one port for each stream. With room for 31 ports, the default, each has 64 queues with
    // an event each that QEMU polls and the guest sets up: a quarter of a boot's CPU time, a tenth of what follows.
    "--qemu-opts=-global",
    "--qemu-opts=virtio-serial-pci.max_ports=2",
];

/// The guest's CPUs take turns on one CPU of the host. With a thread for each, QEMU 7.2 now and then runs a stale
/// translation of code that the kernel has patched: a removed breakpoint is an oops `int3` on 6.12 and 7.2, and on 6.1
/// a CPU that hits it for ever.
const TURNS: [&str; 2] = ["-accel", "tcg,thread=single"];

/// The plugin that counts a guest's instructions, once the guest asks for counts. It has the place of its files from us.
const PLUGIN: &str = "profiler-qemu.so";

/// The command that boots the VM and runs the script, both of whose files are in `folder`.
pub(super) fn command(
    args: &VmArgs,
    kernel: &KernelImage,
    accel: Accel,
    folder: &Path,
) -> Result<Command> {
    let home = paths::vm().join("home");
    process::create_dir(&home)?;
    let rules = folder.join("udev");
    process::create_dir(&rules)?;
    process::write(&rules.join("50-vm.rules"), WANTED)?;
    let vng = VIRTME.program("vng");
    // With its own folder.
    let path = format!("{}:{}", VIRTME.program("").display(), search_path().display());
    let mut command = Command::new("sh");
    command.args(["-c", LEADER, "sh"]).arg(vng).arg("--run").arg(&kernel.path).args(OPTIONS);
    command.arg(format!("--cpus={}", args.cpus()));
    command.arg(format!("--append=modprobe.blacklist={UNWANTED_MODULES}"));
    command.args(args.kernel_args.iter().map(|word| format!("--append={word}")));
    // The root is read-only with overlays on top; this folder alone is the host's own.
    command.arg("--rwdir").arg(paths::target());
    command.arg(format!("--rodir={RULES}={}", rules.display()));
    let mut qemu = |words: &[&str]| {
        command.args(words.iter().map(|word| format!("--qemu-opts={word}")));
    };
    if accel == Accel::Tcg {
        // After virtme-ng's own: of two, QEMU takes the last.
        qemu(&["-cpu", Arch::X86_64.translated_cpu()]);
        if let Some(unpacked) = kernel.unpacked_in_memory() {
            qemu(&["-kernel", &unpacked.to_string_lossy()]);
        }
    }
    if args.icount {
        let folder = folder.display().to_string().replace(',', ",,");
        let files = format!("{folder}/{PLUGIN},symbols={folder}/symbols,counts={folder}/counts");
        qemu(&["-icount", "shift=0,sleep=off", "-plugin", &files]);
    } else if accel == Accel::Tcg {
        qemu(&TURNS);
    }
    command.args((accel == Accel::Tcg).then_some("--disable-kvm"));
    command.args(["--", "sh"]).arg(folder.join(SCRIPT));
    command.current_dir(paths::root()).env("HOME", home).env("PATH", path).env("TMPDIR", folder);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(command)
}

/// Builds the plugin into the folder of a VM.
pub(super) fn build_plugin(folder: &Path) -> Result<()> {
    let mut rustc = Command::new("rustc");
    rustc.args(["--edition=2024", "--crate-name=profiler_qemu", "--crate-type=cdylib"]);
    rustc.args(["-Copt-level=3", "-Cpanic=abort"]).arg("-o").arg(folder.join(PLUGIN));
    process::run(rustc.arg(paths::root().join("crates/qemu/src/lib.rs")))
}

/// The script, in the folder of a VM.
pub(super) const SCRIPT: &str = "script.sh";

/// Begins the script. Turns the output to virtme-ng's port for it. virtme-ng's init has done so unless udev, which names the ports
/// by links, was slower than it: then it has taken the kernel's console, and commands would write among
/// the kernel's own lines. The kernel names the ports without udev's help.
const PREPARE: &str = "\
# The command of a VM.
is_port() { case $(readlink /proc/$$/fd/1) in /dev/vport*) ;; *) return 1 ;; esac }
is_port || modprobe -q virtio_console
tries=100
while ! is_port && [ $tries -gt 0 ]; do
    for port in /sys/class/virtio-ports/*; do
        if [ \"$(cat $port/name)\" = virtme.stdout ]; then exec >/dev/${port##*/}; fi
    done
    is_port || sleep 0.1
    tries=$((tries - 1))
done
exec </dev/null 2>&1
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
ip link set dev lo up
mounted() { grep -q \" $1 \" /proc/mounts; }
mounted /sys/kernel/debug || mount -t debugfs debugfs /sys/kernel/debug
mounted /sys/kernel/tracing || mount -t tracefs tracefs /sys/kernel/tracing
mounted /sys/fs/bpf || mount -t bpf bpf /sys/fs/bpf
";

/// Printed when the guest is up: lines before it are not the command's.
pub(super) fn start_line(folder: &Path) -> String {
    format!("PROFILER-VM-START {}", folder.display())
}

/// Begins what is printed when the command has ended; its exit code follows. No earlier output can contain the folder's name.
pub(super) fn done_prefix(folder: &Path) -> String {
    format!("PROFILER-VM-DONE {} rc=", folder.display())
}

/// The script for `sh` in the guest. The command runs in `directory`.
pub(super) fn script(directory: &Path, args: &VmArgs, folder: &Path) -> String {
    let words: Vec<String> = args.command.iter().map(|word| quote(word)).collect();
    let counting = format!("export PROFILER_VM_COUNTING={}", word(folder));
    format!(
        "{PREPARE}cd {} || exit 1\n{}\necho {}\n( exec {} )\nrc=$?\nsync\necho {}$rc\n",
        word(directory),
        if args.icount { &counting } else { "" },
        quote(&start_line(folder)),
        words.join(" "),
        quote(&done_prefix(folder)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::series::Series;

    #[test]
    fn words_arrive_in_the_command_as_they_are() {
        let command = ["printf", "%s|", "a b", "it's", "$HOME", "*"].map(str::to_owned).to_vec();
        let args = VmArgs { command, icount: true, ..VmArgs::script("n", Series::V6_1, "") };
        let script = script(Path::new("/"), &args, Path::new("/n 1"));
        // The mounts fail outside of a VM, which does not matter here.
        let body = script.split("PROFILER-VM-START /n 1'\n").nth(1).unwrap();
        let output = Command::new("sh").arg("-c").arg(body).output().unwrap();
        let output = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output, "a b|it's|$HOME|*|PROFILER-VM-DONE /n 1 rc=0\n");
        assert!(script.contains("export PROFILER_VM_COUNTING='/n 1'\n"), "{script}");
    }
}
