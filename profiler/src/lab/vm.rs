//! One boot of the lab: the VM's specification, and what its failures mean.

use std::cell::Cell;
use std::path::{Path, PathBuf};

use profiler_vm::{Time, VmError, VmSpec, kvm};

use super::guest::{PROGRAM, STEP_LINE};
use super::plan::{BootPlan, GuestFailure};
use super::plugin::Plugin;
use super::quiet::{KERNEL_ARGS, QEMU_ARGS};
use super::{KernelBuilds, Settings, left, private_folder};
use crate::error::{Failure, exit};
use crate::load::{make_private, user_cache};
use crate::recording::{Clock, MAX_FILE_BYTES};

/// Names of the files in a boot's folder.
pub(super) const TASK: &str = "task.json";
pub(super) const FAILURE: &str = "failure.json";

/// Lines of the kernel's report that an error carries.
const REPORT_LINES: usize = 30;

/// Boots and runs the plan.
pub(super) fn run(
    bench: &KernelBuilds,
    settings: &Settings,
    plan: &BootPlan,
    folder: &Path,
    on_run: &(dyn Fn() + Sync),
) -> Result<(), Failure> {
    let scratch = private_folder("profiler-vm-")?;
    let mut spec = spec(bench, settings, plan, folder, scratch.path());
    if let Some(files) = &plan.counting {
        let plugin = Plugin::write(scratch.path())
            .map_err(|error| Failure::cannot_write(scratch.path(), &error))?;
        spec.qemu_args.extend(["-plugin".to_owned(), plugin.argument(files)]);
    }
    let run = Cell::new(None);
    let failed = |error| failure_of(&error, plan, run.get(), &kept(&spec.log, &settings.folder));
    let (accel, _) = kvm::choose(&spec, cache().as_deref(), &mut |_| {}).map_err(failed)?;
    let boot = || {
        profiler_vm::run(&spec, accel, &mut |line| {
            if let Some(order) = line.strip_prefix(STEP_LINE) {
                run.set(order.trim().parse().ok());
                on_run();
            }
        })
    };
    let outcome = match boot() {
        Err(VmError::Ended { last, .. }) if last.iter().any(|line| is_of_qemu(line)) => {
            crate::terminal::say(&format!(
                "warning: {}: QEMU ended by an error of its own, and the boot is begun again: {}",
                place(plan, run.take()),
                last.iter().find(|line| is_of_qemu(line)).map_or("", |line| line.trim())
            ));
            boot()
        }
        ended => ended,
    };
    let outcome = outcome.map_err(failed)?;
    let report = left::read(&plan.failure, MAX_FILE_BYTES).ok();
    let report: Option<GuestFailure> = report.and_then(|text| serde_json::from_slice(&text).ok());
    match (outcome.code, report) {
        (0, None) => Ok(()),
        (_, Some(report)) => {
            let text = format!("{}: {}", place(plan, report.order), report.message);
            Err(Failure::new(code_of_guest(report.code), text))
        }
        (code, None) => {
            let said = outcome.lines[outcome.lines.len().saturating_sub(REPORT_LINES)..].join("\n");
            let text = format!(
                "boot {}: the program in the VM ended with exit code {code}:\n{said}",
                plan.boot
            );
            Err(Failure::new(exit::LAB_FAILED, text))
        }
    }
}

fn spec(
    bench: &KernelBuilds,
    settings: &Settings,
    plan: &BootPlan,
    folder: &Path,
    scratch: &Path,
) -> VmSpec {
    let is_virtual = settings.clock == Clock::Virtual;
    let word = |path: &Path| profiler_vm::quote(&path.to_string_lossy());
    let script = format!(
        "mkdir -p {home} && cp {program} {PROGRAM} && exec {PROGRAM} __lab-guest {task}",
        home = word(Path::new(PROGRAM).parent().unwrap_or(Path::new("/"))),
        program = word(&settings.program),
        task = word(&folder.join(TASK)),
    );
    let words = |pairs: &[(&str, &str)]| -> Vec<String> {
        pairs.iter().filter(|_| is_virtual).map(|(word, _)| (*word).to_owned()).collect()
    };
    VmSpec {
        kernel: bench.kernel.clone(),
        cpus: settings.cpus,
        memory: settings.memory.clone(),
        time: if is_virtual { Time::Virtual } else { Time::Wall },
        timeout: settings.timeout,
        env: Vec::new(),
        command: ["sh", "-c", &script].map(str::to_owned).to_vec(),
        directory: settings.directory.clone(),
        shared: folder.to_owned(),
        scratch: scratch.to_owned(),
        log: settings.logs.join(format!("{}-boot-{}.log", bench.kernel.release, plan.boot)),
        vng: settings.vng.clone(),
        home: None,
        kernel_args: words(KERNEL_ARGS),
        qemu_args: words(QEMU_ARGS),
    }
}

/// The folder that keeps whether KVM works here: one that nobody else can write to, or none.
fn cache() -> Option<PathBuf> {
    let own = std::env::temp_dir().join(format!("profiler-{}", nix::unistd::geteuid()));
    let folders = user_cache().into_iter().chain([own]);
    folders.map(|folder| folder.join("kvm")).find(|folder| make_private(folder).is_ok())
}

/// The exit code that a guest's failure stands for. The driver under test runs there as root and can write any report: none
/// of its codes is success or a verdict.
fn code_of_guest(code: u8) -> u8 {
    match code {
        exit::INTERNAL
        | exit::CANNOT_MEASURE
        | exit::NO_TARGET
        | exit::LOAD_FAILED
        | exit::NO_HITS
        | exit::BAD_INPUT
        | exit::BAD_OUTPUT => code,
        _ => exit::LAB_FAILED,
    }
}

/// The boot, and the run in it that was under way.
fn place(plan: &BootPlan, run: Option<u32>) -> String {
    format!("boot {}{}", plan.boot, run.map_or(String::new(), |run| format!(", run {run}")))
}

/// What QEMU 7.2 says, rarely, before it aborts: it calls the callbacks of an instruction that left its block after it has
/// thrown the block away (`plugin_mem_cbs` stays set there). No figure comes of such a boot.
fn is_of_qemu(line: &str) -> bool {
    line.contains("plugins/core.c") && line.contains("qemu_plugin_vcpu_mem_cb")
}

/// What QEMU says if it cannot load the plugin: its `plugins/loader.c` and `qemu/plugin.h`, and the plugin itself.
fn of_plugin(line: &&String) -> bool {
    [
        "plugin interface not enabled",
        "Could not load plugin",
        "-plugin: invalid option",
        "profiler-qemu: ",
    ]
    .iter()
    .any(|words| line.contains(words))
}

/// The log, or its copy where it would be removed with `folder`.
fn kept(log: &Path, folder: &Path) -> PathBuf {
    let copy = || {
        let name = tempfile::Builder::new().prefix("profiler-boot-").suffix(".log").tempfile()?;
        let (_, path) = name.keep()?;
        std::fs::copy(log, &path).map(|_| path)
    };
    if log.starts_with(folder) { copy().unwrap_or_else(|_| log.to_owned()) } else { log.to_owned() }
}

/// What a failed VM means to the user.
fn failure_of(error: &VmError, plan: &BootPlan, run: Option<u32>, log: &Path) -> Failure {
    let at = place(plan, run);
    let ends = |lines: &[String]| lines[..lines.len().min(REPORT_LINES)].join("\n");
    let kept = format!("the whole log is {}", log.display());
    match error {
        VmError::Trouble { trouble } => {
            let mut builds = [Some(&plan.baseline), plan.candidate.as_ref()].into_iter().flatten();
            let of_driver = builds.find(|build| trouble.names_module(&build.name));
            let who = match of_driver {
                Some(build) => format!("the kernel broke in the driver {}", build.name),
                None => "the kernel broke".to_owned(),
            };
            let report = ends(&trouble.lines);
            let text = format!("{at}: {who}: {trouble}\n{report}\n{kept}");
            Failure::new(exit::LAB_FAILED, text)
        }
        VmError::Interrupted(signal) => {
            let code = u8::try_from(128 + signal).unwrap_or(exit::TERMINATED);
            Failure::new(code, error.to_string())
        }
        VmError::NotStarted { .. } => Failure::new(exit::CANNOT_MEASURE, error.to_string()),
        VmError::Ended { started: false, last } if last.iter().any(|line| of_plugin(&line)) => {
            let said: Vec<&str> = last.iter().filter(of_plugin).map(|line| line.trim()).collect();
            let text = format!(
                "boot {}: QEMU does not take the plugin that counts instructions: {}\n\
                 install a QEMU 7.2 or newer with plugins (--enable-plugins; qemu-system-x86 of Debian and Ubuntu \
                 has them), or measure with --meter probes",
                plan.boot,
                said.join("\n")
            );
            Failure::new(exit::CANNOT_MEASURE, text)
        }
        VmError::TimedOut { last, .. } => {
            let text =
                format!("{at}: {error}; give it more with --timeout\n{}\n{kept}", ends(last));
            Failure::new(exit::LAB_FAILED, text)
        }
        _ => Failure::new(exit::LAB_FAILED, format!("{at}: {error}\n{kept}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::plan::{Build, Job, Length, RunSpec};
    use crate::recording::Meter;

    fn plan() -> BootPlan {
        let run = RunSpec {
            clock: Clock::Virtual,
            meter: Meter::Probes,
            handlers: Vec::new(),
            loads: Vec::new(),
            workers: 1,
            rate: None,
            length: Length::Operations(1),
        };
        let [file, given] = ["/d.ko", "/given.ko"].map(Into::into);
        let build = Build { file, given, name: "driver".into(), params: String::new() };
        BootPlan {
            boot: 3,
            baseline: build,
            candidate: None,
            work: vec![Job {
                part: None,
                run: run.clone(),
                warmup: run,
                cost: false,
                wanted: None,
            }],
            cost: None,
            counting: None,
            steps: Vec::new(),
            failure: "/f.json".into(),
        }
    }

    fn failure(error: &VmError) -> (u8, String) {
        let failure = failure_of(error, &plan(), Some(2), Path::new("/logs/boot-3.log"));
        (failure.code, failure.message)
    }

    #[test]
    fn a_log_outlives_the_folder_of_the_vms() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("logs/boot-3.log");
        std::fs::create_dir(log.parent().unwrap()).unwrap();
        std::fs::write(&log, "last words").unwrap();
        let copy = kept(&log, folder.path());
        assert_eq!(kept(&log, Path::new("/elsewhere")), log, "--logs keeps it");
        drop(folder);
        assert_eq!(std::fs::read_to_string(&copy).unwrap(), "last words");
        std::fs::remove_file(copy).unwrap();
    }

    #[test]
    fn an_oops_in_the_driver_is_the_drivers() {
        let trouble = |line: &str| VmError::Trouble {
            trouble: profiler_vm::Trouble {
                lines: vec!["[ 9.0] Oops: 0002 [#1]".into(), line.into()],
            },
        };
        let (code, text) = failure(&trouble("RIP: 0010:bind_handler+0x12/0x90 [driver]"));
        assert_eq!(code, exit::LAB_FAILED);
        assert!(
            text.starts_with("boot 3, run 2: the kernel broke in the driver driver: [ 9.0] Oops"),
            "{text}"
        );
        assert!(text.contains("bind_handler+0x12") && text.contains("/logs/boot-3.log"), "{text}");
        let (_, text) = failure(&trouble("RIP: 0010:vfs_read+0x12/0x90"));
        assert!(text.starts_with("boot 3, run 2: the kernel broke: [ 9.0] Oops"), "{text}");
    }

    #[test]
    fn a_guest_reports_neither_success_nor_a_verdict() {
        for code in 0..=u8::MAX {
            let is_known = matches!(code, 1 | 3..=8);
            assert_eq!(code_of_guest(code), if is_known { code } else { exit::LAB_FAILED });
        }
    }

    #[test]
    fn each_failure_has_its_exit_code() {
        assert_eq!(failure(&VmError::Interrupted(2)).0, exit::INTERRUPTED);
        assert_eq!(failure(&VmError::Interrupted(15)).0, exit::TERMINATED);
        let error = std::io::Error::from(std::io::ErrorKind::NotFound);
        let (code, text) = failure(&VmError::NotStarted { command: "vng --run".into(), error });
        assert_eq!(code, exit::CANNOT_MEASURE);
        assert!(text.contains("`vng --run`"), "{text}");
        let last = vec!["last words".to_owned()];
        let limit = std::time::Duration::from_secs(9);
        let (code, text) = failure(&VmError::TimedOut { started: true, limit, last });
        assert_eq!(code, exit::LAB_FAILED);
        assert!(text.contains("last words") && text.contains("--timeout"), "{text}");
        let last = vec!["last words".to_owned()];
        let (code, text) = failure(&VmError::Ended { started: true, last });
        assert_eq!(code, exit::LAB_FAILED);
        assert!(
            text.starts_with("boot 3, run 2: the VM ended before the command did\nlast words"),
            "{text}"
        );
    }

    #[test]
    fn a_qemu_without_plugins_is_named_with_the_remedy() {
        for said in [
            "qemu-system-x86_64: plugin interface not enabled in this build",
            "qemu-system-x86_64: Could not load plugin /p.so: plugin requires API version 1, but this QEMU supports \
             only a minimum version of 2",
            "qemu-system-x86_64: -plugin: invalid option",
        ] {
            let last = vec!["virtme: waiting".to_owned(), format!("{said}\r")];
            let ended = |started| failure(&VmError::Ended { started, last: last.clone() });
            let (code, text) = ended(false);
            assert_eq!(code, exit::CANNOT_MEASURE);
            assert!(text.starts_with("boot 3: QEMU does not take the plugin"), "{text}");
            for part in [said, "\ninstall a QEMU 7.2 or newer", "--meter probes"] {
                assert!(text.contains(part), "no `{part}` in {text}");
            }
            assert!(!text.contains("virtme"), "{text}");
            assert_eq!(ended(true).0, exit::LAB_FAILED);
        }
    }
}
