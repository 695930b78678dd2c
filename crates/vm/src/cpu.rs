//! The CPU of a guest that QEMU translates.

use std::process::Command;
use std::sync::OnceLock;

use crate::Arch;

/// Flags of a CPU whose `rep movsb` and `rep stosb` are fast (QEMU's names). A kernel that sees them uses
/// these instructions to copy and clear, and QEMU runs and counts one for each byte: a `memset` of 4 KiB
/// is 4,096 instructions, and less than a hundred cycles on hardware. On the wall clock a boot that starts the
/// profiler six times takes an eighth less of the host's time without them.
const FAST_STRINGS: [&str; 5] = ["erms", "fsrm", "fzrm", "fsrs", "fsrc"];

/// Page tables of five levels. The kernel's decompressor switches them on, so a kernel that is booted unpacked has four, and
/// all have to have the same.
const FIVE_LEVELS: &str = "la57";

/// The model, as QEMU's `-cpu` takes it: virtme-ng's own, but for the flags.
pub(crate) fn translated() -> &'static str {
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
