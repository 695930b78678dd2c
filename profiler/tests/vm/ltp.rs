//! Load profiles, and the tests of LTP as a load, with probes on.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;
use profiler_base::error::exit;
use profiler_load::LoadSpec;
use profiler_load::ltp::{TestResult, TestRuns};
use profiler_recording::{Recording, Series};
use tempfile::TempDir;

use crate::cli::{Ended, Started, assert_whole, eventually, folder, handler, profiler, saved};
use crate::ends::Left;
use crate::loads;
use crate::testbed::{self, TEN};
use crate::window::{MEMORY, assert_completed, expected, own_calls};

const CONNECT: &str = "--module hids_testbed --handler connect_syscall_entry_handler";

/// Connects seven times; no other test connects.
const SEVEN: &str = "exec perl -MSocket -e 'for (1 .. 7) {
    socket(my $s, AF_INET, SOCK_DGRAM, 0) || die;
    connect($s, pack_sockaddr_in(9, pack(\"C4\", 127, 0, 0, 1))) || die;
}'";

/// Mounts a file system, attaches a loop device, and hangs.
const MOUNTS: &str = "cd \"$TMPDIR\" && mkdir mnt 'with blank' && mount -t tmpfs none mnt && \
    mount -t tmpfs none 'with blank' && touch mnt/file && truncate -s 1M disk && \
    losetup \"$(losetup -f)\" disk; echo $? > MARKS/mounted; trap '' TERM; sleep 1000";

/// A small tree with LTP's layout, in memory.
pub(crate) struct Tree {
    folder: TempDir,
}

impl Tree {
    pub(crate) fn new(programs: &[(&str, &str)], list: &str) -> Self {
        let tree = Self { folder: folder() };
        for name in ["ltp/runtest", "ltp/testcases/bin", "marks", "work"] {
            fs::create_dir_all(tree.path(name)).unwrap();
        }
        for (name, script) in programs {
            let path = tree.path("ltp/testcases/bin").join(name);
            let script = script.replace("MARKS", &tree.path("marks").to_string_lossy());
            fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::write(tree.path("ltp/runtest/unit"), list).unwrap();
        tree
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Makes the folder writable for all users.
    pub(crate) fn open_marks(&self) {
        let open = fs::Permissions::from_mode(0o1777);
        fs::set_permissions(self.path("marks"), open).unwrap();
    }

    /// The options that select its tests.
    pub(crate) fn options(&self) -> String {
        format!(
            "--ltp-root {} --ltp-suite unit --load-dir {}",
            self.path("ltp").display(),
            self.path("work").display()
        )
    }

    pub(crate) fn assert_no_files_left(&self) {
        let count = || fs::read_dir(self.path("work")).unwrap().count();
        eventually("files of the tests are left", || count() == 0);
    }

    /// No file, no mount, no loop device.
    fn assert_nothing_left(&self) {
        let work = self.path("work");
        // Of a file whose mount is gone the path is not whole.
        let loops = || testbed::run(Command::new("losetup").args(["-a"]));
        let place = self.folder.path().to_string_lossy().into_owned();
        eventually("something is left of the tests", || {
            fs::read_dir(&work).unwrap().count() == 0
                && !loads::sees_mount(&place)
                && !loops().contains("profiler-load-")
        });
    }
}

fn ltp_profiles() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../ltp-profiles")
}

fn tests(profile: &Recording) -> &[TestRuns] {
    &profile.loads[0].outcome.tests
}

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn the_ten_rows_of_elkeids_table() {
    testbed::load();
    let folder = folder();
    let file = folder.path().join("elkeid.json");
    let name = ltp_profiles().join("elkeid.toml");
    let line = format!("run --profile {} --builtin --load-dir {MEMORY} --json", name.display());
    let ended = Ended::of(profiler(&line).arg(&file));
    ended.assert_code(exit::OK);
    let series = Series::read(&file).unwrap();
    assert_eq!((series.label.as_str(), series.runs.len()), (name.to_str().unwrap(), 6));
    let mut rows = Vec::new();
    for run in &series.runs {
        let part = run.place.as_ref().and_then(|place| place.part.as_deref()).unwrap();
        assert_eq!(run.load_profile.as_ref().map(|used| used.name.as_str()), Some(part));
        assert_eq!(run.loads.len(), 1, "the parts' loads run one after the other");
        assert_completed(&run.loads);
        let own = own_calls(&run.loads);
        for handler in &run.handlers {
            assert_eq!(handler.count, expected(&own, &handler.name), "{}: {own:?}", handler.name);
            assert_whole(handler);
            rows.push((handler.name.clone(), handler.count));
        }
        assert_eq!(run.warnings, []);
    }
    let names: Vec<&str> = rows.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, TEN, "the rows in the order of the published table");
    // One table, with a line for each.
    for (name, count) in &rows {
        let line = ended.stdout.lines().find(|line| line.starts_with(&format!("{name} ")));
        let line = line.unwrap_or_else(|| panic!("no row of {name}: {}", ended.stdout));
        assert_eq!(line.split_whitespace().nth(1), Some(count.to_string().as_str()), "{line}");
    }
    let is_head = |line: &&str| line.starts_with("handler") && line.contains("TP90");
    assert_eq!(ended.stdout.lines().filter(is_head).count(), 1, "{}", ended.stdout);
    let report = Ended::of(profiler("report").arg(&file));
    assert_eq!(report.stdout, ended.stdout, "the report is the table of the run");
    Left::assert_nothing();
}

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn fewer_hits_than_the_profile_wants_are_told() {
    testbed::load();
    let folder = folder();
    let file = folder.path().join("result.json");
    let line = "run --profile connect --builtin --operations 10 --json";
    let ended = Ended::of(profiler(line).arg(&file));
    ended.assert_code(exit::FEW_HITS).assert_error(&["connect_syscall_handler"]);
    assert!(ended.stdout.contains("connect_syscall_entry_handler 10 of 1000"), "{ended:?}");
    let profile = saved(file, &ended.stdout);
    assert_eq!(handler(&profile, "connect_syscall_handler").count, 10);
    assert_eq!(profile.warnings[0].code, "few-hits");
    // None at all is another code.
    let line = "run --profile connect --module hids_testbed --builtin execve --operations 3";
    Ended::of(&mut profiler(line)).assert_code(exit::NO_HITS);
}

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn hits_of_each_test() {
    let times = 2;
    testbed::load();
    let programs = [("seven01", SEVEN), ("root01", ROOT), ("conf01", "echo nothing; exit 32")];
    let tree = Tree::new(&programs, "seven01 seven01\nroot01 root01\nconf01 conf01\n");
    let file = tree.path("result.json");
    let line = format!("run {CONNECT} {} --iterations {times} --json", tree.options());
    let ended = Ended::of(profiler(&line).arg(&file));
    ended.assert_code(exit::OK);
    let profile = saved(file, &ended.stdout);
    assert_whole(&profile.handlers[0]);
    let LoadSpec::Ltp(spec) = &profile.loads[0].spec else { panic!("{profile:?}") };
    assert_eq!((spec.iterations, spec.tests.len()), (Some(times), 3));
    let [seven, root, conf] = tests(&profile) else { panic!("{profile:?}") };
    assert_eq!((seven.runs, seven.hits.as_deref()), (times, Some(&[7 * times][..])), "{seven:?}");
    // Root is the default, because most of LTP needs it.
    assert_eq!((root.runs, root.hits.as_deref()), (times, Some(&[0][..])), "{root:?}");
    assert_eq!((root.results[0].result, root.needs_root), (TestResult::Pass, 0), "{root:?}");
    assert_eq!((conf.runs, conf.results[0].result), (times, TestResult::NotConfigured));
    assert!(profile.handlers[0].count >= 7 * times, "{}", profile.handlers[0].count);
    let codes: Vec<&str> = profile.warnings.iter().map(|warning| warning.code.as_str()).collect();
    assert!(codes.contains(&"tests-not-passed"), "{codes:?}");
    assert!(
        ended.stdout.contains(&format!("conf01 (not configured {times} (code 32))")),
        "{}",
        ended.stdout
    );
    tree.assert_nothing_left();
}

/// A test that reports its user and folder; and one that only root can run.
const WHO: &str = "[ \"$HOME\" = \"$TMPDIR\" ] || exit 2; \
    echo \"$(id -u) $(stat -c %u \"$TMPDIR\")\" >> MARKS/who";
const ROOT: &str = "[ \"$(id -u)\" = 0 ] && exit 0; \
    echo 'root01.c:10: TCONF: Test needs to be run as root'; exit 32";

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn tests_of_another_user() {
    let iterations = 2;
    testbed::load();
    let tree = Tree::new(&[("who01", WHO), ("root01", ROOT)], "who01 who01\nroot01 root01\n");
    tree.open_marks();
    let file = tree.path("result.json");
    let line = format!(
        "run --no-probe {} --iterations {iterations} --load-user nobody --json",
        tree.options()
    );
    let ended = Ended::of(profiler(&line).arg(&file));
    ended.assert_code(exit::OK);
    let who = fs::read_to_string(tree.path("marks/who")).unwrap();
    assert_eq!(who.lines().count() as u64, iterations, "{who}");
    for line in who.lines() {
        assert_eq!(line, "65534 65534");
    }
    let profile = saved(file, &ended.stdout);
    let LoadSpec::Ltp(spec) = &profile.loads[0].spec else { panic!("{profile:?}") };
    assert_eq!(spec.user.as_deref(), Some("nobody"));
    let [who, root] = tests(&profile) else { panic!("{profile:?}") };
    assert_eq!((who.runs, who.results[0].result), (iterations, TestResult::Pass));
    assert_eq!(who.needs_root, 0);
    assert_eq!((root.results[0].result, root.needs_root), (TestResult::NotConfigured, iterations));
    let said = format!("root01 (not configured {iterations} (code 32, needs root))");
    assert!(ended.stdout.contains(&said), "{ended:?}");
    tree.assert_nothing_left();
}

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn warm_up_is_no_part_of_the_tests_account() {
    testbed::load();
    let programs = [("mark01", "echo >> MARKS/runs; sleep 0.2")];
    let tree = Tree::new(&programs, "mark01 mark01\n");
    let line =
        format!("{CONNECT} {} --warmup 3s --duration 4s --json {{}}/result.json", tree.options());
    let mut run = Started::run(&line, &[]);
    let ended = run.end();
    // Nothing connects.
    ended.assert_code(exit::NO_HITS);
    let profile = saved(run.path("result.json"), &ended.stdout);
    let [mark] = tests(&profile) else { panic!("{profile:?}") };
    let all = fs::read_to_string(tree.path("marks/runs")).unwrap().lines().count() as u64;
    assert!(mark.runs >= 1 && mark.runs + mark.stopped < all, "{all} runs in all: {mark:?}");
    assert_eq!(mark.hits.as_deref(), Some(&[0][..]), "{mark:?}");
    tree.assert_nothing_left();
}

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn mounts_and_loop_devices_of_ended_tests_are_gone() {
    testbed::load();
    let _ = Command::new("modprobe").arg("loop").status();
    for (signal, code) in [
        (Signal::SIGINT, Some(exit::INTERRUPTED)),
        (Signal::SIGTERM, Some(exit::TERMINATED)),
        (Signal::SIGKILL, None),
    ] {
        let tree = Tree::new(&[("mounts01", MOUNTS)], "mounts01 mounts01\n");
        let line = format!("{CONNECT} {}", tree.options());
        let mut run = Started::run(&line, &[]);
        let mark = tree.path("marks/mounted");
        eventually("the test does not mount", || mark.exists());
        eventually("the test does not tell", || !fs::read_to_string(&mark).unwrap().is_empty());
        assert_eq!(fs::read_to_string(&mark).unwrap(), "0\n", "mount and losetup work here");
        let work = tree.path("work").to_string_lossy().into_owned();
        assert!(loads::sees_mount(&work), "the test has mounted nothing");
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(&work), "its mounts are not its own: {mounts}");
        run.signal(signal);
        let ended = run.end();
        assert_eq!(ended.code, code.map(i32::from), "{ended:?}");
        tree.assert_nothing_left();
    }
    eventually("probes are left", || Left::now() == Left::default());
}

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn ltp_that_cannot_be_run_is_told_before_anything_is_measured() {
    testbed::load();
    let tree = Tree::new(&[("pass01", "exit 0")], "pass01 pass01\nreboot01 pass01\n");
    let (root, options) = (tree.path("ltp").display().to_string(), tree.options());
    for (line, code, words) in [
        (
            "--profile connect --ltp-root /nowhere".to_owned(),
            exit::BAD_INPUT,
            &["no LTP at /nowhere", "--builtin"][..],
        ),
        (
            format!("--profile connect --ltp-root {root}"),
            exit::USAGE,
            &["runtest/syscalls", "--ltp-suite unit"],
        ),
        (
            format!("{CONNECT} {options} --ltp-tests ^conect"),
            exit::USAGE,
            &["`^conect`", "matches none"],
        ),
        (format!("{CONNECT} {options}"), exit::USAGE, &["reboot01", "--allow-destructive"]),
        (format!("{CONNECT} --ltp-tests x"), exit::USAGE, &["--ltp-suite"]),
        (format!("{CONNECT} --builtin"), exit::USAGE, &["--profile"]),
        ("--profile do_init_module --builtin".to_owned(), exit::USAGE, &["no built-in load"]),
        ("--profile conect --builtin".to_owned(), exit::USAGE, &["did you mean `connect`?"]),
        (
            "--profile rename --builtin --module hids_testbed".to_owned(),
            exit::NO_TARGET,
            &["rename_pre_handler"],
        ),
    ] {
        let ended = Ended::of(&mut profiler(&format!("run {line}")));
        ended.assert_code(code).assert_error(words).assert_nothing_done();
    }
}
