//! Lists the load profiles and compiles the QEMU plugin, which the program carries with it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    if let Err(error) = list_load_profiles(&out) {
        fail(&format!("cannot list ltp-profiles: {error}"));
    }
    compile_plugin(&out);
}

/// Writes the names and texts of all load profiles, as an expression.
fn list_load_profiles(out: &Path) -> io::Result<()> {
    let folder = fs::canonicalize("../ltp-profiles")?;
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut entries = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if let (Some(name), Some(ending)) = (path.file_stem(), path.extension())
            && ending == "toml"
        {
            entries.push(format!("({name:?}, include_str!({path:?})),\n"));
        }
    }
    entries.sort();
    fs::write(out.join("load-profiles.rs"), format!("&[{}]", entries.concat()))
}

fn compile_plugin(out: &Path) {
    let source = "../profiler-qemu/src";
    println!("cargo::rerun-if-changed={source}");
    // By rustc itself: as a dependency it could not be a file of its own, and it needs no crate.
    let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc
        .args(["--edition=2024", "--crate-name=profiler_qemu", "--crate-type=cdylib"])
        // A panic must not unwind into QEMU.
        .args(["-Copt-level=3", "-Ccodegen-units=1", "-Cpanic=abort", "-Cstrip=symbols"])
        .arg(format!("{source}/lib.rs"))
        .arg("-o")
        .arg(out.join("profiler-qemu.so"));
    // It is loaded by a QEMU of the machine that the program is for, which may be another than this.
    let target = env::var("TARGET").unwrap_or_default();
    rustc.args(["--target", &target]);
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        rustc.arg(format!("-Clinker={linker}"));
    }
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    rustc.args(flags.split('\u{1f}').filter(|flag| flag.starts_with("--sysroot")));
    match rustc.status() {
        Ok(status) if status.success() => {}
        Ok(status) => fail(&format!("cannot compile the QEMU plugin in profiler-qemu: {status}")),
        Err(error) => fail(&format!("cannot compile the QEMU plugin in profiler-qemu: {error}")),
    }
}

fn fail(why: &str) -> ! {
    println!("cargo::error={why}");
    std::process::exit(1);
}
