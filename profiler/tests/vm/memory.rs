//! Kernel memory that the histograms would take is compared with what there is.

use std::fs;
use std::process::Command;

use profiler_base::error::exit;
use profiler_kernel::host::cgroup2_mount;

use crate::cli::{Ended, folder, saved};
use crate::loads::mount_groups;
use crate::testbed;
use crate::window::program;

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn handlers_that_memory_has_no_room_for_get_fewer_digits_or_are_refused() {
    testbed::load();
    mount_groups();
    let mount = cgroup2_mount().unwrap();
    fs::write(mount.join("cgroup.subtree_control"), "+memory").unwrap();
    let group = mount.join("small");
    fs::create_dir(&group).unwrap();
    let limited = |megabytes: u32, more: &[&str]| {
        fs::write(group.join("memory.max"), format!("{megabytes}M")).unwrap();
        let script = "echo $$ > \"$0\"/cgroup.procs && exec \"$@\"";
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(&group).arg(program()).args([
            "run",
            "--module",
            "hids_testbed",
            "--handler",
            "testbed_trivial_*",
            "--duration",
            "100ms",
        ]);
        Ended::of(command.args(more))
    };
    // 50 handlers: 216 KiB for each of two CPUs and for those that come online later or, with two digits, 30 KiB.
    // Three quarters of 34 MiB are less than that, whatever else is there.
    let refused = limited(34, &["--precision", "3"]);
    refused.assert_code(exit::CANNOT_MEASURE).assert_nothing_done();
    refused.assert_error(&[
        "50 handlers",
        "MiB",
        "for 2 CPUs",
        "--precision 2",
        "small/memory.max",
    ]);
    let folder = folder();
    let file = folder.path().join("coarser.json");
    let ended = limited(40, &["--json", file.to_str().unwrap()]);
    ended.assert_code(exit::NO_HITS);
    assert!(ended.stderr.contains("2 significant digits instead of 3"), "{}", ended.stderr);
    let profile = saved(file, &ended.stdout);
    assert!(profile.warnings.iter().any(|warning| warning.code == "coarser"), "{profile:?}");
    assert_eq!(profile.histogram.precision_digits, 2);
    fs::remove_dir(&group).unwrap();
}
