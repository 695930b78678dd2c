//! Code of x86-64.

use iced_x86::{Decoder, DecoderOptions, Mnemonic, OpKind};
use object::elf;

use super::{Fix, Section, Target};

/// Whether nothing but padding is in these bytes.
pub(super) fn is_padding(bytes: &[u8]) -> bool {
    let decoder = Decoder::new(64, bytes, DecoderOptions::NONE);
    decoder.into_iter().all(|it| matches!(it.mnemonic(), Mnemonic::Nop | Mnemonic::Int3))
}

/// Adds the addresses between `begin` and `end` that the assembler has filled in itself, and finds where those lead that are relative to
/// the next instruction.
pub(super) fn decode(section: &mut Section<'_>, begin: u64, end: u64) {
    let Some(code) = section.bytes.get(begin as usize..end as usize) else { return };
    let mut decoder = Decoder::with_ip(64, code, begin, DecoderOptions::NONE);
    while decoder.can_decode() {
        let instruction = decoder.decode();
        let (at, next) = (instruction.ip(), instruction.next_ip());
        let mut is_linked = false;
        for (place, fix) in section.fixes.range_mut(at..next) {
            is_linked = true;
            let ahead = (next - place) as i64;
            match &mut fix.target {
                _ if !fix.goes => {}
                Target::Here((_, to)) => *to = to.wrapping_add_signed(ahead),
                Target::Outside(_, offset) => *offset = offset.wrapping_add(ahead),
            }
        }
        let offsets = decoder.get_constant_offsets(&instruction);
        let (to, offset, width) = if instruction.op0_kind() == OpKind::NearBranch64 {
            (instruction.near_branch64(), offsets.immediate_offset(), offsets.immediate_size())
        } else if instruction.is_ip_rel_memory_operand() {
            let to = instruction.ip_rel_memory_address();
            (to, offsets.displacement_offset(), offsets.displacement_size())
        } else {
            continue;
        };
        if !is_linked && to < section.size && !(begin..end).contains(&to) {
            let target = Target::Here((section.number, to));
            let fix = Fix { width: width as u64, form: elf::R_X86_64_PC32, goes: true, target };
            section.fixes.insert(at + offset as u64, fix);
        }
    }
}
