//! `profiler lab` and what the gate says of its recordings: two builds of the testbed, one of which is slower by a change of its
//! code. `cargo xtask test --boot lab` builds them, runs this and sets the variables. The recordings and logs stay in
//! `target/test/lab`.

mod agents;
mod arm64;
mod planted;
mod slope;
mod tax;

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use profiler_base::error::exit;
use profiler_base::stats::median;
use profiler_load::LoadSpec;
use profiler_recording::{Backend, Clock, Meter, Recording, Series};

use super::program::{text, wait_for};

/// The handler that is slower in the candidate, by 64 iterations of two instructions.
const CHANGED: &str = "connect_syscall_handler";
const UNCHANGED: &str = "connect_syscall_entry_handler";

/// The two instructions of each iteration, and those that set up the loop.
const ADDED: f64 = 131.0;

/// What a gate says of it: the loop is inlined there.
const SLOWER: &str = "slower: tb_spin_loop takes 131.0 instructions more a call: itself +131.0 at testbed.h:132; reaches \
    connect_syscall_handler +";

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

/// `profiler` with the snapshots of all tests.
fn profiler() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_profiler"));
    command.env("XDG_CACHE_HOME", out().join("cache"));
    command
}

fn lab() -> Command {
    let mut command = profiler();
    command.arg("lab").arg("--kernel").arg(given("PROFILER_LAB_KERNEL"));
    command.args(["--quiet", "--handler", "connect_*", "--builtin", "connect"]);
    command
}

/// Runs a command that has to succeed; what it says.
fn succeed(mut command: Command) -> String {
    let output = command.output().unwrap();
    let said = text(&output.stdout) + &text(&output.stderr);
    println!("{said}");
    assert!(output.status.success(), "{}: {said}", output.status);
    said
}

/// Baseline and candidate, each under two placements, once for all tests.
fn measured() -> &'static [Series; 2] {
    static MEASURED: LazyLock<[Series; 2]> = LazyLock::new(|| {
        let mut command = lab();
        command.arg("--baseline").arg(baseline()).args(["--placements", "2"]);
        command.arg("--candidate").arg(given("PROFILER_LAB_CANDIDATE")).arg("--out").arg(out());
        succeed(command);
        ["baseline.json", "candidate.json"].map(|name| Series::read(&out().join(name)).unwrap())
    });
    &MEASURED
}

fn checksum(recording: &Recording) -> &str {
    &recording.snapshot.as_ref().expect("an exact run names its snapshot").counts_sha256
}

/// A figure of a handler in each run: a quantile, or the average.
fn figures(series: &Series, handler: &str, quantile: Option<f64>) -> Vec<f64> {
    let of_run = |run: &Recording| {
        let found = run.handlers.iter().find(|found| found.name == handler).unwrap();
        assert_eq!(found.count, 1_000, "{handler}");
        match quantile {
            None => found.mean_ns().unwrap(),
            Some(quantile) => found.quantile_ns(quantile).unwrap() as f64,
        }
    };
    series.runs.iter().map(of_run).collect()
}

/// What the testbed's sources say: two kprobes, and a kretprobe for each pair of handlers.
#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn what_a_build_registers_is_read_out_of_the_guest() {
    let mut command = profiler();
    command.args(["list", "--json", "--module-params", "maxactive=17", "--module"]).arg(baseline());
    command.arg("--kernel").arg(given("PROFILER_LAB_KERNEL"));
    let said = succeed(command);
    // What follows is the progress.
    let found: serde_json::Value =
        serde_json::Deserializer::from_str(&said).into_iter().next().unwrap().unwrap();
    let (_, hooks) = found.as_object().unwrap().iter().next().unwrap();
    let kretprobe = |place: &str, of: &str, entry: &str, handler: &str| {
        serde_json::json!({
            "kind": "kretprobe", "place": place, "handlers": [format!("{of}{entry}"), format!("{of}{handler}")],
            "maxactive": 17, "state": "ftrace", "missed": 0, "beyond_maxactive": 0,
        })
    };
    let kprobe = |place: &str, handler: &str| {
        serde_json::json!({
            "kind": "kprobe", "place": place, "handlers": [handler],
            "state": "ftrace", "missed": 0, "beyond_maxactive": 0,
        })
    };
    let expected = [
        kprobe("arch_ptrace", "ptrace_pre_handler"),
        kprobe("security_inode_create", "security_inode_create_pre_handler"),
        kretprobe("__sys_bind", "bind", "_entry_handler", "_handler"),
        kretprobe("__sys_connect", "connect", "_syscall_entry_handler", "_syscall_handler"),
        kretprobe("bprm_execve", "execve", "_entry_handler", "_handler"),
        kretprobe("udp_recvmsg", "udp_recvmsg", "_entry_handler", "_handler"),
    ];
    assert_eq!(hooks["list"], serde_json::json!(expected));
    assert_eq!(hooks.get("unknown"), None);
    for run in measured().iter().flat_map(|side| &side.runs) {
        let hooks = run.modules[0].hooks.as_ref().unwrap();
        let places: Vec<&str> = hooks.list.iter().map(|hook| hook.place.as_str()).collect();
        let expected = expected.each_ref().map(|hook| hook["place"].as_str().unwrap());
        assert_eq!(places, expected);
    }
}

#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn each_build_is_measured_in_each_placement() {
    for (side, series) in (0..).zip(measured()) {
        let places = series.runs.iter().map(|run| run.place.as_ref().unwrap());
        let places: Vec<(u32, u32)> = places.map(|place| (place.boot, place.order)).collect();
        assert_eq!(places, [(0, side), (1, side)], "{}", series.label);
        for (placement, run) in (0..).zip(&series.runs) {
            assert_eq!((run.clock, run.meter), (Clock::Virtual, Meter::Exact));
            assert_eq!(run.snapshot.as_ref().unwrap().placement, placement);
            let cost = &run.driver_costs[0];
            assert!(cost.with_ns > cost.without_ns * 1.5, "{cost:?}");
        }
        assert_ne!(checksum(&series.runs[0]), checksum(&series.runs[1]), "one placement twice");
    }
    let [baseline, candidate] = measured().each_ref().map(|series| &series.runs[0].modules[0]);
    assert!(baseline.build_id.is_some());
    assert_ne!(baseline.build_id, candidate.build_id);
}

/// Four runs of one build, in two snapshots of it from two boots of the kernel: one checksum.
#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn a_run_repeats_to_the_bit_whatever_it_is_restored_from() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.json");
    let mut seen = std::collections::BTreeSet::new();
    for cache in [out().join("cache"), folder.path().to_owned()] {
        let mut command = lab();
        command.env("XDG_CACHE_HOME", &cache).arg("--module").arg(baseline());
        command.arg("--json").arg(&file).args(["--verify", "--no-cost"]);
        succeed(command);
        seen.insert(checksum(&Recording::read(&file).unwrap()).to_owned());
    }
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert!(
        seen.contains(checksum(&measured()[0].runs[0])),
        "beside other runs it counts otherwise"
    );
}

#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn each_kernel_counts_all_calls_and_repeats_to_the_bit() {
    let others: Vec<PathBuf> = std::env::split_paths(&given("PROFILER_LAB_OTHERS")).collect();
    for pair in others.chunks(2) {
        let [kernel, module] = pair else { panic!("a kernel and a module") };
        let json = out().join("other.json");
        let mut command = profiler();
        command.arg("lab").arg("--kernel").arg(kernel).arg("--module").arg(module);
        command.args(["--quiet", "--handler", "connect_*", "--builtin", "connect", "--no-cost"]);
        // Fails unless a second run has the same checksum.
        command.args(["--verify", "--placements", "1"]).arg("--json").arg(&json);
        succeed(command);
        let series = Series::read(&json).unwrap();
        for handler in [CHANGED, UNCHANGED] {
            // Of 1,000 calls.
            assert!(figures(&series, handler, None)[0] > 0.0, "{}", kernel.display());
        }
    }
}

#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn a_change_of_the_code_is_measured_to_the_instruction() {
    for quantile in [None, Some(0.50), Some(0.90), Some(0.95), Some(0.99)] {
        let added = |handler: &str| -> Vec<f64> {
            let [baseline, candidate] =
                measured().each_ref().map(|series| figures(series, handler, quantile));
            candidate
                .iter()
                .zip(baseline)
                .map(|(candidate, baseline)| candidate - baseline)
                .collect()
        };
        assert_eq!(added(CHANGED), [ADDED; 2], "{quantile:?}");
        assert_eq!(added(UNCHANGED), [0.0; 2], "{quantile:?}");
    }
}

/// A tracepoint on each system call is in no other load's way, so that one call more costs as much as another.
#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn a_hook_on_every_system_call_makes_each_dearer_by_the_same() {
    let operation = |load: &str, hooked: u8| {
        let file = out().join(format!("every-call-{load}-{hooked}.json"));
        let mut command = profiler();
        command.arg("lab").arg("--kernel").arg(given("PROFILER_LAB_KERNEL"));
        command.arg("--module").arg(baseline()).args(["--quiet", "--operations", "200"]);
        command.args(["--builtin", load, "--handler", "every_call_handler"]);
        command.args(["--module-params", &format!("every_call={hooked}"), "--json"]).arg(&file);
        let output = command.output().unwrap();
        // Without the hook nothing of the driver is reached, and what was measured is kept.
        let expected = if hooked == 0 { exit::NO_HITS } else { 0 };
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(expected.into()), "{load}: {said}");
        let recording = Recording::read(&file).unwrap();
        (recording.driver_costs[0].with_ns, recording.handlers[0].count)
    };
    let calls = [("getppid", 1), ("pipe", 2)].map(|(load, calls)| {
        let ((before, none), (after, hits)) = (operation(load, 0), operation(load, 1));
        assert_eq!(none, 0, "{load}");
        assert!(hits >= 200 * calls, "{load}: {hits} calls of the handler");
        (after - before) / calls as f64
    });
    println!("a system call takes {calls:?} more");
    assert!(calls[0] >= 10.0, "{calls:?}");
    assert!(calls.iter().all(|more| (more - calls[0]).abs() < 1e-9), "{calls:?}");
}

/// Counting needs no tracing: a function that no probe can be placed on is a handler as others are, though no load calls this one.
#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn a_function_that_cannot_be_traced_is_counted() {
    let file = out().join("notrace.json");
    let mut command = profiler();
    command.arg("lab").arg("--kernel").arg(given("PROFILER_LAB_KERNEL"));
    command.args(["--quiet", "--builtin", "connect", "--operations", "20", "--no-cost"]);
    command.args(["--handler", "testbed_notrace", "--handler", CHANGED]);
    command.arg("--module").arg(baseline()).arg("--json").arg(&file);
    succeed(command);
    let recording = Recording::read(&file).unwrap();
    let counts: Vec<_> = recording.handlers.iter().map(|it| (&*it.name, it.count)).collect();
    assert_eq!(counts, [("testbed_notrace", 0), (CHANGED, 20)]);
    assert_eq!(recording.left_out, []);
}

/// A driver that hooks nothing until a program asks for it: with the program it does, and a program that fails is no agent.
#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn an_agent_has_the_driver_hook_the_kernel() {
    let file = out().join("agent.json");
    let lab = |agent: &str| {
        let mut command = profiler();
        command.arg("lab").arg("--kernel").arg(given("PROFILER_LAB_KERNEL"));
        command.arg("--module").arg(baseline()).args(["--quiet", "--operations", "200"]);
        command.args(["--builtin", "getppid", "--handler", "every_call_handler", "--verify"]);
        command.args(["--agent", agent, "--json"]).arg(&file);
        let output = command.output().unwrap();
        (output.status.code().unwrap(), text(&output.stderr))
    };
    let hook = "echo 1 >/sys/module/hids_testbed/parameters/every_call";
    // It ends; it goes on and is stopped; what it has left is.
    for agent in [
        format!("sh -c '{hook}'"),
        format!("sh -c '{hook}; kill -STOP $$'"),
        format!("sh -c '(read line </dev/console) & {hook}'"),
    ] {
        let (code, said) = lab(&agent);
        assert_eq!(code, 0, "{agent}: {said}");
        let recording = Recording::read(&file).unwrap();
        assert!(recording.handlers[0].count >= 200, "{agent}");
        let hooks = recording.modules[0].hooks.as_ref().unwrap();
        let is_it = |name: &String| name == "every_call_handler";
        assert!(hooks.list.iter().any(|hook| hook.handlers.iter().any(is_it)), "{agent}");
        let ran = recording.snapshot.unwrap().agent.unwrap();
        assert!(ran.contains(hook), "{ran}");
    }
    let (code, said) = lab("sh -c 'echo no device; exit 3'");
    assert_eq!(code, i32::from(exit::LAB_FAILED), "{said}");
    assert!(said.contains("exit status: 3; it said:\nno device"), "{said}");
    // Without the program nothing is hooked: what is above is by it.
    let (code, said) = lab("true");
    assert_eq!(code, i32::from(exit::NO_HITS), "{said}");
}

#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn the_change_is_explained() {
    let [baseline, candidate] = measured();
    let mut command = profiler();
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

/// Two builds that differ in one handler, and then with the baseline from the cache.
#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn two_builds_are_decided_and_explained_by_one_command() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    let first = gate_of_two(&folder.path().join("first"), &cache);
    assert!(
        first.contains("runs      4 in 2 guests") && !first.contains("from the cache"),
        "{first}"
    );
    let second = gate_of_two(&folder.path().join("second"), &cache);
    let parts = ["baseline  measured before, from the cache", "runs      2 in 1 guest "];
    assert!(parts.iter().all(|part| second.contains(part)), "{second}");
}

/// Has both builds decided under `bind` and `connect`; what it says on standard error.
fn gate_of_two(out_folder: &Path, cache: &Path) -> String {
    let mut command = profiler();
    command.arg("gate").arg("--baseline").arg(baseline());
    command.arg("--candidate").arg(given("PROFILER_LAB_CANDIDATE"));
    command.arg("--kernel").arg(given("PROFILER_LAB_KERNEL"));
    command.arg("--cache").arg(cache).arg("--out").arg(out_folder);
    command.args(["--handler", "connect_syscall_*", "--handler", "bind_*"]);
    let output = command.output().unwrap();
    let said = text(&output.stdout);
    println!("{said}{}", text(&output.stderr));
    assert_eq!(output.status.code(), Some(exit::REGRESSION.into()), "{said}");
    let headline =
        "gate: fail: 2 of 2 hooks reached, 2 operations; 1 handler became slower, of 4; ";
    assert!(said.starts_with(headline), "{said}");
    assert!(said.contains(&format!("\n{SLOWER}")), "no `{SLOWER}`: {said}");
    for name in ["baseline.json", "candidate.json"] {
        let runs = Series::read(&out_folder.join(name)).unwrap().runs;
        let of = |part: &str| -> Vec<u32> {
            let places = runs.iter().filter_map(|run| run.place.as_ref());
            let places = places.filter(|place| place.part.as_deref() == Some(part));
            places.map(|place| place.boot).collect()
        };
        assert_eq!(of("connect"), [0, 1, 2], "{name}");
        assert_eq!(of("bind")[0], 0, "{name}");
    }
    // What the handler takes more is what the driver costs an operation more: nothing around it differs.
    let costs = ["baseline.json", "candidate.json"].map(|name| -> Vec<f64> {
        let runs = Series::read(&out_folder.join(name)).unwrap().runs;
        let costs = runs.iter().flat_map(|run| &run.driver_costs);
        costs.filter(|cost| cost.load.name() == "connect").map(|cost| cost.added_ns()).collect()
    });
    // In one of some hundred operations the kernel refills a cache, and how many do depends on where objects lie.
    let [base, candidate] = &costs;
    let added = candidate.iter().zip(base).map(|(candidate, base)| candidate - base);
    assert!(added.into_iter().all(|added| (added - ADDED).abs() < 3.0), "{costs:?}");
    text(&output.stderr)
}

/// Under virtual time probes run in a guest from the same snapshot, on the wall clock in one that boots.
#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn probes_measure_in_the_same_guest() {
    for (clock, more) in [("virtual", &[][..]), ("wall", &["--cpus", "2"])] {
        let file = out().join(format!("probes-{clock}.json"));
        let mut command = lab();
        command.args(["--meter", "probes", "--clock", clock, "--operations", "300"]).args(more);
        command.arg("--module").arg(baseline()).arg("--json").arg(&file);
        succeed(command);
        let recording = Recording::read(&file).unwrap();
        let handler = recording.handlers.iter().find(|found| found.name == CHANGED).unwrap();
        assert_eq!((handler.count, recording.meter), (300, Meter::Probes), "{clock}");
    }
}

/// `dup_fd` copies each descriptor for a child, and `execve` each byte of an argument.
#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn operations_give_handlers_more_to_walk_over() {
    let average = |builtin: &str, handler: &str, dimensions: &str| {
        let file = out().join("dimensions.json");
        let mut command = profiler();
        command.arg("lab").arg("--kernel").arg(given("PROFILER_LAB_KERNEL")).arg("--quiet");
        command.args(["--builtin", builtin, "--handler", handler, "--operations", "100"]);
        command.args(["--dimensions", dimensions, "--no-cost", "--json"]).arg(&file);
        command.arg("--module").arg(baseline());
        succeed(command);
        let recording = Recording::read(&file).unwrap();
        let LoadSpec::Builtin { dimensions: of_load, .. } = &recording.loads[0].spec else {
            panic!("{:?}", recording.loads);
        };
        assert_eq!(of_load.to_string(), dimensions);
        recording.handlers.iter().find(|found| found.name == handler).unwrap().mean_ns()
    };
    let descriptors = ["descriptors=100", "descriptors=200", "descriptors=300"];
    let [few, more, most] = descriptors.map(|it| average("setsid", "dup_fd", it).unwrap());
    assert!(more - few > 200.0 && (most - more) / (more - few) < 1.2, "{few} {more} {most}");
    let execve = |dimensions| average("execve", "__x64_sys_execve", dimensions).unwrap();
    let [short, long] = ["args=100", "args=8100"].map(execve);
    assert!((1_000.0..50_000.0).contains(&(long - short)), "{short} {long}");
    assert!(average("setsid", "ksys_setsid", "depth=3,ancestors=20").is_some());
}

/// Each load on files has a folder of its own.
#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn two_loads_go_side_by_side() {
    let file = out().join("side-by-side.json");
    let mut command = profiler();
    command.arg("lab").arg("--kernel").arg(given("PROFILER_LAB_KERNEL")).arg("--quiet");
    command.args(["--handler", "security_*", "--builtin", "open,rename", "--no-cost"]);
    command.arg("--module").arg(baseline()).arg("--json").arg(&file);
    succeed(command);
    let recording = Recording::read(&file).unwrap();
    let complete = |run: &profiler_load::LoadRun| run.outcome.errors.is_empty();
    assert!(
        recording.loads.len() == 2 && recording.loads.iter().all(complete),
        "{:?}",
        recording.loads
    );
    assert_eq!(
        recording.handlers[0].count, 1_001,
        "one for each file of `open`, and the file of `rename`"
    );
}

/// The user nobody, with a PATH that has QEMU alone.
#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn qemu_alone_is_needed_and_no_root() {
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
    use std::os::unix::process::CommandExt as _;
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    for name in ["bin", "home", "tmp"] {
        std::fs::create_dir(path(name)).unwrap();
        chown(path(name), Some(65_534), Some(65_534)).unwrap();
    }
    symlink(qemu(), path("bin/qemu-system-x86_64")).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_profiler"), path("profiler")).unwrap();
    for (from, to) in [
        (baseline(), "base.ko"),
        (given("PROFILER_LAB_CANDIDATE"), "head.ko"),
        (given("PROFILER_LAB_KERNEL"), "vmlinuz"),
    ] {
        std::fs::copy(from, path(to)).unwrap();
    }
    let mut lab = Command::new(path("profiler"));
    lab.uid(65_534).gid(65_534).args(["lab", "--baseline", "base.ko", "--candidate", "head.ko"]);
    lab.args(["--kernel", "vmlinuz", "--handler", "connect_syscall_*", "--builtin", "connect"]);
    lab.args(["--placements", "1", "--no-cost", "--out", "home"]).current_dir(folder.path());
    lab.env_clear().env("PATH", path("bin")).env("HOME", path("home")).env("TMPDIR", path("tmp"));
    succeed(lab);
    let series = ["baseline", "candidate"].map(|side| {
        figures(
            &Series::read(&path("home").join(side).with_extension("json")).unwrap(),
            CHANGED,
            None,
        )[0]
    });
    assert_eq!(series[1] - series[0], ADDED);
    assert!(std::fs::read_dir(path("tmp")).unwrap().next().is_none(), "files are left");
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

/// The real QEMU.
fn qemu() -> PathBuf {
    let path = std::env::var("PATH").unwrap();
    let mut all = std::env::split_paths(&path).map(|folder| folder.join("qemu-system-x86_64"));
    all.find(|path| path.is_file()).expect("QEMU is there")
}

/// A folder whose `qemu-system-x86_64` runs its file `script` before the real one, to which that hands `"$@"`. `$run` is the folder
/// of a machine that the plugin counts in, and empty for others. One program for all tests, because a snapshot is of one.
fn saboteur() -> &'static Path {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
        let folder = out().join("saboteur");
        std::fs::create_dir(&folder).unwrap();
        let script = format!(
            "#!/bin/bash\nfor word; do case $word in *,counts=*) run=${{word##*,counts=}}; run=${{run%/counts}};; esac; done\n\
             qemu={}\n. {}/script\nexec \"$qemu\" \"$@\"\n",
            qemu().display(),
            folder.display()
        );
        let program = folder.join("qemu-system-x86_64");
        std::fs::write(&program, script).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&program, mode).unwrap();
        folder
    });
    &FOLDER
}

/// Exit code and message of a lab with three placements of the baseline on that QEMU, one run at a time, and the runs that it
/// saved.
fn sabotaged(script: &str) -> (i32, String, usize) {
    std::fs::write(saboteur().join("script"), script).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut command = lab();
    let mut path = saboteur().as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap());
    let file = folder.path().join("saved.json");
    command.env("PATH", path);
    command.arg("--module").arg(baseline()).arg("--out").arg(folder.path());
    command.args(["--operations", "20000", "--placements", "3", "--jobs", "1", "--no-cost"]);
    let output = command.output().unwrap();
    let file = if file.exists() { file } else { folder.path().join("series.json") };
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
    let parts =
        ["QEMU does not take the plugin", "Could not load plugin /no/such.so", "--meter probes"];
    assert_ends(script, exit::CANNOT_MEASURE, 0, &parts);
}

/// Processes that a load starts copy nothing that the lab itself has left: with a driver and without it, and in each placement,
/// they find the same descriptors and memory.
#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn what_a_driver_adds_to_a_process_is_the_drivers() {
    let folder = tempfile::tempdir().unwrap();
    let loads = [("setsid", "ksys_setsid"), ("fork", "kernel_clone"), ("mmap", "ksys_mmap_pgoff")];
    for (load, called) in loads {
        let file = folder.path().join(load);
        let mut command = profiler();
        command.arg("lab").arg("--kernel").arg(given("PROFILER_LAB_KERNEL"));
        command.args(["--quiet", "--builtin", load, "--handler", called]);
        command.arg("--module").arg(baseline());
        // Few operations would carry what a run takes once: slabs that are full in one run of the kernel and not in the other.
        command.args(["--operations", "300", "--placements", "3", "--json"]).arg(&file);
        succeed(command);
        let series = Series::read(&file).unwrap();
        let added: Vec<f64> =
            series.runs.iter().map(|run| run.driver_costs[0].added_ns()).collect();
        println!("{load}: {added:?}");
        assert_eq!(added.len(), 3);
        // The testbed has no hook there.
        assert!(added.iter().all(|added| added.abs() < 500.0), "{load}: {added:?}");
    }
}

/// Each script breaks the second of three runs; the first is saved.
#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn complete_runs_are_kept_whatever_becomes_of_the_next() {
    let second = |what: &str| format!("case $run in *-1-connect) {what} ;; esac");
    // By its CPU time QEMU has started, and is at its job: on a busy machine a tenth of a second says neither.
    let killed = |signal: &str| {
        let used = "used=$(cut -d' ' -f14 /proc/$$/stat 2>/dev/null)";
        format!("(while {used} && ((used < 50)); do sleep 0.02; done; kill -{signal} $$) &")
    };
    let parts = ["placement 1, connect: it ended before the job did"];
    assert_ends(&second(&killed("KILL")), exit::LAB_FAILED, 1, &parts);
    // As the kernel does where a page of the guest's memory has no room on the disk.
    let parts = ["placement 1, connect: no room is left for the guest's memory"];
    assert_ends(&second(&killed("BUS")), exit::LAB_FAILED, 1, &parts);
    let parts = ["placement 1, connect: the plugin in QEMU could not count", "Is a directory"];
    assert_ends(&second("mkdir $run/counts.part"), exit::LAB_FAILED, 1, &parts);
}

/// A snapshot in the cache whose bytes have changed is not restored.
#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn a_damaged_snapshot_is_made_anew() {
    let cache = tempfile::tempdir().unwrap();
    let measure = || {
        let mut command = profiler();
        command.env("XDG_CACHE_HOME", cache.path()).arg("lab").arg("--module").arg(baseline());
        command.arg("--kernel").arg(given("PROFILER_LAB_KERNEL"));
        command.args(["--builtin", "connect", "--operations", "20", "--no-cost"]);
        command.args(["--handler", "connect_*"]);
        succeed(command)
    };
    assert!(measure().contains("for a snapshot, once for this kernel"));
    let snapshots = cache.path().join("profiler/snapshots");
    let of_kernel = std::fs::read_dir(&snapshots).unwrap().next().unwrap().unwrap().path();
    for file in ["state", "memory"] {
        let file = File::options().read(true).write(true).open(of_kernel.join(file)).unwrap();
        // Not in a hole: a kernel lies at 16 MiB.
        let at = (file.metadata().unwrap().len() / 2).min(17 << 20);
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at).unwrap();
        drop(file);
        let said = measure();
        assert!(said.contains("is damaged, and made anew"), "{said}");
    }
}
