//! Compiles the QEMU plugin, which the program carries with it.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let source = "../qemu/src";
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
        Ok(status) => fail(&format!("cannot compile the QEMU plugin in crates/qemu: {status}")),
        Err(error) => fail(&format!("cannot compile the QEMU plugin in crates/qemu: {error}")),
    }
}

fn fail(why: &str) -> ! {
    println!("cargo::error={why}");
    std::process::exit(1);
}
