//! Where the registers of a return probe lie on the stack.
//!
//! Programs that are given registers identify a call by the address of its return address on the stack. At
//! an exit they compute it from the address of the registers; the distance differs between kernels. It is
//! measured by a call of this process, which also shows that both probes fire.

use aya::maps::MapData;

use profiler_kernel::target::Target;

use super::{
    ProbeError, counters,
    errno::Doing as _,
    object::{self, Parameters, Template},
    programs::{self, Kind, Side},
    sys::{self, AttachType},
};

/// A system call that few processes make, and that this one makes for the purpose.
const CALLED: &str =
    if cfg!(target_arch = "aarch64") { "__arm64_sys_getpgid" } else { "__x64_sys_getpgid" };

/// Number of calls; all have to give the same distance.
const CALLS: u32 = 3;

/// The distance in bytes, from the registers up to the return address.
///
/// # Errors
/// When the kernel refuses the programs, they do not fire, or calls disagree.
pub(super) fn exit_shift(
    template: &Template,
    displaced: &MapData,
    parameters: &Parameters,
) -> Result<u64, ProbeError> {
    let target = Target { name: CALLED.to_owned(), module: None, address: 0, ..Target::default() };
    let pid =
        sys::pid_outside().doing("asking for this process's number outside its PID namespace")?;
    let kinds = [("calibrate_leave", Side::Exit), ("calibrate_enter", Side::Entry)]
        .map(|(name, side)| Kind { side, name: name.to_owned(), attach_type: AttachType::Kprobe });
    let (instance, code) = template.instantiate(pid.into(), parameters, displaced, &kinds)?;
    let mut hooks = Vec::new();
    for (kind, code) in kinds.iter().zip(code) {
        let program = object::load(kind, code, CALLED, (0, None), None)?;
        let hook = programs::attach(kind, &program, &target)
            .doing("attaching to a system call, to find out how the stack is laid out")?;
        hooks.push((program, hook));
    }
    let mut found = None;
    for _ in 0..CALLS {
        // Only that it is called matters.
        let _ = nix::unistd::getpgid(None);
        let slot = counters::slot(instance.value.words());
        let (place, registers) = (slot.frame, slot.start);
        let distance = place.wrapping_sub(registers);
        if place == 0 || registers == 0 || found.is_some_and(|before| before != distance) {
            return Err(ProbeError::Other(format!(
                "finding out how the stack is laid out: the probes did not see a call of {CALLED} by \
                 this process (number {pid} of the machine), or not each call alike"
            )));
        }
        found = Some(distance);
    }
    Ok(found.unwrap_or_default())
}
