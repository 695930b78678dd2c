//! `profiler slope`: what handlers take for each unit of what they walk over.

use std::path::Path;
use std::process::Command;

use profiler_base::error::exit;
use serde_json::Value;

use super::super::program::text;
use super::agents::folder;
use super::{baseline, given, out, profiler};
use crate::common::agent;

/// A report, and how the command ended.
fn slope(dimension: &str, more: &[&str]) -> (Option<i32>, String, Value) {
    let file = out().join("slope.json");
    let mut command: Command = profiler();
    command.arg("slope").arg("--kernel").arg(given("PROFILER_LAB_KERNEL"));
    command.args(["--quiet", "--dimension", dimension, "--json"]).arg(&file).args(more);
    let output = command.output().unwrap();
    let report = std::fs::read(&file).map(|bytes| serde_json::from_slice(&bytes).unwrap());
    (output.status.code(), text(&output.stdout) + &text(&output.stderr), report.unwrap_or_default())
}

fn of<'a>(report: &'a Value, handler: &str) -> &'a Value {
    let mut handlers = report["handlers"].as_array().unwrap().iter();
    handlers.find(|it| it["handler"] == handler).unwrap_or_else(|| panic!("no {handler}: {report}"))
}

/// `execve` copies each byte of an argument.
#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn the_kernel_walks_over_arguments() {
    let (build, handler) = (baseline(), "__x64_sys_execve");
    let build = build.to_str().unwrap();
    let more = [build, "--builtin", "execve", "--handler", handler];
    let (code, said, report) = slope("args=100,8100,16100", &more);
    assert_eq!(code, Some(0), "{said}");
    let found = &of(&report, handler)["baseline"];
    assert!((0.2..6.0).contains(&found["per_unit"].as_f64().unwrap()), "{said}");
    assert_eq!(found["growth"], "linear", "{said}");
    let (code, said, _) = slope("depth=0,1", &[build]);
    assert_eq!(code, Some(exit::USAGE.into()), "{said}");
    assert!(said.contains("at least three"), "{said}");
}

/// A program that begins to look at each byte of an argument fails, by its slope alone.
#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn a_loop_over_an_argument_fails() {
    let source = agent::source("walk.bpf.c");
    let walk =
        |name: &str, define: &str| agent::compiled(&source, &folder(), name, &["-g", define]);
    let (base, head) = (walk("walk-0", "-DWALK=0"), walk("walk-1", "-DWALK=1"));
    let gate = |candidate: &Path| {
        let builds = [&*base, candidate].map(|file| file.to_str().unwrap());
        slope("args=10,60,110", &[builds[0], builds[1], "--handler", "on_execve"])
    };
    let (code, said, report) = gate(&base);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(of(&report, "on_execve")["more"], 0.0);
    let (code, said, report) = gate(&head);
    assert_eq!(code, Some(exit::REGRESSION.into()), "{said}");
    let found = of(&report, "on_execve");
    assert_eq!(found["candidate"]["growth"], "linear", "{said}");
    let of_byte = found["more"].as_f64().unwrap() / 100.0;
    assert!(of_byte > 2.0 && of_byte.fract() == 0.0, "{of_byte}: {said}");
    assert!(said.contains("slope: fail: on_execve"), "{said}");
}
