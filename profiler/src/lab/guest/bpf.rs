//! BPF programs of the guest, under names that stay the same from one build to the next.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use crate::kernel::hooks::BPF;
use crate::kernel::module::ModuleFacts;
use crate::probe::{self, LoadedProgram, loaded_programs};
use crate::text::listed;

/// What `/proc/kallsyms` begins the name of a program's function with, before its tag of 16 digits, which changes with its code.
const PREFIX: &str = "bpf_prog_";
const TAG: usize = 16;

/// The module of trampolines and dispatchers in symbols: they are no handlers, as they call what they are on, too.
const IMAGES: &str = "bpf_image";

/// The settings, and `symbols` of modules with the functions of all programs by [`named`]; `None` if there is no program.
///
/// # Errors
/// If the programs cannot be listed, or the kernel interprets one, which has no instructions of its own to count.
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
    Ok(Some((probe::facts(), named(symbols, &programs))))
}

/// Lines of `/proc/kallsyms` in which a program has the name of its source, and a subprogram `PROGRAM/SUBPROGRAM`, the oldest program
/// first.
fn named(symbols: &str, programs: &[LoadedProgram]) -> String {
    let own: BTreeSet<u64> = programs.iter().flat_map(|of| &of.functions).copied().collect();
    let (mut text, mut names) = (String::new(), BTreeMap::new());
    let suffix = format!("\t[{BPF}]");
    for line in symbols.lines() {
        let of_bpf = line.strip_suffix(&suffix).and_then(|symbol| {
            let mut words = symbol.split(' ');
            let address = u64::from_str_radix(words.next()?, 16).ok()?;
            Some((symbol, address, words.nth(1)?))
        });
        match of_bpf {
            Some((_, address, name)) if own.contains(&address) => {
                names.insert(address, name);
            }
            Some((symbol, ..)) => text.push_str(&format!("{symbol}\t[{IMAGES}]\n")),
            None => text.extend([line, "\n"]),
        }
    }
    for program in programs {
        let full = |at: usize| in_source(names.get(program.functions.get(at)?)?);
        let names = program.names(program.functions.len(), full);
        for (address, name) in program.functions.iter().zip(names) {
            text.push_str(&format!("{address:016x} t {name}{suffix}\n"));
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
}
