//! Compiles the QEMU plugin, which `profiler lab` carries with it.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    let source = "../profiler-qemu/src";
    println!("cargo::rerun-if-changed={source}");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("profiler-qemu.so");
    // By rustc itself: as a dependency it could not be a file of its own, and it needs no crate.
    let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc
        .args(["--edition=2024", "--crate-name=profiler_qemu", "--crate-type=cdylib"])
        // A panic must not unwind into QEMU.
        .args(["-Copt-level=3", "-Cpanic=abort", "-Cstrip=symbols"])
        .arg(format!("{source}/lib.rs"))
        .arg("-o")
        .arg(&out);
    // A lab boots x86-64 kernels, on machines of that kind.
    let target = env::var("TARGET").unwrap_or_default();
    rustc.args(["--target", &target]);
    match rustc.status() {
        Ok(status) if status.success() => {}
        Ok(status) => fail(&format!("{status}")),
        Err(error) => fail(&format!("{error}")),
    }
}

fn fail(why: &str) -> ! {
    println!("cargo::error=cannot compile the QEMU plugin in profiler-qemu: {why}");
    std::process::exit(1);
}
