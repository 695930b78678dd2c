//! A part of `profiler-lab` for the fuzzer alone.
#![allow(clippy::expect_used)] // A panic is a finding.

use super::bpf_lines::BpfLines;
use super::files::dependencies;
use super::symbols::Symbols;
use super::wire::Answer;

/// An answer that a guest leaves in its memory.
pub fn guest_answer(bytes: &[u8]) {
    let Ok(answer) = serde_json::from_slice::<Answer>(bytes) else { return };
    let again = serde_json::to_vec(&answer).expect("it is written");
    assert_eq!(serde_json::from_slice::<Answer>(&again).expect("it is read"), answer);
}

/// What a driver's file says that it depends on.
pub fn driver(bytes: &[u8]) {
    dependencies(bytes);
}

/// A guest's `/proc/kallsyms`, and the source lines of BPF programs behind a NUL.
pub fn guest_symbols(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (text, lines) = text.split_once('\0').unwrap_or((text, ""));
    let mut symbols = Symbols::parse(text);
    symbols.bpf_lines = BpfLines::parse(lines).unwrap_or_default();
    for line in text.lines() {
        let Some(address) = line.split(' ').next() else { continue };
        let Ok(address) = u64::from_str_radix(address, 16) else { continue };
        if let Some(symbol) = symbols.at(address) {
            assert!(symbol.address <= address);
        }
    }
}
