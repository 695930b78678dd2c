//! x86-64: opcodes of calls and returns, vectors of interrupts, where return addresses lie.

use crate::arch::{Arch, Interrupt, Kind};

pub(crate) static ARCH: Arch = Arch {
    kind,
    is_helped: is_cpuid,
    orders,
    // `THREAD_SIZE`, without KASAN.
    stack_bits: 14,
    // `X86_TAIL_CALL_OFFSET` of the kernel's arch/x86/net/bpf_jit_comp.c, since Linux 6.10 (commit 116e04ba1459) one more, each
    // without and with `endbr64`.
    tail_calls: &[11, 12, 15, 16],
    vector,
    switch: "__switch_to_asm",
    is_thunk: |name| name.starts_with("__x86_indirect_"),
    ..Arch::new("x86_64")
};

/// The guest makes requests to the plugin by a NOP of eight bytes, whose operand is the request's number and `ROF`.
fn request(bytes: &[u8]) -> Option<u8> {
    match bytes {
        [0x0f, 0x1f, 0x84, 0x00, number, b'R', b'O', b'F'] => Some(*number),
        _ => None,
    }
}

fn is_prefix(byte: &u8) -> bool {
    matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf2 | 0xf3)
}

fn is_memory(operand: u8) -> bool {
    operand < 0xc0
}

/// The part of the opcode that is in the operand.
fn field(operand: u8) -> u8 {
    (operand >> 3) & 7
}

/// Whether the instruction is CPUID.
fn is_cpuid(bytes: &[u8]) -> bool {
    bytes == [0x0f, 0xa2]
}

/// Intel's manual, volume 3, chapter "Multiple-Processor Management", has the instructions with `lock`, the exchanges that have it
/// without saying so, fences, and those that serialise.
fn orders(bytes: &[u8]) -> bool {
    let prefixes = bytes.iter().take_while(|byte| is_prefix(byte) || **byte == 0xf0).count();
    bytes[..prefixes].contains(&0xf0)
        || match bytes[prefixes..] {
            [0x86 | 0x87, operand, ..] => is_memory(operand),
            [0xcf, ..] | [0x0f, 0x08 | 0x09 | 0x23 | 0x30 | 0xa2, ..] => true,
            // But for CR8.
            [0x0f, 0x22, ..] => !bytes[..prefixes].iter().any(|byte| byte & 0xf4 == 0x44),
            [0x0f, 0x00, operand, ..] => matches!(field(operand), 2 | 3),
            [0x0f, 0x01, operand, ..] => {
                operand == 0xe8 || (is_memory(operand) && matches!(field(operand), 2 | 3 | 7))
            }
            [0x0f, 0xae, operand, ..] => {
                let others = [0x66, 0xf2, 0xf3];
                let is_fence = !bytes[..prefixes].iter().any(|byte| others.contains(byte));
                is_fence && !is_memory(operand) && field(operand) >= 5
            }
            _ => false,
        }
}

/// The kind of the instruction with these bytes. Intel's manual, volume 2, appendix A, has the opcodes.
fn kind(bytes: &[u8]) -> Kind {
    if let Some(number) = request(bytes) {
        return Kind::Request(number);
    }
    let prefixes = bytes.iter().take_while(|byte| is_prefix(byte)).count();
    let repeats = bytes[..prefixes].iter().any(|byte| matches!(byte, 0xf2 | 0xf3));
    match bytes[prefixes..] {
        [0xe8, ..] => Kind::Call,
        [0xff, operand, ..] if matches!(field(operand), 2 | 3) => Kind::Call,
        [0xc2 | 0xc3, ..] => Kind::Return,
        [0xcf, ..] => Kind::InterruptReturn,
        [0x0f, 0x05 | 0x34] | [0xcd, SYSTEM_CALL] => Kind::SystemCall,
        [0xa4..=0xa7, ..] if repeats => Kind::Repeat(2),
        [0x6c..=0x6f | 0xaa..=0xaf, ..] if repeats => Kind::Repeat(1),
        _ => Kind::Other,
    }
}

/// The vector of 32-bit programs' system calls.
const SYSTEM_CALL: u8 = 0x80;

/// What comes by a vector: Intel's manual, volume 3, chapter "Interrupt and Exception Handling".
fn vector(number: u8) -> Option<Interrupt> {
    match number {
        SYSTEM_CALL => None,
        // NMI and machine check.
        2 | 18 | 32.. => Some(Interrupt::Asynchronous),
        // Debug, breakpoint, overflow and double fault.
        1 | 3 | 4 | 8 => Some(Interrupt::Exception),
        _ => Some(Interrupt::Fault),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instruction_is_known_by_its_bytes() {
        for (bytes, expected) in [
            (&[0xe8, 1, 2, 3, 4][..], Kind::Call),
            (&[0xff, 0xd0], Kind::Call),                   // call *%rax
            (&[0x41, 0xff, 0xd3], Kind::Call),             // call *%r11
            (&[0xff, 0x14, 0xc5, 0, 0, 0, 0], Kind::Call), // call *0(,%rax,8)
            (&[0xff, 0xe0], Kind::Other),                  // jmp *%rax
            (&[0xff, 0x75, 0x10], Kind::Other),            // push
            (&[0xc3], Kind::Return),
            (&[0xf3, 0xc3], Kind::Return),
            (&[0xc2, 8, 0], Kind::Return),
            (&[0x48, 0xcf], Kind::InterruptReturn),
            (&[0x0f, 0x05], Kind::SystemCall),        // syscall
            (&[0x0f, 0x34], Kind::SystemCall),        // sysenter
            (&[0xcd, 0x80], Kind::SystemCall),        // int $0x80
            (&[0xf3, 0x48, 0xab], Kind::Repeat(1)),   // rep stosq
            (&[0xf3, 0xa4], Kind::Repeat(2)),         // rep movsb
            (&[0xa4], Kind::Other),                   // movsb
            (&[0xf3, 0x0f, 0x1e, 0xfa], Kind::Other), // endbr64
            (&[0x0f, 0x1f, 0x84, 0, 1, b'R', b'O', b'F'], Kind::Request(1)),
            (&[0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0], Kind::Other),
        ] {
            assert_eq!(kind(bytes), expected, "{bytes:x?}");
        }
    }

    #[test]
    fn an_instruction_that_orders_others_is_known_by_its_bytes() {
        for (bytes, expected) in [
            (&[0xf0, 0x0f, 0xb1, 0x17][..], true), // lock cmpxchg %edx,(%rdi)
            (&[0x3e, 0xf0, 0x48, 0xff, 0x07], true), // lock incq (%rdi)
            (&[0x48, 0x87, 0x07], true),           // xchg %rax,(%rdi)
            (&[0x48, 0x87, 0xc7], false),          // xchg %rax,%rdi
            (&[0x0f, 0xae, 0xf0], true),           // mfence
            (&[0x0f, 0xae, 0xe8], true),           // lfence
            (&[0x0f, 0xae, 0x38], false),          // clflush (%rax)
            (&[0xf3, 0x0f, 0xae, 0xd0], false),    // wrfsbase %eax
            (&[0x0f, 0xa2], true),                 // cpuid
            (&[0x48, 0xcf], true),                 // iretq
            (&[0x0f, 0x30], true),                 // wrmsr
            (&[0x0f, 0x22, 0xd8], true),           // mov %rax,%cr3
            (&[0x44, 0x0f, 0x22, 0xc0], false),    // mov %rax,%cr8
            (&[0xf3, 0x0f, 0xae, 0xe8], false),    // incsspd %eax
            (&[0x0f, 0x01, 0x38], true),           // invlpg (%rax)
            (&[0x0f, 0x01, 0xf8], false),          // swapgs
            (&[0x0f, 0xb1, 0x17], false),          // cmpxchg without lock
        ] {
            assert_eq!(orders(bytes), expected, "{bytes:x?}");
        }
    }
}
