//! The tests of `profiler lab`, `lab_in_vm` of `profiler/tests/host`, with what they need:
//!
//! | variable | value |
//! |---|---|
//! | `PROFILER_LAB_KERNEL` | path of a kernel image |
//! | `PROFILER_LAB_BASELINE` | path of the testbed for this kernel |
//! | `PROFILER_LAB_OTHERS` | for each other kernel its image and the testbed for it, separated by colons |
//! | `PROFILER_LAB_ARM64` | for each kernel of arm64 its image, the testbed for it, and one that is slower as below, separated by colons |
//! | `PROFILER_LAB_CANDIDATE` | path of one in which `connect_syscall_handler` runs 64 iterations more |
//! | `PROFILER_LAB_AUDITCTL` | folder of `auditctl` |
//! | `PROFILER_LAB_PLANTED` | path of one that can make planted changes |
//! | `PROFILER_LAB_HARMLESS` | path of the same with harmless changes |

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::libtest;
use super::report::Report;
use crate::cargo::{Tested, build_for_arm64};
use crate::process;
use crate::series::Series;
use crate::setup::{self, arm64};
use crate::testbed;

/// The place of these tests in the report, and their name as a boot.
pub(super) const PLACE: &str = "lab";

/// The part of a name that these tests alone have.
pub(super) const TESTS: &str = "lab_in_vm::";

const SERIES: Series = Series::V6_1;

/// Kernels on which one run is made.
const OTHERS: [Series; 3] = [Series::V5_10, Series::V6_12, Series::V7_2];

/// Runs them, or those of these names, one at a time: each boots VMs.
pub(super) fn run(tested: &Tested, only: &[String]) -> Result<Report> {
    println!("test: the lab");
    setup::ensure(&[setup::AGENTS, setup::ARM64])?;
    let binary = &tested.host_tests;
    let listed = libtest::listed(&mut ignored(binary, only))?;
    let slow = testbed::slow("connect_syscall_handler", 64);
    let mut command = ignored(binary, only);
    command.args(["--test-threads=1", "--show-output"]);
    command.env("PROFILER_LAB_KERNEL", setup::kernel(SERIES)?.image());
    command.env("PROFILER_LAB_BASELINE", testbed::build(SERIES, "")?);
    command.env("PROFILER_LAB_CANDIDATE", testbed::build(SERIES, &slow)?);
    command.env("PROFILER_LAB_PLANTED", testbed::build(SERIES, testbed::PLANTED)?);
    command.env("PROFILER_LAB_HARMLESS", testbed::build(SERIES, testbed::HARMLESS)?);
    let mut others = Vec::new();
    for series in OTHERS {
        others.push(setup::kernel(series)?.image());
        others.push(testbed::build(series, "")?);
    }
    command.env("PROFILER_LAB_OTHERS", std::env::join_paths(others)?);
    command.env("PROFILER_LAB_AUDITCTL", setup::AUDIT.programs());
    process::copy(&build_for_arm64(0)?, &tested.profiler.with_file_name(arm64::GUEST))?;
    let mut arm64 = Vec::new();
    for series in arm64::KERNELS {
        arm64.push(arm64::kernel(series)?.image());
        arm64.push(testbed::build_for_arm64(series, "")?);
        arm64.push(testbed::build_for_arm64(series, &slow)?);
    }
    command.env("PROFILER_LAB_ARM64", std::env::join_paths(arm64)?);
    let (status, lines) = process::printed(&mut command)?;
    let early = format!("the test binary ended early: {status}");
    let mut report = Report::default();
    report.add_run(PLACE, &listed, &libtest::endings(&lines), &early);
    Ok(report)
}

fn ignored(binary: &Path, only: &[String]) -> Command {
    let mut command = Command::new(binary);
    command.arg("--ignored");
    if only.is_empty() {
        command.arg(TESTS);
    } else {
        command.arg("--exact").args(only);
    }
    command
}
