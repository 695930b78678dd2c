//! What a hit costs under other tools, beside this one: instructions that each adds, in one VM under virtual time.

mod document;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Deserialize;

use crate::cargo;
use crate::paths::Paths;
use crate::process;
use crate::series::Series;
use crate::setup::{self, Part};
use crate::testbed;
use crate::vm::{self, VmSpec, word};

/// A handler that runs inside a kprobe, and a function of the kernel: the load calls each once an operation.
const FUNCTIONS: [&str; 2] = ["connect_syscall_entry_handler", "__sys_connect"];

/// Operations under each tool. What a load does once (0.2 million instructions now and then) is 10 in each of so many.
const OPERATIONS: u32 = 20_000;

/// The packages of the tools.
const PACKAGES: [&str; 5] = ["libbpf-tools", "bpfcc-tools", "bpftrace", "linux-perf", "trace-cmd"];

const SCRIPT: &str = include_str!("guest.py");

/// Where the table is.
const DOCUMENT: &str = "docs/peers.md";

/// What the script in the VM writes.
#[derive(Debug, Deserialize)]
struct Measured {
    /// The kernel.
    release: String,
    /// Instructions of an operation without any tool, at first and at last.
    bare: [f64; 2],
    functions: Vec<Function>,
}

/// Tools on one function.
#[derive(Debug, Deserialize)]
struct Function {
    function: String,
    /// Instructions a hit that two readings of the clock and the kernel's trampoline take.
    limit: f64,
    rows: Vec<Row>,
}

/// One tool.
#[derive(Debug, Deserialize)]
struct Row {
    tool: String,
    version: String,
    /// Instructions a hit; absent if it did not attach.
    added: Option<f64>,
    /// Calls of the load, and those that the tool tells.
    made: Option<u64>,
    seen: u64,
    /// What it says of the duration.
    says: Option<String>,
    /// Why it did not attach.
    why_not: Option<String>,
}

/// Measures all tools, and writes the table.
pub(crate) fn run(paths: &Paths, series: Series) -> Result<()> {
    setup::ensure(paths, &[Part::Vm, Part::ModuleBuild, Part::Kernel(series), Part::Peers])?;
    let profiler = cargo::build_profiler(paths)?;
    let testbed = testbed::build(paths, series)?;
    let out = paths.target().join("bench");
    process::create_dir(&out)?;
    let (program, json) = (out.join("guest.py"), out.join(format!("peers-{series}.json")));
    process::write(&program, SCRIPT)?;
    let _ = fs::remove_file(&json);
    let script = script(&program, &profiler, &testbed, &paths.kernel(series), &json, &versions()?);
    let timeout = Duration::from_secs(3600);
    let spec = VmSpec { timeout, ..VmSpec::virtual_time("peers", series, &script) };
    let outcome = vm::run(paths, &spec)?;
    anyhow::ensure!(outcome.code == 0, "the measurement in the VM ended with {}", outcome.code);
    let measured: Measured =
        serde_json::from_value(process::read_json(&json)?).context("what the VM wrote")?;
    let document = paths.root().join(DOCUMENT);
    process::write(&document, document::render(&measured, series, &process::today()?))?;
    println!("peers: {}", document.display());
    Ok(())
}

/// Versions of all tools by package, as JSON.
fn versions() -> Result<String> {
    let mut query = Command::new("dpkg-query");
    query.args(["-W", "-f", "${Package} ${Version}\n"]).args(PACKAGES);
    let found = process::stdout(&mut query)?;
    let mut versions: serde_json::Map<String, serde_json::Value> = found
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(package, version)| (package.to_owned(), version.into()))
        .collect();
    versions.insert("profiler".to_owned(), env!("CARGO_PKG_VERSION").into());
    Ok(serde_json::Value::Object(versions).to_string())
}

/// bcc compiles against the kernel's headers, which `/lib/modules` expects in `/usr/src`.
fn script(
    program: &Path,
    profiler: &Path,
    testbed: &Path,
    kernel: &Path,
    json: &Path,
    versions: &str,
) -> String {
    format!(
        "mount --bind {} /usr/src && insmod {} && ip link set lo up || exit\n\
         exec python3 {} --profiler {} --operations {OPERATIONS} --versions {} --output {} {}\n",
        word(&kernel.join("usr/src")),
        word(testbed),
        word(program),
        word(profiler),
        vm::quote(versions),
        word(json),
        FUNCTIONS.join(" "),
    )
}
