//! Tests of LTP as a load: on a small tree that has LTP's layout, with programs that pass, fail, break, skip,
//! hang, fork and crash. No privileges, no probes.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use profiler_base::error::exit;
use profiler_load::ltp::{LtpLoad, LtpOptions, LtpTest, TIMED_OUT, TestResult, TestRuns};
use profiler_load::{
    HitCount, HitCounter, HitQuestion, Load, LoadOutcome, LoadSpec, LoadStatus, LoadUser,
    ProfilerProgram, SandboxOptions, StopReason, StopSignal,
};
use tempfile::TempDir;

use crate::load::kill_at_first_entry;
use crate::program::{PATIENCE, lives, this_program, wait_for};

/// The programs in `testcases/bin`, as shell scripts.
const PROGRAMS: [(&str, &str); 13] = [
    ("pass01", "echo 'pass01.c:10: TPASS: it works'"),
    ("fail01", "echo 'fail01.c:10: TFAIL: it does not'; exit 1"),
    ("brok01", "echo 'brok01.c:10: TBROK: no set-up'; exit 2"),
    ("warn01", "echo 'warn01.c:10: TWARN: hm'; exit 4"),
    ("conf01", "echo 'conf01.c:10: TCONF: not here'; exit 32"),
    (
        "both01",
        "echo 'both01.c:10: TFAIL: it does not'; echo 'both01.c:11: TCONF: nor that'; exit 33",
    ),
    ("crash01", "kill -SEGV $$"),
    // Ignores SIGTERM, and so does a child of it that left its session.
    (
        "hang01",
        "trap '' TERM; setsid sh -c 'echo $$ >> \"$MARKS/pids\"; exec sleep 1000' & echo $$ >> \"$MARKS/pids\"; sleep 1000",
    ),
    // Ends well, and leaves a daemon with a port behind.
    (
        "fork01",
        "setsid python3 -c 'import os, socket, time; s = socket.socket(); s.bind((\"127.0.0.1\", 0)); s.listen(); \
                open(os.environ[\"MARKS\"] + \"/port\", \"w\").write(str(s.getsockname()[1]) + \"\\n\"); time.sleep(1000)' > /dev/null 2>&1 & \
                while ! [ -s \"$MARKS/port\" ]; do sleep 0.02; done",
    ),
    ("args01", "for word in \"$@\"; do echo \"<$word>\"; done >> \"$MARKS/args\""),
    // A private, empty folder; LTP's variables.
    (
        "env01",
        "[ -z \"$(ls -A \"$TMPDIR\")\" ] || exit 2; touch \"$TMPDIR/left\" || exit 2; \
               echo \"$LTPROOT $TMPDIR\" >> \"$MARKS/env\"; mkdir -m 0 \"$TMPDIR/dark\"; \
               case \"$PATH\" in *testcases/bin*) ;; *) exit 1 ;; esac",
    ),
    ("slow01", "echo >> \"$MARKS/slow\"; sleep 0.2"),
    ("plain01", "exit 0"),
];

/// A tree with LTP's layout, and a folder for what its tests leave.
struct Tree {
    folder: TempDir,
}

impl Tree {
    fn new(list: &str) -> Self {
        Self::within(Path::new(env!("CARGO_TARGET_TMPDIR")), list)
    }

    fn within(place: &Path, list: &str) -> Self {
        let folder = tempfile::tempdir_in(place).unwrap();
        for name in ["ltp/runtest", "ltp/testcases/bin", "marks", "work"] {
            fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        let tree = Self { folder };
        for (name, script) in PROGRAMS {
            // Where its marks go is written into each: runners hand on no variables of their own.
            let script = script.replace("$MARKS", &tree.path("marks").to_string_lossy());
            let script = script
                .replace("os.environ[\"MARKS\"]", &format!("\"{}\"", tree.path("marks").display()));
            tree.program(&format!("testcases/bin/{name}"), &script);
        }
        tree.chmod("testcases/bin/plain01", 0o644);
        fs::write(tree.path("ltp/Version"), "20260130\n").unwrap();
        fs::write(tree.path("ltp/runtest/unit"), list).unwrap();
        let program = env!("CARGO_BIN_EXE_profiler");
        if fs::hard_link(program, tree.path("helper")).is_err() {
            fs::copy(program, tree.path("helper")).unwrap();
        }
        tree
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn program(&self, name: &str, script: &str) {
        fs::write(self.path("ltp").join(name), format!("#!/bin/sh\n{script}\n")).unwrap();
        self.chmod(name, 0o755);
    }

    fn chmod(&self, name: &str, mode: u32) {
        fs::set_permissions(self.path("ltp").join(name), fs::Permissions::from_mode(mode)).unwrap();
    }

    fn options(&self) -> LtpOptions {
        LtpOptions {
            root: Some(self.path("ltp")),
            suite: "unit".to_owned(),
            pattern: None,
            skip: None,
            iterations: Some(1),
            time_limit: PATIENCE,
            allow_destructive: false,
            sandbox: SandboxOptions {
                directory: Some(self.path("work")),
                profiler: ProfilerProgram::at(self.path("helper")),
                ..SandboxOptions::default()
            },
        }
    }

    async fn run(&self, options: LtpOptions) -> LoadOutcome {
        run(LtpLoad::prepare(options).unwrap(), &StopSignal::new()).await
    }

    /// What tests wrote to a file of theirs.
    fn mark(&self, name: &str) -> String {
        fs::read_to_string(self.path("marks").join(name)).unwrap_or_default()
    }

    /// No process, no file, no port.
    fn assert_nothing_left(&self) {
        wait_for("the end of all processes and files", || {
            let files = fs::read_dir(self.path("work")).unwrap().count();
            files == 0 && running_from(self.folder.path()).is_empty()
        });
        for pid in self.mark("pids").lines() {
            assert!(!lives(pid), "process {pid} is left");
        }
        let port = self.mark("port");
        if let Ok(port) = port.trim().parse::<u16>() {
            assert!(
                std::net::TcpListener::bind(("127.0.0.1", port)).is_ok(),
                "port {port} is taken"
            );
        }
    }
}

/// Processes, zombies left out, whose program or command line names `folder`.
fn running_from(folder: &Path) -> Vec<String> {
    let folder = folder.to_string_lossy().into_owned();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let me = std::process::id().to_string();
    let line = |entry: fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse::<u32>().ok()?.to_string();
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        let program = fs::read_link(entry.path().join("exe")).unwrap_or_default();
        let there = line.contains(&folder) || program.starts_with(&folder);
        (there && pid != me && lives(&pid)).then_some(line)
    };
    entries.filter_map(line).collect()
}

fn describe(load: LtpLoad) -> LoadSpec {
    Load::Ltp(Box::new(load)).describe()
}

async fn run(load: LtpLoad, stop: &StopSignal) -> LoadOutcome {
    Load::Ltp(Box::new(load)).run(stop.clone()).await
}

fn test<'a>(outcome: &'a LoadOutcome, name: &str) -> &'a TestRuns {
    let found = outcome.tests.iter().find(|test| test.name == name);
    found.unwrap_or_else(|| panic!("no {name}: {outcome:?}"))
}

/// The one way in which all runs of a test ended.
fn only(outcome: &LoadOutcome, name: &str) -> (TestResult, Option<i32>, Option<i32>, u64) {
    match test(outcome, name).results.as_slice() {
        [one] => (one.result, one.code, one.signal, one.count),
        other => panic!("{name}: {other:?}"),
    }
}

const ENDS: &str = "\
# every way to end
pass01 pass01
fail01 fail01
brok01  brok01
warn01\twarn01
conf01 conf01
both01 both01

crash01 crash01
shell01 echo 'one; two'; exit 4
";

/// What each test of [`ENDS`] comes to, `n` times.
fn assert_ends(outcome: &LoadOutcome, n: u64) {
    let expected = [
        ("pass01", TestResult::Pass, Some(0), None),
        ("fail01", TestResult::Fail, Some(1), None),
        ("brok01", TestResult::Broken, Some(2), None),
        ("warn01", TestResult::Warning, Some(4), None),
        ("conf01", TestResult::NotConfigured, Some(32), None),
        ("both01", TestResult::Fail, Some(33), None),
        ("crash01", TestResult::Killed, None, Some(11)),
        ("shell01", TestResult::Warning, Some(4), None),
    ];
    for (name, result, code, signal) in expected {
        assert_eq!(only(outcome, name), (result, code, signal, n), "{name}");
        let test = test(outcome, name);
        assert_eq!((test.runs, test.stopped, test.left_running), (n, 0, 0), "{name}");
        let (min, max) = (test.min_ns.unwrap(), test.max_ns.unwrap());
        assert!(min > 0 && min <= max && n * min <= test.elapsed_ns && test.elapsed_ns <= n * max);
    }
    assert_eq!(outcome.tests.len(), expected.len());
    assert_eq!(outcome.operations, Some(n * expected.len() as u64));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn direct_tells_every_end_from_the_others() {
    let tree = Tree::new(ENDS);
    let outcome = tree.run(LtpOptions { iterations: Some(2), ..tree.options() }).await;
    assert_eq!(outcome.status, LoadStatus::Completed, "{outcome:?}");
    assert_ends(&outcome, 2);
    assert_eq!(test(&outcome, "pass01").output, None);
    let output = test(&outcome, "brok01").output.as_deref();
    assert_eq!(output, Some("brok01.c:10: TBROK: no set-up"));
    assert!(outcome.tests.iter().all(|test| test.hits.is_none()), "nobody measured");
    tree.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn arguments_and_environment_are_those_of_ltp() {
    let tree =
        Tree::new("args01 args01 -i 5  -n\nquoted01 args01 \"a b\" 'c' $LTPROOT\nenv01 env01\n");
    let outcome = tree.run(LtpOptions { iterations: Some(3), ..tree.options() }).await;
    assert_eq!(outcome.status, LoadStatus::Completed, "{outcome:?}");
    let root = tree.path("ltp").canonicalize().unwrap();
    let once = format!("<-i>\n<5>\n<-n>\n<a b>\n<c>\n<{}>\n", root.display());
    assert_eq!(tree.mark("args"), once.repeat(3));
    assert_eq!(only(&outcome, "env01"), (TestResult::Pass, Some(0), None, 3), "{outcome:?}");
    let environment = tree.mark("env");
    let (its_root, folder) = environment.lines().next().unwrap().split_once(' ').unwrap();
    assert_eq!(Path::new(its_root), root);
    assert!(Path::new(folder).starts_with(tree.path("work").canonicalize().unwrap()), "{folder}");
    let LoadSpec::Ltp(spec) = describe(LtpLoad::prepare(tree.options()).unwrap()) else { panic!() };
    assert_eq!(spec.ltp_version.as_deref(), Some("20260130"));
    let names: Vec<&str> = spec.tests.iter().map(|test| test.name.as_str()).collect();
    assert_eq!(names, ["args01", "quoted01", "env01"]);
    assert_eq!(spec.tests[0], LtpTest { name: "args01".into(), command: "args01 -i 5  -n".into() });
    tree.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_test_that_hangs_is_killed_with_all_its_kin() {
    let tree = Tree::new("hang01 hang01\nfork01 fork01\npass01 pass01\n");
    // Long enough for the others on a busy machine.
    let limit = Duration::from_secs(20);
    let outcome = tree.run(LtpOptions { time_limit: limit, ..tree.options() }).await;
    assert_eq!(outcome.status, LoadStatus::Completed, "{outcome:?}");
    assert_eq!(only(&outcome, "hang01"), (TestResult::TimedOut, Some(TIMED_OUT), None, 1));
    assert!(test(&outcome, "hang01").elapsed_ns >= 20_000_000_000);
    assert_eq!(only(&outcome, "fork01").0, TestResult::Pass);
    assert_eq!(test(&outcome, "fork01").left_running, 1);
    assert_eq!(only(&outcome, "pass01").0, TestResult::Pass);
    assert_eq!(tree.mark("pids").lines().count(), 2);
    assert!(!tree.mark("port").is_empty());
    tree.assert_nothing_left();
}

/// Waits until tests of LTP have written so many.
async fn wait_for_lines(marks: PathBuf, count: usize) {
    let come = move || fs::read_to_string(&marks).unwrap_or_default().lines().count() >= count;
    tokio::task::spawn_blocking(|| wait_for("marks", come)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_load_ends_at_once_and_leaves_nothing() {
    let tree = Tree::new("pass01 pass01\nfork01 fork01\nhang01 hang01\n");
    let stop = StopSignal::new();
    let load = LtpLoad::prepare(LtpOptions { iterations: None, ..tree.options() }).unwrap();
    let running = tokio::spawn(Load::Ltp(Box::new(load)).run(stop.clone()));
    wait_for_lines(tree.path("marks/pids"), 2).await;
    let told = Instant::now();
    stop.stop(StopReason::Interrupted);
    let outcome = running.await.unwrap();
    assert!(told.elapsed() < PATIENCE, "the time limit: {:?}", told.elapsed());
    assert_eq!(outcome.status, LoadStatus::Stopped { by: StopReason::Interrupted });
    let hung = test(&outcome, "hang01");
    assert_eq!((hung.runs, hung.stopped, hung.results.len(), hung.min_ns), (0, 1, 0, None));
    assert_eq!(test(&outcome, "pass01").runs, 1);
    tree.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_list_is_repeated_until_the_time_is_over() {
    let tree = Tree::new("slow01 slow01\npass01 pass01\n");
    let stop = StopSignal::new();
    let load = LtpLoad::prepare(LtpOptions { iterations: None, ..tree.options() }).unwrap();
    let running = tokio::spawn(Load::Ltp(Box::new(load)).run(stop.clone()));
    wait_for_lines(tree.path("marks/slow"), 3).await;
    stop.stop(StopReason::Duration);
    let outcome = running.await.unwrap();
    assert_eq!(outcome.status, LoadStatus::Stopped { by: StopReason::Duration });
    let (slow, pass) = (test(&outcome, "slow01").runs, test(&outcome, "pass01").runs);
    assert!(slow >= 2 && (slow == pass || slow == pass + 1), "{slow} and {pass}");
    let begun = tree.mark("slow").lines().count() as u64;
    let stopped = test(&outcome, "slow01").stopped;
    // The one that is stopped may not have come to its first line.
    assert!(stopped <= 1 && (slow..=slow + stopped).contains(&begun), "{slow}, {stopped}, {begun}");
    tree.assert_nothing_left();
}

/// Someone who counts one call more of the first handler, and two of the second, each time he is asked;
/// the window begins with the question of that number.
fn counting(window: u64) -> HitCounter {
    let (counter, mut questions) = tokio::sync::mpsc::channel::<HitQuestion>(1);
    let asked = Arc::new(AtomicU64::new(0));
    tokio::spawn(async move {
        while let Some(question) = questions.recv().await {
            let now = asked.fetch_add(1, Ordering::Relaxed);
            let _ =
                question.send(HitCount { entries: vec![now, 2 * now], measured: now >= window });
        }
    });
    counter
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hits_are_those_between_the_ends_of_each_run() {
    let tree = Tree::new("pass01 pass01\nfail01 fail01\n");
    // Five rounds of two tests ask twice each; the first six questions are of the warm-up.
    let options = LtpOptions { iterations: Some(5), ..tree.options() };
    let mut load = LtpLoad::prepare(options).unwrap();
    load.counter = Some(counting(6));
    let outcome = run(load, &StopSignal::new()).await;
    assert_eq!(outcome.status, LoadStatus::Completed);
    let (pass, fail) = (test(&outcome, "pass01"), test(&outcome, "fail01"));
    assert_eq!((pass.runs, fail.runs), (3, 4), "three runs were of the warm-up");
    assert_eq!(
        (pass.hits.as_deref(), fail.hits.as_deref()),
        (Some(&[3, 6][..]), Some(&[4, 8][..]))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_test_that_cannot_be_executed_is_told_and_does_not_stop_the_rest() {
    let tree =
        Tree::new("none01 none01 -x\nplain01 plain01\npass01 pass01\nshell01 none01; exit $?\n");
    let outcome = tree.run(tree.options()).await;
    assert_eq!(outcome.status, LoadStatus::Completed, "{outcome:?}");
    assert_eq!(only(&outcome, "none01"), (TestResult::NotRun, None, None, 1));
    assert_eq!(only(&outcome, "plain01"), (TestResult::NotRun, None, None, 1));
    assert_eq!(only(&outcome, "shell01"), (TestResult::NotRun, Some(127), None, 1));
    assert_eq!(only(&outcome, "pass01").0, TestResult::Pass);
    assert!(test(&outcome, "none01").output.as_deref().unwrap().starts_with("none01: "));
    tree.assert_nothing_left();
}

#[test]
fn what_cannot_be_run_is_told_before_anything_runs() {
    let tree = Tree::new("connect01 pass01\nreboot01 pass01\nsettimeofday01 pass01\n");
    fs::write(tree.path("ltp/runtest/bad"), "# list\npass01 pass01\nalone\n").unwrap();
    fs::write(tree.path("ltp/runtest/gone"), "gone01 gone01\ngone02 gone02\n").unwrap();
    fs::write(tree.path("ltp/runtest/empty"), "# nothing\n").unwrap();
    let with = |change: &dyn Fn(&mut LtpOptions)| {
        let mut options = tree.options();
        change(&mut options);
        LtpLoad::prepare(options).unwrap_err()
    };
    let pattern = |text: &str| Some(text.to_owned());
    for (error, words) in [
        (
            with(&|o| o.root = Some("/nowhere".into())),
            &["/nowhere", "--ltp-root", "--builtin", "make install"][..],
        ),
        (with(&|o| o.root = Some(tree.path("marks"))), &["no folder runtest"]),
        (with(&|o| o.suite = "unti".into()), &["runtest/unti", "did you mean --ltp-suite unit?"]),
        (with(&|o| o.suite = "../ltp/runtest/unit".into()), &["no list of tests"]),
        (with(&|o| o.suite = "bad".into()), &["runtest/bad:3: has a name and no command"]),
        (with(&|o| o.suite = "empty".into()), &["no test in it"]),
        (
            with(&|o| o.pattern = pattern("^conect")),
            &["`^conect`", "none of the 3 tests", "connect01"],
        ),
        (with(&|o| o.pattern = pattern("(")), &["not a regular expression"]),
        (with(&|o| o.suite = "gone".into()), &["none of the 2 tests", "gone01"]),
        (with(&|_| {}), &["reboot01 (calls reboot(2))", "settimeofday01", "--allow-destructive"]),
    ] {
        let text = error.to_string();
        for word in words {
            assert!(text.contains(word), "`{word}` is missing: {text}");
        }
    }
    let allowed = LtpOptions { allow_destructive: true, ..tree.options() };
    assert!(LtpLoad::prepare(allowed).is_ok());
    assert_eq!(with(&|o| o.root = Some("/nowhere".into())).code, exit::BAD_INPUT);
    let harmless = LtpOptions { pattern: pattern("^connect"), ..tree.options() };
    assert!(LtpLoad::prepare(harmless).is_ok());
}

/// Runs one of this file's hidden tests in a process of its own, whose environment may be changed.
fn in_process(name: &str, tree: &Tree, path: &str) -> std::process::Child {
    this_program(&format!("ltp::{name}"))
        .env(TREE, tree.folder.path())
        .env("PATH", path)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Set for the processes that play a profiler with a `PATH` of its own, or one that is killed.
const TREE: &str = "PROFILER_TEST_TREE";

fn given_tree() -> Option<PathBuf> {
    std::env::var_os(TREE).map(PathBuf::from)
}

fn given_options(folder: &Path) -> LtpOptions {
    LtpOptions {
        root: Some(folder.join("ltp")),
        suite: "unit".to_owned(),
        pattern: None,
        skip: None,
        iterations: Some(2),
        time_limit: PATIENCE,
        allow_destructive: false,
        sandbox: SandboxOptions {
            directory: Some(folder.join("work")),
            profiler: ProfilerProgram::at(folder.join("helper")),
            ..SandboxOptions::default()
        },
    }
}

/// Not a test by itself: the process of the test below.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hidden_direct() {
    let Some(folder) = given_tree() else { return };
    let load = LtpLoad::prepare(given_options(&folder)).unwrap();
    run(load, &StopSignal::new()).await;
}

#[test]
fn nothing_of_direct_outlives_a_killed_profiler() {
    let tree = Tree::new("env01 env01\nhang01 hang01\n");
    let mut profiler = in_process("hidden_direct", &tree, &std::env::var("PATH").unwrap());
    wait_for("the test that hangs", || tree.mark("pids").lines().count() >= 2);
    assert!(fs::read_dir(tree.path("work")).unwrap().count() > 0);
    profiler.kill().unwrap();
    profiler.wait().unwrap();
    tree.assert_nothing_left();
}

#[test]
fn nothing_is_left_of_a_profiler_killed_while_direct_starts() {
    let tree = Tree::new("hang01 hang01\n");
    for _ in 0..5 {
        let profiler = in_process("hidden_direct", &tree, &std::env::var("PATH").unwrap());
        kill_at_first_entry(profiler, &tree.path("work"));
        tree.assert_nothing_left();
    }
}

/// Programs that report their user, or that only root can run, by LTP's two libraries.
const USERS: [(&str, &str); 3] = [
    (
        "who01",
        "echo \"$(id -u) $(stat -c %u \"$TMPDIR\")\" >> \"$MARKS/who\"; touch \"$TMPDIR/mine\" && \
         [ \"$HOME\" = \"$TMPDIR\" ] && [ \"$USER\" = nobody ]",
    ),
    (
        "root01",
        "[ \"$(id -u)\" = 0 ] && exit 0; echo 'tst_test.c:1: TCONF: Test needs to be run as root'; exit 32",
    ),
    (
        "root02",
        "[ \"$(id -u)\" = 0 ] && exit 0; echo 'root02 1 TCONF: Must be super/root for this test!'; exit 32",
    ),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tests_run_as_the_user_that_is_asked_for() {
    // Another user may not get to where the program is built.
    let list = "who01 who01\nroot01 root01\nroot02 root02\nconf01 conf01\n";
    let tree = Tree::within(&std::env::temp_dir(), list);
    for (name, script) in USERS {
        let script = script.replace("$MARKS", &tree.path("marks").to_string_lossy());
        tree.program(&format!("testcases/bin/{name}"), &script);
    }
    for (folder, mode) in [("", 0o755), ("marks", 0o1777)] {
        fs::set_permissions(tree.path(folder), fs::Permissions::from_mode(mode)).unwrap();
    }
    let user = Some(LoadUser::nobody());
    let sandbox = SandboxOptions { user, ..tree.options().sandbox };
    let options = LtpOptions { sandbox, ..tree.options() };
    if !nix::unistd::geteuid().is_root() {
        let error = LtpLoad::prepare(options).unwrap_err();
        assert!(error.code == exit::USAGE && error.message.contains("only root"), "{error}");
        return;
    }
    let load = LtpLoad::prepare(options).unwrap();
    let described = describe(load.clone()).to_string();
    assert!(described.ends_with(", as nobody"), "{described}");
    let outcome = run(load, &StopSignal::new()).await;
    assert_eq!(outcome.status, LoadStatus::Completed, "{outcome:?}");
    assert_eq!(tree.mark("who"), "65534 65534\n");
    assert_eq!(only(&outcome, "who01"), (TestResult::Pass, Some(0), None, 1), "{outcome:?}");
    for (name, needs_root) in [("root01", 1), ("root02", 1), ("conf01", 0)] {
        assert_eq!(only(&outcome, name), (TestResult::NotConfigured, Some(32), None, 1));
        assert_eq!(test(&outcome, name).needs_root, needs_root, "{name}");
    }
    assert_eq!(test(&outcome, "root01").in_words(), "not configured 1 (code 32, needs root)");
    tree.assert_nothing_left();

    // As root they run, and nothing is said of it.
    let outcome = tree.run(LtpOptions { pattern: Some("root0".into()), ..tree.options() }).await;
    for name in ["root01", "root02"] {
        assert_eq!(only(&outcome, name).0, TestResult::Pass);
    }
    tree.assert_nothing_left();
}
