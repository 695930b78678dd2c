//! Options that make two guests run the same instructions.

/// Words for the kernel's command line, each with its reason.
pub const KERNEL_ARGS: &[(&str, &str)] = &[
    ("norandmaps", "programs and their stacks lie at the same addresses in every boot"),
    ("randomize_kstack_offset=off", "the kernel's stack begins at the same place in every call"),
    ("random.trust_cpu=on", "the random numbers that seed hash tables come from QEMU's fixed seed"),
    ("nowatchdog", "no watchdog wakes up every few seconds"),
    ("transparent_hugepage=never", "khugepaged has nothing to do"),
];

/// Words for QEMU's command line, each with its reason.
pub const QEMU_ARGS: &[(&str, &str)] = &[
    ("-seed", "the guest's RDRAND gives the same numbers in every guest"),
    ("1", ""),
    ("-rtc", "the guest's date begins at the same second, and runs on its own clock"),
    ("base=2026-01-01T00:00:00,clock=vm", ""),
];
