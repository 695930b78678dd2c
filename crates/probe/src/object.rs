//! The compiled BPF object: loaded, parsed, and made into one instance for each handler.

use std::{
    collections::HashSet,
    io,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
};

use aya::maps::MapData;
use aya_obj::{Object, generated::bpf_insn};

use profiler_common::layout::{STACK_POINTERS, kfunc, names, operand};
use profiler_kernel::btf::Btf;

use super::{
    ProbeError,
    counters::Layout,
    errno::Doing as _,
    programs::{Kind, Side},
    sys::{self, LoadRefused, Program, mapped::Mapped},
};

/// The object that this program was built with.
static PREBUILT: &[u8] =
    aya::include_bytes_aligned!("../../../profiler-ebpf/prebuilt/profiler-bpf.o");

/// A parsed object, from which instances are made.
pub(super) struct Template {
    object: Object,
}

/// The maps of one handler.
pub(super) struct Instance {
    /// Kept for the programs that are loaded later.
    _maps: [MapData; 3],
    /// Slots and histograms that programs address directly.
    pub(super) value: Mapped,
    /// Histograms that they look up.
    pub(super) records: Mapped,
}

/// What one instance is made with.
#[derive(Debug, Clone)]
pub(super) struct Parameters {
    /// Whether the kernel preempts tasks that run in it.
    pub(super) preempts: bool,
    pub(super) exit_shift: u64,
    pub(super) layout: Layout,
}

impl Template {
    pub(super) fn load() -> Result<Self, ProbeError> {
        Object::parse(PREBUILT).map(|object| Self { object }).map_err(unusable)
    }

    /// The definition of the map that all instances share.
    fn displaced(&self) -> Result<&aya_obj::Map, ProbeError> {
        let map = self.object.maps.get(names::DISPLACED);
        map.ok_or_else(|| unusable(format!("no map {}", names::DISPLACED)))
    }

    /// Makes the map that all instances share.
    pub(super) fn make_displaced(&self) -> Result<MapData, ProbeError> {
        create(names::DISPLACED, self.displaced()?)
    }

    /// Makes the maps of one handler and fits the programs of these kinds to them, whose code is returned.
    pub(super) fn instantiate(
        &self,
        handler: u64,
        parameters: &Parameters,
        displaced: &MapData,
        kinds: &[Kind],
    ) -> Result<(Instance, Vec<Vec<bpf_insn>>), ProbeError> {
        let mut object = self.object.clone();
        object.programs.retain(|name, _| kinds.iter().any(|kind| kind.name == *name));
        // Without the code of other programs: relocating that would take most of the time.
        let all = self.object.programs.iter();
        let others: HashSet<_> = all
            .filter(|(name, _)| !object.programs.contains_key(*name))
            .map(|(_, program)| program.function_key())
            .collect();
        object.functions.retain(|key, _| !others.contains(key));
        let Parameters { preempts, exit_shift, layout } = parameters;
        let constants = [
            (names::HANDLER, handler),
            (names::CPUS, layout.possible.into()),
            (names::PREEMPTS, (*preempts).into()),
            (names::EXIT_SHIFT, *exit_shift),
        ]
        .map(|(name, value)| (name, value.to_ne_bytes()));
        let constants = constants.iter().map(|(name, bytes)| (*name, (bytes.as_slice(), true)));
        object.patch_map_data(constants.collect()).map_err(unusable)?;

        let sizes = [layout.value_bytes(), layout.records() * layout.record_bytes];
        let slots = own_map(&mut object, names::SLOTS, Some([sizes[0], 1]))?;
        let of_records = Some([layout.record_bytes, layout.records()]);
        let records = own_map(&mut object, names::RECORDS, of_records)?;
        let constants = own_map(&mut object, names::CONSTANTS, None)?;
        let text_sections: HashSet<usize> =
            object.functions.keys().map(|&(section, _)| section).collect();
        let maps = [
            (names::SLOTS, &slots.0, &slots.1),
            (names::RECORDS, &records.0, &records.1),
            (names::CONSTANTS, &constants.0, &constants.1),
            (names::DISPLACED, self.displaced()?, displaced),
        ];
        let maps = maps.map(|(name, map, data)| (name, data.fd().as_fd().as_raw_fd(), map));
        object.relocate_maps(maps.into_iter(), &text_sections).map_err(unusable)?;
        object.relocate_calls(&text_sections).map_err(unusable)?;

        let mut code = Vec::with_capacity(kinds.len());
        for Kind { name, .. } in kinds {
            let program = object.programs.get(name);
            let function =
                program.and_then(|program| object.functions.get(&program.function_key()));
            let function = function.ok_or_else(|| unusable(format!("no program {name}")))?;
            let mut instructions = function.instructions.clone();
            set_operands(&mut instructions, layout);
            code.push(instructions);
        }
        let maps = [slots.1, records.1, constants.1];
        let [value, records] = [mapped(&maps[0], sizes[0])?, mapped(&maps[1], sizes[1])?];
        Layout::set_places(value.words(), &layout.places(0));
        Ok((Instance { _maps: maps, value, records }, code))
    }
}

/// Makes a map that each handler has of its own: with values of so many bytes and so many of them, or the constants, which
/// it writes. Returns its definition, too.
fn own_map(
    object: &mut Object,
    name: &str,
    size: Option<[usize; 2]>,
) -> Result<(aya_obj::Map, MapData), ProbeError> {
    let mut map = object.maps.remove(name).ok_or_else(|| unusable(format!("no map {name}")))?;
    if let Some(size) = size {
        // What is beyond that the kernel refuses.
        let [bytes, entries] = size.map(|size| u32::try_from(size).unwrap_or(u32::MAX));
        map.set_value_size(bytes);
        map.set_max_entries(entries);
        make_mappable(&mut map);
    }
    let data = create(name, &map)?;
    if size.is_none() {
        let fd = data.fd().as_fd();
        sys::map_update(fd, map.data()).doing("writing the constants of the BPF programs")?;
        sys::map_freeze(fd).doing("freezing the constants of the BPF programs")?;
    }
    Ok((map, data))
}

/// Loads a program. Tracing programs are for a function, `traced`, by its id in a BTF object or in a BPF program's (`None`
/// is vmlinux); those that call kernel functions need `kernel`, the functions of its image.
pub(super) fn load(
    kind: &Kind,
    code: Vec<bpf_insn>,
    handler: &str,
    (btf_id, traced): (u32, Option<BorrowedFd<'_>>),
    kernel: Option<&Btf>,
) -> Result<OwnedFd, ProbeError> {
    let loaded = link_kernel_calls(code, kernel).and_then(|instructions| {
        sys::load_program(&Program {
            name: match kind.side {
                Side::Entry => "profiler_enter",
                Side::Exit => "profiler_leave",
                Side::Both => "profiler_both",
            },
            instructions: &instructions,
            attach_type: kind.attach_type,
            btf_id,
            traced,
        })
    });
    loaded.map_err(|refused| ProbeError::Handler {
        text: format!(
            "the kernel refused the {} program of handler {handler}: {refused}",
            kind.side.word()
        ),
        reason: format!("the kernel refused the {} program: {}", kind.side.word(), refused.short()),
    })
}

fn mapped(map: &MapData, bytes: usize) -> Result<Mapped, ProbeError> {
    Mapped::new(map.fd().as_fd(), bytes).doing("mapping the counters of the BPF programs")
}

fn unusable(what: impl std::fmt::Display) -> ProbeError {
    ProbeError::Other(format!("the BPF object of this program cannot be used: {what}"))
}

fn make_mappable(map: &mut aya_obj::Map) {
    // Those of the other kind come from sections that the object does not have.
    if let aya_obj::Map::Legacy(map) = map {
        map.def.map_flags |= sys::MAPPABLE;
    }
}

/// Puts the numbers of this machine where stand-ins are operands. Tests show that the compiler has put them in no other
/// instruction.
fn set_operands(instructions: &mut [bpf_insn], layout: &Layout) {
    /// `BPF_ALU | BPF_AND`, and with `BPF_ALU64`.
    const AND: [u8; 2] = [0x54, 0x57];
    /// `BPF_JMP32`, `BPF_JMP`: the class is in the low bits.
    const JUMPS: [u8; 2] = [0x06, 0x05];
    /// `BPF_X`: the operand is a register.
    const REGISTER: u8 = 0x08;
    // As many CPUs as there may be make smaller numbers.
    let [mask, last] = [layout.slots() - 1, layout.last_record()].map(|number| number as i32);
    let stack_pointer = STACK_POINTERS.iter().find(|(arch, _)| *arch == std::env::consts::ARCH);
    for instruction in instructions {
        let code = instruction.code;
        if let (operand::STACK_POINTER, Some((_, offset))) = (instruction.off, stack_pointer) {
            instruction.off = *offset;
        }
        let is_jump = JUMPS.contains(&(code & 7)) && code & REGISTER == 0;
        instruction.imm = match instruction.imm {
            operand::CPU_MASK if AND.contains(&code) => mask,
            operand::LAST_RECORD if is_jump => last,
            imm if imm == operand::LAST_RECORD + 1 && is_jump => last + 1,
            imm => imm,
        };
    }
}

/// Stand-ins of the kernel functions that give a call its cookie, and their names.
const KERNEL_CALLS: [(i32, &str); 2] =
    [(kfunc::IS_RETURN, "bpf_session_is_return"), (kfunc::COOKIE, "bpf_session_cookie")];

/// Whether programs that keep starts in cookies find the functions that they call.
///
/// # Errors
/// The first that the kernel's BTF does not describe.
pub(super) fn require_kernel_calls(kernel: &Btf) -> io::Result<()> {
    KERNEL_CALLS.iter().try_for_each(|(_, name)| kernel_call(Some(kernel), name).map(drop))
}

fn kernel_call(kernel: Option<&Btf>, name: &str) -> io::Result<u32> {
    match kernel.map_or(&[][..], |functions| functions.ids(name)) {
        &[id] => Ok(id),
        _ => Err(io::Error::other(format!("the kernel's BTF describes no {name}"))),
    }
}

/// Puts the ids of kernel functions where their stand-ins are called.
fn link_kernel_calls(
    mut instructions: Vec<bpf_insn>,
    kernel: Option<&Btf>,
) -> Result<Vec<bpf_insn>, LoadRefused> {
    const CALL: u8 = 0x85;
    /// `BPF_PSEUDO_KFUNC_CALL`
    const KERNEL_FUNCTION: u8 = 2;
    for instruction in &mut instructions {
        if instruction.code != CALL || instruction.src_reg() != 0 {
            continue;
        }
        let mut calls = KERNEL_CALLS.iter();
        let Some((_, name)) = calls.find(|(stand_in, _)| *stand_in == instruction.imm) else {
            continue;
        };
        let id =
            kernel_call(kernel, name).map_err(|error| LoadRefused { error, log: String::new() })?;
        instruction.set_src_reg(KERNEL_FUNCTION);
        // Ids are less than 2^20 (`BTF_MAX_TYPE`).
        instruction.imm = id.cast_signed();
    }
    Ok(instructions)
}

fn create(name: &str, map: &aya_obj::Map) -> Result<MapData, ProbeError> {
    // The kernel takes letters, digits, dots and underscores, 15 of them.
    let name = format!("profiler_{}", name.trim_start_matches('.').to_lowercase());
    let created = MapData::create(map.clone(), &name[..name.len().min(15)], None);
    created.map_err(io::Error::other).doing(&format!(
        "making the map {name} ({} entries of {} bytes)",
        map.max_entries(),
        map.value_size()
    ))
}

#[cfg(test)]
mod tests {
    use super::super::{
        Pair, Precision,
        programs::{Kernel, Set},
    };
    use super::*;
    use profiler_recording::Backend;

    const ANY: Kind =
        Kind { side: Side::Both, name: String::new(), attach_type: sys::AttachType::Fentry };

    /// The code of a program, with all that it calls.
    fn code(template: &Template, kind: &Kind) -> Vec<bpf_insn> {
        let mut object = template.object.clone();
        object.programs.retain(|name, _| *name == kind.name);
        let sections: HashSet<usize> = object.functions.keys().map(|&(at, _)| at).collect();
        object.relocate_calls(&sections).unwrap();
        let program = object.programs.get(&kind.name).unwrap_or_else(|| panic!("{}", kind.name));
        object.functions[&program.function_key()].instructions.clone()
    }

    /// Whether the code of a program exchanges atomically.
    fn exchanges(template: &Template, kind: &Kind) -> bool {
        /// `BPF_STX | BPF_ATOMIC | BPF_DW`
        const ATOMIC: u8 = 0xdb;
        let code = code(template, kind);
        code.iter().any(|instruction| instruction.code == ATOMIC && instruction.imm != 0)
    }

    /// Stores to a record's counters that an interrupt may come in before, and atomic additions.
    fn counting(template: &Template, kind: &Kind) -> (usize, usize) {
        /// `BPF_STX | BPF_MEM | BPF_W`
        const STORE: u8 = 0x63;
        /// `BPF_STX | BPF_ATOMIC | BPF_W`
        const ADD: u8 = 0xc3;
        /// The frame pointer: what lies on the stack is the run's own.
        const STACK: u8 = 10;
        let code = code(template, kind);
        let of = |opcode| {
            let stores = code.iter().filter(move |i| i.code == opcode && i.dst_reg() != STACK);
            stores.count()
        };
        (of(STORE), of(ADD))
    }

    #[test]
    fn operands_are_those_of_the_machine() {
        let template = Template::load().unwrap();
        let layout = Layout::new(240, (0..16).collect(), Precision::Three);
        for name in template.object.programs.keys() {
            let kind = Kind { name: name.clone(), ..ANY };
            let mut code = code(&template, &kind);
            let before: Vec<i32> = code.iter().map(|instruction| instruction.imm).collect();
            set_operands(&mut code, &layout);
            let mut changed = Vec::new();
            for (instruction, before) in code.iter().zip(before) {
                let stand_ins = [operand::CPU_MASK, operand::LAST_RECORD, operand::LAST_RECORD + 1];
                assert!(!stand_ins.contains(&instruction.imm), "{name}");
                assert_ne!(instruction.off, operand::STACK_POINTER, "{name}");
                changed.extend((instruction.imm != before).then_some((before, instruction.imm)));
            }
            let last = layout.last_record() as i32;
            let expected = |pair: &(i32, i32)| match pair.0 {
                operand::CPU_MASK => pair.1 == 255,
                operand::LAST_RECORD => pair.1 == last,
                _ => pair.1 == last + 1,
            };
            assert!(changed.iter().all(expected), "{name}: {changed:?}");
            let has = |words: &[&str]| words.iter().any(|word| name.contains(word));
            let is_idle = has(&["empty", "clock", "calibrate"]);
            let measures = has(&["leave", "session"]) && !is_idle;
            let counts = |of: fn(i32) -> bool| changed.iter().filter(|pair| of(pair.0)).count();
            let loads =
                |instruction: &&bpf_insn| instruction.code == 0x79 && instruction.off == 19 * 8;
            let at_entry = name.ends_with("regs_enter") || name == "calibrate_enter";
            assert_eq!(code.iter().filter(loads).count() > 0, at_entry, "{name}");
            assert_eq!(counts(|imm| imm == operand::CPU_MASK) > 0, !is_idle, "{name}");
            assert_eq!(counts(|imm| imm != operand::CPU_MASK) > 0, measures, "{name}");
        }
    }

    #[test]
    fn where_tasks_are_preempted_a_slot_is_given_up_by_an_exchange() {
        let template = Template::load().unwrap();
        for precision in [Precision::Two, Precision::Three] {
            let exit = |preempts| {
                let kernel = Kernel { exchanges: true, preempts };
                let set = Set::of(Backend::Fentry, precision, Pair::Measuring, kernel);
                code(&template, &set.kinds[0])
            };
            /// `BPF_ST | BPF_MEM | BPF_DW`
            const STORE: u8 = 0x7a;
            // The frame is a slot's first field; what lies on the stack is the run's own.
            let frees = |code: &[bpf_insn]| {
                code.iter()
                    .any(|i| i.code == STORE && i.off == 0 && i.imm == 0 && i.dst_reg() != 10)
            };
            assert!(frees(&exit(false)) && !frees(&exit(true)), "{precision:?}");
        }
    }

    #[test]
    fn kernels_that_run_programs_on_top_of_themselves_count_atomically() {
        let template = Template::load().unwrap();
        for backend in [Backend::Fentry, Backend::Kprobe] {
            for precision in [Precision::Two, Precision::Three] {
                let exit = |exchange| {
                    let kernel = Kernel { exchanges: exchange, preempts: false };
                    let set = Set::of(backend, precision, Pair::Measuring, kernel);
                    let (stores, adds) = counting(&template, &set.kinds[0]);
                    assert_eq!(set.kinds[0].side, Side::Exit);
                    (stores > 0, adds > 0)
                };
                assert_eq!(exit(false), (false, true), "{backend} {precision:?}");
                // The records that CPUs share are always added to atomically.
                assert_eq!(exit(true), (true, true), "{backend} {precision:?}");
            }
        }
    }

    #[test]
    fn kernels_without_atomic_exchange_are_given_none() {
        let template = Template::load().unwrap();
        for backend in [Backend::Fentry, Backend::Kprobe] {
            for precision in [Precision::Two, Precision::Three] {
                for exchange in [true, false] {
                    let kernel = Kernel { exchanges: exchange, preempts: false };
                    let set = Set::of(backend, precision, Pair::Measuring, kernel);
                    let any = set.kinds.iter().any(|kind| exchanges(&template, kind));
                    assert_eq!(any, exchange, "{backend} {precision:?}");
                }
            }
        }
    }
}
