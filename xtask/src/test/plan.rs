//! Where each VM test runs: the reason why a plain run ignores it names the kernels.
//! [`super`] passes the kernel on as `PROFILER_VM_KERNEL`.
//!
//! | in the source | runs on |
//! |---|---|
//! | `#[ignore = "VM 5.10 6.1 6.12 7.2"]` | each kernel, on the wall clock with two CPUs |
//! | `#[ignore = "VM 6.1: not about the kernel"]` | one kernel; after the colon: why not the others |
//! | `#[ignore = "VM 6.1 6.12, virtual time"]` | two kernels, each with one CPU under virtual time |
//! | `#[ignore = "VM 6.1, virtual time, twice"]` | two boots, which have to measure the same |

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum as _;

use crate::series::Series;

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

/// Suffix of a boot's name that repeats another one and has to agree with it.
pub(super) const TWICE: &str = "-again";

/// All boots that the tests' reasons name, in the order of their names.
pub(super) fn boots(tests: &[(String, String)]) -> Result<Vec<Boot>> {
    let mut boots: BTreeMap<String, Boot> = BTreeMap::new();
    for (test, reason) in tests {
        let places = places(reason).with_context(|| format!("{test}: `{reason}`"))?;
        for (name, series, virtual_time) in places {
            let new = || Boot { name: name.clone(), series, virtual_time, tests: Vec::new() };
            boots.entry(name.clone()).or_insert_with(new).tests.push(test.clone());
        }
    }
    Ok(boots.into_values().collect())
}

/// The names of the boots that a test runs in, their kernels, and whether their time is virtual.
fn places(reason: &str) -> Result<Vec<(String, Series, bool)>> {
    let (place, why) = reason.split_once(": ").unwrap_or((reason, ""));
    let mut words = place.split(", ");
    let kernels = words.next().and_then(|kernels| kernels.strip_prefix("VM "));
    let kernels = kernels.context("it does not begin with `VM` and kernels")?.split(' ');
    let (prefix, ends) = match words.collect::<Vec<_>>()[..] {
        [] => ("", &[""][..]),
        ["virtual time"] => ("icount-", &[""][..]),
        ["virtual time", "twice"] => ("icount-", &["", TWICE][..]),
        ref other => bail!("{other:?} is neither `virtual time` nor `virtual time, twice`"),
    };
    let virtual_time = !prefix.is_empty();
    let kernels = kernels.map(|name| {
        Series::from_str(name, false).ok().with_context(|| format!("no kernel `{name}`"))
    });
    let kernels = kernels.collect::<Result<Vec<_>>>()?;
    ensure!(kernels.is_sorted_by(|a, b| a < b), "kernels are named once, the oldest first");
    let mut places = Vec::new();
    for series in kernels {
        places.extend(
            ends.iter().map(|end| (format!("{prefix}{series}{end}"), series, virtual_time)),
        );
    }
    let is_everywhere = virtual_time || places.len() == Series::value_variants().len();
    ensure!(is_everywhere || !why.is_empty(), "why not on each kernel?");
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(name: &str, reason: &str) -> (String, String) {
        (name.to_owned(), reason.to_owned())
    }

    fn boots_of(tests: &[(&str, &str)]) -> Result<Vec<Boot>> {
        boots(&tests.iter().map(|(name, reason)| listed(name, reason)).collect::<Vec<_>>())
    }

    /// `cargo xtask test` would find it after all is built.
    #[test]
    fn each_vm_test_says_where_it_runs() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../profiler/tests/vm");
        let mut said = 0;
        for file in crate::process::files_below(&root).unwrap() {
            if file.extension().is_none_or(|extension| extension != "rs") {
                continue;
            }
            let text = std::fs::read_to_string(&file).unwrap();
            for place in text.split("\n#[ignore = \"").skip(1) {
                let place = place.split('"').next().unwrap();
                let parsed = places(place);
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
            ("icount-6.1-again", "d"),
            ("icount-6.12", "c"),
        ];
        assert_eq!(named, expected.map(|(name, tests)| (name, tests.to_owned())));
    }

    #[test]
    fn parts_are_the_whole() {
        let many: Vec<_> =
            (0..2 * PART + 1).map(|n| listed(&n.to_string(), "VM 6.1: why")).collect();
        let [boot] = boots(&many).unwrap().try_into().unwrap();
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
