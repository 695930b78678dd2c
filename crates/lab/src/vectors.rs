//! The table of an x86-64 CPU that says where it goes by each vector: so entries of interrupts and exceptions are known, whatever
//! a kernel calls them. Intel's manual, volume 3, chapter "Interrupt and Exception Handling".

use std::fmt::Write as _;

/// Bytes of a gate, and the bit of its sixth that says that there is one.
const GATE: usize = 16;
const IS_PRESENT: u8 = 0x80;

/// Where it lies and its bytes, by what QEMU's `info registers` prints: `IDT=     fffffe0000000000 00000fff`.
pub(super) fn table(registers: &str) -> Option<[u64; 2]> {
    let words = registers.lines().find_map(|line| line.strip_prefix("IDT="))?.split_whitespace();
    let mut numbers = words.map_while(|word| u64::from_str_radix(word, 16).ok());
    Some([numbers.next()?, numbers.next()?.min(0xfff) + 1])
}

/// Lines of a request to the plugin: each vector's number and where the CPU goes.
pub(super) fn lines(table: &[u8]) -> String {
    let mut text = String::new();
    for (number, gate) in table.as_chunks::<GATE>().0.iter().enumerate() {
        let [a, b, _, _, _, flags, c, d, e, f, g, h, ..] = *gate;
        if flags & IS_PRESENT != 0 {
            let address = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
            let _ = writeln!(text, "vector {number} {address:x}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_are_vectors() {
        let registers = "GDT=     fffffe0000001000 0000007f\r\nIDT=     fffffe0000000000 00000fff\r\nCR0=80050033";
        assert_eq!(table(registers), Some([0xffff_fe00_0000_0000, 0x1000]));
        assert_eq!(table("X00=0000000000000000"), None);
        let gate = [0x10, 0x0b, 0x10, 0, 0, 0x8e, 0xa0, 0x81, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];
        let table = [gate, [0; GATE], gate].concat();
        let expected = "vector 0 ffffffff81a00b10\nvector 2 ffffffff81a00b10\n";
        assert_eq!(lines(&table), expected);
        assert_eq!(lines(&table[..40]), &expected[..26]);
    }
}
