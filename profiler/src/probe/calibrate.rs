//! Where the registers of a return probe lie on the stack.
//!
//! Programs that are given registers tell calls apart by the place of the return address. At an exit
//! they know it from the place of the registers, at a distance that differs between kernels: it is
//! measured by a call of this process, and by that also shown that both probes fire.

use profiler_common::layout::{SLOTS_MAX, Slot, names};

use super::{
    ProbeError,
    object::{Parameters, Shared, Template},
    programs::{self, Kind, Side},
    sys::{self, AttachType},
};
use crate::target::Target;

/// A system call that few processes make, and that this one makes for the purpose.
const CALLED: &str = "__x64_sys_getpgid";

/// How often it is called: each call has to say the same.
const CALLS: u32 = 3;

/// The distance in bytes, from the registers up to the return address.
///
/// # Errors
/// When the kernel refuses the programs, they do not fire, or calls disagree.
pub(super) fn exit_shift(
    template: &Template,
    shared: &Shared,
    parameters: &Parameters,
    attach_type: AttachType,
) -> Result<u64, ProbeError> {
    let system = |doing: &'static str| move |error| ProbeError::System { doing, error };
    let target =
        Target { name: CALLED.to_owned(), module: None, address: 0, btf_id: None, twin: None };
    let parameters =
        Parameters { handler: u64::from(std::process::id()), exit_shift: 0, ..*parameters };
    let kinds = [("calibrate_leave", Side::Exit), ("calibrate_enter", Side::Entry)]
        .map(|(name, side)| Kind { side, name, attach_type });
    let instance = template.instantiate(&parameters, shared, &kinds)?;
    let mut hooks = Vec::new();
    for kind in kinds {
        let program = instance.load(kind, None, None).map_err(|refused| ProbeError::Refused {
            program: kind.side.word(),
            handler: CALLED.to_owned(),
            refused,
        })?;
        let hook = programs::attach(kind, &program, &target)
            .map_err(system("attaching to a system call, to find out how the stack is laid out"))?;
        hooks.push((program, hook));
    }
    let mut found = None;
    for _ in 0..CALLS {
        sys::call_getpgid();
        let mut bytes = vec![0; SLOTS_MAX * size_of::<Slot>()];
        instance.read(names::SLOTS, 0, &mut bytes).map_err(system("reading a map"))?;
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_ne_bytes(word)
        };
        let (place, registers) = (word(0), word(8));
        let distance = place.wrapping_sub(registers);
        if place == 0 || registers == 0 || found.is_some_and(|before| before != distance) {
            let what = format!(
                "a call of {CALLED} was not seen as a whole (entry {}, exit {}, or at another \
                 distance than before)",
                place != 0,
                registers != 0
            );
            return Err(system("finding out how the stack is laid out")(std::io::Error::other(
                what,
            )));
        }
        found = Some(distance);
    }
    Ok(found.unwrap_or_default())
}
