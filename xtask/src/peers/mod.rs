//! What a hit costs under other tools, beside this one: instructions that each adds, in one VM under virtual time.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

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

const HEAD: &str = "\
# Beside other tools

What a hit costs under this program and under others that measure how long a function takes, all in one VM with one
CPU under virtual time, where each instruction takes a nanosecond. A load of 20,000 `connect` calls reaches the
function once a call. What an operation takes more than without any tool is what the tool *adds a hit*. *To the limit*
is the ratio of that to the kernel's trampoline with a pair of programs that only read the clock. *Hits seen* are
those of the tool's own report. What it *says* is its average, or the bucket of its histogram that has the median.
That includes what the tool itself adds between its two readings of the clock, and each tool reads it at another
place: an fentry pair has only the function, while a kretprobe and the graph tracer also have what other probes on the
function do, such as the driver's handlers.
";

/// Measures all tools, and writes the table.
pub(crate) fn run(paths: &Paths, series: Series) -> Result<()> {
    setup::ensure(paths, &[Part::Vm, Part::ModuleBuild, Part::Kernel(series), Part::Peers])?;
    let profiler = cargo::build_profiler(paths)?;
    let testbed = testbed::build(paths, series)?;
    let out = paths.target().join("bench");
    process::create_dir(&out)?;
    let (program, tables) = (out.join("guest.py"), out.join(format!("peers-{series}.md")));
    process::write(&program, SCRIPT)?;
    let _ = fs::remove_file(&tables);
    let script =
        script(&program, &profiler, &testbed, &paths.kernel(series), &tables, &versions()?);
    let timeout = Duration::from_secs(3600);
    let spec = VmSpec { timeout, ..VmSpec::virtual_time("peers", series, &script) };
    let outcome = vm::run(paths, &spec)?;
    ensure!(outcome.code == 0, "the measurement in the VM ended with {}", outcome.code);
    let document = paths.root().join(DOCUMENT);
    let written = format!(
        "Written on {} by `cargo xtask bench --peers --kernel {series}`,",
        process::today()?
    );
    process::write(&document, format!("{HEAD}\n{written}\n{}", process::read(&tables)?))?;
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
    tables: &Path,
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
        word(tables),
        FUNCTIONS.join(" "),
    )
}
