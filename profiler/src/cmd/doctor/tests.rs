//! Made-up machines, each with its verdict.

use std::fs;
use std::path::Path;

use profiler_tests::btf::Builder;

use super::checks::Status;
use super::table::text as table;
use super::*;

fn write(root: &Path, path: &str, text: impl AsRef<[u8]>) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// A kernel like Debian's 6.1.
fn loads(backend: Backend, _: Option<&Btf>) -> Result<(), Refusal> {
    match backend {
        Backend::Fentry | Backend::FunctionGraph | Backend::Kprobe => Ok(()),
        Backend::Fsession => {
            no("loading an empty fsession program: Invalid argument (os error 22)")
        }
        Backend::KprobeSession => no(
            "attaching an empty kprobe.session program to vfs_open: Operation not supported (os error \
             95) (it was built without CONFIG_FPROBE)",
        ),
    }
}

fn no(what: &str) -> Result<(), Refusal> {
    Err(Refusal { what: what.to_owned(), forbidden: false })
}

fn forbids(_: Backend, _: Option<&Btf>) -> Result<(), Refusal> {
    let what = "loading an empty program: Operation not permitted (os error 1)";
    Err(Refusal { what: what.to_owned(), forbidden: true })
}

/// A kernel like Debian's 5.10, but without the tracer.
fn old(backend: Backend, _: Option<&Btf>) -> Result<(), Refusal> {
    match backend {
        Backend::Fentry | Backend::Kprobe => Ok(()),
        _ => no("loading an empty program: Invalid argument (os error 22)"),
    }
}

fn cannot(_: Backend, _: Option<&Btf>) -> Result<(), Refusal> {
    no("attaching an empty fexit program to vfs_open: Not supported (os error 524)")
}

/// The BTF of a kernel, and of the module `driver` for it.
fn btf(keeps_module_btf: bool) -> (Vec<u8>, Vec<u8>) {
    let mut base = Builder::base();
    let int = base.int("int");
    base.function("vfs_open", int, &[]);
    let members: &[&str] = if keeps_module_btf { &["name", "btf_data"] } else { &["name"] };
    base.structure("module", members);
    let mut split = base.split();
    split.function("bind_handler", int, &[("length", int)]);
    split.function("twice_handler", int, &[]);
    (base.bytes(), split.bytes())
}

/// Root on a kernel with everything but BTF; the module `driver` is loaded.
fn kernel(release: &str, try_backend: TryBackend) -> (tempfile::TempDir, Machine) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    write(root, "proc/sys/kernel/osrelease", format!("{release}\n"));
    write(root, "proc/sys/kernel/arch", "x86_64\n");
    write(root, "proc/self/status", "Name:\tprofiler\nCapEff:\t000001ffffffffff\n");
    write(root, "proc/modules", "driver 65536 0 - Live 0x0000000000000000 (OE)\n");
    write(
        root,
        "proc/kallsyms",
        "ffffffff81000000 T vfs_open\n\
         ffffffffc0001000 t bind_handler\t[driver]\n\
         ffffffffc0001010 t bind_handler.cold\t[driver]\n\
         ffffffffc0001040 t dark_handler\t[driver]\n\
         ffffffffc0001080 t split_handler.isra.0\t[driver]\n\
         ffffffffc0001100 t twice_handler\t[driver]\n\
         ffffffffc0001180 t twice_handler\t[driver]\n\
         ffffffffc0001200 t helper\t[driver]\n",
    );
    let machine = Machine { root: root.to_owned(), try_backend };
    (folder, machine)
}

fn with_tracefs(root: &Path) {
    write(
        root,
        "sys/kernel/tracing/available_filter_functions",
        "vfs_open\nbind_handler [driver]\nsplit_handler.isra.0 [driver]\ntwice_handler [driver]\n\
         helper [driver]\n",
    );
}

fn look(machine: &Machine, module: Option<&str>) -> Report {
    examine(machine, module, &["*_handler".to_owned()])
}

#[test]
fn a_good_kernel() {
    let (folder, machine) = kernel("6.1.0-56-amd64", loads);
    let root = folder.path();
    with_tracefs(root);
    let (vmlinux, driver) = btf(true);
    write(root, "sys/kernel/btf/vmlinux", vmlinux);
    write(root, "sys/kernel/btf/driver", driver);
    let report = look(&machine, Some("driver"));
    assert!(report.can_measure);
    insta::assert_snapshot!("good-module", table(&report, None));
    let report = look(&machine, None);
    assert!(report.can_measure);
    insta::assert_snapshot!("good", table(&report, None));
    let json = serde_json::to_string_pretty(&look(&machine, Some("driver"))).unwrap();
    insta::assert_snapshot!("good-json", json);
}

#[test]
fn a_machine_that_refuses_bpf_tracing() {
    let (folder, machine) = kernel("6.18.44", forbids);
    let (vmlinux, _) = btf(false);
    write(folder.path(), "sys/kernel/btf/vmlinux", vmlinux);
    let report = look(&machine, None);
    assert!(!report.can_measure);
    insta::assert_snapshot!("refused", table(&report, None));
    insta::assert_snapshot!("refused-narrow", table(&report, Some(80)));
    let report = look(&Machine { try_backend: cannot, ..machine }, None);
    let check = report.checks.iter().find(|check| check.id == CheckId::BpfTracing).unwrap();
    assert!(check.remedy.as_ref().unwrap().contains("CONFIG_BPF_JIT"), "{check:?}");
}

#[test]
fn a_kernel_that_keeps_no_btf_of_modules() {
    let (folder, machine) = kernel("5.10.0-40-amd64", old);
    let root = folder.path();
    with_tracefs(root);
    let (vmlinux, _) = btf(false);
    write(root, "sys/kernel/btf/vmlinux", vmlinux);
    let report = look(&machine, Some("driver"));
    assert!(!report.can_measure, "a kprobe may count nothing there");
    insta::assert_snapshot!("no-module-btf", table(&report, None));
    let fentry = |report: &Report| report.backends[1].clone();
    assert!(!fentry(&report).module_functions.available);
    assert!(fentry(&report).kernel_functions.available, "functions of the kernel can be measured");
}

#[test]
fn a_module_without_btf_of_its_own() {
    let (folder, machine) = kernel("6.1.0-56-amd64", loads);
    write(folder.path(), "sys/kernel/btf/vmlinux", btf(true).0);
    let report = look(&machine, Some("driver"));
    let answer = &report.backends[1].module_functions;
    assert_eq!(answer.because_of, [CheckId::ModuleBtf]);
    let check = report.checks.iter().find(|check| check.id == CheckId::ModuleBtf).unwrap();
    assert!(check.remedy.as_ref().unwrap().contains("profiler prepare driver.ko"));
}

#[test]
fn a_process_without_privileges() {
    let (folder, machine) = kernel("6.1.0-56-amd64", |_, _| panic!("nothing is tried"));
    let root = folder.path();
    write(root, "sys/kernel/btf/vmlinux", btf(true).0);
    write(root, "proc/self/status", "CapEff:\t0000000000000000\n");
    let report = look(&machine, None);
    assert!(!report.can_measure);
    insta::assert_snapshot!("unprivileged", table(&report, None));
}

#[test]
fn an_empty_machine() {
    let folder = tempfile::tempdir().unwrap();
    let machine =
        Machine { root: folder.path().to_owned(), try_backend: |_, _| panic!("nothing is tried") };
    let report = look(&machine, Some("driver"));
    assert!(!report.can_measure);
    for check in &report.checks {
        assert!(check.status != Status::No || check.remedy.is_some(), "{check:?}");
    }
    write(folder.path(), "proc/modules", "drivers 1 0\n");
    write(folder.path(), "sys/kernel/tracing/current_tracer", "nop\n");
    write(folder.path(), "sys/kernel/btf/vmlinux", Builder::base().bytes());
    let report = look(&machine, Some("driver"));
    let find = |id| report.checks.iter().find(|check| check.id == id).unwrap();
    assert_eq!(find(CheckId::Module).detail, "module `driver` is not loaded");
    assert!(find(CheckId::Module).remedy.as_ref().unwrap().contains("did you mean drivers?"));
    assert!(find(CheckId::Tracefs).remedy.as_ref().unwrap().contains("CONFIG_DYNAMIC_FTRACE"));
    assert_eq!(find(CheckId::ModuleBtfSupport).status, Status::No, "its BTF shows no modules");
}

#[test]
fn a_module_all_of_whose_handlers_are_out_of_reach() {
    let (folder, machine) = kernel("6.1.0-56-amd64", loads);
    let root = folder.path();
    with_tracefs(root);
    let (vmlinux, driver) = btf(true);
    write(root, "sys/kernel/btf/vmlinux", vmlinux);
    write(root, "sys/kernel/btf/driver", driver);
    let only = |name: &str| examine(&machine, Some("driver"), &[name.to_owned()]);
    assert!(!only("dark_handler").can_measure);
    assert!(only("bind_handler").can_measure);
    // Nothing of that name is no fault of the machine.
    let report = only("x*");
    assert!(report.can_measure && report.no_handlers.is_some());
}
