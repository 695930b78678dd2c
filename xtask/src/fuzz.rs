//! Fuzzing of every parser: `fuzz/` holds the targets, a small corpus of each, and in its README the modules that they reach.
//! libFuzzer's instrumentation is flags of stable Rust, so neither nightly nor cargo-fuzz is needed.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

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
pub(crate) fn targets() -> Vec<String> {
    let corpora =
        std::fs::read_dir(paths::root().join("fuzz/corpus")).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        corpora.map(|folder| folder.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
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
    setup::ensure(&[setup::PARSERS])?;
    let program = build()?;
    let all = targets();
    for target in if args.targets.is_empty() { &all } else { &args.targets } {
        println!("fuzz: {target}: {}", run(&program, target, args.seconds)?);
    }
    Ok(())
}

/// Runs one target for a number of seconds; new inputs are kept below `target/`. A finding is an error: libFuzzer says which
/// input shows it.
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
    let (_, said) = process::output_if(&mut fuzz, &[0])?;
    let executed =
        said.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
    let executed: u64 = executed.and_then(|count| count.trim().parse().ok()).unwrap_or(0);
    ensure!(executed > 0, "{target} tried no input");
    Ok(format!("{executed} inputs in {seconds} s"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

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
    const READS: [&str; 13] = [
        "fs::read(",
        "read_to_string",
        "read_to_end",
        "read_until(",
        "read_line(",
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
    fn the_program_has_the_targets_of_the_readme_and_each_has_a_corpus() {
        let text = process::read(&paths::root().join("fuzz/src/lib.rs")).unwrap();
        let names =
            text.lines().filter_map(|line| line.trim().strip_prefix("(\"")?.split('"').next());
        let names: Vec<&str> = names.collect();
        assert_eq!(names, targets());
        let listed = rows("## Targets").map(|row| row[0].trim_matches('`'));
        assert_eq!(names, listed.collect::<Vec<_>>());
        for target in targets() {
            let corpus =
                process::files_below(&paths::root().join("fuzz/corpus").join(&target)).unwrap();
            assert!(!corpus.is_empty(), "{target}");
        }
    }
}
