//! Kernel modules, built against an unpacked kernel and given BTF where that kernel can use it.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use profiler_vm::KernelImage;
use profiler_vm::debian::Unpacked;

use crate::process;
use crate::setup::{self, BUILD_FOLDER};

/// This machine's compiler, for kernels that it can build for.
pub(crate) const COMPILER: &str = "gcc-12";

/// What the names of the tools for arm64 begin with.
const CROSS: &str = "aarch64-linux-gnu-";

fn is_arm64(kernel: &Unpacked) -> bool {
    kernel.release.ends_with("-arm64")
}

fn compiler_of(kernel: &Unpacked) -> String {
    if is_arm64(kernel) { format!("{CROSS}{COMPILER}") } else { COMPILER.to_owned() }
}

/// The version of the compiler for a kernel, unless that is among the kernel's packages.
pub(crate) fn compiler(kernel: &Unpacked) -> Result<String> {
    if setup::has_own_tools(kernel) {
        return Ok("the kernel's own".to_owned());
    }
    process::version(compiler_of(kernel))
}

/// Shell script; arguments: the kernel's folder, the sources, the release, the folder where it sees the sources, and
/// variables for make. Its mounts are visible to it and its children only, and end with them.
const IN_KERNELS_ROOT: &str = r#"
set -e
mount --rbind /dev "$1/dev"
mount --rbind /proc "$1/proc"
mount --bind "$2" "$1/$4"
exec chroot "$1" env -i PATH=/usr/bin HOME=/root LC_ALL=C make -C "/usr/src/linux-headers-$3" "M=/$4" modules $5
"#;

/// Builds the module whose Kbuild file lies in `source`, with these variables; a warning is an error.
///
/// Tools that came with the kernel need another C library than this machine's: they run in a chroot and a mount
/// namespace.
pub(crate) fn make(kernel: &Unpacked, source: &Path, variables: &str) -> Result<()> {
    let mut command = Command::new(if setup::has_own_tools(kernel) { "unshare" } else { "make" });
    if setup::has_own_tools(kernel) {
        command.args((!nix::unistd::geteuid().is_root()).then_some("--map-root-user"));
        command.args(["--mount", "--", "sh", "-c", IN_KERNELS_ROOT, "sh"]);
        command.arg(&kernel.root).arg(source).arg(&kernel.release).args([BUILD_FOLDER, variables]);
    } else {
        command.arg("-C").arg(kernel.headers()).arg(format!("M={}", source.display()));
        if is_arm64(kernel) {
            command.args(["ARCH=arm64", &format!("CROSS_COMPILE={CROSS}")]);
        }
        command.args([&format!("CC={}", compiler_of(kernel)), "modules"]);
        command.args(variables.split_whitespace());
    }
    let (_, text) = process::output_if(&mut command, &[0])?;
    let warnings: Vec<&str> = text.lines().filter(|line| is_warning(line)).collect();
    let (source, text) = (source.display(), warnings.join("\n"));
    ensure!(warnings.is_empty(), "{source} builds with warnings:\n{text}");
    Ok(())
}

/// Warnings of the compiler, objtool and modpost, without kbuild's remark that another build of the compiler built the
/// kernel.
fn is_warning(line: &str) -> bool {
    let word = line.contains("warning:") || line.contains("WARNING:");
    word && !line.contains("the compiler differs from the one used to build the kernel")
}

/// Adds split BTF if the kernel supports BTF of modules, and it can be read out of the kernel's file, unless the kernel's makefiles
/// did.
pub(crate) fn add_btf(kernel: &Unpacked, module: &Path, folder: &Path) -> Result<()> {
    let config = process::read(&kernel.headers().join(".config"))?;
    let takes_btf = config.lines().any(|line| line == "CONFIG_DEBUG_INFO_BTF_MODULES=y");
    if is_arm64(kernel) || !takes_btf || has_btf(module)? {
        return Ok(());
    }
    let btf = KernelImage::open(&kernel.image())?.btf()?;
    let base = folder.join("vmlinux.btf");
    process::write(&base, btf.context("the kernel has no BTF (CONFIG_DEBUG_INFO_BTF)")?)?;
    let mut pahole = Command::new("pahole");
    // pahole's default is llvm-objcopy; that of binutils will do.
    pahole.env("LLVM_OBJCOPY", "objcopy");
    process::run(pahole.arg("-J").arg("--btf_base").arg(&base).arg(module))?;
    ensure!(has_btf(module)?, "pahole gave {} no BTF", module.display());
    Ok(())
}

fn has_btf(module: &Path) -> Result<bool> {
    let sections = process::stdout(Command::new("readelf").args(["-S", "-W"]).arg(module))?;
    Ok(sections.split_whitespace().any(|word| word == ".BTF"))
}

#[cfg(test)]
mod tests {
    use super::is_warning;

    #[test]
    fn warnings_are_told_from_remarks() {
        assert!(is_warning("/src/main.c:3:5: warning: unused variable 'x' [-Wunused-variable]"));
        assert!(is_warning("WARNING: modpost: missing MODULE_DESCRIPTION() in hids_testbed.o"));
        assert!(is_warning("main.o: warning: objtool: f+0x3: unreachable instruction"));
        assert!(!is_warning("warning: the compiler differs from the one used to build the kernel"));
        assert!(!is_warning("  CC [M]  main.o"));
    }
}
