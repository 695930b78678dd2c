//! Fuzzing of every parser: `fuzz/` holds the targets, a small corpus of each, and in its README the modules that they reach.
//! libFuzzer's instrumentation is flags of stable Rust, so neither nightly nor cargo-fuzz is needed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use crate::cli::FuzzArgs;
use crate::paths;
use crate::process;
use crate::setup;

/// Coverage counters and comparisons for libFuzzer, as cargo-fuzz has them.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";

/// With an explicit target, build scripts and macros are not instrumented.
const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// Longest input; the parsers' limits are lower.
const MAX_BYTES: u32 = 64 << 10;

/// The targets, by the names of their corpora.
fn targets() -> Result<Vec<String>> {
    let corpora = paths::root().join("fuzz/corpus");
    let failed = || format!("cannot read {}", corpora.display());
    let mut names = Vec::new();
    for folder in fs::read_dir(&corpora).with_context(failed)? {
        names.push(folder.with_context(failed)?.file_name().to_string_lossy().into_owned());
    }
    ensure!(!names.is_empty(), "{} has no target", corpora.display());
    names.sort();
    Ok(names)
}

/// The targets of these names, or all if there are none.
fn wanted(names: &[String]) -> Result<Vec<String>> {
    let all = targets()?;
    if let Some(name) = names.iter().find(|name| !all.contains(name)) {
        bail!("no target `{name}`; there are {}", all.join(", "));
    }
    Ok(if names.is_empty() { all } else { names.to_vec() })
}

/// Builds the program that has all targets; gives its path.
fn build() -> Result<PathBuf> {
    let target = paths::target().join("fuzz");
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--locked", "--profile", "fuzz", "--quiet", "--target", TRIPLE]);
    cargo.args(["--package", "profiler-fuzz", "--features", "libfuzzer"]);
    cargo.arg("--target-dir").arg(&target);
    cargo.env("RUSTFLAGS", FLAGS).current_dir(paths::root());
    println!("build: fuzz targets");
    process::run(&mut cargo)?;
    Ok(target.join(TRIPLE).join("fuzz/parsers"))
}

/// Builds the targets, and runs those of the arguments, or all if there are none, one after another.
pub(crate) fn run_each(args: &FuzzArgs) -> Result<()> {
    let wanted = wanted(&args.targets)?;
    setup::ensure(&[setup::PARSERS])?;
    let program = build()?;
    for target in wanted {
        println!("fuzz: {target}: {}", run(&program, &target, args.seconds)?);
    }
    Ok(())
}

/// Runs one target for a number of seconds; new inputs, and what libFuzzer says, are kept below `target/`. A finding is an error:
/// libFuzzer says which input shows it.
fn run(program: &Path, target: &str, seconds: u32) -> Result<String> {
    let out = paths::target().join("fuzz").join("run").join(target);
    let corpus = out.join("corpus");
    let artifacts = out.join("findings");
    process::create_dir(&corpus)?;
    process::empty_dir(&artifacts)?;
    let mut fuzz = Command::new(program);
    fuzz.env("FUZZ_TARGET", target)
        .arg(&corpus)
        .arg(paths::root().join("fuzz/corpus").join(target));
    fuzz.arg(format!("-max_total_time={seconds}")).arg(format!("-max_len={MAX_BYTES}"));
    fuzz.args(["-timeout=10", "-rss_limit_mb=1024", "-print_final_stats=1"]);
    fuzz.arg(format!("-artifact_prefix={}/", artifacts.display()));
    let output = process::capture(&mut fuzz)?;
    let said = String::from_utf8_lossy(&output.stderr);
    let log = out.join("log");
    process::write(&log, said.as_bytes())?;
    ensure!(
        output.status.success(),
        "`{}` failed: {}; all that it said is in {}{}",
        process::text(&fuzz),
        output.status,
        log.display(),
        process::tail(&said)
    );
    let executed =
        said.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
    let executed: u64 = executed.and_then(|count| count.trim().parse().ok()).unwrap_or(0);
    ensure!(executed > 0, "{target} tried no input");
    Ok(format!("{executed} inputs in {seconds} s"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const README: &str = include_str!("../../fuzz/README.md");

    /// The rows of the README's table below this heading: cells.
    fn rows(heading: &str) -> impl Iterator<Item = Vec<&'static str>> {
        let lines = README.lines().skip_while(move |line| *line != heading).skip(1);
        let lines = lines.take_while(|line| !line.starts_with("## "));
        let rows = lines.filter(|line| line.starts_with('|')).skip(2);
        rows.map(|row| row.trim_matches('|').split(" | ").map(str::trim).collect())
    }

    /// How bytes come into a program, and what takes them apart.
    const READS: [&str; 14] = [
        "fs::read(",
        "read_to_string",
        "read_to_end",
        "read_until(",
        "read_line(",
        ".split(b'",
        "File::parse",
        "serde_json::from_",
        "Deserializer::from_",
        "toml::from_str",
        "from_ne_bytes",
        "from_le_bytes",
        "from_be_bytes",
        "::decode(",
    ];

    fn reads(root: &Path, file: &str) -> bool {
        let text =
            fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        let code = text.split("\n#[cfg(test)]").next().unwrap_or_default();
        READS.iter().any(|read| code.contains(read))
    }

    #[test]
    fn every_module_that_reads_outside_bytes_has_a_target_or_a_reason() {
        let root = paths::root();
        let modules = |heading| -> Vec<&str> {
            rows(heading)
                .flat_map(|row| row[1].split(", "))
                .map(|file| file.trim_matches('`'))
                .collect()
        };
        let (fuzzed, others) = (modules("## Targets"), modules("## Not fuzzed"));
        let listed: BTreeSet<&str> = fuzzed.iter().chain(&others).copied().collect();
        assert_eq!(listed.len(), fuzzed.len() + others.len(), "a module is listed twice");
        for file in &fuzzed {
            assert!(root.join(file).exists(), "fuzz/README.md: {file} is gone");
        }
        for file in others {
            assert!(
                reads(root, file),
                "fuzz/README.md: {file} reads nothing any more: take it out"
            );
        }
        for part in ["profiler/src", "crates"] {
            for path in process::files_below(&root.join(part)).unwrap() {
                let file = path.strip_prefix(root).unwrap().to_str().unwrap();
                let is_code = file.ends_with(".rs")
                    && !file.ends_with("tests.rs")
                    && !file.ends_with("fuzzing.rs");
                assert!(
                    !is_code || listed.contains(file) || !reads(root, file),
                    "{file} reads bytes: name it in fuzz/README.md, at the target that runs its parser or with the \
                     reason why none has to"
                );
            }
        }
    }

    #[test]
    fn an_unknown_target_is_refused() {
        assert_eq!(wanted(&[]).unwrap(), targets().unwrap());
        assert_eq!(wanted(&["btf".to_owned()]).unwrap(), ["btf"]);
        let error = wanted(&["btf".to_owned(), "btg".to_owned()]).unwrap_err().to_string();
        assert!(error.starts_with("no target `btg`; there are accept, btf,"), "{error}");
    }

    #[test]
    fn the_program_has_the_targets_of_the_readme_and_each_has_a_corpus() {
        let text = process::read(&paths::root().join("fuzz/src/lib.rs")).unwrap();
        let names =
            text.lines().filter_map(|line| line.trim().strip_prefix("(\"")?.split('"').next());
        let names: Vec<&str> = names.collect();
        assert_eq!(names, targets().unwrap());
        let listed = rows("## Targets").map(|row| row[0].trim_matches('`'));
        assert_eq!(names, listed.collect::<Vec<_>>());
        for target in targets().unwrap() {
            let corpus =
                process::files_below(&paths::root().join("fuzz/corpus").join(&target)).unwrap();
            assert!(!corpus.is_empty(), "{target}");
        }
    }
}
