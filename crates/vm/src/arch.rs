//! The architectures of guests, and what runs their instructions.

use crate::cpu;

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
            Self::X86_64 => cpu::translated(),
            Self::Arm64 => "neoverse-n1,cntfrq=500000000",
        }
    }
}
