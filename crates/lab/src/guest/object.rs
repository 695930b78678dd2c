//! A BPF object (`FILE.bpf.o`) that this process loads, and attaches as its sections say.

use std::collections::BTreeMap;
use std::mem;

use aya::programs::{Program, ProgramError};
use aya::{Btf, Ebpf};
use object::read::{File, Object as _, ObjectSection as _, ObjectSymbol as _};

use profiler_base::error::{Failure, exit};
use profiler_base::text::last_lines;

use super::agent;
use crate::wire::Agent;

/// What may be the reason.
const LIBBPF: &str = "(what only libbpf does, such as tables of programs with initial values, takes a loader: `run: COMMAND`)";

/// Loads the object among the agent's `files`; its programs stay attached.
pub(super) fn load(agent: &Agent, files: &[u8]) -> Result<(), Failure> {
    let failed = |what: String| agent::failed(agent, exit::LAB_FAILED, &what);
    agent::unpack(agent, files).map_err(|error| failed(format!("its files: {error}")))?;
    let path = agent.arguments.first().map_or("", String::as_str);
    let attached =
        std::fs::read(path).map_err(|error| error.to_string()).and_then(|bytes| attach(&bytes));
    // The verifier says a million lines.
    attached.map_err(|why| failed(format!("{}\n{LIBBPF}", last_lines(&why, agent::LINES))))
}

fn attach(bytes: &[u8]) -> Result<(), String> {
    let sections = sections(bytes)?;
    let mut object = Ebpf::load(bytes).map_err(|error| chain(&error))?;
    let btf = Btf::from_sys_fs();
    for (name, program) in object.programs_mut() {
        let section = sections.get(name).map_or("", String::as_str);
        attach_one(program, section, btf.as_ref().ok())
            .map_err(|why| format!("its program {name} (section {section}): {why}"))?;
    }
    // Else they would be detached.
    mem::forget(object);
    Ok(())
}

/// A program whose section names no place is loaded alone, as others call it.
fn attach_one(program: &mut Program, section: &str, btf: Option<&Btf>) -> Result<(), String> {
    let place = section.split_once('/').map(|(_, place)| place);
    let types = btf.ok_or("this kernel has no BTF");
    match (program, place) {
        (Program::KProbe(of), Some(place)) => {
            let (function, offset) = place.split_once('+').unwrap_or((place, "0"));
            let offset = number(offset).ok_or_else(|| format!("{offset} is no offset"))?;
            of.load().and_then(|()| of.attach(function, offset)).map(drop)
        }
        (Program::TracePoint(of), Some(place)) => {
            let (category, event) = place.split_once('/').unwrap_or(("", place));
            of.load().and_then(|()| of.attach(category, event)).map(drop)
        }
        (Program::RawTracePoint(of), Some(place)) => {
            of.load().and_then(|()| of.attach(place)).map(drop)
        }
        (Program::BtfTracePoint(of), Some(place)) => {
            of.load(place, types?).and_then(|()| of.attach()).map(drop)
        }
        (Program::FEntry(of), Some(place)) => {
            of.load(place, types?).and_then(|()| of.attach()).map(drop)
        }
        (Program::FExit(of), Some(place)) => {
            of.load(place, types?).and_then(|()| of.attach()).map(drop)
        }
        (Program::Lsm(of), Some(place)) => {
            of.load(place, types?).and_then(|()| of.attach()).map(drop)
        }
        (Program::KProbe(of), None) => of.load(),
        (Program::TracePoint(of), None) => of.load(),
        (Program::RawTracePoint(of), None) => of.load(),
        _ => {
            return Err("its section does not say what to attach it to".to_owned());
        }
    }
    .map_err(|error: ProgramError| chain(&error))
}

/// A number as libbpf reads it (`%li` of scanf): hexadecimal, octal or decimal.
fn number(text: &str) -> Option<u64> {
    let (digits, radix) = match (text.strip_prefix("0x"), text.strip_prefix('0')) {
        (Some(digits), _) => (digits, 16),
        (None, Some(digits)) if !digits.is_empty() => (digits, 8),
        _ => (text, 10),
    };
    u64::from_str_radix(digits, radix).ok()
}

/// The section of each program.
fn sections(bytes: &[u8]) -> Result<BTreeMap<String, String>, String> {
    let file = File::parse(bytes).map_err(|error| error.to_string())?;
    let sections = file.symbols().filter_map(|symbol| {
        let section = file.section_by_index(symbol.section_index()?).ok()?;
        Some((symbol.name().ok()?.to_owned(), section.name().ok()?.to_owned()))
    });
    Ok(sections.collect())
}

/// An error with its causes: the verifier's words are in the last.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_read_as_libbpf_does() {
        let read = ["0", "16", "0x10", "020", "", "0x", "1g"].map(number);
        assert_eq!(read, [Some(0), Some(16), Some(16), Some(16), None, None, None]);
    }
}
