//! Code of arm64: Arm's manual of the architecture, chapter C4, and the relocations of "ELF for the Arm 64-bit Architecture".

use object::elf;

use super::{Fix, Section, Target};

/// Bytes of an instruction.
const SIZE: usize = 4;

const NOP: u32 = 0xd503_201f;

/// Whether nothing but padding is in these bytes.
pub(super) fn is_padding(bytes: &[u8]) -> bool {
    bytes.chunks(SIZE).all(|word| word == NOP.to_le_bytes() || word.iter().all(|byte| *byte == 0))
}

/// Whether a relocation of this type is of a number, not of an instruction.
pub(super) fn is_data(r_type: u32) -> bool {
    (elf::R_AARCH64_ABS64..=elf::R_AARCH64_PREL16).contains(&r_type)
}

/// Whether a relocation of this type is in an instruction that goes to its target.
pub(super) fn goes(r_type: u32) -> bool {
    matches!(
        r_type,
        elf::R_AARCH64_CALL26
            | elf::R_AARCH64_JUMP26
            | elf::R_AARCH64_CONDBR19
            | elf::R_AARCH64_TSTBR14
    )
}

/// Adds the addresses between `begin` and `end` that the assembler has filled in itself.
pub(super) fn decode(section: &mut Section<'_>, begin: u64, end: u64) {
    let Some(code) = section.bytes.get(begin as usize..end as usize) else { return };
    for (at, word) in (begin..).step_by(SIZE).zip(code.chunks_exact(SIZE)) {
        let word = word.try_into().map_or(0, u32::from_le_bytes);
        let Some((mask, distance)) = relative(word) else { continue };
        let to = at.wrapping_add_signed(distance);
        let is_linked = section.fixes.range(at..at + SIZE as u64).next().is_some();
        if !is_linked && to < section.size && !(begin..end).contains(&to) {
            let target = Target::Here((section.number, to));
            let (width, form) = (SIZE as u64, word & !mask);
            section.fixes.insert(at, Fix { width, form, goes: true, target });
        }
    }
}

/// The bits of an instruction that are the distance to an address, and that distance in bytes.
fn relative(word: u32) -> Option<(u32, i64)> {
    match word {
        // b, bl
        _ if word & 0x7c00_0000 == 0x1400_0000 => Some(field(word, 0, 26)),
        // b.cond; cbz, cbnz; ldr of a literal
        _ if word & 0xff00_0010 == 0x5400_0000
            || word & 0x7e00_0000 == 0x3400_0000
            || word & 0x3b00_0000 == 0x1800_0000 =>
        {
            Some(field(word, 5, 19))
        }
        // tbz, tbnz
        _ if word & 0x7e00_0000 == 0x3600_0000 => Some(field(word, 5, 14)),
        // adr, whose lowest two bits are apart
        _ if word & 0x9f00_0000 == 0x1000_0000 => {
            let (mask, distance) = field(word, 5, 19);
            Some((mask | 0x6000_0000, distance + i64::from(word >> 29 & 3)))
        }
        _ => None,
    }
}

/// The mask of a field of an instruction that has the distance in instructions, and that in bytes.
fn field(word: u32, from: u32, bits: u32) -> (u32, i64) {
    let mask = ((1 << bits) - 1) << from;
    // The highest bit is the sign.
    let value = ((word & mask) << (32 - from - bits)).cast_signed() >> (32 - bits);
    (mask, i64::from(value) * SIZE as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_read_as_the_processor_does() {
        for (word, expected) in [
            (0x9400_0003_u32, Some(12)), // bl .+12
            (0x17ff_ffff, Some(-4)),     // b .-4
            (0x54ff_ffe1, Some(-4)),     // b.ne .-4
            (0xb400_0040, Some(8)),      // cbz x0, .+8
            (0x3703_fff3, Some(0x7ffc)), // tbnz w19, #0, .+32764
            (0x7000_0000, Some(3)),      // adr x0, .+3
            (0x5800_0040, Some(8)),      // ldr x0, .+8
            (0xd65f_03c0, None),         // ret
            (0x9000_0000, None),         // adrp x0, .
        ] {
            assert_eq!(relative(word).map(|(_, distance)| distance), expected, "{word:x}");
        }
        assert_eq!(relative(0x9400_0003).unwrap().0, 0x03ff_ffff);
    }
}
