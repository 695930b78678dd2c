//! How guests are run.

/// What the guest's clock shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Time {
    /// Time as it passes on the host.
    Wall,
    /// One nanosecond an instruction, on one CPU, by QEMU's translator (`-icount`).
    Virtual,
}

/// How the guest's instructions are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accel {
    /// By the hardware.
    Kvm,
    /// By QEMU's translator.
    Tcg,
}
