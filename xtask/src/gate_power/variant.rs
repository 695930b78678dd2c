//! Builds of a driver that differ in their bytes and in where their code and data lie, and cost the same.
//!
//! A number decides what is varied: the order of the objects; three objects more, each with a function that nothing calls
//! and data that nothing reads, of other names and sizes; and how functions are aligned and ordered.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::cli::GatePowerArgs;
use crate::kbuild;
use crate::paths;
use crate::process;
use crate::setup;
use crate::vm::word;

use super::{HANDLER, SERIES};

pub(super) const MODULE: &str = "hids_testbed.ko";

/// By pairs: half of the candidates have other flags than their baseline.
const FLAGS: [&str; 4] =
    ["", "-falign-functions=32", "-falign-functions=64", "-fno-reorder-functions"];
/// Decisions with one baseline, which the gate keeps, and with one pair of [`FLAGS`], so that little is compiled again.
const BLOCK: u64 = 32;
/// Objects that are added.
const ADDED: [&str; 3] = ["gate_power_0", "gate_power_1", "gate_power_2"];
/// The longest function and the largest data that an object adds, in bytes.
const MOST: u64 = 3000;

/// Builds of a driver that Kbuild builds.
pub(super) struct Driver<'a> {
    pub(super) args: &'a GatePowerArgs,
    /// Where they are kept.
    pub(super) folder: PathBuf,
}

impl Driver<'_> {
    /// The sources of the test module, or what the user names.
    fn source(&self) -> PathBuf {
        self.args.driver.clone().unwrap_or_else(|| paths::root().join("testbed"))
    }

    /// The shell command that builds it in a copy of the sources.
    fn build(&self) -> Result<String> {
        if let Some(build) = &self.args.build {
            return Ok(build.clone());
        }
        let headers = word(&setup::kernel(SERIES)?.headers());
        Ok(format!("make -C {headers} M=$PWD CC={} modules", kbuild::COMPILER))
    }

    /// Baseline and candidate of a number; the candidate has as many instructions more in the slower handler.
    ///
    /// # Errors
    /// If the bytes of both are the same, or a function has other instructions although nothing was to be slower.
    pub(super) fn pair(&self, seed: u64, nops: u64) -> Result<[PathBuf; 2]> {
        let base = seed / BLOCK * BLOCK;
        let pair = [self.variant(base, 0)?, self.variant(seed + 1, nops)?];
        let [baseline, candidate] = pair.each_ref().map(fs::read);
        ensure!(baseline? != candidate?, "builds {base} and {} are the same", seed + 1);
        let [baseline, candidate] = pair.each_ref().map(|path| functions(path));
        ensure!(
            nops > 0 || baseline? == candidate?,
            "builds {base} and {} of {} have other instructions in a function",
            seed + 1,
            self.args.module
        );
        Ok(pair)
    }

    fn variant(&self, seed: u64, nops: u64) -> Result<PathBuf> {
        let built = self.folder.join(format!("{seed}-{nops}.ko"));
        if built.exists() {
            return Ok(built);
        }
        // A tree for each set of flags that comes next, so that few objects are compiled again.
        let tree = self.folder.join(format!("tree-{}-{nops}", seed % 2));
        let source = self.source();
        if !tree.exists() {
            process::run(Command::new("cp").arg("-a").arg(&source).arg(&tree))?;
        }
        let makefile = ["Kbuild", "Makefile"].into_iter().find(|name| source.join(name).exists());
        let makefile = makefile.context("no Kbuild or Makefile")?;
        let text = varied(&process::read(&source.join(makefile))?, seed)
            .with_context(|| format!("no line with the module's objects in {makefile}"))?;
        process::write(&tree.join(makefile), text)?;
        for name in ADDED {
            process::write(&tree.join(format!("{name}.c")), added(name, seed))?;
        }
        let slower = match nops {
            0 => String::new(),
            _ => format!(" TB_SLOW_HANDLER={HANDLER} TB_SLOW_NOPS={nops}"),
        };
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(format!("{}{slower}", self.build()?)).current_dir(&tree);
        process::stdout(&mut shell)?;
        process::copy(&tree.join(&self.args.module), &built)?;
        Ok(built)
    }
}

/// A number that depends on the seed.
fn number(seed: u64, what: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (seed, what).hash(&mut hasher);
    hasher.finish()
}

/// The makefile with more objects, in another order, and with flags; `None` if no line has objects.
fn varied(makefile: &str, seed: u64) -> Option<String> {
    // Lines that go on are one.
    let makefile = makefile.replace("\\\n", " ");
    let line = makefile.lines().find(|line| {
        !line.starts_with("obj-")
            && line.split_whitespace().skip(2).any(|word| word.ends_with(".o"))
    })?;
    let mut words = line.split_whitespace();
    let head = format!("{} {}", words.next()?, words.next()?);
    let mut objects: Vec<String> = words.map(str::to_owned).collect();
    objects.extend(ADDED.map(|name| format!("{name}.o")));
    objects.sort_by_key(|object| number(seed, object));
    let flags = FLAGS[(seed % 2 + seed / BLOCK % 2 * 2) as usize];
    let objects = format!("{head} {}", objects.join(" "));
    Some(format!("{}\nccflags-y += {flags}\n", makefile.replace(line, &objects)))
}

/// A source with a function that nothing calls and data that nothing reads.
fn added(name: &str, seed: u64) -> String {
    let [code, data] =
        ["code", "data"].map(|what| number(seed, &format!("{name} {what}")) % MOST + 1);
    let kind = ["const char", "char"][(number(seed, &format!("{name} const")) % 2) as usize];
    // `noinline` is a macro of the kernel's headers, which a flag includes.
    format!(
        "static void __attribute__((__used__, __noinline__)) {name}_{seed}(void)\n{{\n\t__asm__ volatile(\".skip {code}, 0x90\");\n}}\n\
         static {kind} __attribute__((__used__)) {name}_data_{seed}[{data}] = {{ 1 }};\n"
    )
}

/// The functions of a module with the names of their instructions, without those that were added and without what fills
/// the space between functions.
fn functions(module: &Path) -> Result<Vec<String>> {
    let mut objdump = Command::new("objdump");
    let text = process::stdout(objdump.args(["-d", "--no-show-raw-insn"]).arg(module))?;
    let mut functions: Vec<String> = text.split("\n\n").filter_map(function).collect();
    functions.sort_unstable();
    Ok(functions)
}

fn function(listing: &str) -> Option<String> {
    let listing = listing.trim_start();
    let (name, lines) = listing.split_once(">:\n")?;
    let (_, name) = name.split_once('<')?;
    let mut names: Vec<&str> = lines.lines().filter_map(mnemonic).collect();
    while names.last().is_some_and(|it| it.starts_with("nop") || ["xchg", "int3"].contains(it)) {
        names.pop();
    }
    // A section's code without a function, such as the kernel's alternatives, is in the order of the objects.
    (!name.starts_with("gate_power_") && !name.starts_with('.'))
        .then(|| format!("{name}: {}", names.join(" ")))
}

fn mnemonic(line: &str) -> Option<&str> {
    let (_, instruction) = line.split_once(":\t")?;
    instruction.split_whitespace().find(|word| !["cs", "data16"].contains(word))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Task};

    #[test]
    fn a_makefile_has_the_objects_in_another_order_and_flags() {
        let makefile = "obj-m := d.o\nd-objs\t:= src/a.o \\\n  src/b.o\nifdef X\nendif\n";
        let one = varied(makefile, 1).unwrap();
        assert!(one.starts_with("obj-m := d.o\nd-objs := "), "{one}");
        assert!(one.ends_with("\nifdef X\nendif\n\nccflags-y += -falign-functions=32\n"), "{one}");
        let line = one.lines().nth(1).unwrap();
        for object in ["src/a.o", "src/b.o", "gate_power_0.o", "gate_power_1.o", "gate_power_2.o"] {
            assert!(line.contains(object), "{line}");
        }
        assert!(
            (2..20).any(|seed| varied(makefile, seed).unwrap().lines().nth(1).unwrap() != line)
        );
        assert_eq!(varied("obj-m := d.o\n", 1), None);
        assert_ne!(added(ADDED[0], 1), added(ADDED[0], 2));
    }

    #[test]
    fn equal_builds_are_an_error() {
        let folder = tempfile::tempdir().unwrap();
        process::write(&folder.path().join("Kbuild"), "d-objs := a.o\n").unwrap();
        let build = "--driver D --module d.ko --build".split(' ');
        let args = ["x", "gate-power"].into_iter().chain(build).chain(["echo same >d.ko"]);
        let Ok(Cli { command: Task::GatePower(mut args) }) = Cli::try_parse_from(args) else {
            panic!("a command line of gate-power")
        };
        args.driver = Some(folder.path().to_owned());
        let out = tempfile::tempdir().unwrap();
        let driver = Driver { args: &args, folder: out.path().to_owned() };
        let error = driver.pair(0, 0).unwrap_err().to_string();
        assert_eq!(error, "builds 0 and 1 are the same");
    }

    #[test]
    fn space_between_functions_is_no_part_of_them() {
        let listing = "\n0000000000000000 <f>:\n   0:\tcall   5 <f+0x5>\n   5:\tnop\n   6:\tret\n   7:\tcs nopw 0x0(%rax)\n";
        assert_eq!(function(listing).unwrap(), "f: call nop ret");
        assert_eq!(function("0 <gate_power_0_1>:\n   0:\tret\n"), None);
        assert_eq!(function("0 <.altinstr_replacement>:\n   0:\tpushf\n"), None);
        assert_eq!(function("Disassembly of section .text:"), None);
    }
}
