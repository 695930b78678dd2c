//! BPF programs of an agent, measured without a driver. `tests/data/agent` has the agent and its programs, each of which runs once in
//! an operation of `connect`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use profiler::error::exit;
use profiler::recording::Recording;

use super::super::program::text;
use super::{given, out, profiler, succeed};
use crate::common::agent;

/// The programs that the kernel calls, as `profiler list` names what they are on, and those that others call.
const ATTACHED: [(&str, &str, &str); 6] = [
    ("kprobe", "__sys_connect", "on_kprobe"),
    ("kretprobe", "__sys_connect", "on_return"),
    ("tracepoint", "sys_enter_connect", "on_tracepoint"),
    ("lsm", "socket_connect", "on_lsm"),
    ("fentry", "__sys_connect", "at_entry"),
    ("fexit", "__sys_connect", "at_exit"),
];
const CALLED: [&str; 5] = [
    "at_entry/count",
    "on_tracepoint/count",
    "called_by_tail_call",
    "a_name_longer_than_fifteen_characters",
    "a_name_longer_than_fifteen_characters/count",
];

/// The agent, and the objects of its programs: as they are, with one instruction more, and refused by the verifier.
struct Built {
    agent: PathBuf,
    objects: [PathBuf; 3],
}

fn built() -> &'static Built {
    static BUILT: LazyLock<Built> = LazyLock::new(|| {
        let folder = out().join("agents");
        std::fs::create_dir_all(&folder).unwrap();
        let folder = folder.canonicalize().unwrap();
        let agent = agent::build(&folder);
        let objects = [("plain", "-DPLAIN"), ("more", "-DMORE"), ("invalid", "-DINVALID")];
        let objects = objects.map(|(name, define)| object(name, define));
        Built { agent, objects }
    });
    &BUILT
}

/// The programs, with this macro.
pub(super) fn object(name: &str, define: &str) -> PathBuf {
    let folder = out().join("agents");
    std::fs::create_dir_all(&folder).unwrap();
    agent::programs(&folder.canonicalize().unwrap(), name, define)
}

fn command(object: usize) -> String {
    let built = built();
    format!("{} {}", built.agent.display(), built.objects[object].display())
}

/// A subcommand that gets the objects of all agents.
fn with_objects(subcommand: &str) -> Command {
    let mut command = profiler();
    command.arg(subcommand).arg("--kernel").arg(given("PROFILER_LAB_KERNEL"));
    for object in &built().objects {
        command.arg("--agent-file").arg(object);
    }
    command
}

#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn programs_are_listed_where_they_are_attached() {
    let mut list = with_objects("list");
    list.args(["--json", "--agent", &command(0)]);
    let output = list.output().unwrap();
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let hooks = &found.as_object().unwrap().values().next().unwrap();
    let attached = ATTACHED.map(|(kind, place, handler)| format!("{kind} {place} {handler}"));
    let of = |hook: &serde_json::Value| {
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
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
        let mut lab = with_objects("lab");
        lab.args(["--quiet", "--builtin", "connect", "--verify", "--agent", &command(0), "--json"]);
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
    for name in attached.iter().chain(&CALLED) {
        let handler = handler(name);
        assert_eq!(handler.count, 1_000, "{name}");
        assert_eq!((handler.losses.lost, handler.losses.in_flight), (0, 0), "{name}");
    }
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
    for (candidate, code) in [(0, 0), (1, exit::REGRESSION)] {
        let folder = out().join(format!("agents-{candidate}"));
        let subject = |object| format!("run: {}", command(object));
        let mut lab = with_objects("lab");
        lab.args(["--quiet", "--builtin", "connect", "--placements", "1", "--handler", "at_entry"]);
        lab.args(["--baseline", &subject(0), "--candidate", &subject(candidate), "--out"]);
        succeed({
            lab.arg(&folder);
            lab
        });
        let mut gate = profiler();
        gate.arg("gate").args(["baseline.json", "candidate.json"].map(|file| folder.join(file)));
        let output = gate.args(["--max-regression", "tp50=+0"]).output().unwrap();
        let said = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(code.into()), "{said}");
        let cause = "slower: at_entry takes 1.0 instructions more a call: itself +1.0";
        assert_eq!(said.contains(cause), candidate == 1, "{said}");
        assert!(candidate == 1 || !said.contains("slower: "), "{said}");
    }
}

/// An agent that fails, and one that attaches nothing.
#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn an_agent_without_programs_says_why() {
    for (agent, code, why) in [
        ("true".to_owned(), exit::NO_TARGET, "it ended and left no BPF program"),
        ("sleep 1000".to_owned(), exit::NO_TARGET, "it waits and has loaded no BPF program"),
        (command(2), exit::LAB_FAILED, "failed to load"),
        (
            "sh -c 'echo no route; exit 1'".to_owned(),
            exit::LAB_FAILED,
            "no route\n(the guest has no network",
        ),
    ] {
        let mut lab = with_objects("lab");
        let output =
            lab.args(["--quiet", "--builtin", "connect", "--agent", &agent]).output().unwrap();
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
    let whole = object("object", "-DNO_TAIL_CALLS");
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
        assert_eq!(handler.count, 1_000, "{name}");
        let is_it = |hook: &&profiler::kernel::hooks::Hook| {
            hook.kind.name() == kind && hook.place == place && hook.handlers == [name]
        };
        assert_eq!(hooks.iter().filter(is_it).count(), 1, "{kind} {place} {name}: {hooks:?}");
    }
    let output = lab(&built().objects[2]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(exit::LAB_FAILED.into()), "{said}");
    assert!(said.contains("run: COMMAND"), "{said}");
}
