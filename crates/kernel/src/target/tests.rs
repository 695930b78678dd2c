//! Resolving on made-up machines.

use std::path::Path;

use super::*;
use profiler_tests::btf::{Builder, kind};

const SYMBOLS: &str = "\
ffffffff81000000 T vfs_open
ffffffff81000100 T bind_handler
ffffffff82000000 D some_data
ffffffffc0001000 t bind_handler\t[driver]
ffffffffc0001040 t connect_handler\t[driver]
ffffffffc0001100 t twice_handler\t[driver]
ffffffffc0001180 t twice_handler\t[driver]
ffffffffc0001200 t split_handler.isra.0\t[driver]
ffffffffc0001240 t split_handler.constprop.1\t[driver]
ffffffffc0001280 t dark_handler\t[driver]
ffffffffc0001300 t asm_handler\t[driver]
ffffffffc0001340 t connect_handler.cold\t[driver]
ffffffffc0101000 t cleanup_module\t[driver]
ffffffffc0200000 t other\t[neighbour]
";

const TRACEABLE: &str = "\
vfs_open
bind_handler
bind_handler [driver]
connect_handler [driver]
twice_handler [driver]
twice_handler [driver]
asm_handler [driver]
split_handler.isra.0 [driver]
";

fn write(root: &Path, path: &str, text: impl AsRef<[u8]>) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// A machine with the module `driver`.
fn machine() -> (tempfile::TempDir, KernelFiles) {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), "proc/modules", "driver 65536 0 - Live 0x0 (OE)\nneighbour 1 0\n");
    write(root.path(), "proc/kallsyms", SYMBOLS);
    write(root.path(), "sys/kernel/tracing/available_filter_functions", TRACEABLE);
    fs::create_dir_all(root.path().join("sys/module/ext4")).unwrap();
    let mut base = Builder::base();
    let int = base.int("int");
    let regs = base.structure("pt_regs", &["ax"]);
    base.function("vfs_open", int, &[]);
    base.function("bind_handler", int, &[]);
    let mut split = base.split();
    let pointer = split.add("", kind::PTR, 0, regs, &[]);
    split.function("bind_handler", int, &[("regs", pointer)]);
    split.function("connect_handler", int, &[("regs", pointer)]);
    split.function("twice_handler", int, &[]);
    write(root.path(), "sys/kernel/btf/vmlinux", base.bytes());
    write(root.path(), "sys/kernel/btf/driver", split.bytes());
    let files = KernelFiles::below(root.path());
    (root, files)
}

fn refused(files: &KernelFiles, module: Option<&str>, pattern: &str) -> Failure {
    files.resolve(module, &[pattern.to_owned()]).unwrap_err()
}

/// Asserts that the message has each of these.
fn says(error: &Failure, words: &[&str]) {
    let text = error.to_string();
    words.iter().for_each(|word| assert!(text.contains(word), "no {word} in {text}"));
}

#[test]
fn names_and_globs_become_functions() {
    let (_root, files) = machine();
    let targets =
        files.resolve(Some("driver"), &["connect_handler".into(), "[bc]*_handler".into()]);
    let targets = targets.unwrap().targets;
    let names: Vec<&str> = targets.iter().map(|target| target.name.as_str()).collect();
    assert_eq!(names, ["connect_handler", "bind_handler"], "in order, each once");
    // Base: int, pt_regs, two functions with prototypes: ids to 6; then a pointer.
    assert_eq!(targets[1].btf_id, Some(9), "the module's, not the kernel's of the same name");
    assert_eq!(targets[1].address, 0xffff_ffff_c000_1000);
    assert_eq!(files.resolve(None, &["bind_handler".into()]).unwrap().targets[0].btf_id, Some(6));
    let dashes = KernelFiles::below(_root.path());
    write(_root.path(), "proc/modules", "my_driver 1\n");
    let error = refused(&dashes, Some("my-driver"), "x");
    says(&error, &["no function `x` in module my_driver;"]);
}

#[test]
fn modules_that_are_not_there() {
    let (_root, files) = machine();
    let error = refused(&files, Some("drivr"), "x");
    says(&error, &["module `drivr` is not loaded", "first; did you mean driver?"]);
    says(&refused(&files, Some("ext4"), "x"), &["`ext4` is built into this kernel"]);
    for odd in ["", "..", "a/b"] {
        let error = refused(&files, Some(odd), "x");
        says(&error, &[&format!("module `{odd}` is not loaded")]);
    }
}

#[test]
fn btf_that_is_not_there_or_damaged() {
    let (root, files) = machine();
    write(root.path(), "sys/kernel/btf/driver", "no BTF");
    let error = refused(&files, Some("driver"), "bind_handler");
    says(&error, &["btf/driver is not BTF that this program can read"]);
    assert_eq!(error.code, exit::CANNOT_MEASURE);
    fs::remove_file(root.path().join("sys/kernel/btf/driver")).unwrap();
    for without in ["driver", "vmlinux"] {
        let targets = files.resolve(Some("driver"), &["[bd]*_handler".into()]).unwrap().targets;
        let [target] = targets.as_slice() else { panic!("{without}: {targets:?}") };
        assert_eq!((target.name.as_str(), target.btf_id), ("bind_handler", None));
        let _ = fs::remove_file(root.path().join("sys/kernel/btf/vmlinux"));
    }
}

#[test]
fn unreadable_files_are_named() {
    let (root, files) = machine();
    fs::remove_file(root.path().join("proc/kallsyms")).unwrap();
    for file in ["proc/kallsyms", "proc/modules"] {
        let error = refused(&files, Some("driver"), "bind_handler");
        says(&error, &["cannot read ", file, "run as root"]);
        assert_eq!(error.code, exit::CANNOT_MEASURE);
        let _ = fs::remove_file(root.path().join("proc/modules"));
    }
}

#[test]
fn a_kernel_without_modules_is_not_a_lack_of_privileges() {
    let (root, files) = machine();
    fs::remove_file(root.path().join("proc/modules")).unwrap();
    let error = refused(&files, Some("driver"), "bind_handler");
    says(&error, &["this kernel cannot load modules", "no `driver`"]);
    assert_eq!(error.code, exit::CANNOT_MEASURE);
    assert!(files.resolve(None, &["vfs_open".into()]).is_ok());
}

#[test]
fn names_that_cannot_be_measured() {
    let (_root, files) = machine();
    let driver = Some("driver");
    says(&refused(&files, driver, "conect_handler"), &["did you mean connect_handler"]);
    // A function of another module, data.
    for name in ["other", "some_data"] {
        let error = refused(&files, driver, name);
        says(&error, &[&format!("no function `{name}`")]);
    }
    let variants = "`split_handler` into split_handler.constprop.1, split_handler.isra.0:";
    says(&refused(&files, driver, "split_handler"), &[variants]);
    let dark = "`dark_handler` in module driver cannot be traced";
    says(&refused(&files, driver, "dark_handler"), &[dark]);
    let outside_btf = files.resolve(driver, &["asm_handler".into()]).unwrap().targets;
    assert_eq!(outside_btf[0].btf_id, None, "other backends may measure it");
    let twice = "2 functions of module driver are called `twice_handler`";
    says(&refused(&files, driver, "twice_handler"), &[twice]);
}

#[test]
fn a_glob_measures_all_that_it_can_and_says_what_it_leaves_out() {
    let (root, files) = machine();
    let symbols = format!("{SYMBOLS}ffffffffc0001000 t __pfx_bind_handler\t[driver]\n");
    write(root.path(), "proc/kallsyms", symbols);
    let patterns = ["*".to_owned(), "bind_handler".to_owned()];
    let Resolved { targets, left_out } = files.resolve(Some("driver"), &patterns).unwrap();
    let of = |by_glob: bool| -> Vec<String> {
        targets.iter().filter(|target| target.by_glob == by_glob).map(Target::label).collect()
    };
    assert_eq!(of(false), ["bind_handler"], "what was named, too, has to be measured");
    assert_eq!(
        of(true),
        [
            "asm_handler",
            "connect_handler",
            "split_handler.isra.0",
            "twice_handler#1",
            "twice_handler#2"
        ]
    );
    let left: Vec<(&str, &str)> = left_out
        .iter()
        .map(|left| (left.name.as_str(), left.reason.split(' ').next().unwrap()))
        .collect();
    assert_eq!(
        left,
        [
            ("cleanup_module", "marked"),
            ("connect_handler.cold", "the"),
            ("dark_handler", "marked"),
            ("split_handler.constprop.1", "marked"),
        ]
    );
}

#[test]
fn one_of_two_functions_of_one_name_is_picked_by_number() {
    let (_root, files) = machine();
    let driver = Some("driver");
    let resolve =
        |pattern: &str| Ok::<_, Failure>(files.resolve(driver, &[pattern.to_owned()])?.targets);
    let second = resolve("twice_handler#2").unwrap().remove(0);
    assert_eq!((second.name.as_str(), second.address), ("twice_handler", 0xffff_ffff_c000_1180));
    assert_eq!(
        (second.duplicate_index, second.btf_id),
        (Some(2), None),
        "BTF cannot tell them apart"
    );
    assert_eq!(second.label(), "twice_handler#2");
    let both = ["twice_handler#2", "twice_handler#1", "twice_handler#2"];
    let both = files.resolve(driver, &both.map(str::to_owned)).unwrap().targets;
    let labels: Vec<String> = both.iter().map(Target::label).collect();
    assert_eq!(labels, ["twice_handler#2", "twice_handler#1"], "each once");

    // The only one of its name may be named so too, and is what it is without.
    let only = resolve("connect_handler#1").unwrap();
    assert_eq!(only, resolve("connect_handler").unwrap());
    for wrong in ["twice_handler#0", "twice_handler#3"] {
        let error = resolve(wrong).unwrap_err();
        says(&error, &[&format!("`{wrong}` is none of the functions called `twice_handler`")]);
        let text = error.to_string();
        assert!(text.contains("`twice_handler#2` at 0xffffffffc0001180"), "{text}");
    }
    let text = resolve("twice_handler").unwrap_err().to_string();
    assert!(text.contains("2 functions of module driver") && text.contains("#1`"), "{text}");
    for odd in ["connect_handler#", "connect_handler#x", "connect#handler"] {
        says(&resolve(odd).unwrap_err(), &[&format!("no function `{odd}`")]);
    }
}

#[test]
fn what_a_glob_found_and_another_build_lacks_is_left_out() {
    let (root, files) = machine();
    let names = ["twice_handler#2", "b*_handler", "connect_handler", "a*_handler"];
    let before = files.resolve(Some("driver"), &names.map(str::to_owned)).unwrap().targets;
    let again = |symbols: &str| {
        write(root.path(), "proc/kallsyms", symbols.replace("ffffffffc000", "ffffffffc070"));
        files.resolve_again(&before)
    };
    let found = again(SYMBOLS).unwrap();
    let places: Vec<(String, u64)> =
        found.targets.iter().map(|target| (target.label(), target.address)).collect();
    let labels = ["twice_handler#2", "bind_handler", "connect_handler", "asm_handler"];
    let addresses = [
        0xffff_ffff_c070_1180,
        0xffff_ffff_c070_1000,
        0xffff_ffff_c070_1040,
        0xffff_ffff_c070_1300,
    ];
    assert_eq!(places, labels.map(str::to_owned).into_iter().zip(addresses).collect::<Vec<_>>());
    assert!(found.left_out.is_empty(), "{found:?}");

    let found = again(&SYMBOLS.replace("bind_handler\t", "bound_handler\t")).unwrap();
    assert_eq!(found.targets.len(), 3, "the others go on: {found:?}");
    assert!(found.targets[2].by_glob && !found.targets[1].by_glob, "{found:?}");
    let left: Vec<(&str, &str)> =
        found.left_out.iter().map(|left| (left.name.as_str(), left.reason.as_str())).collect();
    assert_eq!(left, [("bind_handler", "not in this build")]);

    let error = again(&SYMBOLS.replace("connect_handler", "konnect")).unwrap_err();
    assert!(error.to_string().contains("no function `connect_handler`"), "it was named: {error}");
    let only: Vec<Target> = before.into_iter().filter(|target| target.by_glob).collect();
    write(root.path(), "proc/kallsyms", "");
    let error = files.resolve_again(&only).unwrap_err();
    assert!(error.to_string().contains("no function `bind_handler`"), "none is left: {error}");
}

/// What BTF leads to where two places have a name: `before` and `behind` are lines around the driver's.
fn taken_by_btf(before: &str, behind: &str, module: Option<&str>, fixed: bool) -> Option<bool> {
    let (root, files) = machine();
    write(root.path(), "proc/kallsyms", format!("{before}{SYMBOLS}{behind}"));
    let mut base = Builder::base();
    let int = base.int("int");
    base.structure("bpf_prog_aux", if fixed { &["id", "mod"] } else { &["id"] });
    base.function("vfs_open", int, &[]);
    let mut split = base.split();
    split.function("connect_handler", int, &[]);
    write(root.path(), "sys/kernel/btf/vmlinux", base.bytes());
    write(root.path(), "sys/kernel/btf/driver", split.bytes());
    let name = if module.is_some() { "connect_handler" } else { "vfs_open" };
    let target = files.resolve(module, &[name.to_owned()]).unwrap().targets.remove(0);
    let listed = &files.functions(module, &[name.to_owned()]).unwrap()[0];
    let taken = target.namesake.as_ref().map(|_| target.taken_for.is_some());
    assert_eq!(listed.taken_for, target.taken_for);
    taken
}

#[test]
fn a_name_that_others_have_may_lead_to_them() {
    let driver = Some("driver");
    let newer = "ffffffffc0900000 t connect_handler\t[newer]\n";
    assert_eq!(taken_by_btf("", "", driver, false), None);
    // The newest module is listed, and looked through, first.
    assert_eq!(taken_by_btf(newer, "", driver, false), Some(true));
    assert_eq!(taken_by_btf("", newer, driver, false), Some(false));
    assert_eq!(
        taken_by_btf(newer, "", driver, true),
        Some(false),
        "looked for in the driver alone"
    );
    let image = "ffffffff81000000 d connect_handler\n";
    assert_eq!(taken_by_btf(image, "", driver, false), Some(true), "a variable, too");
    let program = "ffffffffc0900000 t connect_handler\t[bpf]\n";
    assert_eq!(taken_by_btf("", program, driver, false), None);
    // The kernel's own functions come before those of modules.
    let of_module = "ffffffffc0900000 t vfs_open\t[newer]\n";
    assert_eq!(taken_by_btf("", of_module, None, false), Some(false));
    assert_eq!(taken_by_btf("ffffffff80000000 d vfs_open\n", "", None, true), Some(true));
}

#[test]
fn patterns_that_match_nothing() {
    let (_root, files) = machine();
    let error = refused(&files, Some("driver"), "dark*");
    says(&error, &["pattern `dark*` matches no function of module driver", "(1 that match"]);
    let error = refused(&files, None, "nothing*");
    says(&error, &["no function of the kernel image", "see /proc/kallsyms"]);
    says(&refused(&files, None, "[a"), &["`[a` is not a valid pattern"]);
}

#[test]
fn more_than_one_run_measures() {
    let (root, files) = machine();
    let mut base = Builder::base();
    let int = base.int("int");
    let (mut symbols, mut traceable) = (String::new(), String::new());
    for number in 0..=MAX_HANDLERS {
        base.function(&format!("f{number}"), int, &[]);
        symbols.push_str(&format!("{:x} t f{number}\n", 4096 + number));
        traceable.push_str(&format!("f{number}\n"));
    }
    write(root.path(), "proc/kallsyms", symbols);
    write(root.path(), "sys/kernel/tracing/available_filter_functions", traceable);
    write(root.path(), "sys/kernel/btf/vmlinux", base.bytes());
    let error = refused(&files, None, "f*");
    says(&error, &[&format!("{} functions match, and {MAX_HANDLERS}", MAX_HANDLERS + 1)]);
    assert_eq!(files.resolve(None, &["f[1-9]*".into()]).unwrap().targets.len(), MAX_HANDLERS);
}

#[test]
fn a_kernel_without_tracefs_decides_itself() {
    let (root, files) = machine();
    fs::remove_dir_all(root.path().join("sys/kernel/tracing")).unwrap();
    let targets = files.resolve(Some("driver"), &["dark_handler".into()]).unwrap().targets;
    assert_eq!(targets[0].btf_id, None);
    assert_eq!(files.functions(Some("driver"), &[]).unwrap()[0].traceable, None);
    assert!(files.is_traceable(None, "anything"));
}

#[test]
fn functions_are_listed_with_what_is_known() {
    let (_root, files) = machine();
    let all = files.functions(Some("driver"), &[]).unwrap();
    let line = |f: &Target| {
        format!(
            "{} {:x} {:?} {} {:?} {:?}",
            f.name,
            f.address,
            f.traceable,
            f.btf_id.is_some(),
            f.argument,
            f.variant()
        )
    };
    insta::assert_snapshot!(all.iter().map(line).collect::<Vec<_>>().join("\n"));
    let names = |pattern: &str| -> Vec<String> {
        let found = files.functions(Some("driver"), &[pattern.to_owned()]).unwrap();
        found.into_iter().map(|function| function.name).collect()
    };
    assert_eq!(names("connect_handler"), ["connect_handler", "connect_handler.cold"]);
    assert_eq!(names("split_handler"), ["split_handler.constprop.1", "split_handler.isra.0"]);
    assert_eq!(names("twice*"), ["twice_handler", "twice_handler"]);
    for (pattern, words) in [
        ("conect_handler", "no function `conect_handler`"),
        ("x*", "pattern `x*` matches no function"),
        ("[x", "`[x` is not a valid pattern"),
    ] {
        says(&files.functions(Some("driver"), &[pattern.to_owned()]).unwrap_err(), &[words]);
    }
}

#[test]
fn hidden_addresses_are_left_out() {
    let (root, files) = machine();
    write(root.path(), "proc/kallsyms", "0000000000000000 t bind_handler\t[driver]\n");
    let function = &files.functions(Some("driver"), &[]).unwrap()[0];
    assert_eq!(function.address, 0);
    assert_eq!(serde_json::to_value(function).unwrap()["address"], serde_json::Value::Null);
}

#[test]
fn lines_of_kallsyms_are_split_whatever_the_length_of_addresses_and_names() {
    let lines = "ffffffff81000000 T vfs_open\n12 t short\t[m]\n\nffffffffc0a0 no kind\n\
                 ffffffffc0000000 t part]\nffffffffc0000010 b last.0\t[hids_testbed]";
    let found: Vec<_> = lines_of(lines).collect();
    let expected = [
        ("ffffffff81000000", "T", "vfs_open", None),
        ("12", "t", "short", Some("m")),
        ("ffffffffc0000000", "t", "part]", None),
        ("ffffffffc0000010", "b", "last.0", Some("hids_testbed")),
    ];
    assert_eq!(found, expected);
}
