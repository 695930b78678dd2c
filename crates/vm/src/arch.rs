//! The architectures of guests, and what runs their instructions.

use std::process::Command;
use std::sync::OnceLock;

/// Of a kernel, and of the programs that it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Arch {
    /// x86-64.
    X86_64,
    /// 64-bit Arm.
    Arm64,
}

/// How the guest's instructions are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accel {
    /// By the hardware.
    Kvm,
    /// By QEMU's translator.
    Tcg,
}

impl Arch {
    /// That of this program.
    pub const HERE: Self = if cfg!(target_arch = "aarch64") { Self::Arm64 } else { Self::X86_64 };

    /// Its name, as `uname -m` prints it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Arm64 => "aarch64",
        }
    }

    /// All.
    pub const ALL: [Self; 2] = [Self::X86_64, Self::Arm64];

    /// Its name in Debian's packages.
    pub const fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// QEMU's program.
    pub const fn qemu(self) -> &'static str {
        match self {
            Self::X86_64 => "qemu-system-x86_64",
            Self::Arm64 => "qemu-system-aarch64",
        }
    }

    /// The package of that program, of Debian and Ubuntu.
    pub const fn package(self) -> &'static str {
        match self {
            Self::X86_64 => "qemu-system-x86",
            Self::Arm64 => "qemu-system-arm",
        }
    }

    /// The CPU of a guest that QEMU translates, as its `-cpu` takes it.
    ///
    /// Of Arm's a server's, which QEMU knows since version 7.1. A tick of its counter is two instructions under virtual time: with the
    /// fastest counter, of 1 GHz, QEMU 7.2 hangs while a kernel boots.
    pub fn translated_cpu(self) -> &'static str {
        match self {
            Self::X86_64 => translated(),
            Self::Arm64 => "neoverse-n1,cntfrq=500000000",
        }
    }
}

/// Flags of a CPU whose `rep movsb` and `rep stosb` are fast (QEMU's names). A kernel that sees them uses
/// these instructions to copy and clear, and QEMU runs and counts one for each byte: a `memset` of 4 KiB
/// is 4,096 instructions, and less than a hundred cycles on hardware. On the wall clock a boot that starts the
/// profiler six times takes an eighth less of the host's time without them.
const FAST_STRINGS: [&str; 5] = ["erms", "fsrm", "fzrm", "fsrs", "fsrc"];

/// Page tables of five levels. The kernel's decompressor switches them on, so a kernel that is booted unpacked has four, and
/// all have to have the same.
const FIVE_LEVELS: &str = "la57";

/// The model, as QEMU's `-cpu` takes it: virtme-ng's own, but for the flags.
fn translated() -> &'static str {
    static MODEL: OnceLock<String> = OnceLock::new();
    MODEL.get_or_init(|| {
        let help = Command::new(Arch::X86_64.qemu()).args(["-cpu", "help"]).output();
        model(&help.map(|output| output.stdout).unwrap_or_default())
    })
}

/// An unknown flag is an error to QEMU, so its list (`-cpu help`) is read first.
fn model(help: &[u8]) -> String {
    let help = String::from_utf8_lossy(help);
    // Known since 2.9.
    let mut model = format!("max,{FIVE_LEVELS}=off");
    for flag in FAST_STRINGS {
        if help.split_ascii_whitespace().any(|word| word == flag) {
            model.push_str(&format!(",{flag}=off"));
        }
    }
    model
}

#[cfg(test)]
mod tests {
    use super::model;

    #[test]
    fn only_flags_that_this_qemu_knows_are_switched_off() {
        let old = b"Recognized CPUID flags:\n  3dnow erms\n  fsgsbase fsrm fxsr\n";
        assert_eq!(model(old), "max,la57=off,erms=off,fsrm=off");
        let new = b"Recognized CPUID flags:\n  erms fsrc\n  fsrm fsrs fzrm vmx-fsrs-x\n";
        assert_eq!(model(new), "max,la57=off,erms=off,fsrm=off,fzrm=off,fsrs=off,fsrc=off");
    }
}
