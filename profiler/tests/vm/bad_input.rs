//! Requests that cannot be met are refused before anything changes.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use profiler_base::error::exit;

use crate::cli::{Ended, folder, profiler};
use crate::ends::Left;
use crate::testbed;

const LOAD: &str = "--builtin connect --operations 10";

fn run(line: &str) -> Ended {
    Ended::of(&mut profiler(&format!("run {line} {LOAD}")))
}

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn names_that_cannot_be_measured() {
    testbed::load();
    let in_module = "--module hids_testbed --handler";
    let cases: [(&str, u8, &[&str]); 7] = [
        (
            "--module hids_testbet --handler x",
            exit::NO_TARGET,
            &["`hids_testbet` is not loaded", "insmod", "did you mean hids_testbed?"],
        ),
        (
            &format!("{in_module} connect_syscall_handle"),
            exit::NO_TARGET,
            &["no function `connect_syscall_handle`", "did you mean", "connect_syscall_handler"],
        ),
        (
            &format!("{in_module} testbed_inlined"),
            exit::NO_TARGET,
            &["no function `testbed_inlined`", "inlined", "noinline"],
        ),
        (
            &format!("{in_module} testbed_notrace"),
            exit::NO_TARGET,
            &["`testbed_notrace`", "notrace"],
        ),
        (
            &format!("{in_module} nothing_*"),
            exit::NO_TARGET,
            &["`nothing_*` matches no function", "hids_testbed"],
        ),
        (
            // The first of the two exists, and is not measured alone.
            &format!("{in_module} testbed_hold --handler testbed_holt"),
            exit::NO_TARGET,
            &["no function `testbed_holt`", "testbed_hold"],
        ),
        (
            // It is a function of the module, not of the kernel image.
            "--handler connect_syscall_handler",
            exit::NO_TARGET,
            &["no function `connect_syscall_handler` in the kernel image"],
        ),
    ];
    for (line, code, words) in cases {
        let ended = run(line);
        ended.assert_code(code).assert_error(words).assert_nothing_done();
    }
    Left::assert_nothing();
}

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn a_module_without_btf() {
    testbed::load();
    testbed::remove();
    let folder = folder();
    let stripped = folder.path().join("hids_testbed.ko");
    testbed::run(
        Command::new("objcopy")
            .args(["--remove-section=.BTF", "--remove-section=.BTF_ids"])
            .arg(testbed::file())
            .arg(&stripped),
    );
    testbed::insert(&stripped);
    let ended = run("--module hids_testbed --handler connect_syscall_handler --backend fentry");
    testbed::remove();
    testbed::load();
    ended
        .assert_code(exit::CANNOT_MEASURE)
        .assert_error(&[
            "`hids_testbed` has no BTF",
            "pahole -J --btf_base /sys/kernel/btf/vmlinux hids_testbed.ko",
        ])
        .assert_nothing_done();
    run("--module hids_testbed --handler connect_syscall_handler").assert_code(exit::OK);
}

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn an_output_that_cannot_be_written_is_found_before_measuring() {
    testbed::load();
    let folder = folder();
    let folder = folder.path().display();
    for path in ["/proc/x.json", &format!("{folder}/missing/x.json"), &format!("{folder}")] {
        let ended =
            run(&format!("--module hids_testbed --handler connect_syscall_handler --json {path}"));
        ended
            .assert_code(exit::BAD_OUTPUT)
            .assert_error(&["cannot write", path])
            .assert_nothing_done();
    }
}

#[test]
#[ignore = "VM 5.10 7.2: the oldest and the newest"]
fn a_user_without_rights() {
    testbed::load();
    let line = format!("run --module hids_testbed --handler connect_syscall_handler {LOAD}");
    let ended = Ended::of(profiler(&line).uid(65_534).gid(65_534));
    ended
        .assert_code(exit::CANNOT_MEASURE)
        .assert_error(&["CAP_BPF", "CAP_PERFMON"])
        .assert_nothing_done();
}
