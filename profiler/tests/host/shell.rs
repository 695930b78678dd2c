//! What a shell sees of the program: completions, man pages, examples, colours, exit codes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::process::{Command, Stdio};

use clap::{CommandFactory as _, Parser as _};
use profiler::cli::Cli;

use crate::common::sample;
use crate::program::profiler;

fn stdout(args: &[&str]) -> String {
    let output = profiler(args);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The names of all subcommands that have no further ones, as they are typed.
fn subcommands() -> Vec<(String, clap::Command)> {
    fn collect(command: &clap::Command, name: &str, all: &mut Vec<(String, clap::Command)>) {
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            let name = format!("{name} {}", sub.get_name());
            if sub.has_subcommands() {
                collect(sub, &name, all);
            } else {
                all.push((name, sub.clone()));
            }
        }
    }
    let mut all = Vec::new();
    collect(&Cli::command(), "profiler", &mut all);
    all
}

#[test]
fn completions_for_each_shell() {
    for shell in ["bash", "zsh", "fish"] {
        let script = stdout(&["completions", shell]);
        for (name, _) in subcommands() {
            let last = name.rsplit(' ').next().unwrap();
            assert!(script.contains(last), "{shell} knows nothing of {name}");
        }
        assert!(script.contains("hlog"), "{shell} does not know the formats");
    }
    assert_eq!(profiler(&["completions", "nonsense"]).status.code(), Some(2));
}

/// The shell itself takes the script; bash is on every Debian.
#[test]
fn bash_completes_a_subcommand() {
    let script = stdout(&["completions", "bash"]);
    let program = format!(
        "{script}\nCOMP_WORDS=(profiler rep) COMP_CWORD=1\n_profiler profiler rep profiler\n\
         echo \"${{COMPREPLY[@]}}\"\n"
    );
    let mut bash = Command::new("bash")
        .args(["--norc", "-s"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    bash.stdin.take().unwrap().write_all(program.as_bytes()).unwrap();
    let output = bash.wait_with_output().unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "report");
}

#[test]
fn a_man_page_for_each_subcommand() {
    let folder = tempfile::tempdir().unwrap();
    assert!(profiler(&["man", "--dir", folder.path().to_str().unwrap()]).status.success());
    let names: BTreeSet<String> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    for (name, _) in subcommands() {
        let file = format!("{}.1", name.replace(' ', "-"));
        assert!(names.contains(&file), "no {file} among {names:?}");
        let page = std::fs::read_to_string(folder.path().join(&file)).unwrap();
        assert!(page.contains(".TH") && page.contains("Examples"), "{file}: {page}");
    }
    assert!(stdout(&["man"]).contains("profiler\\-report(1)"));
    assert_eq!(profiler(&["man", "--dir", "/proc/no/such"]).status.code(), Some(8));
}

/// Examples are there for each subcommand, and each is a command line that is taken.
#[test]
fn examples_are_there_and_parse() {
    for (name, command) in subcommands() {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let (_, examples) = help.split_once("Examples:\n").unwrap_or_else(|| {
            panic!("`{name} --help` has no examples");
        });
        let mut shown = 0;
        for line in examples.replace("\\\n", " ").lines().map(str::trim) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            // Of a pipeline, a list or a redirection only the part that is ours.
            let ours = line.split(['|', '>', ')', '&']).find(|part| part.contains("profiler "));
            let ours = ours.unwrap_or_else(|| panic!("not ours: {line}"));
            let ours = &ours[ours.find("profiler ").unwrap()..];
            let words = shlex::split(ours).unwrap_or_else(|| panic!("no words: {line}"));
            if let Err(error) = Cli::try_parse_from(&words) {
                panic!("`{name} --help` shows `{line}`: {error}");
            }
            shown += usize::from(ours.starts_with(&format!("{name} ")) || ours == name);
        }
        assert!(shown > 0, "no example of `{name}` is one of it");
    }
}

#[test]
fn no_color_is_obeyed() {
    let help = |no_color: bool| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_profiler"));
        command.arg("--help").env("CLICOLOR_FORCE", "1").env_remove("NO_COLOR");
        if no_color {
            command.env("NO_COLOR", "1");
        }
        command.output().unwrap().stdout
    };
    // Otherwise the test would show nothing.
    assert!(help(false).contains(&0x1b), "there are colours to be left out");
    assert!(!help(true).contains(&0x1b));
}

/// Exit codes of this program, by their names in `error.rs`.
fn constants() -> BTreeMap<u8, String> {
    let source = include_str!("../../../crates/base/src/error.rs");
    let lines = source.lines().filter_map(|line| line.trim().strip_prefix("pub const "));
    let parse = |line: &str| {
        let (name, value) = line.split_once(": u8 = ")?;
        Some((value.trim_end_matches(';').parse().ok()?, name.to_owned()))
    };
    lines.filter_map(parse).collect()
}

#[test]
fn the_table_of_exit_codes_is_that_of_the_program() {
    let codes: BTreeSet<u8> = constants().into_keys().collect();
    assert!(codes.len() > 10, "{codes:?}");
    let page = include_str!("../../../docs/exit-codes.md");
    let rows = page.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
    let mut listed = BTreeSet::new();
    for row in rows.take_while(|row| row.starts_with('|')) {
        for code in row.split('|').nth(1).unwrap().split(',') {
            assert!(listed.insert(code.trim().parse::<u8>().unwrap()), "{row} is there twice");
        }
    }
    assert_eq!(listed, codes, "docs/exit-codes.md against error.rs");
    let help = Cli::command().get_after_help().unwrap().to_string();
    let text = help.split_once("Exit codes: ").expect("--help tells them").1.replace('\n', " ");
    let in_help: BTreeSet<u8> = text
        .split(". With")
        .next()
        .unwrap()
        .split(',')
        .filter_map(|part| part.split_whitespace().next()?.parse().ok())
        .collect();
    assert_eq!(in_help, codes, "--help against error.rs");
}

/// Each code that can be had without a kernel of one's own; the others are had where this says.
#[test]
fn each_exit_code_is_had() {
    const ELSEWHERE: &[(&str, &str)] = &[
        ("INTERNAL", "none: it is an error of the profiler"),
        ("LOAD_FAILED", "vm: ends"),
        ("NO_HITS", "vm: ends"),
        ("FEW_HITS", "vm: load profiles"),
        ("LOSSES", "vm"),
        ("REGRESSION", "tests of the gate"),
        ("INCONCLUSIVE", "tests of the gate"),
        ("TOO_FEW_RUNS", "tests of the gate"),
        ("LAB_FAILED", "tests of the lab"),
        ("DRIVER_REPLACED", "vm: replaced"),
        ("HUNG_UP", "terminal; vm: ends"),
        ("INTERRUPTED", "vm: ends"),
        ("TERMINATED", "vm: ends"),
    ];
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run.json");
    sample().write(&run).unwrap();
    let run = run.to_str().unwrap();
    let bad = folder.path().join("bad.json");
    std::fs::write(&bad, "[]").unwrap();
    let bad = bad.to_str().unwrap();
    let without_privileges = {
        // Root in a container has them, and yet not; without any it is the same everywhere.
        let mut command = Command::new("setpriv");
        if nix::unistd::geteuid().is_root() {
            command.arg("--bounding-set=-all");
        }
        command.arg(env!("CARGO_BIN_EXE_profiler")).args(["run", "-H", "vfs_open"]);
        command.output().unwrap()
    };
    let had = [
        ("OK", profiler(&["report", run])),
        ("USAGE", profiler(&["report"])),
        ("CANNOT_MEASURE", without_privileges),
        ("NO_TARGET", profiler(&["report", run, "--handler", "no_such_handler"])),
        ("BAD_INPUT", profiler(&["report", bad])),
        ("BAD_OUTPUT", profiler(&["report", run, "--output", "/dev/full"])),
        ("NOT_COMPARABLE", profiler(&["merge", run, run, "-o", "/dev/null"])),
    ];
    let constants = constants();
    for (name, output) in &had {
        let code = output.status.code().and_then(|code| u8::try_from(code).ok());
        let found = code.and_then(|code| constants.get(&code));
        assert_eq!(found.map(String::as_str), Some(*name), "{output:?}");
        if *name != "OK" {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.starts_with("error: "), "{said}");
        }
    }
    for name in constants.values() {
        let known = had.iter().any(|(had, _)| had == name)
            || ELSEWHERE.iter().any(|(elsewhere, _)| elsewhere == name);
        assert!(known, "no test has the exit code {name}");
    }
}
