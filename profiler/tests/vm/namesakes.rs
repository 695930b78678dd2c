//! Two modules with functions of the same names: each is measured separately, in either order of loading.

use std::fs;
use std::process::Command;

use profiler_base::error::exit;
use profiler_probe::select::needs_btf;
use profiler_recording::{Backend, Recording};

use crate::cli::{Ended, assert_whole, folder, profiler};
use crate::matrix::kernel;
use crate::testbed;

/// As long as the testbed's name, which it replaces.
const OTHER: &str = "hids_nametwo";

const FUNCTION: &str = "testbed_outer";

/// The testbed under another name; its functions keep theirs.
fn other(folder: &std::path::Path) -> std::path::PathBuf {
    let mut bytes = fs::read(testbed::file()).unwrap();
    let (name, length) = (testbed::NAME.as_bytes(), OTHER.len());
    assert_eq!(name.len(), length);
    let found = |bytes: &[u8]| bytes.windows(length).position(|window| window == name);
    while let Some(at) = found(&bytes) {
        bytes[at..at + length].copy_from_slice(OTHER.as_bytes());
    }
    let file = folder.join(format!("{OTHER}.ko"));
    fs::write(&file, bytes).unwrap();
    file
}

/// Has both modules call their functions, and measures those of `module`: the backend, and the calls.
fn measured(module: &str, backend: Option<Backend>) -> Result<(Backend, u64), Ended> {
    let folder = folder();
    let file = folder.path().join("result.json");
    let forced = backend.map_or(String::new(), |backend| format!("--backend {backend}"));
    let line =
        format!("run --module {module} --handler {FUNCTION} {forced} --json {}", file.display());
    let script = format!(
        "echo nested 30 > /proc/{}/trigger; echo nested 70 > /proc/{OTHER}/trigger",
        testbed::NAME
    );
    let ended = Ended::of(profiler(&line).args(["--", "sh", "-c", &script]));
    if ended.code != Some(exit::OK.into()) {
        return Err(ended);
    }
    let profile = Recording::read(&file).unwrap();
    let handler = &profile.handlers[0];
    assert_whole(handler);
    Ok((handler.backend.unwrap(), handler.count))
}

#[test]
#[ignore = "VM 7.2: 5.10 has no BTF of modules, 7.2 has all backends of the others"]
fn of_two_modules_with_one_name_each_is_measured_for_itself() {
    let folder = folder();
    let other = other(folder.path());
    let looks_by_name =
        profiler_kernel::host::collect().kernel_release.is_some_and(|k| k.starts_with("6.1."));
    for newest in [OTHER, testbed::NAME] {
        if testbed::is_loaded() {
            testbed::remove();
        }
        let (first, second) = match newest == OTHER {
            true => (testbed::file(), other.clone()),
            false => (other.clone(), testbed::file()),
        };
        testbed::insert(&first);
        testbed::insert(&second);
        for (module, calls) in [(testbed::NAME, 30), (OTHER, 70)] {
            let taken = looks_by_name && module != newest;
            let (backend, count) = measured(module, None).unwrap();
            println!("{newest} is newest: {module} by {backend}: {count}");
            assert_eq!(count, calls, "{module} by {backend}, {newest} is newest");
            assert_eq!(backend == Backend::FunctionGraph, taken, "{module}: {backend}");
            // By each other backend, too, in the most ambiguous case.
            let older = newest == OTHER && module == testbed::NAME;
            if older {
                let line = format!("doctor --module {module} --handler {FUNCTION} --json");
                let doctor = Ended::of(&mut profiler(&line));
                doctor.assert_code(exit::OK);
                assert_eq!(doctor.stdout.contains("has this name, too"), taken, "{doctor:?}");
            }
            for backend in kernel().core.works.into_iter().filter(|_| older) {
                match measured(module, Some(backend)) {
                    Ok(measured) => assert_eq!(measured, (backend, calls), "{newest} is newest"),
                    Err(ended) => {
                        assert!(taken && needs_btf(backend), "{backend}: {ended:?}");
                        ended.assert_error(&["has this name, too", newest]);
                    }
                }
            }
        }
        testbed::run(Command::new("rmmod").arg(OTHER));
    }
}
