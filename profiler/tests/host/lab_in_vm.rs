//! `profiler lab` and what the gate says of its recordings: two builds of the testbed, one of which is slower by a change of its
//! code. `cargo xtask test --boot lab` builds them, runs this and sets the variables. The recordings and logs stay in
//! `target/test/lab`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use profiler::error::exit;
use profiler::recording::{Clock, Meter, Recording, Series};
use profiler::stats::{median, spread};

use super::program::{text, wait_for};

/// The handler that is slower in the candidate, by 64 iterations of two instructions.
const CHANGED: &str = "connect_syscall_handler";
const UNCHANGED: &str = "connect_syscall_entry_handler";

/// The two instructions of each iteration, and those that set up the loop.
const ADDED: std::ops::RangeInclusive<f64> = 129.0..=133.0;

/// How far averages of one build may be apart; percentiles are equal.
const SPREAD: f64 = 0.0005;

/// What xtask built.
fn given(variable: &str) -> PathBuf {
    let path = std::env::var_os(variable);
    path.unwrap_or_else(|| panic!("no {variable}: `cargo xtask test --boot lab` sets it")).into()
}

fn baseline() -> PathBuf {
    given("PROFILER_LAB_BASELINE")
}

/// An empty folder.
fn out() -> &'static Path {
    static OUT: LazyLock<PathBuf> = LazyLock::new(|| {
        let out = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/test/lab");
        if out.exists() {
            std::fs::remove_dir_all(&out).unwrap();
        }
        std::fs::create_dir_all(&out).unwrap();
        out
    });
    &OUT
}

fn lab() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_profiler"));
    command.arg("lab").arg("--kernel").arg(given("PROFILER_LAB_KERNEL"));
    command.arg("--vng").arg(given("PROFILER_LAB_VNG")).arg("--logs").arg(out().join("logs"));
    command.args(["--quiet", "--handler", "connect_*", "--builtin", "connect"]);
    command
}

/// Runs a command that has to succeed.
fn succeed(mut command: Command) {
    let output = command.output().unwrap();
    println!("{}", text(&output.stdout));
    assert!(output.status.success(), "{}: {}", output.status, text(&output.stderr));
}

/// Baseline and candidate, measured in turns in two boots, once for all tests.
fn measured() -> &'static [Series; 2] {
    static MEASURED: LazyLock<[Series; 2]> = LazyLock::new(|| {
        let mut command = lab();
        command.arg("--baseline").arg(baseline());
        command.arg("--candidate").arg(given("PROFILER_LAB_CANDIDATE")).arg("--out").arg(out());
        succeed(command);
        ["baseline.json", "candidate.json"].map(|name| Series::read(&out().join(name)).unwrap())
    });
    &MEASURED
}

/// A figure of a handler in each run: a quantile, or the average.
fn figures(series: &Series, handler: &str, quantile: Option<f64>) -> Vec<f64> {
    let of_run = |run: &Recording| {
        let found = run.handlers.iter().find(|found| found.name == handler).unwrap();
        assert!(found.count >= 1_000, "{handler} was called {} times", found.count);
        match quantile {
            None => found.mean_ns().unwrap(),
            Some(quantile) => found.quantile_ns(quantile).unwrap() as f64,
        }
    };
    series.runs.iter().map(of_run).collect()
}

#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn both_builds_are_measured_in_turns() {
    // ABBAABBA in one boot, BAABBAAB in the other.
    let (outer, inner) = ([0, 3, 4, 7], [1, 2, 5, 6]);
    for (series, boots) in measured().iter().zip([[outer, inner], [inner, outer]]) {
        let expected: Vec<(u32, u32)> =
            (0..).zip(boots).flat_map(|(boot, orders)| orders.map(|order| (boot, order))).collect();
        let places = series.runs.iter().map(|run| run.place.as_ref().unwrap());
        let places: Vec<(u32, u32)> = places.map(|place| (place.boot, place.order)).collect();
        assert_eq!(places, expected, "{}", series.label);
        for run in &series.runs {
            assert_eq!((run.clock, run.meter), (Clock::Virtual, Meter::Exact));
            let cost = &run.driver_costs[0];
            assert!(cost.with_ns > cost.without_ns * 1.5, "{cost:?}");
        }
    }
    let [baseline, candidate] = measured().each_ref().map(|series| &series.runs[0].modules[0]);
    assert!(baseline.build_id.is_some());
    assert_ne!(baseline.build_id, candidate.build_id);
}

#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn runs_of_one_build_agree_to_the_instruction() {
    for series in measured() {
        for handler in [CHANGED, UNCHANGED] {
            for quantile in [None, Some(0.90), Some(0.95), Some(0.99)] {
                let figures = figures(series, handler, quantile);
                let spread = spread(&figures).unwrap();
                let allowed = if quantile.is_none() { SPREAD } else { 0.0 };
                assert!(
                    spread <= allowed,
                    "{}: {handler}, {quantile:?}: {figures:?}",
                    series.label
                );
            }
        }
    }
}

#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn a_change_of_the_code_is_measured() {
    let added = |handler| {
        let [baseline, candidate] =
            measured().each_ref().map(|series| median(&figures(series, handler, None)).unwrap());
        candidate - baseline
    };
    let (changed, unchanged) = (added(CHANGED), added(UNCHANGED));
    println!("{CHANGED} takes {changed:.2} instructions more, {UNCHANGED} {unchanged:.2}");
    assert!(ADDED.contains(&changed), "{CHANGED}: {changed} more, not {ADDED:?}");
    assert!(unchanged.abs() < 0.2, "{UNCHANGED}: {unchanged} more");
}

#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn the_change_is_explained() {
    let [baseline, candidate] = measured();
    let mut command = Command::new(env!("CARGO_BIN_EXE_profiler"));
    command.args(["explain", "baseline.json", "candidate.json", "--format", "json"]);
    command.args(["--handler", CHANGED]).current_dir(out());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let whole = |series: &Series| median(&figures(series, CHANGED, None)).unwrap();
    let all = text(&output.stdout);
    assert!(all.contains("handlers.c"), "{all}");
    let nodes = said["handlers"][0]["nodes"].as_array().unwrap();
    let sum = |field: &str| -> f64 { nodes.iter().map(|node| node[field].as_f64().unwrap()).sum() };
    let (change, moved) = (sum("change"), sum("moved"));
    let measured = whole(candidate) - whole(baseline);
    assert!(
        (change + moved - measured).abs() < 0.05,
        "{change} and {moved}, not {measured}: {all}"
    );
    assert_eq!(moved, 0.0, "{all}");
}

#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn a_gate_that_fails_ends_a_script() {
    measured();
    let mut script = Command::new("sh");
    script.args(["-ec", "\"$0\" gate baseline.json candidate.json; echo NOT-REACHED"]);
    let output = script.arg(env!("CARGO_BIN_EXE_profiler")).current_dir(out()).output().unwrap();
    let all = text(&output.stdout) + &text(&output.stderr);
    assert_eq!(output.status.code(), Some(i32::from(exit::REGRESSION)), "{all}");
    assert!(!all.contains("NOT-REACHED"), "{all}");
    let failed: Vec<&str> =
        all.lines().filter(|line| line.to_lowercase().contains("fail")).collect();
    assert!(failed.iter().any(|line| line.contains(CHANGED)), "{all}");
    assert!(!failed.iter().any(|line| line.contains(UNCHANGED)), "{all}");
}

/// The costs of loads that run side by side are timed one after another: what the driver adds to a `connect` is
/// what it adds where `connect` is the only load. Waiting is not a cost, so no operation gets cheaper by the driver.
/// Of the four handlers one differs, and so its load alone is measured again: twice 4 v 4 runs after twice 2 v 2. The next time
/// the baseline is known, and for that load only runs of both builds in the same boots count.
#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn two_builds_are_decided_and_explained_by_one_command() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    let plan = gate_of_two(&folder.path().join("first"), &cache, (4, 12));
    assert!(
        plan.contains("the builds in turns, 2 v 2: 16 runs") && !plan.contains("cache"),
        "{plan}"
    );
    let plan = gate_of_two(&folder.path().join("second"), &cache, (4, 8));
    let parts = ["baseline  measured before, from the cache", "2 runs of the candidate: 8 runs"];
    assert!(parts.iter().all(|part| plan.contains(part)), "{plan}");
}

/// Has both builds decided, with so many runs of each side under `bind` and `connect`; what it says on standard error.
fn gate_of_two(out_folder: &Path, cache: &Path, counts: (usize, usize)) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_profiler"));
    command.arg("gate").arg("--baseline").arg(baseline());
    command.arg("--candidate").arg(given("PROFILER_LAB_CANDIDATE"));
    command.arg("--kernel").arg(given("PROFILER_LAB_KERNEL"));
    command.arg("--vng").arg(given("PROFILER_LAB_VNG")).arg("--logs").arg(out().join("logs"));
    command.arg("--cache").arg(cache).arg("--out").arg(out_folder);
    command.args(["--handler", "connect_syscall_*", "--handler", "bind_*"]);
    let output = command.output().unwrap();
    let said = text(&output.stdout);
    println!("{said}{}", text(&output.stderr));
    assert_eq!(output.status.code(), Some(exit::REGRESSION.into()), "{said}");
    let headline =
        "gate: fail: 1 handler became slower, of 4; an operation of connect became slower, too\n";
    assert!(said.starts_with(headline), "{said}");
    let start = format!("slower: connect: {CHANGED}: 131.0 instructions more a call (");
    let slower = said.lines().find(|line| line.starts_with(&start));
    let slower = slower.unwrap_or_else(|| panic!("no `{start}`: {said}"));
    assert!(slower.ends_with("at testbed.h:103 +131.0"), "{slower}");
    for name in ["baseline.json", "candidate.json"] {
        let runs = Series::read(&out_folder.join(name)).unwrap().runs;
        let of = |part: &str| {
            let is_of = |run: &&Recording| {
                run.place.as_ref().is_some_and(|place| place.part.as_deref() == Some(part))
            };
            runs.iter().filter(is_of).count()
        };
        assert_eq!((of("bind"), of("connect")), counts, "{name}");
    }
    // What the handler takes more is what the driver costs an operation more: nothing around it differs.
    let costs = ["baseline.json", "candidate.json"].map(|name| -> Vec<f64> {
        let runs = Series::read(&out_folder.join(name)).unwrap().runs;
        let costs = runs.iter().flat_map(|run| &run.driver_costs);
        costs.filter(|cost| cost.load.name() == "connect").map(|cost| cost.added_ns()).collect()
    });
    let [base, candidate] = costs.each_ref().map(|costs| median(costs).unwrap());
    println!("an operation of connect: {costs:?}");
    assert!((candidate - base - 131.0).abs() < 1.0, "{costs:?}");
    text(&output.stderr)
}

#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn a_driver_costs_the_same_beside_other_loads() {
    let file = out().join("costs.json");
    let mut command = lab();
    command.args(["--meter", "probes", "--builtin", "execve,bind,open", "--operations", "200"]);
    command.arg("--module");
    command.arg(baseline()).arg("--json").arg(&file);
    succeed(command);
    let costs = Recording::read(&file).unwrap().driver_costs;
    assert_eq!(costs.len(), 4, "{costs:?}");
    assert!(costs.iter().all(|cost| cost.added_ns() > 0.0), "{costs:?}");
    let connect = costs.iter().find(|cost| cost.load.name() == "connect").unwrap();
    let (beside, alone) = (connect.added_ns(), measured()[0].runs[0].driver_costs[0].added_ns());
    println!("the driver adds {beside:.1} ns to a connect, {alone:.1} ns to one alone");
    // There are fewer operations to share a timer interrupt.
    assert!((beside - alone).abs() <= 0.05 * alone, "{beside} ns are added, and {alone} ns alone");
}

#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn the_kernel_says_why_a_driver_does_not_load() {
    let mut command = lab();
    command.arg("--module").arg(baseline()).args(["--module-params", "maxactive=1"]);
    let output = command.output().unwrap();
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(i32::from(exit::LAB_FAILED)), "{error}");
    for part in ["did not load hids_testbed with `maxactive=1`", "maxactive=1 is outside"] {
        assert!(error.contains(part), "no `{part}` in\n{error}");
    }
}

#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn nothing_is_left_of_a_lab_that_is_killed() {
    let temporary = tempfile::tempdir().unwrap();
    let mut command = lab();
    command.arg("--module").arg(baseline()).env("TMPDIR", temporary.path());
    let mut lab = command.stdout(Stdio::null()).spawn().unwrap();
    // QEMU's plugin and the guest's folders are in that folder.
    let has_processes = |program: &str| {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let lines = processes.filter_map(|of| std::fs::read(of.path().join("cmdline")).ok());
        let mut lines = lines.map(|line| String::from_utf8_lossy(&line).into_owned());
        lines
            .any(|line| line.contains(program) && line.contains(temporary.path().to_str().unwrap()))
    };
    wait_for("the VM", || has_processes("qemu-system-x86_64"));
    lab.kill().unwrap();
    lab.wait().unwrap();
    wait_for("the end of the VM", || !has_processes(""));
    let is_empty = || std::fs::read_dir(temporary.path()).unwrap().next().is_none();
    wait_for("the removal of the files", is_empty);
}

/// A folder whose `qemu-system-x86_64` runs `script` before the real one, to which it hands `"$@"`; `$lab` is the folder of
/// the boot.
fn sabotage(script: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = std::env::var("PATH").unwrap();
    let mut all = std::env::split_paths(&path).map(|folder| folder.join("qemu-system-x86_64"));
    let real = all.find(|path| path.is_file()).expect("QEMU is there");
    let script = format!(
        "#!/bin/bash\nfor word; do case $word in *,counts=*) lab=${{word##*,counts=}}; lab=${{lab%/counts}};; esac; done\n\
         qemu={}\n{script}\nexec \"$qemu\" \"$@\"\n",
        real.display()
    );
    let program = folder.path().join("qemu-system-x86_64");
    std::fs::write(&program, script).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, mode).unwrap();
    folder
}

/// A script that waits for a file of the boot, and then runs `what`. QEMU is also asked what it can do, without a boot.
fn after(file: &str, what: &str) -> String {
    format!(
        "[ -n \"$lab\" ] && (while [ -d $lab ]; do [ -e $lab/{file} ] && {{ {what}; exit; }}; sleep 0.05; done) \
         >/dev/null 2>&1 &"
    )
}

/// Exit code and message of a lab of three runs of the baseline on that QEMU, and the runs that it saved.
fn sabotaged(script: &str) -> (i32, String, usize) {
    let folder = sabotage(script);
    let mut command = lab();
    let mut path = folder.path().as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap());
    let file = folder.path().join("saved.json");
    command.env("PATH", path).arg("--module").arg(baseline()).arg("--json").arg(&file);
    command.args(["--operations", "50", "--repeat", "3", "--no-cost"]);
    let output = command.output().unwrap();
    let saved = Series::read(&file).map_or(0, |series| series.runs.len());
    let error = text(&output.stderr);
    println!("{error}");
    (output.status.code().unwrap(), error, saved)
}

#[track_caller]
fn assert_ends(script: &str, code: u8, saved: usize, parts: &[&str]) {
    let (ended, error, runs) = sabotaged(script);
    assert_eq!((ended, runs), (i32::from(code), saved), "{error}");
    for part in parts {
        assert!(error.contains(part), "no `{part}` in\n{error}");
    }
}

#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn a_qemu_that_does_not_take_the_plugin_is_named_with_the_remedy() {
    let script = r#"set -- "${@/*profiler-qemu.so,//no/such.so,}""#;
    let parts = [
        "boot 0: QEMU does not take the plugin",
        "Could not load plugin /no/such.so",
        "--meter probes",
    ];
    assert_ends(script, exit::CANNOT_MEASURE, 0, &parts);
}

/// The first QEMU of the boot aborts as 7.2 does now and then.
#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn a_boot_that_qemu_breaks_is_begun_again() {
    let script = "[ -n \"$lab\" ] && [ ! -e \"$lab.broke\" ] && { touch \"$lab.broke\"\n\
                  echo 'ERROR:../plugins/core.c:473:qemu_plugin_vcpu_mem_cb: code should not be reached' >&2; kill -ABRT $$; }";
    let (ended, error, runs) = sabotaged(script);
    assert_eq!((ended, runs), (0, 3), "{error}");
    let start =
        "warning: boot 0: QEMU ended by an error of its own, and the boot is begun again: ERROR:";
    assert!(error.contains(start), "{error}");
}

#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn a_request_that_nobody_hears_is_an_error() {
    let script = "args=()\nwhile [ $# -gt 0 ]; do\n\
                  case $1 in -plugin) shift 2 ;; *) args+=(\"$1\"); shift ;; esac\ndone\nset -- \"${args[@]}\"";
    let parts = ["boot 0, run 0: the plugin in QEMU has written no counts", "--meter probes"];
    assert_ends(script, exit::LAB_FAILED, 0, &parts);
}

/// Each script breaks the second of three runs; the first is saved, and the third where it took place. What else may be in a
/// file of counts, `lab::counts` tests without a VM.
#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn complete_runs_are_kept_whatever_becomes_of_the_counts() {
    // The guest asks for the second run after it has written the first recording.
    let kill = after("handlers-1.json", "kill -KILL $$");
    assert_ends(
        &kill,
        exit::LAB_FAILED,
        1,
        &["boot 0, run 1: the VM ended before the command did"],
    );
    let in_the_way = after("run-0.json", "mkdir $lab/counts.part");
    let parts = [
        "boot 0, run 1: the plugin in QEMU could not count",
        "/counts cannot be written: Is a directory",
    ];
    assert_ends(&in_the_way, exit::LAB_FAILED, 1, &parts);
    // A driver may put a link in a file's place: QEMU, which runs as the user, does not write through it.
    let others = tempfile::tempdir().unwrap();
    let victim = others.path().join("victim");
    let link = format!("ln -s {} $lab/counts.part", victim.display());
    let cut = after("run-2.json", "truncate -s 1000 $lab/counts-1");
    let parts = ["boot 0, run 1: the counts of QEMU's plugin are damaged: "];
    assert_ends(&[after("run-0.json", &link), cut].join("\n"), exit::LAB_FAILED, 2, &parts);
    assert!(!victim.exists(), "QEMU has written through the guest's link");
}

#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn source_lines_of_another_build_are_refused() {
    let other = given("PROFILER_LAB_CANDIDATE");
    let replace =
        format!("for ko in $lab/../../*/baseline.ko; do cp {} $ko; done", other.display());
    let script = after("run-2.json", &replace);
    let parts =
        ["boot 0, run 0: the hids_testbed that ran has build id ", "it was replaced meanwhile"];
    assert_ends(&script, exit::LAB_FAILED, 0, &parts);
}
