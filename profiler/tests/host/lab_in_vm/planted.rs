//! Planted changes, each of which a gate has to see for the right reason, and harmless ones. `testbed/planted.c` has them; which one a
//! build makes is a digit in its file.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use profiler_base::error::exit;
use profiler_export::verdict::GateReport;
use profiler_kernel::hooks::ProbeState;
use profiler_recording::Series;
use profiler_verdict::Verdict;
use serde_json::Value;

use super::super::program::text;
use super::{given, profiler};

/// What a change is, its digit, that of its baseline, and the only figures that have to fail: subject, figure, and a part of its words.
type Planted = (&'static str, char, char, &'static [(&'static str, &'static str, &'static str)]);

const HANDLER: &str = "connect_syscall_handler";
const OPERATION: &str = "operation of connect";

const PLANTED: [Planted; 10] = [
    (
        "a memset of 64 KiB",
        '1',
        '0',
        &[
            (HANDLER, "repeated", " to 8,2"),
            (OPERATION, "repeated", " iterations an operation in one placement"),
        ],
    ),
    (
        "a slow path in 2 % of calls",
        '2',
        '0',
        &[(HANDLER, "tp99", "+1008.0 in one"), (OPERATION, "tail", "")],
    ),
    (
        "a fault",
        '3',
        '0',
        &[
            (HANDLER, "avg", ""),
            (HANDLER, "tp50", ""),
            (HANDLER, "tp90", ""),
            (HANDLER, "tp95", ""),
            (HANDLER, "tp99", ""),
            (OPERATION, "avg", ""),
            (OPERATION, "tail", ""),
        ],
    ),
    (
        "work queued ten times as often",
        '7',
        '6',
        &[(OPERATION, "avg", ""), (OPERATION, "tail", ""), (OPERATION, "elsewhere", "+900.00 %")],
    ),
    (
        "a handler registered twice",
        '8',
        '0',
        &[
            (HANDLER, "count", "300 to 600 calls"),
            ("connect_syscall_entry_handler", "count", "300 to 600 calls"),
            (OPERATION, "avg", ""),
            (OPERATION, "tail", ""),
        ],
    ),
    (
        "a slow path in every fifth operation",
        '9',
        '0',
        &[(OPERATION, "avg", ""), (OPERATION, "tail", "+200")],
    ),
    ("a slow path in 2 % of operations", 'a', '0', &[(OPERATION, "tail", "")]),
    (
        "a function of a name that another has, too",
        'c',
        '0',
        &[(OPERATION, "avg", ""), (OPERATION, "tail", "")],
    ),
    (
        "code that the compiler has put apart",
        'd',
        '0',
        &[
            (HANDLER, "avg", "+67.0 in one"),
            (HANDLER, "tp50", ""),
            (HANDLER, "tp90", ""),
            (HANDLER, "tp95", ""),
            (HANDLER, "tp99", ""),
            (OPERATION, "avg", ""),
            (OPERATION, "tail", ""),
        ],
    ),
    (
        "a probe that has become a jump",
        'e',
        '0',
        // Not of the tail: it is outside of the driver's functions.
        &[(OPERATION, "avg", "+110.0 in one")],
    ),
];

/// Which function a verdict names for a change, and where in it.
const NAMED: [(char, &str, &str); 3] = [
    ('c', "outside takes 80.0 instructions more a call", "twin.c:22"),
    ('d', "tb_plant takes 67.0 instructions more a call", "planted.c:"),
    ('3', "tb_plant takes", "planted.c:"),
];

/// The build that makes a change, in a folder of its own.
fn build(folder: &Path, digit: char) -> PathBuf {
    const NOTHING: &[u8] = b"PLANTED=0";
    let mut bytes = fs::read(given("PROFILER_LAB_PLANTED")).unwrap();
    // An ELF note: lengths of name and build id, their type, and the name.
    const BUILD_ID: &[u8] = b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0";
    for (text, last) in [(NOTHING, NOTHING.len() - 1), (BUILD_ID, BUILD_ID.len())] {
        let at = bytes.windows(text.len()).position(|window| window == text).unwrap();
        bytes[at + last] = u8::try_from(digit).unwrap();
    }
    let module = folder.join(digit.to_string()).join("hids_testbed.ko");
    fs::create_dir_all(module.parent().unwrap()).unwrap();
    fs::write(&module, bytes).unwrap();
    module
}

/// Measures a build under one placement; the exit code and what it says.
fn measure(module: &Path, json: &Path, load: &str) -> (Option<i32>, String) {
    let mut command = profiler();
    command.arg("lab").arg("--kernel").arg(given("PROFILER_LAB_KERNEL"));
    command.args(["--quiet", "--operations", "300", "--builtin", load]);
    command.args(["--handler", if load == "pipe" { "read_handler" } else { "connect_*" }]);
    command.arg("--module").arg(module).arg("--json").arg(json);
    let output = command.output().unwrap();
    (output.status.code(), text(&output.stdout) + &text(&output.stderr))
}

fn recording(folder: &Path, module: &Path, name: &str) -> PathBuf {
    let json = folder.join(format!("{name}.json"));
    if !json.exists() {
        let (code, said) = measure(module, &json, "connect");
        assert_eq!(code, Some(0), "{name}: {said}");
    }
    json
}

/// The gate's report on two recordings.
fn decided(base: &Path, candidate: &Path, more: &[&str]) -> GateReport {
    let json = candidate.with_extension("gate");
    let mut command = profiler();
    command.arg("gate").args([base, candidate]).arg("--json").arg(&json).args(more);
    let output = command.output().unwrap();
    println!("{}{}", text(&output.stdout), text(&output.stderr));
    serde_json::from_slice(&fs::read(&json).unwrap()).unwrap()
}

#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn each_change_fails_for_its_reason_alone() {
    let folder = tempfile::tempdir().unwrap();
    let of = |digit: char| {
        let folder = folder.path();
        recording(folder, &build(folder, digit), &digit.to_string())
    };
    for (what, digit, base, expected) in PLANTED {
        let report = decided(&of(base), &of(digit), &[]);
        assert_eq!(report.exit_code, exit::REGRESSION, "{what}: {}", report.summary);
        let failed = report.lines.iter().filter(|line| line.verdict == Verdict::Fail);
        let failed: Vec<_> =
            failed.map(|line| (line.subject(), line.figure(), line.evidence.clone())).collect();
        let is_expected = |(subject, figure, words): &(String, String, String)| {
            expected.iter().any(|it| (it.0, it.1) == (subject, figure) && words.contains(it.2))
        };
        assert!(failed.iter().all(is_expected), "{what}: {failed:#?}");
        assert_eq!(failed.len(), expected.len(), "{what}: {failed:#?}");
        for (_, function, place) in NAMED.iter().filter(|named| named.0 == digit) {
            let words: Vec<_> = report.causes.iter().map(|cause| cause.words()).collect();
            let is_named = |words: &String| words.contains(function) && words.contains(place);
            assert!(words.iter().any(is_named), "{what}: {words:#?}");
        }
    }
    let jumps = decided(&of('0'), &of('e'), &[]).registered.unwrap();
    assert_eq!(jumps.more, ["kprobe __sys_connect (outside)"]);
    // Its state is the last before anything is counted: the kernel makes it a jump some ticks after the registration.
    let run = Series::read(&of('e')).unwrap().runs.remove(0);
    let hooks = run.modules[0].hooks.as_ref().unwrap();
    assert!(hooks.list.iter().any(|hook| hook.state == Some(ProbeState::Optimized)), "{hooks:?}");
    // No limit is on what an exception takes beside its instructions, of which `iret` is one.
    let faults = decided(&of('0'), &of('3'), &[]);
    assert_eq!(faults.notes.len(), 1, "{:#?}", faults.notes);
    assert!(faults.notes[0].starts_with("connect_syscall_handler: 3.0 to 7.0 instructions a call"));
    let fails = decided(&of('0'), &of('5'), &[]);
    assert_eq!(fails.exit_code, exit::NOT_COMPARABLE);
    assert!(fails.summary.contains("150 of 300 operations fail with EPERM"), "{}", fails.summary);
    let harmless = recording(folder.path(), &given("PROFILER_LAB_HARMLESS"), "harmless");
    let passed = decided(&of('0'), &harmless, &[]);
    assert_eq!(passed.exit_code, exit::OK, "{}", passed.summary);
    assert_eq!(passed.defaults, ["nobody_reads_it: new, 0 by default"]);
}

#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn a_release_is_measured_beside_the_candidate() {
    let folder = tempfile::tempdir().unwrap();
    let [release, build] = ['0', 'd'].map(|digit| build(folder.path(), digit));
    let json = folder.path().join("gate.json");
    let gate = || -> GateReport {
        let mut command = profiler();
        command.arg("gate").args([&build, &build]).arg("--release").arg(&release);
        command.args(["--release-limit", "1%", "--handler", "connect_*", "--quiet"]);
        command.arg("--kernel").arg(given("PROFILER_LAB_KERNEL")).arg("--json").arg(&json);
        let output = command.output().unwrap();
        println!("{}{}", text(&output.stdout), text(&output.stderr));
        serde_json::from_slice(&fs::read(&json).unwrap()).unwrap()
    };
    let passes = |report: &GateReport| report.lines.iter().all(|it| it.verdict == Verdict::Pass);
    let report = gate();
    assert_eq!(report.exit_code, exit::REGRESSION, "{}", report.summary);
    assert!(passes(&report), "{:#?}", report.lines);
    let beside = report.release.unwrap().lines;
    let failed = beside.iter().find(|it| (&*it.handler, it.verdict) == (HANDLER, Verdict::Fail));
    assert!(failed.unwrap().evidence.contains("+67.0 in each"), "{beside:#?}");

    // The kernel compares the checksum of each symbol that a module takes from it.
    let mut bytes = fs::read(&release).unwrap();
    let symbol = bytes.windows(14).position(|it| it == b"module_layout\0").unwrap();
    bytes[symbol - 8] ^= 1;
    fs::write(&release, bytes).unwrap();
    let report = gate();
    assert_eq!(report.exit_code, exit::INCONCLUSIVE, "{}", report.summary);
    assert!(passes(&report) && report.release.is_none(), "{report:#?}");
    let [failed] = &report.left_out.unwrap().failed[..] else { panic!("the release alone") };
    assert!(failed.starts_with("the release: "), "{failed}");
}

/// `connect` and `bind` share a guest.
#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn a_load_that_fails_leaves_the_others_to_be_judged() {
    let folder = tempfile::tempdir().unwrap();
    let [base, candidate] = ['0', 'f'].map(|digit| build(folder.path(), digit));
    let json = folder.path().join("gate.json");
    let mut command = profiler();
    command.arg("gate").args([&base, &candidate]).arg("--json").arg(&json);
    command.arg("--kernel").arg(given("PROFILER_LAB_KERNEL")).arg("--quiet");
    command.args(["--handler", "connect_*", "--handler", "bind_*"]);
    let open = folder.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    command.arg("--cache").arg(&open);
    let output = command.output().unwrap();
    println!("{}{}", text(&output.stdout), text(&output.stderr));
    let report: GateReport = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    assert_eq!(report.exit_code, exit::INCONCLUSIVE, "{}", report.summary);
    let refused = format!(
        "the baseline's runs are not kept for the next gate: {0}: others can change {0}",
        open.display()
    );
    assert_eq!(report.notes.last(), Some(&refused));
    let [failed] = &report.left_out.unwrap().failed[..] else { panic!("one load") };
    assert!(failed.contains("placement 0, connect: the load broke off: "), "{failed}");
    let judged = |handler: &str| report.lines.iter().any(|line| line.handler == handler);
    assert!(judged("bind_handler") && judged("operation of bind"), "{:#?}", report.lines);
    assert!(!judged(HANDLER) && !judged(OPERATION), "{:#?}", report.lines);
    // `tax` has the other load, and the subject behind, too.
    let mut command = profiler();
    command.args(["tax", "--quiet", "--builtin", "connect,bind", "--json"]).arg(&json);
    command.arg("--with").arg(&candidate).arg("--with").arg(&base);
    let output = command.arg("--kernel").arg(given("PROFILER_LAB_KERNEL")).output().unwrap();
    assert_eq!(output.status.code(), Some(exit::LOAD_FAILED.into()), "{}", text(&output.stderr));
    let tax: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    let measured = |load: usize| [0, 1].map(|at| tax["operations"][load]["with"][at].is_object());
    assert_eq!([measured(0), measured(1)], [[false, true], [true, true]], "{tax:#}");
}

#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn a_hook_on_each_read_fails_by_what_it_adds() {
    let folder = tempfile::tempdir().unwrap();
    let [base, candidate] = ['0', 'b'].map(|digit| {
        let json = folder.path().join(format!("{digit}.json"));
        let (code, said) = measure(&build(folder.path(), digit), &json, "pipe");
        let reached = if digit == 'b' { exit::OK } else { exit::NO_HITS };
        assert_eq!(code, Some(reached.into()), "{said}");
        json
    });
    let report = decided(&base, &candidate, &[]);
    assert_eq!(report.exit_code, exit::REGRESSION, "{}", report.summary);
    let registered = report.registered.as_ref().unwrap();
    assert_eq!(registered.more, ["kprobe vfs_read (read_handler)"]);
    assert_eq!(registered.undecided, [""; 0], "it lies on an operation");
    let failed = report.lines.iter().filter(|line| line.verdict == Verdict::Fail);
    let failed: Vec<_> = failed.map(|line| (line.subject(), line.figure())).collect();
    let [operation, avg, tail] = ["operation of pipe", "avg", "tail"].map(str::to_owned);
    assert_eq!(failed, [(operation.clone(), avg), (operation, tail)]);
    let [cause] = &report.causes[..] else { panic!("{:#?}", report.causes) };
    let words = cause.words();
    let function = "read_handler, a handler in the candidate alone, takes ";
    assert!(words.starts_with(function) && words.contains(" of it around handlers)"), "{words}");
}

#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn a_warning_of_the_kernel_ends_the_lab_with_its_lines() {
    let folder = tempfile::tempdir().unwrap();
    let (code, said) =
        measure(&build(folder.path(), '4'), &folder.path().join("run.json"), "connect");
    assert_eq!(code, Some(exit::LAB_FAILED.into()), "{said}");
    let first = "the kernel reports a fault in the driver hids_testbed: WARNING: CPU: 0 PID: ";
    assert!(said.contains(first) && said.contains(" tb_plant+0x"), "{said}");
    assert!(said.contains("RIP: ") && !folder.path().join("run.json").exists(), "{said}");
}
