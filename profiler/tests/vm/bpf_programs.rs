//! Loaded BPF programs as handlers. `tests/data/agent` has the agent, whose programs run once in each connect(2).

use std::env;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command};

use profiler_base::error::exit;
use profiler_recording::{Backend, Recording};

use crate::cli::{Ended, Started, assert_every_call, eventually, folder, handler, profiler, saved};
use crate::matrix::CORE;
use crate::testbed;

/// What is no program of type tracing, and subprograms. Without `on_return`: a kretprobe of 5.10 follows as many calls at
/// once as there are CPUs.
const PLAIN: [&str; 4] = [
    "on_kprobe",
    "on_tracepoint",
    "on_tracepoint/count",
    "a_name_longer_than_fifteen_characters/count",
];
/// What `on_kprobe` jumps to, behind the place of the probe; and what it would call if it did not jump.
const BESIDE: [&str; 2] = ["called_by_tail_call", "on_kprobe/count"];
/// Programs of type tracing.
const TRACING: [&str; 3] = ["at_entry", "at_entry/count", "at_exit"];

/// An agent that has attached its programs, until it is dropped.
struct Agent(Child);

impl Agent {
    fn start(object: &str) -> Self {
        let folder = env::var_os("PROFILER_VM_AGENT").expect("PROFILER_VM_AGENT names a folder");
        let folder = Path::new(&folder);
        let object = folder.join(object).with_extension("bpf.o");
        let agent = Self(Command::new(folder.join("agent")).arg(object).spawn().unwrap());
        let call = format!("/proc/{}/syscall", agent.0.id());
        // pause(2), which is the last thing that it does.
        eventually("the agent does not get ready", || {
            fs::read_to_string(&call).unwrap().starts_with("34 ")
        });
        agent
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Programs by these options under 1,000 `connect`s of four workers; `name` is that of the recording.
fn measured(folder: &Path, options: &str) -> (Ended, Recording) {
    let file = folder.join("result.json");
    let line = format!("run {options} --builtin connect --operations 1000 --workers 4 --json");
    let ended = Ended::of(profiler(&line).arg(&file));
    let recording = saved(file, &ended.stdout);
    (ended, recording)
}

fn options(names: &[&str]) -> String {
    names.iter().map(|name| format!("--bpf-prog {name} ")).collect()
}

fn warning<'a>(recording: &'a Recording, code: &str) -> &'a str {
    let found = recording.warnings.iter().find(|warning| warning.code == code);
    &found.unwrap_or_else(|| panic!("no {code}: {:?}", recording.warnings)).text
}

/// Calls of which the kernel kept this program: 7.2 preempts tasks within programs.
fn skipped(recording: &Recording, name: &str) -> u64 {
    let found = recording.warnings.iter().find(|warning| {
        warning.code == "program-skipped" && warning.handlers.iter().any(|of| of == name)
    });
    let runs = found.map(|warning| warning.text.split(' ').nth(3).unwrap().parse().unwrap());
    let runs = runs.unwrap_or_default();
    assert!(runs == 0 || testbed::series() == "7.2", "{name}: {runs}");
    runs
}

#[test]
#[ignore = "VM 5.10 6.1 6.12 7.2"]
fn each_run_of_a_program_is_a_call() {
    let folder = folder();
    let _agent = Agent::start("plain");
    let (ended, recording) =
        measured(folder.path(), &options(&[&PLAIN[..], &BESIDE, &TRACING].concat()));
    ended.assert_code(exit::OK);
    let reaches_tracing = !["5.10", "6.1"].contains(&testbed::series().as_str());
    let reached = if reaches_tracing { &TRACING[..] } else { &[] };
    for name in PLAIN.iter().chain(reached) {
        let handler = handler(&recording, name);
        assert_eq!(handler.module.as_deref(), Some("bpf"));
        assert_every_call(handler, 1000 - skipped(&recording, name));
    }
    BESIDE.iter().for_each(|name| assert_eq!(handler(&recording, name).count, 0, "{name}"));
    assert_eq!(recording.handlers.len(), PLAIN.len() + BESIDE.len() + reached.len());
    assert_eq!(recording.modules[0].parameters["bpf_jit_enable"], "1");
    // Objects of an agent that are loaded must not keep probes from the functions of the image: 5.10 looks BTF up anew for each.
    let (ended, of_kernel) = measured(
        crate::cli::folder().path(),
        &format!("--allow-shared --max-loss 50 --handler {CORE}"),
    );
    ended.assert_code(exit::OK);
    assert!(matches!(of_kernel.backends()[..], [Backend::Fentry | Backend::Fsession]), "{ended:?}");
    assert_every_call(&of_kernel.handlers[0], 1000);
    if reaches_tracing {
        return;
    }
    let left_out: Vec<&str> = recording.left_out.iter().map(|left| left.name.as_str()).collect();
    assert_eq!(left_out, TRACING);
    let reason = &recording.left_out[0].reason;
    assert!(
        reason.contains("Cannot recursively attach (it is a tracing program, and before Linux 6.8"),
        "{reason}"
    );
    let statistics = warning(&recording, "bpf-stats");
    for ran in ["at_entry ran 1000 times, ", "at_exit ran 1000 times, "] {
        assert!(statistics.contains(ran), "{statistics}");
    }
    assert!(!statistics.contains("count"), "of programs alone: {statistics}");
    // The same as the only one is an error, after what there is.
    let (ended, recording) = measured(folder.path(), &options(&["at_exit"]));
    ended.assert_code(exit::CANNOT_MEASURE).assert_error(&["Cannot recursively attach"]);
    assert!(warning(&recording, "bpf-stats").contains("at_exit ran 1000 times"), "{ended:?}");
}

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn programs_of_one_name_are_told_apart_and_those_without_btf_are_refused() {
    let folder = folder();
    let _agents = ["plain", "plain", "without"].map(Agent::start);

    let ended = Ended::of(&mut profiler("run --bpf-prog on_kprobe --builtin connect"));
    ended.assert_code(exit::NO_TARGET).assert_error(&[
        "name the one",
        "`on_kprobe#1` (id ",
        "`on_kprobe#2`",
    ]);
    ended.assert_nothing_done();
    let ended = Ended::of(&mut profiler("run --bpf-prog on_kprobes --builtin connect"));
    ended
        .assert_code(exit::NO_TARGET)
        .assert_error(&["called `on_kprobes`; did you mean on_kprobe"]);
    let (ended, recording) = measured(folder.path(), "--bpf-prog on_k*e --bpf-prog without_btf");
    ended.assert_code(exit::OK);
    let names: Vec<&str> = recording.handlers.iter().map(|handler| handler.name.as_str()).collect();
    assert_eq!(names, ["on_kprobe#1", "on_kprobe#2"]);
    recording.handlers.iter().for_each(|handler| assert_every_call(handler, 1000));
    let left = &recording.left_out[0];
    assert!(left.name == "without_btf" && left.reason.contains("loaded without BTF"), "{left:?}");
    assert!(warning(&recording, "bpf-stats").contains("without_btf did not run"));
    let listed = Ended::of(&mut profiler("list --bpf-prog *out_btf on_return#2"));
    let rows = listed.stdout.split_whitespace().collect::<Vec<_>>();
    assert!(rows.contains(&"on_return#2") && rows.ends_with(&["yes"]), "{listed:?}");
    assert!(rows.windows(3).any(|row| row[0] == "without_btf" && row[2] == "no"), "{listed:?}");
}

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn a_program_that_is_replaced_or_detached_meanwhile_is_said() {
    let folder = folder();
    for (is_replaced, what) in
        [(true, "was replaced by another of its name"), (false, "was detached")]
    {
        let agent = Agent::start("plain");
        // The test ends the load.
        let over = folder.path().join(format!("over-{is_replaced}"));
        let load =
            ["sh", "-c", "while [ ! -e \"$1\" ]; do sleep 0.1; done", "sh", over.to_str().unwrap()];
        let mut run = Started::run("--bpf-prog on_kprobe --json {}/result.json", &load);
        run.wait_measuring();
        let _ = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().connect("127.0.0.1:9");
        drop(agent);
        let _next = is_replaced.then(|| Agent::start("plain"));
        File::create(&over).unwrap();
        let ended = run.end();
        ended.assert_code(exit::DRIVER_REPLACED).assert_error(&["on_kprobe (id ", what]);
        let recording = saved(run.path("result.json"), &ended.stdout);
        assert!(warning(&recording, "driver-replaced").contains(what));
        assert_eq!(handler(&recording, "on_kprobe").count, 1, "{ended:?}");
    }
}
