//! `profiler tax`: what the testbed's hooks add to operations, of which its sources say how much.

use std::os::unix::fs::PermissionsExt;

use profiler_base::error::exit;
use serde_json::Value;

use super::super::program::text;
use super::{ADDED, CHANGED, baseline, given, out, profiler};

/// Figures of an operation with a subject.
pub(super) struct Tax<'a>(pub(super) &'a Value);

impl Tax<'_> {
    fn figure(&self, name: &str) -> f64 {
        self.0[name].as_f64().unwrap()
    }

    /// Calls and own instructions of a function.
    pub(super) fn function(&self, name: &str) -> [f64; 2] {
        let mut functions = self.0["functions"].as_array().unwrap().iter();
        let found = functions.find(|it| it["name"] == name);
        found.map_or([0.0; 2], |it| ["calls", "instructions"].map(|of| it[of].as_f64().unwrap()))
    }

    /// Parts are the whole, functions are what handlers take, and nothing is counted but operations.
    fn adds_up(&self) {
        let [more, within, around, elsewhere] =
            ["more", "in_handlers", "around_handlers", "elsewhere"].map(|of| self.figure(of));
        let functions = self.0["functions"].as_array().unwrap().iter();
        let sum: f64 = functions.map(|it| it["instructions"].as_f64().unwrap()).sum();
        assert!((more - within - around).abs() < 1e-6, "{}", self.0);
        assert!((sum - within - elsewhere).abs() < 1e-6, "{sum}: {}", self.0);
    }
}

/// One build as it is, with a tracepoint on each system call, and one that takes 131 instructions more of a `connect`.
#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn a_hook_is_seen_in_the_operations_that_it_is_on() {
    let file = out().join("tax.json");
    let plain = baseline().display().to_string();
    let slower = given("PROFILER_LAB_CANDIDATE").display().to_string();
    let every_call = format!("{plain} every_call=1");
    let mut command = profiler();
    command.arg("tax").arg("--kernel").arg(given("PROFILER_LAB_KERNEL"));
    command.args(["--quiet", "--builtin", "getppid,pipe,connect", "--json"]).arg(&file);
    command.args([&plain, &every_call, &slower].into_iter().flat_map(|with| ["--with", with]));
    let output = command.output().unwrap();
    let (shown, said) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{said}");
    println!("{shown}");
    let report: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let taxes = |load: &str| {
        let mut operations = report["operations"].as_array().unwrap().iter();
        let found = operations.find(|operation| operation["load"] == load).unwrap();
        [0, 1, 2].map(|subject| Tax(&found["with"][subject]))
    };
    let [getppid, pipe, connect] = ["getppid", "pipe", "connect"].map(taxes);
    for tax in getppid.iter().chain(&pipe).chain(&connect) {
        tax.adds_up();
    }
    for operation in [&getppid, &pipe] {
        assert_eq!(
            [0, 2].map(|at: usize| operation[at].figure("more")),
            [0.0; 2],
            "no hook is there"
        );
    }
    let hook = "every_call_handler";
    let ([calls, own], [twice, twice_own]) = (getppid[1].function(hook), pipe[1].function(hook));
    assert_eq!((calls, twice, twice_own), (1.0, 2.0, 2.0 * own));
    assert_eq!([&getppid, &pipe].map(|of| of[1].figure("in_handlers")), [own, twice_own]);
    assert_eq!(pipe[1].figure("more"), 2.0 * getppid[1].figure("more"));
    assert!(getppid[1].figure("around_handlers") > own, "the slow path of the entry code");
    let more = |of: &str| connect[2].figure(of) - connect[0].figure(of);
    assert_eq!(["more", "in_handlers", "around_handlers"].map(more), [ADDED, ADDED, 0.0]);
    assert_eq!(connect[2].function(CHANGED)[1] - connect[0].function(CHANGED)[1], ADDED);
    assert!(shown.contains("hids_testbed.ko every_call=1") && shown.contains("hids_testbed.ko #2"));
}

/// Each rule for other system calls adds the same to all, and the functions of audit run once for each.
#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn audit_rules_are_seen_in_every_system_call() {
    let folder = tempfile::tempdir().unwrap();
    let calls = ["setuid", "setgid", "swapon"];
    let subject = |rules: usize| {
        let file = folder.path().join(format!("{rules}.rules"));
        let rule = |call: &&str| format!("-a always,exit -F arch=b64 -S {call} -k test\n");
        // As hardened machines have them: a record that is lost is a panic, and nothing is changed any more.
        let rules = calls[..rules].iter().map(rule).collect::<String>();
        std::fs::write(&file, format!("-f 2\n{rules}-e 2\n")).unwrap();
        // As a checkout under a umask of 0 has it: auditctl would refuse this.
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
        format!("audit: {}", file.display())
    };
    let subjects = [1, 2, 3].map(subject);
    let path =
        format!("{}:{}", given("PROFILER_LAB_AUDITCTL").display(), std::env::var("PATH").unwrap());
    let file = out().join("audit.json");
    let mut command = profiler();
    command.env("PATH", &path).arg("tax").arg("--kernel").arg(given("PROFILER_LAB_KERNEL"));
    command.args(["--quiet", "--builtin", "getppid,pipe", "--json"]).arg(&file);
    command.args(subjects.iter().flat_map(|with| ["--with", with]));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let more = |load: &str, calls: f64| {
        let mut operations = report["operations"].as_array().unwrap().iter();
        let found = operations.find(|operation| operation["load"] == load).unwrap();
        [0, 1, 2].map(|subject| {
            let tax = Tax(&found["with"][subject]);
            tax.adds_up();
            assert_eq!(tax.function("__audit_syscall_entry")[0], calls, "{load}");
            assert_eq!(tax.function("audit_filter_syscall")[0], calls, "{load}");
            ["more", "in_handlers", "around_handlers"].map(|part| tax.figure(part))
        })
    };
    let ([first, second, third], [of_pipe, ..]) = (more("getppid", 1.0), more("pipe", 2.0));
    assert!(first[1] > 100.0 && of_pipe[1] == 2.0 * first[1], "{first:?} {of_pipe:?}");
    // Around them is the kernel's own path of `pipe`, too, of which a few instructions of 200 operations depend on the time.
    assert!((of_pipe[2] - 2.0 * first[2]).abs() < 1.0, "{first:?} {of_pipe:?}");
    let [one, two, three] = [first, second, third].map(|parts| parts[0]);
    let rule = two - one;
    assert!(rule > 5.0 && rule == three - two, "{one} {two} {three}");
    for (subject, rules) in report["subjects"].as_array().unwrap().iter().zip(1..) {
        let known = subject["not_known"][0].as_str().unwrap();
        assert!(known.ends_with(&format!(": {rules} of {rules} rules were loaded")), "{known}");
        assert_eq!(subject["hooks"], rules, "{subject}");
    }
    // Of rules of which some are passed over those that are left are told, and none is nothing to measure.
    let alone = |rules: &str| {
        std::fs::write(folder.path().join("1.rules"), format!("-i\n-w /no/folder -p w\n{rules}"))
            .unwrap();
        let mut command = profiler();
        command.env("PATH", &path);
        command.args([
            "tax",
            "--quiet",
            "--builtin",
            "getppid",
            "--with",
            &subjects[0],
            "--kernel",
        ]);
        command.arg(given("PROFILER_LAB_KERNEL")).output().unwrap()
    };
    let some = alone("-a always,exit -F arch=b64 -S setuid\n");
    assert!(text(&some.stdout).contains("1 of 2 rules were loaded"), "{some:?}");
    let none = alone("");
    assert_eq!(none.status.code(), Some(exit::NO_TARGET.into()), "{none:?}");
    assert!(text(&none.stderr).contains("none of its 1 rules was loaded"), "{none:?}");
    // Rules that auditctl refuses are an error with its words.
    std::fs::write(folder.path().join("1.rules"), "-a always,exit -S no-such-call\n").unwrap();
    let mut command = profiler();
    command.env("PATH", &path);
    command.args(["tax", "--quiet", "--builtin", "getppid", "--with", &subjects[0], "--kernel"]);
    let output = command.arg(given("PROFILER_LAB_KERNEL")).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(exit::LAB_FAILED.into()), "{said}");
    assert!(said.contains("auditctl") && said.contains("no-such-call"), "{said}");
}

/// A shell that starts two programs executes three.
#[test]
#[ignore = "boots VMs: `cargo xtask test --boot lab` has what that needs"]
fn each_run_of_a_program_is_an_operation() {
    let tax = |script: &str| {
        let file = out().join("tax-program.json");
        let mut command = profiler();
        command.arg("tax").arg("--kernel").arg(given("PROFILER_LAB_KERNEL")).arg("--quiet");
        command.arg("--with").arg(baseline()).args(["--agent-file", "/bin/true", "--json"]);
        let output = command.arg(&file).args(["--", "sh", "-c", script]).output().unwrap();
        let report = std::fs::read(&file).unwrap_or_default();
        (output.status.code(), text(&output.stderr), serde_json::from_slice::<Value>(&report))
    };
    let (code, said, report) = tax("/bin/true; /bin/true; true");
    assert_eq!(code, Some(0), "{said}");
    let report = report.unwrap();
    assert_eq!(report["operations"][0]["load"], "run: sh -c '/bin/true; /bin/true; true'");
    assert_eq!(report["operations"][0]["operations"], 20);
    let of_run = Tax(&report["operations"][0]["with"][0]);
    of_run.adds_up();
    assert_eq!(of_run.function("execve_handler")[0], 3.0);
    let (code, said, _) = tax("echo no such host; exit 3");
    assert_eq!(code, Some(exit::LOAD_FAILED.into()), "{said}");
    assert!(said.contains("exit status: 3; it said:\nno such host"), "{said}");
}
