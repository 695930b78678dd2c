//! Where each VM test runs: the reason why a plain run ignores it names the kernels.
//! [`super`] passes the kernel on as `PROFILER_VM_KERNEL`.
//!
//! | in the source | runs on |
//! |---|---|
//! | `#[ignore = "VM 5.10 6.1 6.12 7.2"]` | each kernel, on the wall clock with two CPUs |
//! | `#[ignore = "VM 6.1: not about the kernel"]` | one kernel; after the colon: why not the others |
//! | `#[ignore = "VM 6.1 6.12, virtual time"]` | two kernels, each with one CPU under virtual time |
//! | `#[ignore = "VM 6.1, virtual time, twice"]` | two boots, which have to measure the same |

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum as _;

use super::libtest;
use crate::process;
use crate::series::Series;

/// Where a test runs.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TestPlace {
    kernels: Vec<Series>,
    virtual_time: bool,
    twice: bool,
}

impl TestPlace {
    fn parse(text: &str) -> Result<Self> {
        let (place, why) = text.split_once(": ").unwrap_or((text, ""));
        let mut parts = place.split(", ");
        let kernels = parts.next().and_then(|kernels| kernels.strip_prefix("VM "));
        let kernels = kernels.context("it does not begin with `VM` and kernels")?.split(' ');
        let kernels = kernels.map(|name| {
            Series::from_str(name, false).ok().with_context(|| format!("no kernel `{name}`"))
        });
        let kernels = kernels.collect::<Result<Vec<_>>>()?;
        ensure!(kernels.is_sorted_by(|a, b| a < b), "kernels are named once, the oldest first");
        let (virtual_time, twice) = match parts.collect::<Vec<_>>()[..] {
            [] => (false, false),
            ["virtual time"] => (true, false),
            ["virtual time", "twice"] => (true, true),
            ref other => bail!("{other:?} is neither `virtual time` nor `virtual time, twice`"),
        };
        let everywhere = virtual_time || kernels.len() == Series::ALL.len();
        ensure!(everywhere || !why.is_empty(), "why not on each kernel?");
        Ok(Self { kernels, virtual_time, twice })
    }
}

/// One VM, and its tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Boot {
    pub(super) name: String,
    pub(super) series: Series,
    pub(super) virtual_time: bool,
    pub(super) tests: Vec<String>,
}

/// Most tests in one VM. More are split among VMs that run side by side, each on one CPU of this machine; a boot takes as long
/// as ten tests.
const PART: usize = 100;

impl Boot {
    /// About how long it takes, in tests on the wall clock: those under virtual time are longer.
    pub(super) fn length(&self) -> usize {
        self.tests.len() * if self.virtual_time { 3 } else { 1 }
    }

    /// This boot, split into VMs with equal numbers of tests.
    pub(super) fn parts(self) -> Vec<Self> {
        let vms = self.tests.len().div_ceil(PART);
        let each = self.tests.len().div_ceil(vms);
        let parts = (1..).zip(self.tests.chunks(each)).map(|(number, tests)| {
            let end = if number == 1 { String::new() } else { format!("-part{number}") };
            Self { name: self.name.clone() + &end, tests: tests.to_vec(), ..self }
        });
        parts.collect()
    }
}

/// All boots that the binary's tests name.
pub(super) fn boots(binary: &Path) -> Result<Vec<Boot>> {
    let (all, ignored) = (list(binary, &[])?, list(binary, &["--ignored"])?);
    // A test that is not ignored would run on this machine below.
    if let Some(silent) = all.iter().find(|test| !ignored.contains(test)) {
        bail!("{silent} does not say where it runs: `#[ignore = \"VM ...\"]`, as others do");
    }
    let said = libtest::ignored(&process::stdout(&mut Command::new(binary))?);
    ensure!(said.len() == all.len(), "{} of {} tests say where they run", said.len(), all.len());
    plan(&said)
}

fn list(binary: &Path, more: &[&str]) -> Result<Vec<String>> {
    let mut command = Command::new(binary);
    Ok(libtest::listed(&process::stdout(command.arg("--list").args(more))?))
}

fn plan(said: &[(String, String)]) -> Result<Vec<Boot>> {
    let mut places = Vec::new();
    for (test, reason) in said {
        let place = TestPlace::parse(reason).with_context(|| format!("{test}: `{reason}`"))?;
        places.push((test, place));
    }
    let mut boots = Vec::new();
    for (prefix, virtual_time, suffix) in
        [("", false, ""), ("icount-", true, ""), ("icount-", true, TWICE)]
    {
        for series in Series::ALL {
            let here = places.iter().filter(|(_, place)| {
                place.virtual_time == virtual_time
                    && (place.twice || suffix.is_empty())
                    && place.kernels.contains(&series)
            });
            let tests: Vec<String> = here.map(|&(test, _)| test.clone()).collect();
            if !tests.is_empty() {
                let name = format!("{prefix}{series}{suffix}");
                boots.push(Boot { name, series, virtual_time, tests });
            }
        }
    }
    Ok(boots)
}

/// Suffix of a boot's name that repeats another one and has to agree with it.
pub(super) const TWICE: &str = "-again";

#[cfg(test)]
mod tests {
    use super::*;

    fn boots_of(said: &[(&str, &str)]) -> Result<Vec<Boot>> {
        let said: Vec<_> = said.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
        plan(&said)
    }

    /// `cargo xtask test` would find it after all is built.
    #[test]
    fn each_vm_test_says_where_it_runs() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../profiler/tests/vm");
        let mut said = 0;
        for file in crate::process::files_below(&root).unwrap() {
            if file.extension().is_none_or(|extension| extension != "rs") {
                continue;
            }
            let text = std::fs::read_to_string(&file).unwrap();
            for place in text.split("\n#[ignore = \"").skip(1) {
                let place = place.split('"').next().unwrap();
                let parsed = TestPlace::parse(place);
                assert!(parsed.is_ok(), "{}: `{place}`: {}", file.display(), parsed.unwrap_err());
                said += 1;
            }
        }
        assert!(said > 100, "only {said} tests were found");
    }

    #[test]
    fn a_boot_for_each_kernel_and_time_that_a_test_names() {
        let boots = boots_of(&[
            ("a", "VM 5.10 6.1 6.12 7.2"),
            ("b", "VM 6.1: not about the kernel"),
            ("c", "VM 6.1 6.12, virtual time"),
            ("d", "VM 6.1, virtual time, twice"),
        ])
        .unwrap();
        let named: Vec<_> =
            boots.iter().map(|boot| (boot.name.as_str(), boot.tests.concat())).collect();
        let expected = [
            ("5.10", "a"),
            ("6.1", "ab"),
            ("6.12", "a"),
            ("7.2", "a"),
            ("icount-6.1", "cd"),
            ("icount-6.12", "c"),
            ("icount-6.1-again", "d"),
        ];
        assert_eq!(named, expected.map(|(name, tests)| (name, tests.to_owned())));
    }

    #[test]
    fn parts_are_the_whole() {
        let many: Vec<(String, String)> =
            (0..2 * PART + 1).map(|n| (n.to_string(), "VM 6.1: why".to_owned())).collect();
        let [boot] = plan(&many).unwrap().try_into().unwrap();
        let parts = boot.clone().parts();
        let names: Vec<String> = parts.iter().map(|part| part.name.clone()).collect();
        assert_eq!(names, ["6.1", "6.1-part2", "6.1-part3"]);
        assert!(parts.iter().all(|part| (PART / 2..=PART).contains(&part.tests.len())));
        let tests: Vec<String> = parts.into_iter().flat_map(|part| part.tests).collect();
        assert_eq!(tests, boot.tests);
    }

    #[test]
    fn a_place_that_is_not_one_is_refused_with_the_test() {
        for (bad, words) in [
            ("6.1", "does not begin with"),
            ("VM 6.2", "no kernel `6.2`"),
            ("VM 6.1 5.10: why", "the oldest first"),
            ("VM 6.1 6.1: why", "named once"),
            ("VM 6.1", "why not on each kernel?"),
            ("VM 6.1, virtual", "neither `virtual time`"),
        ] {
            let error = format!("{:#}", boots_of(&[("a::b", bad)]).unwrap_err());
            assert!(error.starts_with("a::b: ") && error.contains(words), "{error}");
        }
    }
}
