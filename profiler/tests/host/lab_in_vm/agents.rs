//! BPF programs of an agent, measured without a driver. `tests/data/agent` has the agent and its programs, each of which runs once in
//! an operation of `connect`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use profiler_base::error::exit;
use profiler_recording::{HandlerRecording, Recording, Series};
use serde_json::{Value, json};

use super::super::program::text;
use super::{given, out, profiler, succeed};
use crate::common::agent;

/// The programs that the kernel calls, as `profiler list` names what they are on, and those that others call.
const ATTACHED: [(&str, &str, &str); 7] = [
    ("kprobe", "__sys_connect", "on_kprobe"),
    ("kretprobe", "__sys_connect", "on_return"),
    ("tracepoint", "sys_enter_connect", "on_tracepoint"),
    ("lsm", "socket_connect", "on_lsm"),
    ("raw-tracepoint", "sys_enter", EVERY_CALL),
    ("fentry", "__sys_connect", "at_entry"),
    ("fexit", "__sys_connect", "at_exit"),
];

/// The one that runs at each system call, also at those before the first operation.
const EVERY_CALL: &str = "on_any_call";
const CALLED: [&str; 5] = [
    "at_entry/count",
    "on_tracepoint/count",
    "called_by_tail_call",
    "a_name_longer_than_fifteen_characters",
    "a_name_longer_than_fifteen_characters/count",
];

/// Statements that nothing else in a program has a use for, with the instructions of x86-64 that each takes.
const STATEMENTS: [(&str, f64); 2] =
    [(r#"asm volatile("r5 = 0" ::: "r5");"#, 1.0), ("planted = 7777;", 3.0)];

/// Builds of the source, each with statements in other places. Two of them have more than 20.
const ROUNDS: usize = 2;

fn source() -> String {
    std::fs::read_to_string(agent::source("programs.bpf.c")).unwrap()
}

/// The functions of the source, each with the numbers of its lines, from 1, before which a statement would run in each call.
fn functions(source: &str) -> Vec<(&str, Vec<usize>)> {
    let mut found: Vec<(&str, Vec<usize>)> = Vec::new();
    let (mut above, mut is_within) = ("", false);
    for (number, line) in (1..).zip(source.lines()) {
        match line {
            "{" => {
                let head = above.split_once("BPF_PROG(").map_or(above, |(_, rest)| rest);
                let head = head.split(['(', ',']).next().unwrap();
                found.push((head.rsplit(' ').next().unwrap(), Vec::new()));
                is_within = true;
            }
            "}" => is_within = false,
            _ if is_within && line.starts_with('\t') && !line.starts_with("\t\t") => {
                let lines = &mut found.last_mut().unwrap().1;
                if !above.starts_with("#ifdef") && !above.contains("bpf_tail_call(") {
                    lines.push(number);
                }
            }
            _ => {}
        }
        above = line;
    }
    found.retain(|(name, _)| *name != "idle");
    found
}

/// The source with each statement before its line, and the numbers that they have then.
fn planted(source: &str, statements: &[(usize, &str)]) -> (String, Vec<usize>) {
    let (mut text, mut numbers) = (String::new(), vec![0; statements.len()]);
    for (number, line) in (1..).zip(source.lines()) {
        for (at, (_, statement)) in
            statements.iter().enumerate().filter(|(_, (before, _))| *before == number)
        {
            text.extend(["\t", statement, "\n"]);
            numbers[at] = text.lines().count();
        }
        text.extend([line, "\n"]);
    }
    (text, numbers)
}

pub(super) fn folder() -> PathBuf {
    let folder = out().join("agents");
    std::fs::create_dir_all(&folder).unwrap();
    folder.canonicalize().unwrap()
}

/// Compiles a source.
fn object(name: &str, source: &str, define: &str) -> PathBuf {
    let file = folder().join(name).join("programs.bpf.c");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, source).unwrap();
    agent::compiled(&file, &folder(), name, &["-g", define])
}

/// The agent, and objects of its programs: as they are, and refused by the verifier.
struct Built {
    agent: PathBuf,
    plain: PathBuf,
    invalid: PathBuf,
}

fn built() -> &'static Built {
    static BUILT: LazyLock<Built> = LazyLock::new(|| {
        let agent = agent::build(&folder());
        let plain = object("plain", &source(), "-DPLAIN");
        let invalid = object("invalid", &source(), "-DINVALID");
        Built { agent, plain, invalid }
    });
    &BUILT
}

fn command(object: &Path) -> String {
    format!("{} {}", built().agent.display(), object.display())
}

/// A subcommand that gets the objects of agents.
fn with_objects(subcommand: &str, objects: &[&Path]) -> Command {
    let mut command = profiler();
    command.arg(subcommand).arg("--kernel").arg(given("PROFILER_LAB_KERNEL"));
    for object in objects {
        command.arg("--agent-file").arg(object);
    }
    command
}

/// Counts the programs of two objects side by side, into the folder that is given back.
fn compared(baseline: &Path, candidate: &Path, arguments: &[&str]) -> PathBuf {
    let folder = candidate.with_extension("lab");
    let mut lab = with_objects("lab", &[baseline, candidate]);
    lab.args(["--quiet", "--builtin", "connect", "--placements", "1"]).args(arguments);
    for (side, object) in [("--baseline", baseline), ("--candidate", candidate)] {
        lab.args([side, &format!("run: {}", command(object))]);
    }
    lab.arg("--out").arg(&folder);
    succeed(lab);
    folder
}

#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn programs_are_listed_where_they_are_attached() {
    let Built { plain, .. } = built();
    let mut list = with_objects("list", &[plain]);
    list.args(["--json", "--agent", &command(plain)]);
    let output = list.output().unwrap();
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let hooks = &found.as_object().unwrap().values().next().unwrap();
    let attached = ATTACHED.map(|(kind, place, handler)| format!("{kind} {place} {handler}"));
    let of = |hook: &Value| {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        [text(&hook["kind"]), text(&hook["place"]), text(&hook["handlers"][0])].join(" ")
    };
    let listed: Vec<String> = hooks["list"].as_array().unwrap().iter().map(of).collect();
    assert_eq!(listed, attached);
    let unknown = hooks["unknown"][0].as_str().unwrap();
    assert!(
        unknown.contains("a_name_longer_than_fifteen_characters, called_by_tail_call"),
        "{unknown}"
    );
}

/// The load knows how often each program runs, and what a program calls is part of it.
#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn every_call_of_every_program_is_counted() {
    let file = out().join("agents.json");
    let run = || {
        let Built { plain, .. } = built();
        let mut lab = with_objects("lab", &[plain]);
        lab.args(["--quiet", "--builtin", "connect", "--verify", "--agent", &command(plain)]);
        lab.arg("--json");
        lab.arg(&file);
        let said = succeed(lab);
        assert!(said.contains("bpf_jit_enable 1, bpf_jit_harden 0"), "{said}");
        Recording::read(&file).unwrap()
    };
    let recording = run();
    let handler = |name: &str| {
        let found = recording.handlers.iter().find(|handler| handler.name == name);
        found.unwrap_or_else(|| panic!("no {name}"))
    };
    let attached = ATTACHED.map(|(_, _, handler)| handler);
    for name in attached.iter().chain(&CALLED).filter(|name| **name != EVERY_CALL) {
        let handler = handler(name);
        assert_eq!(handler.count, 1_000, "{name}");
        assert_eq!((handler.losses.lost, handler.losses.in_flight), (0, 0), "{name}");
    }
    let [every, steps] = [EVERY_CALL, "on_any_call/step"].map(|name| handler(name).count);
    assert!(every >= 1_000, "{every}");
    assert_eq!(steps, 3 * every, "the callback of a helper");
    // A tail call goes on in the program that it leads to.
    let chain = ["on_kprobe", CALLED[2], CALLED[3], CALLED[4]].map(handler);
    let own: u64 = chain.iter().map(|handler| handler.own_instructions.unwrap()).sum();
    // Three instructions of the retpoline that leads to the number that the compiler does not know.
    assert_eq!(chain[0].sum_ns, own + 3 * 1_000);
    let tree = recording.call_tree.as_ref().unwrap();
    let updates = tree.functions.iter().any(|function| function.name == "htab_map_update_elem");
    assert!(updates, "what a helper runs is below the program that calls it");
    let again = run();
    let checksum = |of: &Recording| of.snapshot.as_ref().unwrap().counts_sha256.clone();
    assert_eq!(checksum(&recording), checksum(&again), "another installation");
}

#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn one_instruction_more_is_found_in_its_program() {
    let source = source();
    let all = functions(&source);
    let (_, lines) = all.iter().find(|(name, _)| *name == "at_entry").unwrap();
    let (more, numbers) = planted(&source, &[(lines[1], STATEMENTS[0].0)]);
    let Built { plain, .. } = built();
    for (candidate, code) in [(plain, 0), (&object("more", &more, "-DPLAIN"), exit::REGRESSION)] {
        let folder = compared(plain, candidate, &["--handler", "at_entry"]);
        let mut gate = profiler();
        gate.arg("gate").args(["baseline.json", "candidate.json"].map(|file| folder.join(file)));
        let output = gate.args(["--max-regression", "tp50=+0"]).output().unwrap();
        let said = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(code.into()), "{said}");
        let line = numbers[0];
        let cause = format!(
            "slower: at_entry takes 1.0 instructions more a call: itself +1.0 at programs.bpf.c:{line}; "
        );
        assert_eq!(said.contains(&cause), code != 0, "{said}");
        assert!(code != 0 || !said.contains("slower: "), "{said}");
    }
}

/// A statement in each function of the source, of one instruction or of three, is named by its line, wherever it is.
#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn statements_more_are_found_at_their_lines() {
    let source = source();
    let all = functions(&source);
    assert!(all.len() > 20 / ROUNDS, "{all:?}");
    for round in 0..ROUNDS {
        let of = |(at, (_, lines)): (usize, &(&str, Vec<usize>))| {
            (lines[round % lines.len()], STATEMENTS[(round + at) % 2])
        };
        let statements: Vec<_> = all.iter().enumerate().map(of).collect();
        let before = statements.iter().map(|(line, (statement, _))| (*line, *statement));
        let (text, numbers) = planted(&source, &before.collect::<Vec<_>>());
        let candidate = object(&format!("round-{round}"), &text, "-DPLAIN");
        let folder = compared(&built().plain, &candidate, &[]);
        let mut explain = profiler();
        explain.arg("explain").args(["baseline.json", "candidate.json"].map(|it| folder.join(it)));
        let said = succeed({
            explain.args(["--format", "json"]);
            explain
        });
        let report: Value = serde_json::from_str(&said).unwrap();
        let planted = all.iter().zip(&statements).zip(numbers);
        for (((name, _), (_, (statement, instructions))), number) in planted {
            let times = if *name == "step" { 3.0 } else { 1.0 };
            let of_all = changed(&report, name);
            assert!(!of_all.is_empty(), "{name}");
            for lines in of_all {
                let sum: f64 = lines.iter().map(|line| line["change"].as_f64().unwrap()).sum();
                assert_eq!(sum, instructions * times, "{name}: {lines:?}");
                // The compiler may give the statement instructions that it gave a line before.
                let first = &lines[0];
                assert_eq!(first["at"], json!([null, number]), "{name}: {lines:?}");
                assert_eq!(first["text"], **statement, "{name}");
                assert!(first["file"].as_str().unwrap().ends_with("/programs.bpf.c"), "{name}");
                assert!(first["change"].as_f64().unwrap() >= sum, "{name}: {lines:?}");
            }
        }
    }
}

/// The lines of a function of the source that differ, what differs most first, for each program that has the function.
fn changed(report: &Value, function: &str) -> Vec<Vec<Value>> {
    let of = |value: &Value| value.as_array().unwrap().clone();
    let mut by_name: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for line in of(&report["handlers"]).iter().flat_map(|handler| of(&handler["lines"])) {
        let name = line["function"]["name"].as_str().unwrap();
        if name.rsplit('/').next() == Some(function) && line["change"] != 0.0 {
            by_name.entry(name.to_owned()).or_default().push(line);
        }
    }
    by_name.into_values().collect()
}

/// All calls in a system call, by function, against what the plugin counted of operations. The first operation and what is before it
/// are in both runs of a side.
#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn programs_helpers_and_the_way_to_them_are_what_an_operation_takes_more() {
    let idle = object("idle", &source(), "-DIDLE");
    let measured = ["1", "1000"].map(|operations| {
        let arguments = ["--handler", SYSTEM_CALL, "--handler", "*", "--operations", operations];
        let folder = compared(&idle, &built().plain, &arguments);
        ["baseline.json", "candidate.json"]
            .map(|name| Series::read(&folder.join(name)).unwrap().runs.remove(0))
    });
    let [once, many] = measured.each_ref().map(|sides| sides.each_ref().map(Parts::of));
    let [idle, busy] = [0, 1].map(|side| many[side].less(&once[side]));
    assert_eq!((idle.programs, idle.helpers), (0, 0));
    let [own, own_once] = [&many[1], &once[1]].map(|parts| parts.of_handlers);
    assert_eq!(busy.programs, own - own_once);
    let of = |parts: &Parts| parts.programs + parts.helpers + parts.mechanism;
    println!("{idle:?}, {busy:?}");
    assert_eq!(of(&busy) - of(&idle), busy.operations - idle.operations);
    assert_eq!(busy.calls, 999, "a system call an operation");
    assert_eq!(many[1].of_every_call, many[1].calls, "its program runs in each");
}

/// The function that all system calls go through.
const SYSTEM_CALL: &str = "do_syscall_64";

/// Instructions of a run.
#[derive(Debug)]
struct Parts {
    /// In system calls: of BPF programs, of what they call, and of all else.
    programs: u64,
    helpers: u64,
    mechanism: u64,
    /// Of programs, by the handlers' own figures.
    of_handlers: u64,
    /// Of operations, which have the entry code, too.
    operations: u64,
    /// Calls of system calls, and of the program that is on each.
    calls: u64,
    of_every_call: u64,
}

impl Parts {
    fn of(run: &Recording) -> Self {
        let tree = run.call_tree.as_ref().unwrap();
        let cost = &run.driver_costs[0];
        let handlers = run.handlers.iter().filter(|it| it.module.as_deref() == Some("bpf"));
        let entries = |name: &str| {
            let found = run.handlers.iter().find(|handler| handler.name == name);
            found.map_or(0, |handler| handler.losses.entries)
        };
        let mut parts = Self {
            programs: 0,
            helpers: 0,
            mechanism: 0,
            of_handlers: handlers.map(|handler| handler.own_instructions.unwrap()).sum(),
            operations: (cost.with_ns * cost.operations as f64).round() as u64,
            calls: entries(SYSTEM_CALL),
            of_every_call: entries(EVERY_CALL),
        };
        // Whether a node is below a system call, and below a program. Others than the load's set it up and end it.
        let mut within: Vec<(bool, bool)> = Vec::new();
        for node in &tree.nodes {
            let function = &tree.functions[node.function as usize];
            let above = node.parent.map_or((false, false), |parent| within[parent as usize]);
            let is_program = function.module.as_deref() == Some("bpf");
            let is_other =
                function.name.starts_with("__x64_sys_") && function.name != "__x64_sys_connect";
            let is_within = !is_other && (above.0 || function.name == SYSTEM_CALL);
            let is = (is_within, above.1 || is_program);
            within.push(is);
            match (is, is_program) {
                ((false, _), _) => {}
                (_, true) => parts.programs += node.own,
                ((_, true), _) => parts.helpers += node.own,
                _ => parts.mechanism += node.own,
            }
        }
        parts
    }

    fn less(&self, other: &Self) -> Self {
        Self {
            programs: self.programs - other.programs,
            helpers: self.helpers - other.helpers,
            mechanism: self.mechanism - other.mechanism,
            of_handlers: self.of_handlers - other.of_handlers,
            operations: self.operations - other.operations,
            calls: self.calls - other.calls,
            of_every_call: self.of_every_call - other.of_every_call,
        }
    }
}

/// An agent that fails, and one that attaches nothing.
#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn an_agent_without_programs_says_why() {
    for (agent, code, why) in [
        ("true".to_owned(), exit::NO_TARGET, "it ended and left no BPF program"),
        ("sleep 1000".to_owned(), exit::NO_TARGET, "it waits and has loaded no BPF program"),
        (command(&built().invalid), exit::LAB_FAILED, "failed to load"),
        (
            "sh -c 'echo no route; exit 1'".to_owned(),
            exit::LAB_FAILED,
            "no route\n(the guest has no network",
        ),
    ] {
        let mut lab = with_objects("lab", &[&built().invalid]);
        let output =
            lab.args(["--quiet", "--builtin", "connect", "--agent", &agent]).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code.into()), "{agent}: {said}");
        assert!(said.contains(why), "{agent}: {said}");
    }
}

/// A security module more runs where it has hooks, and nowhere else; the order of arguments takes nothing.
#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn arguments_of_the_kernel_are_what_differs() {
    let compared = |candidate: &str| -> [Recording; 2] {
        let folder = tempfile::tempdir().unwrap();
        let mut lab = profiler();
        lab.arg("lab").arg("--kernel").arg(given("PROFILER_LAB_KERNEL"));
        lab.args(["--quiet", "--placements", "1", "--builtin", "open", "--handler", "security_*"]);
        lab.args(["--baseline", "kernel: quiet lsm=lockdown,yama", "--candidate", candidate]);
        lab.arg("--out").arg(folder.path());
        succeed(lab);
        ["baseline.json", "candidate.json"]
            .map(|name| Series::read(&folder.path().join(name)).unwrap().runs.remove(0))
    };
    let calls = |run: &Recording, name: &str| -> u64 {
        let tree = run.call_tree.as_ref().unwrap();
        let is_it = |function: u32| tree.functions[function as usize].name == name;
        tree.nodes.iter().filter(|node| is_it(node.function)).map(|node| node.calls).sum()
    };
    let figures = |run: &Recording| -> Vec<(String, u64, Option<f64>)> {
        let of = |it: &HandlerRecording| (it.name.clone(), it.count, it.mean_ns());
        run.handlers.iter().map(of).collect()
    };
    let [yama, same] = compared("kernel: lsm=lockdown,yama quiet");
    assert_eq!(figures(&yama), figures(&same));
    let [yama, apparmor] = compared("kernel: lsm=lockdown,yama,apparmor");
    let opened = "apparmor_file_open";
    assert_eq!(calls(&yama, opened), 0);
    let security = |run: &Recording, name: &str| {
        let found = run.handlers.iter().find(|handler| handler.name == name).unwrap();
        (found.count, found.mean_ns())
    };
    let [(count, without), (also, with)] =
        [&yama, &apparmor].map(|run| security(run, "security_file_open"));
    assert!(count >= 200 && count == also && with > without, "{count} {also}");
    assert_eq!(calls(&apparmor, opened), also);
    let unknown = "Unknown kernel command line parameters \"no_such_argument=1\"";
    let module = given("PROFILER_LAB_BASELINE");
    for (agent, module, code, why) in [
        ("kernel: no_such_argument=1", None, exit::LAB_FAILED, unknown),
        ("kernel: quiet", Some(module), exit::USAGE, "`kernel: quiet` is measured alone"),
    ] {
        let mut lab = profiler();
        lab.arg("lab").arg("--kernel").arg(given("PROFILER_LAB_KERNEL"));
        lab.args(["--quiet", "--builtin", "open", "--agent", agent]);
        lab.args(module.iter().flat_map(|file| [Path::new("--module"), file]));
        let output = lab.output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code.into()), "{agent}: {said}");
        assert!(said.contains(why), "{agent}: {said}");
    }
}

/// An object is loaded without an agent: each program that its section attaches runs once for an operation.
#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn the_programs_of_an_object_are_attached_by_their_sections() {
    let file = out().join("object.json");
    let whole = object("object", &source(), "-DNO_TAIL_CALLS");
    let lab = |object: &Path| {
        let mut lab = profiler();
        lab.arg("lab")
            .arg("--kernel")
            .arg(given("PROFILER_LAB_KERNEL"))
            .args(["--quiet", "--builtin"]);
        lab.arg("connect").arg("--agent").arg(object).arg("--json").arg(&file);
        lab.output().unwrap()
    };
    let output = lab(&whole);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let recording = Recording::read(&file).unwrap();
    let hooks = &recording.modules[0].hooks.as_ref().unwrap().list;
    for (kind, place, name) in ATTACHED {
        let handler = recording.handlers.iter().find(|handler| handler.name == name).unwrap();
        assert!(handler.count == 1_000 || name == EVERY_CALL, "{name}");
        let is_it = |hook: &&profiler_kernel::hooks::Hook| {
            hook.kind.name() == kind && hook.place == place && hook.handlers == [name]
        };
        assert_eq!(hooks.iter().filter(is_it).count(), 1, "{kind} {place} {name}: {hooks:?}");
    }
    let output = lab(&built().invalid);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(exit::LAB_FAILED.into()), "{said}");
    assert!(said.contains("run: COMMAND"), "{said}");
}
