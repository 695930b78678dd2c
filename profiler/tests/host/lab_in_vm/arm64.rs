//! The lab with kernels of arm64, which QEMU translates for this machine.

use super::*;

/// As of [`super::ADDED`]: to enter the loop takes an instruction less.
const ADDED: f64 = 130.0;

/// For each kernel its image and two modules.
fn built() -> Vec<[PathBuf; 3]> {
    let files: Vec<PathBuf> = std::env::split_paths(&given("PROFILER_LAB_ARM64")).collect();
    let kernels = files.chunks(3).map(|files| files.to_vec().try_into());
    kernels.collect::<Result<_, _>>().expect("a kernel and two modules")
}

/// Each handler runs in each of 1,000 operations, the parts of a call add up to it, and a second run has the same checksum.
#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn kernels_of_arm64_count_all_calls_and_a_change_to_the_instruction() {
    built().into_iter().for_each(counts_all_calls);
}

fn counts_all_calls([kernel, baseline, candidate]: [PathBuf; 3]) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = profiler();
    command.arg("lab").arg("--kernel").arg(kernel);
    command.arg("--baseline").arg(baseline).arg("--candidate").arg(candidate);
    command.args(["--quiet", "--handler", "connect_*", "--builtin", "connect", "--verify"]);
    command.args(["--placements", "2", "--out"]).arg(folder.path());
    succeed(command);
    let [baseline, candidate] = ["baseline.json", "candidate.json"]
        .map(|name| Series::read(&folder.path().join(name)).unwrap());
    for quantile in [None, Some(0.50), Some(0.90), Some(0.95), Some(0.99)] {
        for (handler, added) in [(CHANGED, ADDED), (UNCHANGED, 0.0)] {
            let [before, after] =
                [&baseline, &candidate].map(|series| figures(series, handler, quantile));
            let differences: Vec<f64> =
                after.iter().zip(before).map(|(after, before)| after - before).collect();
            assert_eq!(differences, [added; 2], "{handler} {quantile:?}");
        }
    }
    for run in baseline.runs.iter().chain(&candidate.runs) {
        assert_eq!(run.host.arch, "aarch64");
        let cost = &run.driver_costs[0];
        assert!(cost.with_ns > cost.without_ns, "{cost:?}");
        let tree = run.call_tree.as_ref().unwrap();
        let sum: u64 = run.handlers.iter().map(|handler| handler.own_instructions.unwrap()).sum();
        let own = |names: &[&str]| -> u64 {
            let is_one = |index: u32| names.contains(&&*tree.functions[index as usize].name);
            tree.nodes.iter().filter(|node| is_one(node.function)).map(|node| node.own).sum()
        };
        assert_eq!(own(&[CHANGED, UNCHANGED]), sum);
    }
}

/// Writes its arguments to the testbed's file: the guest has no shell.
const TRIGGER: &str = r#"
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	int file = open("/proc/hids_testbed/trigger", O_WRONLY);

	for (int i = 1; file >= 0 && i < argc; i++)
		if (write(file, argv[i], strlen(argv[i])) < 0)
			return 1;
	return 0;
}
"#;

/// Calls that are within each other, go on by a jump, recurse, sleep, are entered by an interrupt, or share a name.
#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn calls_of_arm64_are_counted_whatever_they_do() {
    let folder = tempfile::tempdir().unwrap();
    let [program, source] = ["trigger", "trigger.c"].map(|name| folder.path().join(name));
    std::fs::write(&source, TRIGGER).unwrap();
    let mut compiler = Command::new("aarch64-linux-gnu-gcc");
    let compiled = compiler.arg("-static").arg(source).arg("-o").arg(&program).status().unwrap();
    assert!(compiled.success());
    for [kernel, module, _] in built() {
        let file = folder.path().join("tax.json");
        let mut command = profiler();
        command.args(["tax", "--quiet", "--kernel"]).arg(kernel).arg("--with").arg(module);
        command.arg("--json").arg(&file).arg("--").arg(&program);
        let commands =
            ["empty 100", "nested 50", "tail 30", "recurse 10", "sleep 1000 20", "irq 20"];
        succeed({
            command.args(commands).arg("twins 10");
            command
        });
        let report = std::fs::read(&file).unwrap();
        let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
        let tax = super::tax::Tax(&report["operations"][0]["with"][0]);
        for (function, calls) in [
            ("testbed_empty", 130.0),
            ("testbed_outer", 50.0),
            ("testbed_inner", 50.0),
            ("tail_caller", 30.0),
            ("testbed_recurse", 10.0),
            ("testbed_sleep", 20.0),
            ("testbed_irq_victim", 40.0),
            ("testbed_twin#1", 10.0),
            ("testbed_twin#2", 20.0),
        ] {
            assert_eq!(tax.function(function)[0], calls, "{function}: {report:#}");
        }
    }
}

/// Live probes count each call: by the registers of arm64, and by what each kernel has for functions of modules.
#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn probes_measure_on_arm64() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("probes.json");
    let measured = |[kernel, module, _]: &[PathBuf; 3], operations: &str, more: &[&str]| {
        let mut command = profiler();
        command.args(["lab", "--quiet", "--meter", "probes", "--builtin", "connect"]);
        command
            .args(["--operations", operations, "--kernel"])
            .arg(kernel)
            .arg("--module")
            .arg(module);
        command.arg("--json").arg(&file).args(more);
        succeed(command);
        Recording::read(&file).unwrap()
    };
    let built = built();
    for (files, backend) in built.iter().zip([Backend::FunctionGraph, Backend::Fentry]) {
        let recording = measured(files, "300", &["--handler", "connect_*"]);
        assert_eq!(recording.host.arch, "aarch64");
        for handler in &recording.handlers {
            let found = (handler.count, handler.backend, handler.losses.exits);
            assert_eq!(found, (300, Some(backend), 300), "{handler:?}");
        }
        assert_eq!(recording.handlers.len(), 2);
    }
    let on_each_call = ["--handler", "every_call_handler", "--module-params", "every_call=1"];
    let more = [&on_each_call[..], &["--backend", "kprobe"]].concat();
    let [fewer, more] = ["300", "600"].map(|operations| {
        let handler = measured(&built[1], operations, &more).handlers.remove(0);
        assert_eq!((handler.backend, handler.losses.unmeasured()), (Some(Backend::Kprobe), 0));
        handler.count
    });
    // Each operation is a system call. What else the load makes, such as 240 calls to set itself up, differs by a few.
    assert!((300..330).contains(&(more - fewer)), "{fewer} {more}");
}

/// Debian's 6.1 for arm64 has no symbols of data, by which hooks are found.
#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn a_kernel_of_arm64_without_symbols_of_data_says_that_hooks_are_unknown() {
    let [kernel, baseline, _] = built().remove(0);
    let mut command = profiler();
    command.args(["list", "--json", "--module"]).arg(baseline).arg("--kernel").arg(kernel);
    let said = succeed(command);
    let found: serde_json::Value =
        serde_json::Deserializer::from_str(&said).into_iter().next().unwrap().unwrap();
    let (_, hooks) = found.as_object().unwrap().iter().next().unwrap();
    assert_eq!(hooks["list"], serde_json::json!([]));
    let unknown = hooks["unknown"][0].as_str().unwrap();
    assert!(unknown.contains("CONFIG_KALLSYMS_ALL"), "{unknown}");
}

/// Builds for two architectures are decided by one command, each on its kernel.
#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn a_gate_decides_builds_for_two_architectures_at_once() {
    let [kernel, base, slower] = built().remove(0);
    let mut command = profiler();
    command.args(["gate", "--quiet", "--handler", "connect_*", "--kernel"]).arg(kernel);
    command.arg("--kernel").arg(given("PROFILER_LAB_KERNEL"));
    command.arg("--baseline").arg(base).arg("--baseline").arg(baseline());
    command.arg("--candidate").arg(slower).arg("--candidate").arg(given("PROFILER_LAB_CANDIDATE"));
    let output = command.output().unwrap();
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(exit::REGRESSION.into()), "{said}");
    for (added, release) in [(ADDED, "-arm64"), (super::ADDED, "-amd64")] {
        let takes =
            format!("{release} takes {added:.1} instructions more a call: itself +{added:.1}");
        let line = said.lines().find(|line| line.contains(&takes));
        let line = line.unwrap_or_else(|| panic!("no `{takes}` in {said}"));
        assert!(line.contains("at testbed.h:"), "{line}");
        assert!(line.contains(&format!("; reaches {CHANGED} +")), "{line}");
    }
    // Hooks are known on one of the kernels alone.
    assert!(said.contains("what the builds register on 6.1"), "{said}");
    assert!(
        said.contains("\nchanged: 1 of 128 functions differs: connect_syscall_handler"),
        "{said}"
    );
}
