//! `doctor`, `list` and `prepare` as programs: what they print, and their exit codes. Nothing here
//! needs privileges or a certain kernel: what this machine can do decides what is expected.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use object::write::{Object, StandardSegment};
use object::{Architecture, BinaryFormat, Endianness, SectionKind};
use serde_json::Value;

use crate::durable::{assert_durable, calls};
use crate::program::{profiler, text};

fn run(command: &mut Command) -> Output {
    command.output().expect("the program starts")
}

#[track_caller]
fn fails(output: &Output, code: i32, wanted: &[&str]) {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    for wanted in wanted {
        assert!(said.contains(wanted), "`{wanted}` is not in: {said}");
    }
}

#[test]
fn the_exit_code_of_doctor_is_its_verdict() {
    let output = profiler(&["doctor", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let can_measure = report["can_measure"].as_bool().expect("a verdict");
    assert_eq!(output.status.code(), Some(if can_measure { 0 } else { 3 }));
    let backends = report["backends"].as_array().expect("backends");
    assert_eq!(backends.len(), 5);
    let any = backends.iter().any(|backend| backend["kernel_functions"]["available"] == true);
    assert_eq!(any, can_measure);
    for check in report["checks"].as_array().expect("checks") {
        assert!(check["status"] != "no" || check["remedy"].is_string(), "{check}");
    }
    let table = profiler(&["doctor"]);
    assert_eq!(table.status.code(), output.status.code());
    let table = text(&table.stdout);
    for line in ["kernel BTF", "CAP_BPF", "fentry", "tracefs"] {
        assert!(table.contains(line), "{table}");
    }
}

#[test]
fn doctor_on_a_module_that_is_not_there() {
    let output = profiler(&["doctor", "--module", "no-such-module", "--json"]);
    fails(&output, 3, &["cannot measure functions of module no_such_module"]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let because_of = &report["backends"][0]["module_functions"]["because_of"];
    assert!(because_of.as_array().expect("a list").contains(&"module".into()), "{because_of}");
}

#[test]
fn functions_of_the_kernel_are_listed() {
    let output = profiler(&["list", "vfs_open", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let functions: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let function = &functions[0];
    assert_eq!(function["name"], "vfs_open");
    if Path::new("/sys/kernel/btf/vmlinux").exists() {
        assert_eq!(function["btf"], true, "{function}");
    }
    fails(&profiler(&["list", "vfs_opne"]), 4, &["did you mean", "vfs_open"]);
    fails(&profiler(&["list", "no_such_*_function"]), 4, &["no_such_*_function"]);
    let output = profiler(&["list", "--module", "no_such_module"]);
    if Path::new("/proc/modules").exists() {
        fails(&output, 4, &["`no_such_module` is not loaded"]);
    } else {
        fails(&output, 3, &["this kernel cannot load modules"]);
    }
}

/// A relocatable ELF file with these sections.
pub(crate) fn elf(sections: &[(&str, &[u8])]) -> Vec<u8> {
    let mut file = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
    for (name, data) in sections {
        let segment = file.segment_name(StandardSegment::Data).to_vec();
        let section = file.add_section(segment, name.as_bytes().to_vec(), SectionKind::Other);
        file.set_section_data(section, data.to_vec(), 1);
    }
    file.write().expect("an ELF file")
}

const INFO: (&str, &[u8]) =
    (".modinfo", b"license=GPL\0name=my_driver\0vermagic=1.2.3 SMP mod_unload \0");
const MODULE: (&str, &[u8]) = (".gnu.linkonce.this_module", &[0; 64]);
const DEBUG: (&str, &[u8]) = (".debug_info", &[0; 16]);

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn file(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.path(name);
        fs::write(&path, bytes).expect("write");
        path.to_str().expect("UTF-8").to_owned()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Names of the files there, in order.
    fn names(&self) -> Vec<String> {
        crate::common::names(self.0.path())
    }
}

#[test]
fn files_that_cannot_be_prepared() {
    let folder = Folder::new();
    let prepare = |file: &str| profiler(&["prepare", file]);
    fails(&prepare("/nowhere/driver.ko"), 7, &["cannot read /nowhere/driver.ko"]);
    fails(&prepare(&folder.file("text.ko", b"hello")), 7, &["is not a kernel module"]);
    fails(&prepare(&folder.file("empty.ko", b"")), 7, &["is not a kernel module"]);
    for (magic, tool) in
        [(&b"\x1f\x8b\x08"[..], "gzip"), (b"\xfd7zXZ\0", "xz"), (b"\x28\xb5\x2f\xfd", "zstd")]
    {
        fails(&prepare(&folder.file("packed.ko", magic)), 7, &[tool, "decompress"]);
    }
    let object = folder.file("object.o", &elf(&[DEBUG]));
    fails(&prepare(&object), 7, &["is not a kernel module", ".modinfo"]);
    let stripped = folder.file("stripped.ko", &elf(&[INFO, MODULE]));
    fails(&prepare(&stripped), 7, &["no debug information", "-g"]);
    let done = folder.file("done.ko", &elf(&[INFO, MODULE, DEBUG, (".BTF", &[0; 8])]));
    fails(&prepare(&done), 7, &["has BTF already"]);
    let whole = elf(&[INFO, MODULE, DEBUG]);
    for length in (0..whole.len()).step_by(7) {
        let output = prepare(&folder.file("cut.ko", &whole[..length]));
        assert_eq!(output.status.code(), Some(7), "{length}: {}", text(&output.stderr));
    }
}

#[test]
fn a_module_for_another_kernel_needs_that_kernels_btf() {
    let folder = Folder::new();
    let module = folder.file("driver.ko", &elf(&[INFO, MODULE, DEBUG]));
    fails(&profiler(&["prepare", &module]), 7, &["built for kernel 1.2.3", "--btf"]);
    let missing = folder.path("missing");
    let output = profiler(&["prepare", &module, "--btf", missing.to_str().expect("UTF-8")]);
    fails(&output, 3, &["missing cannot be used as the kernel's BTF"]);
    for (name, bytes) in [("text", b"hello".to_vec()), ("elf", elf(&[DEBUG]))] {
        let base = folder.file(name, &bytes);
        fails(&profiler(&["prepare", &module, "--btf", &base]), 3, &["as the kernel's BTF"]);
    }
    let of_its_own = folder.file(
        "vmlinux",
        &elf(&[
            (".BTF", &no_btf()),
            (".rodata", b"\0Linux version 6.1.0-56-amd64 (d@d) #1 SMP\n\0"),
        ]),
    );
    let output = profiler(&["prepare", &module, "--btf", &of_its_own]);
    fails(&output, 7, &["built for kernel 1.2.3", "/vmlinux is of 6.1.0-56-amd64", "--btf"]);
    let of_running = "/sys/kernel/btf/vmlinux";
    if let Ok(bytes) = fs::read(of_running) {
        let copy = folder.file("copy", &bytes);
        for base in [of_running, &copy] {
            let output = profiler(&["prepare", &module, "--btf", base]);
            fails(&output, 7, &["built for kernel 1.2.3", &format!("{base} is of ")]);
        }
        fs::remove_file(copy).expect("remove");
    }
    assert_eq!(folder.names(), ["driver.ko", "elf", "text", "vmlinux"], "nothing is left behind");
}

/// The smallest BTF: no types, one empty string.
fn no_btf() -> Vec<u8> {
    let mut bytes = 0xeb9f_u16.to_ne_bytes().to_vec();
    bytes.extend([1, 0]);
    for word in [24_u32, 0, 0, 0, 1] {
        bytes.extend(word.to_ne_bytes());
    }
    bytes.push(0);
    bytes
}

#[test]
fn pahole_is_missing_or_fails_and_the_module_stays_as_it_was() {
    let folder = Folder::new();
    let bytes = elf(&[INFO, MODULE, DEBUG]);
    let module = folder.file("driver.ko", &bytes);
    let base = folder.file("vmlinux.btf", &no_btf());
    let prepare = |path: &Path, more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_profiler"));
        command
            .args(["prepare", &module, "--btf", &base])
            .args(more)
            .env("PATH", path)
            .env_remove("LLVM_OBJCOPY");
        run(&mut command)
    };
    fails(&prepare(Path::new("/nowhere"), &[]), 3, &["pahole is missing", "package"]);
    fails(&prepare(Path::new("/nowhere"), &["-o", "/nowhere/x.ko"]), 8, &["/nowhere/x.ko", "-o"]);

    let fake = Folder::new();
    let script = |text: &str| {
        use std::os::unix::fs::PermissionsExt as _;
        let path = fake.file("pahole", text.as_bytes());
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("chmod");
        fake.0.path().to_owned()
    };
    let broken = script("#!/bin/sh\necho broken DWARF >&2\nexit 1\n");
    for more in [&[][..], &["-o", &module]] {
        fails(&prepare(&broken, more), 7, &["pahole gave", "broken DWARF"]);
    }
    let idle = script("#!/bin/sh\necho \"by $LLVM_OBJCOPY\" >&2\n");
    fails(&prepare(&idle, &["-o", &module]), 7, &["no section .BTF", "binutils", "by objcopy"]);
    assert_eq!(fs::read(&module).expect("read"), bytes, "the original is untouched");
    assert_eq!(folder.names(), ["driver.ko", "vmlinux.btf"], "nothing is left behind");
}

#[test]
fn the_copy_has_btf_and_the_original_has_not() {
    let folder = Folder::new();
    let bytes = elf(&[INFO, MODULE, DEBUG]);
    let module = folder.file("my-driver.ko", &bytes);
    let base = folder.file("vmlinux.btf", &no_btf());
    // A function `f` without parameters, returning void, as split BTF on `base`.
    let mut btf = 0xeb9f_u16.to_ne_bytes().to_vec();
    btf.extend([1, 0]);
    for word in [24_u32, 0, 24, 24, 2, 0, 13 << 24, 0, 1, 12 << 24, 1] {
        btf.extend(word.to_ne_bytes());
    }
    btf.extend(b"f\0");
    let made = folder.file("made", &elf(&[INFO, MODULE, DEBUG, (".BTF", &btf)]));
    let fake = Folder::new();
    let script = fake.file("pahole", format!("#!/bin/sh\ncat '{made}' > \"$4\"\n").as_bytes());
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(script, fs::Permissions::from_mode(0o755)).expect("chmod");
    let path = format!("{}:{}", fake.0.path().display(), std::env::var("PATH").expect("PATH"));

    let prepare = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_profiler"));
        command.args(["prepare", &module, "--btf", &base]).args(more).env("PATH", &path);
        run(&mut command)
    };
    let output = prepare(&[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    for wanted in ["my-driver.btf.ko: 1 functions of my_driver", "kernel 1.2.3", "insmod"] {
        assert!(said.contains(wanted), "{said}");
    }
    let made = fs::read(&made).expect("read");
    assert_eq!(fs::read(folder.path("my-driver.btf.ko")).expect("read"), made);
    assert_eq!(fs::read(&module).expect("read"), bytes, "the original is untouched");
    assert!(prepare(&["-o", &module]).status.success());
    assert_eq!(fs::read(&module).expect("read"), made);

    fs::write(&module, bytes).expect("write");
    let mut in_place = Command::new(env!("CARGO_BIN_EXE_profiler"));
    in_place.args(["prepare", &module, "--btf", &base, "-o", &module]).env("PATH", &path);
    assert_durable(&calls(&in_place), Path::new(&module));
}
