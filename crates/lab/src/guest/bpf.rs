//! BPF programs of the guest, under names that stay the same from one build to the next.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use iced_x86::{Decoder, DecoderOptions, Mnemonic, Register};

use profiler_base::text::listed;
use profiler_kernel::btf::Btf;
use profiler_kernel::hooks::BPF;
use profiler_kernel::module::ModuleFacts;
use profiler_kernel::names::lines_of;
use profiler_probe::{self as probe, LoadedProgram, btf_bytes, loaded_programs};

use crate::bpf_lines::{BpfLines, cut};
use crate::wire::BPF_LINES;

/// Prefix of the functions of BPF programs in `/proc/kallsyms`. A tag of 16 digits follows, which changes with the code.
const PREFIX: &str = "bpf_prog_";
const TAG: usize = 16;

/// The module of trampolines and dispatchers in symbols: they are no handlers, as they call what they are on, too.
const IMAGES: &str = "bpf_image";

/// The settings, and `symbols` of modules with the functions of all programs by [`named`], and their source lines behind; `None` if
/// there is no program.
///
/// # Errors
/// If the programs or their BTF cannot be read, or the kernel interprets one, which has no instructions of its own to count.
pub(super) fn installed(symbols: &str) -> io::Result<Option<(ModuleFacts, String)>> {
    let programs = loaded_programs()?;
    let interpreted = programs.iter().filter(|program| program.functions.is_empty());
    let interpreted: Vec<String> = interpreted.map(|program| program.name.clone()).collect();
    if !interpreted.is_empty() {
        let names = listed(&interpreted);
        return Err(io::Error::other(format!(
            "the kernel interprets {names}, which cannot be counted: it has to compile them"
        )));
    }
    if programs.is_empty() {
        return Ok(None);
    }
    let mut text = named(symbols, &programs);
    text.push(BPF_LINES);
    text.push_str(&serde_json::to_string(&lines(&programs)?)?);
    Ok(Some((probe::facts(), text)))
}

/// The source lines of all programs, by the strings of their BTF. Programs of one object share it.
fn lines(programs: &[LoadedProgram]) -> io::Result<BpfLines> {
    let mut found = BpfLines::default();
    let (mut all_btf, mut indexes) = (BTreeMap::new(), BTreeMap::new());
    for program in programs.iter().filter(|it| it.btf != 0 && !it.lines.is_empty()) {
        let btf = match all_btf.entry(program.btf) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                // One that has types of a newer kernel is of no use.
                new.insert(Btf::parse(&btf_bytes(program.btf)?, Path::new("BTF"), None).ok())
            }
        };
        let Some(btf) = btf else { continue };
        let images = program.functions.iter().zip(&program.images);
        let starts: BTreeMap<u64, u64> =
            images.map(|(at, code)| (*at, at + prologue(code))).collect();
        for line in &program.lines {
            let key = (program.btf, line.file, line.text, line.number);
            let index = *indexes.entry(key).or_insert_with(|| {
                let [file, text] =
                    cut([line.file, line.text].map(|at| btf.string(at).unwrap_or_default()));
                found.lines.push((file, line.number, text));
                found.lines.len() as u32 - 1
            });
            let start = starts.get(&line.address).copied().unwrap_or(line.address);
            found.starts.push((start, index));
        }
    }
    Ok(found)
}

/// Bytes of a function's code before that of its first BPF instruction (`emit_prologue` in the kernel's arch/x86/net/bpf_jit_comp.c). To
/// the kernel they are of the first line, so that a statement put before it would take them over. 0 on another architecture.
fn prologue(code: &[u8]) -> u64 {
    /// push rbp; mov rbp, rsp
    const FRAME: [u8; 4] = [0x55, 0x48, 0x89, 0xe5];
    /// It comes after CFI and what is patched.
    const MOST_BEFORE: usize = 48;
    let mut places = code.windows(FRAME.len()).take(MOST_BEFORE);
    let Some(before) = places.position(|it| it == FRAME) else { return 0 };
    let (frame, behind) = code.split_at(before + FRAME.len());
    // CFI, room on the stack, the count of tail calls (6.12), and registers that are saved.
    let more = Decoder::new(64, behind, DecoderOptions::NONE).into_iter().take_while(|it| {
        let registers = (it.mnemonic(), it.op0_register(), it.op1_register());
        matches!(
            registers,
            (Mnemonic::Endbr64 | Mnemonic::Push | Mnemonic::Ja | Mnemonic::Jmp, ..)
                | (Mnemonic::Sub, Register::RSP, _)
                | (Mnemonic::Cmp, Register::RAX, _)
                | (Mnemonic::Mov, _, Register::RSP)
        )
    });
    (frame.len() + more.map(|it| it.len()).sum::<usize>()) as u64
}

/// Lines of `/proc/kallsyms` in which a program has the name of its source, and a subprogram `PROGRAM/SUBPROGRAM`, the oldest program
/// first.
fn named(symbols: &str, programs: &[LoadedProgram]) -> String {
    let own: BTreeSet<u64> = programs.iter().flat_map(|of| &of.functions).copied().collect();
    let (mut text, mut names) = (String::new(), BTreeMap::new());
    for (address, kind, name, module) in lines_of(symbols) {
        let at = u64::from_str_radix(address, 16).unwrap_or_default();
        if module == Some(BPF) && own.contains(&at) {
            names.insert(at, name);
            continue;
        }
        let module = module.map(|module| if module == BPF { IMAGES } else { module });
        text.push_str(&format!("{address} {kind} {name}\t[{}]\n", module.unwrap_or_default()));
    }
    for program in programs {
        let functions = &program.functions;
        let names = program.names(functions.len(), |at| in_source(names.get(functions.get(at)?)?));
        for (address, name) in functions.iter().zip(names) {
            text.push_str(&format!("{address:016x} t {name}\t[{BPF}]\n"));
        }
    }
    text
}

/// The name that a function has in its source, which the kernel knows in full if there is BTF.
fn in_source(symbol: &str) -> Option<&str> {
    symbol.strip_prefix(PREFIX)?.get(TAG..)?.strip_prefix('_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_have_the_names_of_their_sources_and_come_in_the_order_of_their_loading() {
        let program = |name: &str, functions: &[u64]| LoadedProgram {
            name: name.to_owned(),
            functions: functions.to_vec(),
            ..LoadedProgram::default()
        };
        let symbols = "ffffffffc0000030 t bpf_prog_0123456789abcdef_a_name_longer_than_15\t[bpf]\n\
            ffffffffc0000010 t bpf_prog_00000000000000aa_bump\t[bpf]\nffffffffc0000050 t bpf_prog_00000000000000ab_F\t[bpf]\n\
            ffffffffc0000040 t bpf_prog_00000000000000ac\t[bpf]\nffffffffc0000000 t bpf_trampoline_6442\t[bpf]\n\
            ffffffffc0001000 t of_driver\t[driver]\n";
        let programs = [
            program(
                "a_name_longer_t",
                &[0xffff_ffff_c000_0030, 0xffff_ffff_c000_0010, 0xffff_ffff_c000_0050],
            ),
            program("", &[0xffff_ffff_c000_0040]),
            program("interpreted", &[]),
        ];
        let expected = "ffffffffc0000000 t bpf_trampoline_6442\t[bpf_image]\nffffffffc0001000 t of_driver\t[driver]\n\
            ffffffffc0000030 t a_name_longer_than_15\t[bpf]\nffffffffc0000010 t a_name_longer_than_15/bump\t[bpf]\n\
            ffffffffc0000050 t a_name_longer_than_15/2\t[bpf]\nffffffffc0000040 t unnamed\t[bpf]\n";
        assert_eq!(named(symbols, &programs), expected);
    }

    /// As Linux 6.1 and 6.12 begin a program that calls another by number, with its first instruction behind.
    #[test]
    fn a_prologue_ends_before_the_first_instruction() {
        let v6_1: &[u8] = &[
            0x0f, 0x1f, 0x44, 0, 0, 0x31, 0xc0, 0x55, 0x48, 0x89, 0xe5, 0x48, 0x81, 0xec, 8, 0, 0,
            0, 0x50, 0x53, 0x41, 0x55,
        ];
        let v6_12: &[u8] = &[
            0xf3, 0x0f, 0x1e, 0xfa, 0x0f, 0x1f, 0x44, 0, 0, 0x48, 0x31, 0xc0, 0x55, 0x48, 0x89,
            0xe5, 0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x83, 0xf8, 0x21, 0x77, 0x06, 0x50, 0x48, 0x89,
            0xe0, 0xeb, 0x01, 0x50, 0x50, 0x41, 0x57,
        ];
        for code in [v6_1, v6_12] {
            assert_eq!(prologue(code), code.len() as u64);
            let first = [code, &[0x31, 0xc0, 0xc9, 0xc3]].concat();
            assert_eq!(prologue(&first), code.len() as u64);
            assert_eq!(prologue(&code[..9]), 0);
        }
        assert_eq!(prologue(&v6_1[..14]), 11, "cut off");
    }
}
