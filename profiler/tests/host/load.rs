//! Loads as they are used: with the real program in its hidden roles, and no privileges.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use profiler_load::{
    BuiltinKind, BuiltinLoad, CommandLoad, Load, LoadFailure, LoadOutcome, LoadRun, LoadSpec,
    LoadStatus, LoadUser, PrivateFolder, ProfilerProgram, Rate, RunningLoads, SandboxOptions,
    SandboxedLoad, StopReason, StopSignal,
};
use tempfile::TempDir;

use crate::program::{PATIENCE, lives, this_program, wait_for};

/// A folder for one test, with a link to the program in it: what runs from that link, or has a file
/// there, is this test's and no other's.
struct Scene {
    folder: TempDir,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        std::fs::hard_link(env!("CARGO_BIN_EXE_profiler"), folder.path().join("helper")).unwrap();
        std::fs::create_dir(folder.path().join("files")).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn helper(&self) -> ProfilerProgram {
        ProfilerProgram::at(self.path("helper"))
    }

    fn builtin(&self, kind: BuiltinKind) -> BuiltinLoad {
        BuiltinLoad {
            profiler: self.helper(),
            directory: Some(self.path("files")),
            ..BuiltinLoad::new(kind)
        }
    }

    /// As the caller, with this program as the supervisor.
    fn sandbox(&self) -> SandboxOptions {
        let grace = Some(Duration::from_millis(300));
        SandboxOptions { profiler: self.helper(), grace, ..SandboxOptions::default() }
    }

    fn shell(&self, script: &str) -> CommandLoad {
        shell(script, self.sandbox())
    }

    /// Waits until no process runs from the link and the folder for files is empty.
    fn assert_nothing_left(&self) {
        let patience = Instant::now() + PATIENCE;
        loop {
            let files = std::fs::read_dir(self.path("files")).unwrap().count();
            let processes = running_from(self.folder.path());
            if files == 0 && processes.is_empty() {
                return;
            }
            assert!(Instant::now() < patience, "left: {files} files, processes {processes:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Processes, zombies left out, whose program is under `folder`.
fn running_from(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let programs = entries.filter_map(|entry| std::fs::read_link(entry.path().join("exe")).ok());
    programs.filter(|program| program.starts_with(folder)).collect()
}

/// The pids in a file, once `count` lines are there.
fn pids(file: &Path, count: usize) -> Vec<String> {
    let read = || std::fs::read_to_string(file).unwrap_or_default();
    wait_for("pids", || read().matches('\n').count() >= count);
    read().lines().map(str::to_owned).collect()
}

/// What a process's `/proc/PID/limits` says of open files and of locked memory.
fn limits(text: &str) -> Vec<&str> {
    text.lines().filter(|line| line.contains("open files") || line.contains("locked")).collect()
}

/// Runs it on threads of this process.
async fn run(load: BuiltinLoad, stop: &StopSignal) -> LoadOutcome {
    start(load, stop).await.unwrap()
}

fn start(load: BuiltinLoad, stop: &StopSignal) -> tokio::task::JoinHandle<LoadOutcome> {
    let stop = stop.clone();
    tokio::task::spawn_blocking(move || load.run(&stop))
}

async fn run_command(load: CommandLoad) -> LoadOutcome {
    command(load).run(StopSignal::new()).await
}

async fn run_all(loads: Vec<Load>) -> Vec<LoadRun> {
    let mut running = RunningLoads::start(loads);
    running.wait().await;
    running.end("a task panicked").await
}

fn shell(script: &str, sandbox: SandboxOptions) -> CommandLoad {
    CommandLoad::new("sh", ["-c", script].map(OsString::from), sandbox)
}

fn command(load: CommandLoad) -> Load {
    Load::Command(Box::new(load))
}

fn sandboxed(load: BuiltinLoad) -> Load {
    Load::Builtin(Box::new(SandboxedLoad::new(load, as_oneself())))
}

fn stop_after(time: Duration, reason: StopReason) -> StopSignal {
    let stop = StopSignal::new();
    let later = stop.clone();
    std::thread::spawn(move || {
        std::thread::sleep(time);
        later.stop(reason);
    });
    stop
}

/// What a load that this machine cannot run has to say of it; `None` is one that has to run.
fn refusal(kind: BuiltinKind) -> Option<&'static str> {
    let helpers = std::fs::read_to_string("/proc/sys/kernel/modprobe").unwrap_or_default();
    match kind {
        kind if kind.changes_kernel() => Some("lab"),
        kind if kind.needs_root() && !nix::unistd::geteuid().is_root() => Some("run it as root"),
        BuiltinKind::CallUsermodehelper if helpers.trim().is_empty() => Some("kernel/modprobe"),
        _ => None,
    }
}

/// The loads that run here; the others are seen to be refused.
async fn kinds() -> Vec<BuiltinKind> {
    let mut kinds = Vec::new();
    for &kind in BuiltinKind::ALL {
        let Some(words) = refusal(kind) else {
            kinds.push(kind);
            continue;
        };
        let scene = Scene::new();
        let outcome =
            run(BuiltinLoad { operations: Some(1), ..scene.builtin(kind) }, &StopSignal::new())
                .await;
        let text = could_not_start(&outcome);
        assert!(text.contains(words) && text.contains(kind.name()), "{text}");
        scene.assert_nothing_left();
    }
    assert!(kinds.len() >= BuiltinKind::ALL.len() - 4);
    kinds
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_builtin_makes_exactly_the_operations_asked_for() {
    for kind in kinds().await {
        let scene = Scene::new();
        // 50 over 3 workers does not divide evenly.
        let load = BuiltinLoad { workers: 3, operations: Some(50), ..scene.builtin(kind) };
        let outcome = run(load, &StopSignal::new()).await;
        assert_eq!(outcome.status, LoadStatus::Completed, "{kind}: {outcome:?}");
        assert_eq!(outcome.errors, [], "{kind}");
        assert_eq!(outcome.operations, Some(50), "{kind}");
        assert_eq!(outcome.max_late_ns, None, "{kind}: a closed loop is never late");
        let latency = outcome.latency.unwrap();
        assert_eq!((latency.service.count, latency.response), (50, None), "{kind}");
        assert!(latency.service.sum_ns <= 3 * outcome.elapsed_ns, "{kind}: longer than the run");
        let held = outcome.held_rate_per_s.unwrap();
        let by_time = 50e9 / outcome.elapsed_ns as f64;
        assert!((held / by_time - 1.0).abs() < 1e-6, "{kind}: {held} and {by_time}");
        scene.assert_nothing_left();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fewer_operations_than_workers_and_none_at_all() {
    let scene = Scene::new();
    for operations in [0, 1] {
        let load = BuiltinLoad {
            workers: 4,
            operations: Some(operations),
            ..scene.builtin(BuiltinKind::Connect)
        };
        let outcome = run(load, &StopSignal::new()).await;
        assert_eq!(outcome.status, LoadStatus::Completed);
        assert_eq!(outcome.operations, Some(operations));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_builtin_stops_when_told_and_counts_what_it_did() {
    for kind in kinds().await {
        let scene = Scene::new();
        // An emulated machine may need longer for the set-up than the first stop allows.
        let mut outcome = None;
        for time in [100, 1_000, 10_000].map(Duration::from_millis) {
            let stop = stop_after(time, StopReason::Duration);
            let ended = run(BuiltinLoad { workers: 2, ..scene.builtin(kind) }, &stop).await;
            let stopped = LoadStatus::Stopped { by: StopReason::Duration };
            assert_eq!(ended.status, stopped, "{kind}: {ended:?}");
            let some = ended.operations.is_some_and(|operations| operations > 0);
            outcome = Some(ended);
            if some {
                break;
            }
        }
        let outcome = outcome.unwrap();
        let operations = outcome.operations.unwrap();
        assert!(operations > 0, "{kind}");
        assert_eq!(outcome.errors, [], "{kind}");
        scene.assert_nothing_left();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rate_is_held_over_all_workers() {
    let scene = Scene::new();
    let rate: Rate = "200/s".parse().unwrap();
    let stop = stop_after(Duration::from_secs(4), StopReason::Duration);
    let load = BuiltinLoad { workers: 3, rate: Some(rate), ..scene.builtin(BuiltinKind::Connect) };
    let outcome = run(load, &stop).await;
    let held = outcome.held_rate_per_s.unwrap();
    let late = outcome.max_late_ns.unwrap();
    let latency = outcome.latency.unwrap();
    // On a busy machine it is behind by as much as the latest operation.
    let due = outcome.operations.unwrap() as f64 + 200.0 * late as f64 / 1e9;
    let elapsed = outcome.operations.unwrap() as f64 / held;
    assert!(held <= 210.0 && due >= 190.0 * elapsed, "{held}/s, {late} ns late at most");
    let response = latency.response.unwrap();
    assert_eq!(
        (latency.service.count, response.count),
        (outcome.operations.unwrap(), response.count)
    );
    // The response time includes the operation itself and its late start.
    assert!(response.sum_ns >= latency.service.sum_ns);
    assert!(response.max_ns.unwrap() <= late + latency.service.max_ns.unwrap() + 1_000_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_warm_up_is_in_no_latency() {
    let scene = Scene::new();
    let rate: Rate = "100/s".parse().unwrap();
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap();
    let from = Duration::from(now) + Duration::from_secs(3);
    let load = BuiltinLoad {
        rate: Some(rate),
        operations: Some(400),
        measured_from: Some(from),
        ..scene.builtin(BuiltinKind::Kill)
    };
    let outcome = run(load, &StopSignal::new()).await;
    assert_eq!(outcome.operations, Some(400));
    let latency = outcome.latency.unwrap();
    assert_eq!(latency.response.map(|times| times.count), Some(latency.service.count));
    // A hundred are due after the first three seconds, and more by as much as the start takes.
    assert!((95..400).contains(&latency.service.count), "{}", latency.service.count);
}

/// CPUs that the threads of this program whose name begins so may use.
fn cpus_of(name: &str) -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let statuses =
        tasks.filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok());
    let of = |status: &str, field: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        line.map(|value| value.trim().to_owned()).unwrap_or_default()
    };
    let mut cpus: Vec<String> = statuses
        .filter(|status| of(status, "Name:").starts_with(name))
        .map(|status| of(&status, "Cpus_allowed_list:"))
        .collect();
    cpus.sort();
    cpus
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_are_pinned_to_the_cpus_in_turn() {
    let scene = Scene::new();
    let cpus = std::thread::available_parallelism().unwrap().get();
    let stop = StopSignal::new();
    let rate: Rate = "100/s".parse().unwrap();
    let load = BuiltinLoad {
        workers: 4,
        pin: true,
        rate: Some(rate),
        ..scene.builtin(BuiltinKind::Tkill)
    };
    let running = start(load, &stop);
    wait_for("the workers", || cpus_of("load-tkill-").len() == 4);
    wait_for("the pinning", || {
        cpus_of("load-tkill-").iter().all(|list| list.parse::<u32>().is_ok())
    });
    let mut distinct = cpus_of("load-tkill-");
    distinct.dedup();
    assert_eq!(distinct.len(), cpus.min(4), "{distinct:?}");
    // The first of each is due at once, and pinned workers are about to make it.
    tokio::time::sleep(Duration::from_millis(200)).await;
    stop.stop(StopReason::Duration);
    let outcome = running.await.unwrap();
    assert_eq!(outcome.status, LoadStatus::Stopped { by: StopReason::Duration });
    assert_eq!(outcome.errors, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_operations_are_made_up_for() {
    // Nobody executes a program a million times a second: all are late, and none is left out.
    let scene = Scene::new();
    let rate = Rate::try_from(1e6).unwrap();
    let load = BuiltinLoad {
        rate: Some(rate),
        operations: Some(20),
        ..scene.builtin(BuiltinKind::Execve)
    };
    let outcome = run(load, &StopSignal::new()).await;
    assert_eq!(outcome.operations, Some(20));
    assert!(outcome.held_rate_per_s.unwrap() < 1e5, "{outcome:?}");
    assert!(outcome.max_late_ns.unwrap() > 20_000, "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_waits_for_its_turn_stops_at_once() {
    let scene = Scene::new();
    let rate: Rate = "1/h".parse().unwrap();
    let stop = StopSignal::new();
    let load = BuiltinLoad { workers: 4, rate: Some(rate), ..scene.builtin(BuiltinKind::Bind) };
    let running = start(load, &stop);
    wait_for("the workers", || cpus_of("load-bind-").len() == 4);
    tokio::time::sleep(Duration::from_millis(200)).await;
    stop.stop(StopReason::Interrupted);
    let outcome = tokio::time::timeout(PATIENCE, running).await;
    let outcome = outcome.expect("it does not wait for the next hour").unwrap();
    assert_eq!(outcome.status, LoadStatus::Stopped { by: StopReason::Interrupted });
    // The first is due at once.
    assert!(outcome.operations <= Some(1), "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loads_run_side_by_side() {
    let scene = Scene::new();
    let kinds = kinds().await;
    let load = |kind: &_| {
        sandboxed(BuiltinLoad {
            workers: 2,
            operations: Some(30),
            pin: true,
            ..scene.builtin(*kind)
        })
    };
    let runs = run_all(kinds.iter().map(load).collect()).await;
    assert_eq!(runs.len(), kinds.len());
    for (run, kind) in runs.iter().zip(kinds) {
        let (workers, operations) = (2, Some(30));
        let spec = LoadSpec::Builtin {
            name: kind,
            workers,
            rate_per_s: None,
            operations,
            pin: true,
            user: as_oneself().user.map(|user| user.name),
            dimensions: profiler_load::Dimensions::default(),
        };
        assert_eq!(run.spec, spec);
        assert_eq!(run.outcome.status, LoadStatus::Completed);
        assert_eq!(run.outcome.operations, Some(30), "{kind}");
    }
    scene.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_that_fails_stops_the_others() {
    let scene = Scene::new();
    let missing = CommandLoad::new("no-such-command-here", [], scene.sandbox());
    let connect = sandboxed(scene.builtin(BuiltinKind::Connect));
    let runs = run_all(vec![Load::Idle, command(missing), connect]).await;
    let stopped = LoadStatus::Stopped { by: StopReason::LoadFailed };
    assert_eq!(runs[0].outcome.status, stopped);
    assert!(matches!(runs[1].outcome.status, LoadStatus::Failed(_)));
    assert_eq!(runs[2].outcome.status, stopped);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn set_up_that_fails_is_told_with_its_reason() {
    let scene = Scene::new();
    let not_there = ProfilerProgram::at(scene.path("not-there"));
    for kind in [BuiltinKind::Ptrace, BuiltinKind::Open] {
        let load = BuiltinLoad { workers: 2, profiler: not_there.clone(), ..scene.builtin(kind) };
        let text = could_not_start(&run(load, &StopSignal::new()).await);
        assert!(text.starts_with(&format!("built-in `{kind}`: ")), "{text}");
        assert!(text.contains("not-there"), "{text}");
    }
    let nowhere =
        BuiltinLoad { directory: Some(scene.path("nowhere")), ..scene.builtin(BuiltinKind::Open) };
    let text = could_not_start(&run(nowhere, &StopSignal::new()).await);
    assert!(text.contains("nowhere"), "{text}");
    // A program that does not know the hidden role must not be taken for a traced child.
    let load = BuiltinLoad {
        profiler: ProfilerProgram::at("/bin/true"),
        ..scene.builtin(BuiltinKind::Ptrace)
    };
    let text = could_not_start(&run(load, &StopSignal::new()).await);
    assert!(text.contains("instead of an address"), "{text}");
    scene.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_whose_operations_all_fail_gives_up() {
    let scene = Scene::new();
    let not_there = ProfilerProgram::at(scene.path("not-there"));
    let load = BuiltinLoad { profiler: not_there, ..scene.builtin(BuiltinKind::Execve) };
    let outcome = run(load, &StopSignal::new()).await;
    let LoadStatus::Failed(LoadFailure::BrokeOff { text }) = &outcome.status else {
        panic!("{outcome:?}");
    };
    assert!(text.contains("100 operations in a row failed"), "{text}");
    assert_eq!(outcome.operations, Some(0));
    assert_eq!(outcome.errors.len(), 1);
    assert_eq!((outcome.errors[0].kind.as_str(), outcome.errors[0].count), ("ENOENT", 100));
    assert!(outcome.errors[0].first.contains("not-there"), "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_load_ends() {
    let scene = Scene::new();
    let file = scene.path("pids");
    let script = format!("echo $$ > {}; exec sleep 1000", file.display());
    let running = RunningLoads::start(vec![
        sandboxed(scene.builtin(BuiltinKind::Open)),
        sandboxed(scene.builtin(BuiltinKind::Ptrace)),
        command(scene.shell(&script)),
    ]);
    // Three supervisors, two processes of loads, and the child that is traced.
    wait_for("the loads", || running_from(scene.folder.path()).len() >= 6);
    let pid = pids(&file, 1).remove(0);
    drop(running);
    tokio::task::yield_now().await;
    tokio::time::sleep(Duration::from_millis(10)).await;
    scene.assert_nothing_left();
    wait_for("the end of the command", || !lives(&pid));
}

fn could_not_start(outcome: &LoadOutcome) -> String {
    match &outcome.status {
        LoadStatus::Failed(LoadFailure::CouldNotStart { text }) => text.clone(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_ends_well_completes() {
    let scene = Scene::new();
    let file = scene.path("out");
    let load = scene.shell(&format!("cat > {0}; echo done >> {0}", file.display()));
    assert_eq!(
        command(load.clone()).describe(),
        LoadSpec::Command {
            argv: ["sh", "-c", &format!("cat > {0}; echo done >> {0}", file.display())]
                .map(str::to_owned)
                .into()
        }
    );
    let outcome = run_command(load).await;
    assert_eq!(outcome.status, LoadStatus::Completed);
    assert_eq!(outcome.operations, None, "a command's operations are unknown");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "done\n", "its input is empty");
    scene.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_fails_says_how() {
    let scene = Scene::new();
    let outcome = run_command(scene.shell("exit 7")).await;
    let failure = LoadFailure::ExitCode { code: 7 };
    assert_eq!(failure.to_string(), "the load command ended with exit code 7");
    assert_eq!(outcome.status, LoadStatus::Failed(failure));

    let outcome = run_command(scene.shell("kill -SEGV $$")).await;
    let failure = LoadFailure::Signal { number: 11, name: "SIGSEGV".to_owned() };
    assert_eq!(failure.to_string(), "the load command was killed by signal 11 (SIGSEGV)");
    assert_eq!(outcome.status, LoadStatus::Failed(failure));

    let outcome = run_command(scene.shell("kill -40 $$")).await;
    let failure = LoadFailure::Signal { number: 40, name: "a real-time signal".to_owned() };
    assert_eq!(outcome.status, LoadStatus::Failed(failure));
    scene.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_cannot_start_says_why() {
    let scene = Scene::new();
    let plain = scene.path("plain");
    std::fs::write(&plain, "hello").unwrap();
    for (program, error, remedy) in [
        ("no-such-command-here".into(), "ENOENT", "PATH"),
        (scene.path("missing"), "ENOENT", "check the path"),
        (plain, "EACCES", "chmod +x"),
    ] {
        let load = CommandLoad::new(&program, [], scene.sandbox());
        let text = could_not_start(&run_command(load).await);
        assert!(text.contains(&format!("`{}`", program.display())), "{text}");
        assert!(text.contains(error) && text.contains(remedy), "{text}");
    }
    let by = |program| SandboxOptions { profiler: program, ..SandboxOptions::default() };
    let load = shell("true", by(ProfilerProgram::at(scene.path("not-there"))));
    let text = could_not_start(&run_command(load).await);
    assert!(text.contains("not-there"), "{text}");
    // A supervisor without a report is a failure.
    let load = shell("true", by(ProfilerProgram::at("/bin/true")));
    let outcome = run_command(load).await;
    assert!(matches!(outcome.status, LoadStatus::Failed(LoadFailure::BrokeOff { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_obeys_is_not_killed() {
    let scene = Scene::new();
    let file = scene.path("told");
    let script = format!(
        "trap 'echo TERM > {0}; exit 3' TERM; echo > {0}; while :; do sleep 0.05; done",
        file.display()
    );
    let load = shell(&script, SandboxOptions { grace: Some(PATIENCE), ..scene.sandbox() });
    let stop = StopSignal::new();
    let running = tokio::spawn(command(load).run(stop.clone()));
    wait_for("the trap", || file.exists());
    let told = Instant::now();
    stop.stop(StopReason::Duration);
    let outcome = running.await.unwrap();
    assert!(told.elapsed() < PATIENCE, "the grace: {:?}", told.elapsed());
    assert_eq!(outcome.status, LoadStatus::Stopped { by: StopReason::Duration });
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "TERM\n");
    scene.assert_nothing_left();
}

#[test]
fn a_folder_that_is_given_as_a_relative_path_is_found_from_others() {
    let scene = Scene::new();
    let mut profiler = std::process::Command::new(scene.helper().path());
    let args = "run --no-probe --load-dir files -- sh -ec";
    profiler.args(args.split(' ')).arg("cd /; touch \"$TMPDIR/file\"");
    let output = profiler.current_dir(scene.folder.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    scene.assert_nothing_left();
}

/// A script that ignores SIGTERM, as do its child and its grandchild, the latter in a session of its
/// own; their three pids go to `file`.
fn stubborn(file: &Path) -> String {
    let file = file.display();
    format!(
        "trap '' TERM; echo $$ >> {file}
        sh -c 'echo $$ >> {file}; exec sleep 1000' &
        setsid sh -c 'echo $$ >> {file}; exec sleep 1000' &
        exec sleep 1000"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stubborn_family_is_killed_after_the_grace() {
    let scene = Scene::new();
    let file = scene.path("pids");
    let stop = StopSignal::new();
    let running = tokio::spawn(command(scene.shell(&stubborn(&file))).run(stop.clone()));
    let family = pids(&file, 3);
    assert!(family.iter().all(|pid| lives(pid)));
    let told = Instant::now();
    stop.stop(StopReason::Interrupted);
    let outcome = running.await.unwrap();
    assert!(told.elapsed() >= Duration::from_millis(300), "the grace: {:?}", told.elapsed());
    assert_eq!(outcome.status, LoadStatus::Stopped { by: StopReason::Interrupted });
    assert!(!family.iter().any(|pid| lives(pid)), "gone when the load is");
    scene.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_command_leaves_running_ends_with_it() {
    let scene = Scene::new();
    let file = scene.path("pids");
    let script = format!("setsid sh -c 'echo $$ >> {}; exec sleep 1000' &", file.display());
    let script = format!("{script} while ! [ -s {} ]; do sleep 0.01; done", file.display());
    let outcome = run_command(scene.shell(&script)).await;
    assert_eq!(outcome.status, LoadStatus::Completed);
    assert!(!lives(&pids(&file, 1)[0]));
    scene.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chain_of_sessions_that_grows_is_killed() {
    let scene = Scene::new();
    let file = scene.path("pids");
    // Each generation stays alive, so that the next does not become an orphan.
    let script = format!(
        "trap '' TERM; echo $$ >> {}; if [ $1 -lt 3000 ]; then setsid sh \"$0\" $(($1 + 1)) & wait; fi; sleep 1000",
        file.display()
    );
    let chain = scene.path("chain");
    std::fs::write(&chain, script).unwrap();
    let sandbox = SandboxOptions { grace: Some(Duration::ZERO), ..scene.sandbox() };
    let load = CommandLoad::new("sh", [chain.into(), "1".into()], sandbox);
    let stop = StopSignal::new();
    let running = tokio::spawn(command(load).run(stop.clone()));
    // It goes on growing while it is killed.
    pids(&file, 300);
    stop.stop(StopReason::Interrupted);
    let outcome = running.await.unwrap();
    assert_eq!(outcome.status, LoadStatus::Stopped { by: StopReason::Interrupted });
    let left = pids(&file, 300).iter().filter(|pid| lives(pid)).count();
    assert_eq!(left, 0);
    scene.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_whose_first_thread_has_ended_is_killed() {
    let scene = Scene::new();
    let file = scene.path("pids");
    let script = format!(
        "import ctypes, os, threading, time\nif os.fork(): time.sleep(1000)\nos.setsid()\n\
         threading.Thread(target=time.sleep, args=(1000,)).start()\n\
         with open('{}', 'w') as file: file.write(f'{{os.getpid()}}\\n')\nctypes.CDLL(None).syscall({}, 0)",
        file.display(),
        libc::SYS_exit
    );
    let sandbox = SandboxOptions { grace: Some(Duration::ZERO), ..scene.sandbox() };
    let load = CommandLoad::new("python3", ["-c".into(), script.into()], sandbox);
    let stop = StopSignal::new();
    let running = tokio::spawn(command(load).run(stop.clone()));
    let pid = pids(&file, 1).remove(0);
    wait_for("the end of the first thread", || !lives(&pid));
    let process = PathBuf::from(format!("/proc/{pid}"));
    assert!(process.exists());
    stop.stop(StopReason::Interrupted);
    let outcome = running.await.unwrap();
    assert_eq!(outcome.status, LoadStatus::Stopped { by: StopReason::Interrupted });
    assert!(!process.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_need_not_have_a_name_in_utf_8() {
    let scene = Scene::new();
    let odd = scene.path("files").join(OsStr::from_bytes(b"\xff"));
    std::fs::create_dir(&odd).unwrap();
    let directory = Some(odd.clone());
    let sandbox = SandboxOptions { directory, profiler: scene.helper(), ..as_oneself() };
    let builtin = BuiltinLoad { operations: Some(5), ..scene.builtin(BuiltinKind::Open) };
    let loads = vec![
        Load::Builtin(Box::new(SandboxedLoad::new(builtin, sandbox.clone()))),
        command(shell("touch \"$TMPDIR/file\"", sandbox)),
    ];
    let running = run_all(loads);
    for run in tokio::time::timeout(PATIENCE, running).await.unwrap() {
        assert_eq!(run.outcome.status, LoadStatus::Completed, "{run:?}");
    }
    let mut profiler = std::process::Command::new("timeout");
    profiler
        .arg(PATIENCE.as_secs().to_string())
        .arg(scene.helper().path())
        .args("run --no-probe -- true".split(' '));
    let output = profiler.env("TMPDIR", &odd).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    // Which is empty.
    std::fs::remove_dir(odd).unwrap();
    scene.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_supervisor_that_fails_has_left_is_removed() {
    let scene = Scene::new();
    let folder = scene.folder.path().display();
    let text = format!(
        "#!/usr/bin/perl\nmy $child = fork; exec '{folder}/helper', @ARGV if !$child;\n\
         select undef, undef, undef, 0.01 until -e '{folder}/started';\n\
         kill 'KILL', $child; waitpid $child, 0; exit 101;\n"
    );
    let profiler = executable(&scene, &text);
    let directory = Some(scene.path("files"));
    let sandbox = SandboxOptions { directory, profiler, ..as_oneself() };
    let load = shell(&format!("touch {folder}/started; exec sleep 1000"), sandbox);
    let outcome = run_command(load).await;
    assert!(matches!(outcome.status, LoadStatus::Failed(LoadFailure::BrokeOff { .. })));
    assert_eq!(std::fs::read_dir(scene.path("files")).unwrap().count(), 0, "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_supervisor_that_gets_sigterm_ends_its_command() {
    let scene = Scene::new();
    let file = scene.path("pids");
    let script = format!("echo $$ > {0}; echo $PPID >> {0}; exec sleep 300", file.display());
    let running = tokio::spawn(run_command(scene.shell(&script)));
    let pids = pids(&file, 2);
    let supervisor = nix::unistd::Pid::from_raw(pids[1].parse().unwrap());
    nix::sys::signal::kill(supervisor, nix::sys::signal::Signal::SIGTERM).unwrap();
    let outcome = running.await.unwrap();
    assert_eq!(outcome.status, LoadStatus::Stopped { by: StopReason::Interrupted });
    assert!(!pids.iter().any(|pid| lives(pid)), "{outcome:?}");
    scene.assert_nothing_left();
}

/// A supervisor says so, among lines of a load that are no messages, and has to leave files, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_could_not_be_killed_or_removed_is_told_with_whose_it_was() {
    let scene = Scene::new();
    let text = r#"#!/usr/bin/perl
$| = 1;
sub answer { print "no message\n" x 20000, shift, "\n"; <STDIN> }
<STDIN>;
answer('"Ready"');
answer('{"Ended": {"end": {"exit": 0}, "elapsed": {"secs": 1, "nanos": 0}, "left_running": 0,
    "unkillable": [7, 8], "output": ""}}' =~ s/\n//gr);
answer('{"Failed": "files could not be removed"}');
exit 1;
"#;
    let profiler = executable(&scene, text);
    let sandbox = SandboxOptions { profiler: profiler.clone(), ..as_oneself() };
    let builtin = BuiltinLoad { profiler, ..scene.builtin(BuiltinKind::Open) };
    for (load, name) in
        [(command(shell("true", sandbox)), "`sh`"), (sandboxed(builtin), "built-in `open`")]
    {
        let outcome = load.run(StopSignal::new()).await;
        let text = format!("processes 7, 8 of {name} did not end after SIGKILL");
        assert_eq!(outcome.status, LoadStatus::Failed(LoadFailure::BrokeOff { text }));
        assert_eq!(outcome.left.as_deref(), Some("files could not be removed"));
    }
}

/// Kept to nothing: the folders of these tests may not be open to others.
fn as_oneself() -> SandboxOptions {
    let me = nix::unistd::User::from_uid(nix::unistd::geteuid()).unwrap().unwrap();
    let user = LoadUser { name: me.name, uid: me.uid.as_raw(), gid: me.gid.as_raw() };
    SandboxOptions { user: Some(user), ..SandboxOptions::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_builtin_does_the_same_in_a_process_of_its_own() {
    for kind in kinds().await {
        let scene = Scene::new();
        let load = BuiltinLoad { workers: 2, operations: Some(40), ..scene.builtin(kind) };
        let outcome = sandboxed(load).run(StopSignal::new()).await;
        assert_eq!(outcome.status, LoadStatus::Completed, "{kind}: {outcome:?}");
        assert_eq!(outcome.operations, Some(40), "{kind}");
        assert_eq!(outcome.latency.unwrap().service.count, 40, "{kind}");
        assert!(outcome.cpu.is_some(), "{kind}");
        scene.assert_nothing_left();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandboxed_load_stops_when_told_and_counts_what_it_did() {
    let scene = Scene::new();
    let load = sandboxed(scene.builtin(BuiltinKind::Execve));
    let stop = StopSignal::new();
    let running = tokio::spawn(load.run(stop.clone()));
    // The guard, the process, and what it executes.
    wait_for("the load", || running_from(scene.folder.path()).len() >= 3);
    stop.stop(StopReason::Interrupted);
    let outcome = running.await.unwrap();
    assert_eq!(outcome.status, LoadStatus::Stopped { by: StopReason::Interrupted });
    // The one that was under way was let end.
    assert_eq!(outcome.errors, []);
    assert!(outcome.operations.unwrap() > 0);
    scene.assert_nothing_left();
}

/// The program, after `script` in Perl where it is to run a load. Shells change the blocked signals.
fn program_after(scene: &Scene, script: &str) -> ProfilerProgram {
    let folder = scene.folder.path().display();
    let text = format!(
        "#!/usr/bin/perl\nif ($ARGV[0] eq '__load') {{ open F, '>', '{folder}/pid'; print F \"$$\\n\"; close F; \
         {script} }}\nexec '{folder}/helper', @ARGV;\n"
    );
    executable(scene, &text)
}

fn executable(scene: &Scene, text: &str) -> ProfilerProgram {
    let program = scene.path("script");
    std::fs::write(&program, text).unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    ProfilerProgram::at(program)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandboxed_load_that_is_stopped_before_it_runs_reports_it() {
    let scene = Scene::new();
    let load = BuiltinLoad {
        profiler: program_after(&scene, "sleep 1;"),
        ..scene.builtin(BuiltinKind::Prctl)
    };
    let stop = StopSignal::new();
    let running = tokio::spawn(sandboxed(load).run(stop.clone()));
    pids(&scene.path("pid"), 1);
    stop.stop(StopReason::Duration);
    let outcome = running.await.unwrap();
    assert_eq!(outcome.status, LoadStatus::Stopped { by: StopReason::Duration }, "{outcome:?}");
    scene.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_sandboxed_load_leaves_running_is_killed_at_once() {
    let scene = Scene::new();
    let leaving = program_after(&scene, "exec 'sleep', '1000' if !fork;");
    let load =
        BuiltinLoad { profiler: leaving, operations: Some(1), ..scene.builtin(BuiltinKind::Prctl) };
    let grace = Duration::from_secs(60);
    let load = SandboxedLoad::new(load, SandboxOptions { grace: Some(grace), ..as_oneself() });
    let began = Instant::now();
    let outcome = Load::Builtin(Box::new(load)).run(StopSignal::new()).await;
    assert_eq!(outcome.status, LoadStatus::Completed, "{outcome:?}");
    assert!(began.elapsed() < grace, "{:?}", began.elapsed());
    scene.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandboxed_load_that_hangs_is_killed_and_told() {
    let scene = Scene::new();
    let hanging = program_after(&scene, "$SIG{TERM} = 'IGNORE'; sleep 1000;");
    let load = BuiltinLoad { profiler: hanging, ..scene.builtin(BuiltinKind::Open) };
    let grace = Some(Duration::from_millis(300));
    let load = SandboxedLoad::new(load, SandboxOptions { grace, ..as_oneself() });
    let stop = StopSignal::new();
    let running = tokio::spawn(Load::Builtin(Box::new(load)).run(stop.clone()));
    let pid = pids(&scene.path("pid"), 1).remove(0);
    stop.stop(StopReason::Duration);
    let outcome = running.await.unwrap();
    let LoadStatus::Failed(LoadFailure::BrokeOff { text }) = &outcome.status else {
        panic!("{outcome:?}");
    };
    assert!(text.contains("`open` hung") && text.contains("0.3 s"), "{text}");
    assert!(!lives(&pid));
    scene.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandboxed_load_that_is_killed_is_told_too() {
    let scene = Scene::new();
    let load = sandboxed(scene.builtin(BuiltinKind::Write));
    let running = tokio::spawn(load.run(StopSignal::new()));
    let hosts = || {
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let is = |path: &Path| {
            let line = std::fs::read(path.join("cmdline")).unwrap_or_default();
            let ours = line.starts_with(scene.helper().path().as_os_str().as_encoded_bytes());
            ours && line.windows(8).any(|words| words == b"\0__load\0")
        };
        let named = entries.filter(|entry| is(&entry.path())).map(|entry| entry.file_name());
        named.filter_map(|name| name.to_str()?.parse().ok()).collect::<Vec<i32>>()
    };
    wait_for("the load", || {
        hosts().len() == 1 && std::fs::read_dir(scene.path("files")).unwrap().count() == 1
    });
    let host = nix::unistd::Pid::from_raw(hosts()[0]);
    nix::sys::signal::kill(host, nix::sys::signal::Signal::SIGKILL).unwrap();
    let outcome = running.await.unwrap();
    let LoadStatus::Failed(LoadFailure::BrokeOff { text }) = &outcome.status else {
        panic!("{outcome:?}");
    };
    assert!(text.contains("`write` ended without a report"), "{text}");
    scene.assert_nothing_left();
}

/// Set for the process that plays the profiler which is killed.
const VICTIM: &str = "PROFILER_TEST_VICTIM";

/// Not a test by itself: the process that the next test starts and kills.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn victim() {
    let Some(folder) = std::env::var_os(VICTIM) else { return };
    let folder = PathBuf::from(folder);
    let helper = ProfilerProgram::at(folder.join("helper"));
    let grace = Some(Duration::from_millis(300));
    let sandbox = SandboxOptions { profiler: helper.clone(), grace, ..SandboxOptions::default() };
    let family = shell(&stubborn(&folder.join("pids")), sandbox);
    let stop = StopSignal::new();
    let family = tokio::spawn(command(family).run(stop.clone()));
    // First: a session of its own may have a small share of the CPUs, which the loads below are to take.
    pids(&folder.join("pids"), 3);
    for (kind, workers) in
        [(BuiltinKind::Open, 1), (BuiltinKind::Ptrace, 2), (BuiltinKind::Execve, 2)]
    {
        let (profiler, directory) = (helper.clone(), Some(folder.join("files")));
        start(BuiltinLoad { workers, profiler, directory, ..BuiltinLoad::new(kind) }, &stop);
    }
    family.await.unwrap();
}

/// Killed when a test is over, also one that fails: its loads would go on.
struct Victim(Child);

impl Drop for Victim {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn nothing_outlives_a_killed_profiler() {
    let scene = Scene::new();
    let mut profiler = this_program("load::victim");
    profiler.env(VICTIM, scene.folder.path()).stdout(Stdio::null());
    let profiler = Victim(profiler.spawn().unwrap());
    let family = pids(&scene.path("pids"), 3);
    // The guards of the directory and the command, and two traced children.
    wait_for("the loads", || running_from(scene.folder.path()).len() >= 4);
    wait_for("the files", || std::fs::read_dir(scene.path("files")).unwrap().count() == 1);
    assert!(family.iter().all(|pid| lives(pid)));
    drop(profiler);
    scene.assert_nothing_left();
    wait_for("the end of the command's family", || !family.iter().any(|pid| lives(pid)));
}

#[test]
fn a_private_folder_is_private_and_goes() {
    use std::os::unix::fs::PermissionsExt as _;
    let scene = Scene::new();
    let folder = PrivateFolder::new(&scene.path("files"), "some-", &scene.helper()).unwrap();
    let mode = std::fs::metadata(folder.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    std::fs::write(folder.path().join("file"), "").unwrap();
    drop(folder);
    scene.assert_nothing_left();
    let missing = PrivateFolder::new(&scene.path("missing"), "some-", &scene.helper());
    let missing = missing.unwrap_err();
    assert_eq!(missing.kind(), std::io::ErrorKind::NotFound);
    assert!(missing.to_string().contains("missing/some-"), "{missing}");
    let began = Instant::now();
    let file = PrivateFolder::new(&scene.path("helper"), "some-", &scene.helper());
    assert_eq!(file.unwrap_err().kind(), std::io::ErrorKind::NotADirectory);
    // Less than a removal is tried for.
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
}

/// Kills `profiler` once `folder` has an entry, in the midst of its start.
pub(crate) fn kill_at_first_entry(mut profiler: Child, folder: &Path) {
    // Without pauses, which would be longer than the start.
    while std::fs::read_dir(folder).unwrap().next().is_none() {
        assert_eq!(profiler.try_wait().unwrap(), None, "it ended by itself");
    }
    profiler.kill().unwrap();
    profiler.wait().unwrap();
}

#[test]
fn nothing_is_left_of_a_profiler_killed_while_a_load_starts() {
    let scene = Scene::new();
    for _ in 0..5 {
        let mut profiler = std::process::Command::new(scene.helper().path());
        let args = "run --no-probe --builtin open --duration 60s --load-dir";
        profiler
            .args(args.split(' '))
            .arg(scene.path("files"))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        kill_at_first_entry(profiler.spawn().unwrap(), &scene.path("files"));
        scene.assert_nothing_left();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_load_was_survives_json() {
    let scene = Scene::new();
    let rate = Rate::try_from(1000.0).unwrap();
    let load = BuiltinLoad {
        rate: Some(rate),
        operations: Some(5),
        ..scene.builtin(BuiltinKind::UdpRecv)
    };
    let missing = CommandLoad::new("no-such-command-here", [], scene.sandbox());
    for load in [sandboxed(load), command(missing)] {
        let runs = run_all(vec![load]).await;
        let text = serde_json::to_string(&runs).unwrap();
        assert_eq!(serde_json::from_str::<Vec<LoadRun>>(&text).unwrap(), runs, "{text}");
    }
    let spec = r#"{"kind":"builtin","name":"udp-recv","workers":1,"rate_per_s":2.5}"#;
    let LoadSpec::Builtin { rate_per_s, operations, .. } = serde_json::from_str(spec).unwrap()
    else {
        panic!("{spec}");
    };
    assert_eq!((rate_per_s.map(Rate::get), operations), (Some(2.5), None));
    assert!(serde_json::from_str::<LoadSpec>(&spec.replace("2.5", "-1")).is_err());
}

#[test]
fn a_kind_is_known_by_its_name() {
    for &kind in BuiltinKind::ALL {
        assert_eq!(kind.name().parse::<BuiltinKind>(), Ok(kind));
        assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{kind}\""));
    }
    let error = "conect".parse::<BuiltinKind>().unwrap_err().to_string();
    assert!(error.contains("`conect`") && error.contains("udp-recv"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_has_the_limits_that_the_profiler_was_started_with() {
    let scene = Scene::new();
    // Low enough that there is something to raise, and not too low for other tests of this process.
    for (of, low) in [(Resource::RLIMIT_NOFILE, 1_000), (Resource::RLIMIT_MEMLOCK, 65_536)] {
        let (soft, hard) = getrlimit(of).unwrap();
        setrlimit(of, soft.min(low), hard).unwrap();
    }
    let text = std::fs::read_to_string("/proc/self/limits").unwrap();
    let before = limits(&text);
    // As probes do when they are attached.
    profiler_base::limits::raise_open_files(2_000);
    profiler_base::limits::raise_locked_memory();
    assert!(getrlimit(Resource::RLIMIT_NOFILE).unwrap().0 > 2_000);

    let file = scene.path("limits");
    let load = scene.shell(&format!("cat /proc/self/limits > {}", file.display()));
    assert_eq!(run_command(load).await.status, LoadStatus::Completed);
    assert_eq!(limits(&std::fs::read_to_string(file).unwrap()), before);
}
