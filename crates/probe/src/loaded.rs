//! BPF programs that are loaded: the names of their functions, which of them are to be measured, what became of these, and the
//! kernel's own statistics of the others.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use aya::sys::{Stats, enable_stats};

use profiler_base::error::{Failure, exit};
use profiler_base::text::listed;
use profiler_kernel::{
    btf::Btf,
    host::read_fact,
    module::ModuleFacts,
    names::BPF,
    target::{Resolved, Target, also, glob, is_glob, nearest},
};

use super::sys::{self, LoadedProgram};

/// The kernel's name for a subprogram without BTF.
const NAMELESS: &str = "F";

/// Settings that decide what the kernel makes of a program.
const SETTINGS: [&str; 2] = ["bpf_jit_enable", "bpf_jit_harden"];

/// BPF programs as a module: the settings of the kernel's compiler are its parameters.
pub fn facts() -> ModuleFacts {
    let parameters = SETTINGS.into_iter().filter_map(|name| {
        let value = read_fact(&Path::new("/proc/sys/net/core").join(name))?;
        Some((name.to_owned(), value))
    });
    let parameters = parameters.collect();
    ModuleFacts { name: BPF.to_owned(), parameters, ..ModuleFacts::default() }
}

impl LoadedProgram {
    /// Names of its `count` functions in order: the program's own, and `PROGRAM/SUBPROGRAM`. `full` has the name that the
    /// function of an index has in its source, if that is known.
    pub fn names<'a>(&self, count: usize, full: impl Fn(usize) -> Option<&'a str>) -> Vec<String> {
        let short = if self.name.is_empty() { "unnamed" } else { &self.name };
        let main = full(0).unwrap_or(short).to_owned();
        let further = (1..count).map(|at| match full(at).filter(|name| *name != NAMELESS) {
            Some(name) => format!("{main}/{name}"),
            None => format!("{main}/{at}"),
        });
        std::iter::once(main.clone()).chain(further).collect()
    }

    /// Its functions, by the names of its BTF, if that can be read; without BTF its own code alone.
    fn targets(&self, types: Option<&Btf>) -> Vec<Target> {
        let names = self.names(self.types.len(), |at| types?.function_name(*self.types.get(at)?));
        let targets = names.into_iter().enumerate().map(|(at, name)| Target {
            name,
            module: Some(BPF.to_owned()),
            address: self.functions.get(at).copied().unwrap_or_default(),
            btf_id: self.types.get(at).copied(),
            program: Some(self.id),
            ..Target::default()
        });
        targets.collect()
    }
}

/// Functions of all programs, the oldest program first; those of one name are numbered.
fn all() -> io::Result<Vec<Target>> {
    let (mut all, mut all_types) = (Vec::new(), HashMap::from([(0, Some(None))]));
    for program in sys::loaded_programs()? {
        // One program of the machine may have types of a newer kernel.
        let types = all_types.entry(program.btf).or_insert_with(|| {
            sys::btf_bytes(program.btf)
                .ok()
                .map(|bytes| Btf::parse(&bytes, Path::new("BTF"), None).ok())
        });
        // Else it was unloaded since it was listed.
        if let Some(types) = types {
            all.extend(program.targets(types.as_deref()));
        }
    }
    number(&mut all);
    Ok(all)
}

/// Numbers those that share a name, in their order.
fn number(targets: &mut [Target]) {
    let mut of_name: HashMap<String, Vec<&mut Target>> = HashMap::new();
    for target in targets {
        of_name.entry(target.name.clone()).or_default().push(target);
    }
    for same in of_name.into_values().filter(|same| same.len() > 1) {
        for (number, target) in (1..).zip(same) {
            target.duplicate_index = Some(number);
        }
    }
}

/// Functions of loaded programs by names and globs, in the order given, each once. A subprogram is `PROGRAM/SUBPROGRAM`, and one of
/// several of a name `NAME#2`, the second in the order in which they were loaded.
///
/// # Errors
/// The first name or glob that no function has; if the programs cannot be listed.
pub fn resolve_programs(patterns: &[String]) -> Result<Resolved, Failure> {
    let all = all().map_err(|error| {
        let text = format!("cannot list the loaded BPF programs: {error}: run as root");
        Failure::new(exit::CANNOT_MEASURE, text)
    })?;
    let found = patterns.iter().map(|pattern| matching(&all, pattern));
    Resolved::merged(found.collect::<Result<_, _>>()?)
}

fn matching(all: &[Target], pattern: &str) -> Result<Resolved, Failure> {
    let by_glob = is_glob(pattern);
    let glob = glob(pattern)?;
    let found = all
        .iter()
        .filter(|target| target.label() == pattern || by_glob && glob.matches(&target.name));
    let targets: Vec<Target> = found.map(|target| Target { by_glob, ..target.clone() }).collect();
    if !targets.is_empty() {
        return Ok(Resolved { targets, left_out: Vec::new() });
    }
    let same = all.iter().filter(|target| target.name == pattern);
    let same: Vec<String> = same
        .map(|of| format!("`{}` (id {})", of.label(), of.program.unwrap_or_default()))
        .collect();
    let what = match same.as_slice() {
        [] => format!(
            "no loaded BPF program is called `{pattern}`{}; `profiler list --bpf-prog` shows all",
            also(&nearest(pattern, all.iter().map(|target| target.name.as_str())))
        ),
        _ => format!(
            "several are called `{pattern}`: name the one that you mean: {}",
            same.join(", ")
        ),
    };
    Err(Failure::new(exit::NO_TARGET, what))
}

/// Programs as they were when their measurement began.
#[derive(Debug)]
pub struct Programs {
    /// Those that are measured, each with its id, and with whether a link kept it attached.
    measured: Vec<(u32, Target, bool)>,
    /// The highest id.
    newest: u32,
    /// How often the kernel had skipped each, by id; nothing where it does not say.
    skipped: BTreeMap<u32, u64>,
}

impl Programs {
    /// Those that hold `targets`, now.
    ///
    /// # Errors
    /// If programs or links cannot be listed.
    pub fn of(targets: &[Target]) -> io::Result<Self> {
        let linked = sys::linked_programs()?;
        let newest = sys::loaded_programs()?.iter().map(|program| program.id).max();
        let measured = targets.iter().filter_map(|target| {
            let id = target.program?;
            Some((id, target.clone(), linked.contains(&id)))
        });
        let ids = targets.iter().filter_map(|target| target.program);
        let skipped = ids.filter_map(|id| Some((id, skipped(id)?))).collect();
        Ok(Self { measured: measured.collect(), newest: newest.unwrap_or_default(), skipped })
    }

    /// Those that the kernel has skipped since, with how often: labels of the functions of one program, and its runs.
    pub fn skipped(&self) -> Vec<(Vec<String>, u64)> {
        let more = self.skipped.iter().filter_map(|(id, before)| {
            let more = skipped(*id)?.saturating_sub(*before);
            let of_it = self.measured.iter().filter(|(program, ..)| program == id);
            (more > 0).then(|| (of_it.map(|(_, target, _)| target.label()).collect(), more))
        });
        more.collect()
    }

    /// What became of them since: those that no link keeps attached any more, and those of which another one of their name was
    /// loaded. The probes keep them from being unloaded.
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub fn changed(&self) -> io::Result<Option<String>> {
        let linked = sys::linked_programs()?;
        let newer: HashSet<String> = all()?
            .into_iter()
            .filter(|target| target.program > Some(self.newest))
            .map(|target| target.name)
            .collect();
        let changes = self.measured.iter().filter_map(|(id, Target { name, .. }, was_linked)| {
            // By its plain name: which number it has changes with what is loaded.
            let what = match (newer.contains(name), *was_linked && !linked.contains(id)) {
                (true, true) => "was replaced by another of its name",
                (true, false) => "was loaded once more",
                (false, true) => "was detached",
                (false, false) => return None,
            };
            Some(format!("{name} (id {id}) {what}"))
        });
        let changes: Vec<String> = changes.collect();
        Ok((!changes.is_empty()).then(|| listed(&changes)))
    }
}

/// Runs of a program that the kernel has skipped so far; `None` if it does not say, or the program was unloaded.
fn skipped(id: u32) -> Option<u64> {
    sys::recursion_misses(sys::program(id).ok()?.as_fd()).ok()?
}

/// The kernel's own statistics of programs that no probe measures. The kernel keeps them while this lives (from 5.8, commit d46edd671a14).
#[derive(Debug)]
pub struct RunStats {
    _enabled: OwnedFd,
    /// Each with its name, and with its runs so far and their nanoseconds.
    programs: Vec<(String, OwnedFd, [u64; 2])>,
}

impl RunStats {
    /// Those of the programs in `targets`, without the functions in `measured`; `None` if there is none.
    ///
    /// # Errors
    /// If the kernel keeps none, or a program was unloaded.
    pub fn begin(targets: &[Target], measured: &[&Target]) -> io::Result<Option<Self>> {
        // The kernel has them of programs, and not of subprograms.
        let left_out = targets.iter().filter(|of| !measured.contains(of) && !of.name.contains('/'));
        let ids: Vec<_> = left_out.filter_map(|of| Some((of.label(), of.program?))).collect();
        if ids.is_empty() {
            return Ok(None);
        }
        let _enabled = enable_stats(Stats::RunTime).map_err(|error| error.io_error)?;
        let programs = ids.into_iter().map(|(name, id)| {
            let program = sys::program(id)?;
            let before = sys::run_stats(program.as_fd())?;
            Ok((name, program, before))
        });
        Ok(Some(Self { _enabled, programs: programs.collect::<io::Result<_>>()? }))
    }

    /// The programs, each with its runs since and their average.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn averages(&self) -> io::Result<Vec<String>> {
        let averages = self.programs.iter().map(|(name, program, before)| {
            let after = sys::run_stats(program.as_fd())?;
            let [runs, ns] = [0, 1].map(|at| after[at].saturating_sub(before[at]));
            Ok(match runs {
                0 => format!("{name} did not run"),
                _ => {
                    format!("{name} ran {runs} times, {:.1} ns on average", ns as f64 / runs as f64)
                }
            })
        });
        averages.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Such as types of a kernel that is newer than this program.
    #[test]
    fn a_program_whose_types_cannot_be_read_has_the_names_of_the_kernel() {
        let program = LoadedProgram {
            name: "on_open".to_owned(),
            types: vec![7, 9],
            ..LoadedProgram::default()
        };
        let names = program.targets(None).into_iter().map(|target| target.name);
        assert_eq!(Vec::from_iter(names), ["on_open", "on_open/1"]);
    }

    #[test]
    fn names_and_globs_find_functions_and_several_of_one_name_are_numbered() {
        let mut all: Vec<Target> = (1..)
            .zip(["on_open", "on_open/count", "on_close", "on_open"])
            .map(|(id, name)| Target {
                name: name.to_owned(),
                program: Some(id),
                ..Target::default()
            })
            .collect();
        number(&mut all);
        let found = |pattern: &str| {
            let found = matching(&all, pattern).map_err(|error| error.to_string())?;
            Ok::<_, String>(found.targets.iter().map(Target::label).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(found("on_close").unwrap(), "on_close");
        assert_eq!(found("on_open#2").unwrap(), "on_open#2");
        assert_eq!(found("on_o*").unwrap(), "on_open#1 on_open/count on_open#2");
        let several = found("on_open").unwrap_err();
        assert!(several.ends_with("`on_open#1` (id 1), `on_open#2` (id 4)"), "{several}");
        for missing in ["on_open#3", "on_opens", "x*"] {
            assert!(found(missing).unwrap_err().starts_with("no loaded BPF program is called"));
        }
    }
}
