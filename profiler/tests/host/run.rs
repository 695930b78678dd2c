//! `profiler run --no-probe`: loads, without privileges or probes.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use profiler_load::{LoadRun, LoadSpec, LoadStatus};
use profiler_recording::{Recording, Series};
use tempfile::TempDir;

use crate::program::{PATIENCE, wait_for, wait_measuring};

/// A folder that everybody may look into, with a link to the program: what runs from there, or has the
/// folder for its temporary files, is this test's.
struct Scene(TempDir);

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let (program, link) = (env!("CARGO_BIN_EXE_profiler"), folder.path().join("profiler"));
        if fs::hard_link(program, &link).is_err() {
            fs::copy(program, &link).unwrap();
        }
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn program(&self) -> Command {
        let mut command = Command::new(self.path("profiler"));
        // All temporary files of this test are its own.
        command.env("TMPDIR", self.0.path());
        command
    }

    /// Runs to the end: `profiler run --no-probe WORDS --json out.json`.
    fn run(&self, words: &str) -> (Output, Recording) {
        let output = self.start(words).wait_with_output().unwrap();
        let profile = Recording::read(&self.path("out.json"));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output, profile.unwrap_or_else(|error| panic!("{error}; it said: {said}")))
    }

    fn start(&self, words: &str) -> Child {
        let mut command = self.program();
        command.args(["run", "--no-probe", "--json"]).arg(self.path("out.json"));
        command.args(words.split_whitespace());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Waits until the folder holds nothing of a load, and no process has the folder in its
    /// environment.
    fn assert_nothing_left(&self) {
        let mut left = Vec::new();
        wait_for("the end of what a load left behind", || {
            left = processes_of(self.0.path());
            let folders = fs::read_dir(self.0.path()).unwrap().flatten();
            let named = folders.map(|entry| entry.file_name().to_string_lossy().into_owned());
            left.extend(named.filter(|name| name.starts_with("profiler-load-")));
            left.is_empty()
        });
    }
}

/// Processes whose program is in `folder`, or that have it for temporary files, by their command line.
fn processes_of(folder: &Path) -> Vec<String> {
    let wanted = format!("TMPDIR={}", folder.display());
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let has = |path: &Path| {
        if fs::read_link(path.join("exe")).is_ok_and(|program| program.starts_with(folder)) {
            return true;
        }
        let environment = fs::read(path.join("environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|entry| entry.starts_with(wanted.as_bytes()))
    };
    entries
        .filter(|entry| has(&entry.path()))
        .map(|entry| {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).replace('\0', " ")
        })
        .collect()
}

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
}

fn codes(profile: &Recording) -> Vec<&str> {
    profile.warnings.iter().map(|warning| warning.code.as_str()).collect()
}

fn user_of(run: &LoadRun) -> Option<&str> {
    match &run.spec {
        LoadSpec::Builtin { user, .. } => user.as_deref(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_was_measured_outlives_a_full_disk() {
    let scene = Scene::new();
    let run = "run --no-probe --builtin nanosleep --operations 50 --json";
    let mut command = scene.program();
    let output = command.args(run.split(' ')).arg("/dev/full").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(8), "{said}");
    assert!(said.contains("cannot write /dev/full: No space left on device"), "{said}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("nanosleep: service time"));
    let saved = said.split("the recording is in ").nth(1).unwrap();
    let saved = saved.split(" instead").next().unwrap();
    assert!(Path::new(saved).starts_with(scene.0.path()), "{saved}");
    let profile = Recording::read(Path::new(saved)).unwrap();
    assert_eq!(profile.loads[0].outcome.operations, Some(50));
}

#[test]
fn a_full_disk_leaves_the_old_file_and_the_table() {
    let scene = Scene::new();
    fs::write(scene.path("out.json"), "what was there before").unwrap();
    // No file may be larger than 1 KiB; the signal ignored, a write fails as on a full disk.
    let script = "trap '' XFSZ; ulimit -f 1; exec \"$@\"";
    let output = Command::new("bash")
        .args(["-c", script, "bash"])
        .arg(scene.path("profiler"))
        .args("run --no-probe --builtin nanosleep --operations 50 --json".split(' '))
        .arg(scene.path("out.json"))
        .env("TMPDIR", scene.0.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(8), "{said}");
    assert!(said.contains("an older file of that name is left as it was"), "{said}");
    assert!(said.contains("and it could not be saved elsewhere"), "{said}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("nanosleep: service time"));
    assert_eq!(fs::read(scene.path("out.json")).unwrap(), b"what was there before");
    let left = fs::read_dir(scene.0.path()).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn a_rate_is_held_within_one_in_a_hundred() {
    let scene = Scene::new();
    let (output, profile) = scene.run("--builtin execve --rate 50/s --duration 12s");
    assert!(output.status.success(), "{output:?}");
    let outcome = &profile.loads[0].outcome;
    // Never faster than asked for; a machine that is busy may be too slow for it, and then the recording says so.
    let held = outcome.held_rate_per_s.unwrap();
    assert!(held / 50.0 < 1.01, "{held}");
    assert_eq!(outcome.errors, []);
    assert_eq!(codes(&profile).contains(&"rate-not-held"), held / 50.0 < 0.99, "{held}");
    // An execve costs something, and no more than the machine has.
    let cpu = outcome.cpu_ns_per_operation().unwrap();
    assert!((10_000.0..1e9).contains(&cpu), "{cpu} ns");
    let table = String::from_utf8(output.stdout).unwrap();
    for words in ["execve: service time", "execve: response time", "CPU us/op"] {
        assert!(table.contains(words), "{table}");
    }
    scene.assert_nothing_left();
}

#[test]
fn a_rate_that_cannot_be_held_is_told() {
    let scene = Scene::new();
    let (output, profile) = scene.run("--builtin execve --rate 1000000/s --duration 1s");
    assert!(output.status.success());
    let held = profile.loads[0].outcome.held_rate_per_s.unwrap();
    assert!(held < 100_000.0, "{held}");
    let warning = profile.warnings.iter().find(|warning| warning.code == "rate-not-held").unwrap();
    assert!(warning.text.contains("1000000/s") && warning.text.contains(&format!("{held:.1}/s")));
}

#[test]
fn a_load_of_root_runs_as_nobody_and_another_as_oneself() {
    let scene = Scene::new();
    let root = nix::unistd::geteuid().is_root();
    let (output, profile) = scene.run("--builtin open,kill --operations 100");
    assert!(output.status.success(), "{output:?}");
    for load in &profile.loads {
        assert_eq!(load.outcome.status, LoadStatus::Completed);
        assert_eq!(load.outcome.operations, Some(100));
        assert_eq!(user_of(load), root.then_some("nobody"));
    }
    // The rest is of root alone: only root can become another.
    let (output, profile) = scene.run("--builtin kill --operations 10 --load-user root");
    if root {
        assert!(output.status.success(), "{output:?}");
        assert_eq!(user_of(&profile.loads[0]), Some("root"));
        let words = format!("--load-user nobody --load-dir {} -- sh -c", scene.0.path().display());
        let mut command = scene.program();
        command.args(["run", "--no-probe"]).args(words.split(' '));
        let script = "id -u >&2; echo $TMPDIR >&2; [ -d $TMPDIR ] && touch $TMPDIR/x && [ $$ = $(ps -o sid= -p $$) ]";
        let output = command.arg(script).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        assert!(said.contains("65534\n") && said.contains("/profiler-load-"), "{said}");
    } else {
        assert_eq!(output.status.code(), Some(5));
        assert!(String::from_utf8_lossy(&output.stderr).contains("only root"), "{output:?}");
    }
    let output =
        scene.program().args(["run", "--no-probe", "--load-user", "no-such-user"]).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no-such-user"));
    scene.assert_nothing_left();
}

/// As many kinds of loads as there are that leave something while they run.
const LEAVING: &str =
    "--builtin open,write,rmdir,execve,ptrace,accept,dns,setsid --workers 2 --duration 600s";

#[test]
fn nothing_is_left_of_loads_however_they_end() {
    let scene = Scene::new();
    for how in [Signal::SIGINT, Signal::SIGKILL] {
        let mut run = scene.start(LEAVING);
        let said = wait_measuring(run.stderr.take().unwrap());
        wait_for("all loads to run", || {
            let running = processes_of(scene.0.path());
            let of = |role: &str| running.iter().filter(|line| line.contains(role)).count();
            of("__load ") >= 8 && of("__ptrace-child") == 2
        });
        let folders = fs::read_dir(scene.0.path()).unwrap().flatten();
        assert_eq!(folders.filter(|entry| entry.path().is_dir()).count(), 3);
        signal(&run, how);
        run.wait().unwrap();
        drop(said);
        scene.assert_nothing_left();
    }
}

/// The numbers of a row of the table that begins with `name`.
fn row<'a>(table: &'a str, name: &str) -> Vec<&'a str> {
    let line = table.lines().find(|line| line.starts_with(name));
    let line = line.unwrap_or_else(|| panic!("no row of {name}: {table}"));
    line.strip_prefix(name).unwrap().split_whitespace().collect()
}

#[test]
fn repeated_runs_are_kept_apart() {
    let scene = Scene::new();
    let line = "--builtin kill --operations 600 --rate 600/s --repeat 3 --warmup 500ms";
    let page = scene.path("out.html");
    let line = &format!("{line} --export {}", page.display());
    let output = scene.start(line).wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(fs::read_to_string(page).unwrap().contains("<th scope=\"row\">run 3</th>"));
    let said = String::from_utf8_lossy(&output.stderr);
    let bytes = fs::read(scene.path("out.json")).unwrap();
    crate::common::assert_valid_series(&serde_json::from_slice(&bytes).unwrap());
    let series = Series::read(&scene.path("out.json")).unwrap();
    assert_eq!(series.runs.len(), 3);
    for (number, run) in series.runs.iter().enumerate() {
        assert!(said.contains(&format!("run {} of 3\n", number + 1)), "{said}");
        // Each has a load and a warm-up of its own, and not one operation of another run.
        assert_eq!(run.loads[0].outcome.operations, Some(600));
        assert!(run.warmup_ns >= 500_000_000, "{}", run.warmup_ns);
        assert!(run.loads[0].outcome.latency.as_ref().unwrap().service.count <= 600);
        assert_eq!(run.place, None, "runs of one boot are in order by their time stamps");
    }
    assert!(series.runs.windows(2).all(|pair| pair[0].started < pair[1].started));
    let table = String::from_utf8(output.stdout).unwrap();
    let cells = row(&table, "kill: service time");
    let mut of_runs: Vec<f64> = series
        .runs
        .iter()
        .map(|run| run.loads[0].outcome.latency.as_ref().unwrap().service.mean_ns().unwrap())
        .collect();
    of_runs.sort_by(f64::total_cmp);
    let spread = format!("{:.2}%", (of_runs[2] - of_runs[0]) / of_runs[1] * 100.0);
    assert_eq!((cells[0], cells[3]), ("3", spread.as_str()), "{table}");
    let report = |args: &[&str]| {
        let output = scene.program().arg("report").arg(scene.path("out.json")).args(args).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    assert_eq!(report(&[]), table, "the report is the table of the runs");
    assert!(report(&["--run", "3"]).contains("window"), "one run has the table of one");
    assert_eq!(report(&["--format", "json"]).as_bytes(), bytes);
    scene.assert_nothing_left();
}

#[test]
fn repetitions_that_are_interrupted_keep_what_was_measured() {
    let scene = Scene::new();
    let mut run = scene.start("--builtin kill --duration 400ms --repeat 100");
    let mut lines = BufReader::new(run.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "run 3 of 100"), "it ended before its third run");
    std::thread::sleep(Duration::from_millis(100));
    signal(&run, Signal::SIGINT);
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    assert_eq!(run.wait_with_output().unwrap().status.code(), Some(130));
    let series = Series::read(&scene.path("out.json")).unwrap();
    // The third one, unless this test was kept waiting.
    assert!(series.runs.len() >= 2);
    assert!(series.runs.iter().all(|run| !run.interrupted && run.window_ns >= 400_000_000));
    let cut = format!("run {} of 100 was cut short", series.runs.len() + 1);
    assert!(rest.iter().any(|line| line.contains(&cut)), "{rest:?}");
    scene.assert_nothing_left();

    // Without a whole run before it, what there is of the first is kept.
    let mut run = scene.start("--builtin kill --duration 600s --repeat 5");
    let said = wait_measuring(run.stderr.take().unwrap());
    std::thread::sleep(Duration::from_millis(100));
    signal(&run, Signal::SIGTERM);
    let ended = run.wait().unwrap();
    drop(said);
    assert_eq!(ended.code(), Some(143));
    let series = Series::read(&scene.path("out.json")).unwrap();
    assert_eq!((series.runs.len(), series.runs[0].interrupted), (1, true));
    scene.assert_nothing_left();
}

#[test]
fn repetitions_end_with_a_load_that_fails() {
    let scene = Scene::new();
    let count = scene.path("count");
    let script = format!("echo >> {0}; [ $(wc -l < {0}) -lt 3 ]", count.display());
    let mut command = scene.program();
    command.args(["run", "--no-probe", "--repeat", "9", "--json"]).arg(scene.path("out.json"));
    let output = command.args(["--", "sh", "-c", &script]).output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    assert_eq!(fs::read_to_string(count).unwrap().lines().count(), 3, "no fourth run");
    assert_eq!(Series::read(&scene.path("out.json")).unwrap().runs.len(), 3);
}

/// Whenever in the start it comes, before the handlers of signals are there (then it kills) or after.
#[test]
fn a_signal_at_any_moment_of_the_start_ends_the_run() {
    let scene = Scene::new();
    for half_ms in 0..80 {
        // Longer than it is waited for: it must not end by itself.
        let mut run = scene.start("--builtin nanosleep --duration 3600s");
        std::thread::sleep(Duration::from_micros(500 * half_ms));
        signal(&run, Signal::SIGTERM);
        let patience = Instant::now() + PATIENCE;
        while run.try_wait().unwrap().is_none() {
            assert!(Instant::now() < patience, "SIGTERM after {half_ms} half ms is lost");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
