//! Kernel modules, built against an unpacked kernel and given BTF where that kernel can use it.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::process;
use crate::setup::{BUILD_FOLDER, Kernel};

/// This machine's compiler, for kernels that it can build for.
const COMPILER: &str = "gcc-12";

/// Shell text: the kernel's folder, the sources, the release. Mounts are seen by this process and its
/// children alone, and go with them.
const IN_KERNELS_ROOT: &str = r#"
set -e
mount --rbind /dev "$1/dev"
mount --rbind /proc "$1/proc"
mount --bind "$2" "$1/$4"
exec chroot "$1" env -i PATH=/usr/bin HOME=/root LC_ALL=C make -C "/usr/src/linux-headers-$3" "M=/$4" modules
"#;

/// Builds the module whose Kbuild file lies in `source`.
///
/// A kernel that came with its own tools has them run in its folder as their root, in a mount
/// namespace: they need another C library than this machine's.
pub(crate) fn make_foreign(kernel: &Kernel, source: &Path, log: &Path) -> Result<()> {
    let mut command;
    if kernel.series.has_own_tools() {
        command = Command::new("unshare");
        if !nix::unistd::geteuid().is_root() {
            command.arg("--map-root-user");
        }
        command.args(["--mount", "--", "sh", "-c", IN_KERNELS_ROOT, "sh"]);
        command.arg(&kernel.root).arg(source).arg(&kernel.release).arg(BUILD_FOLDER);
    } else {
        command = Command::new("make");
        command.arg("-C").arg(kernel.headers()).arg(format!("M={}", source.display()));
        command.args([&format!("CC={COMPILER}"), "modules"]);
    }
    process::run_logged(&mut command, log)
}

/// Like [`make_foreign`], of the project's own sources: a warning is an error.
pub(crate) fn make(kernel: &Kernel, source: &Path, log: &Path) -> Result<()> {
    make_foreign(kernel, source, log)?;
    let text = fs::read_to_string(log).with_context(|| format!("cannot read {}", log.display()))?;
    let warnings: Vec<&str> = text.lines().filter(|line| is_warning(line)).collect();
    if !warnings.is_empty() {
        bail!("{} builds with warnings:\n{}", source.display(), warnings.join("\n"));
    }
    Ok(())
}

/// Warnings of the compiler, objtool and modpost. kbuild's remark that the compiler is another build
/// of the one that built the kernel is none of ours.
fn is_warning(line: &str) -> bool {
    let word = line.contains("warning:") || line.contains("WARNING:");
    word && !line.contains("the compiler differs from the one used to build the kernel")
}

/// Which compiler builds for a kernel: part of what decides whether a module is up to date.
pub(crate) fn compiler(kernel: &Kernel) -> Result<String> {
    if kernel.series.has_own_tools() {
        // Came with the kernel's packages, and goes with them.
        return Ok("the kernel's own".to_owned());
    }
    let text = process::stdout(Command::new(COMPILER).arg("--version"))?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// Whether a kernel keeps BTF of modules.
pub(crate) fn kernel_takes_module_btf(kernel: &Kernel) -> Result<bool> {
    let config = kernel.headers().join(".config");
    let text =
        fs::read_to_string(&config).with_context(|| format!("cannot read {}", config.display()))?;
    Ok(text.lines().any(|line| line == "CONFIG_DEBUG_INFO_BTF_MODULES=y"))
}

/// Adds BTF that stands on the kernel's own, unless the kernel's makefiles have done so.
pub(crate) fn add_btf(kernel: &Kernel, module: &Path, folder: &Path) -> Result<()> {
    if !has_btf(module)? {
        let base = folder.join("vmlinux.btf");
        extract_btf(kernel, folder, &base)?;
        let mut pahole = Command::new("pahole");
        // pahole adds the section by llvm-objcopy unless told of another; binutils' does it as well.
        pahole.env("LLVM_OBJCOPY", "objcopy");
        process::run(pahole.arg("-J").arg("--btf_base").arg(&base).arg(module))?;
    }
    if !has_btf(module)? {
        bail!("pahole gave {} no BTF, so fentry cannot reach it", module.display());
    }
    Ok(())
}

fn has_btf(module: &Path) -> Result<bool> {
    let sections = process::stdout(Command::new("readelf").args(["-S", "-W"]).arg(module))?;
    Ok(sections.split_whitespace().any(|word| word == ".BTF"))
}

/// Takes the kernel's BTF out of its compressed image.
pub(crate) fn extract_btf(kernel: &Kernel, folder: &Path, to: &Path) -> Result<()> {
    let image = kernel.image();
    let bytes = fs::read(&image).with_context(|| format!("cannot read {}", image.display()))?;
    let payload = payload(&bytes)
        .with_context(|| format!("{} is no bzImage of boot protocol 2.08", image.display()))?;
    let vmlinux = folder.join("vmlinux");
    decompress(payload, &vmlinux).with_context(|| format!("cannot unpack {}", image.display()))?;
    let mut objcopy = Command::new("objcopy");
    objcopy.arg("--dump-section").arg(format!(".BTF={}", to.display()));
    process::run(objcopy.arg(&vmlinux).arg("/dev/null"))?;
    fs::remove_file(&vmlinux).with_context(|| format!("cannot remove {}", vmlinux.display()))
}

/// The compressed kernel in a bzImage (Documentation/arch/x86/boot.rst: `setup_sects`, `version`,
/// `payload_offset`, `payload_length`).
fn payload(image: &[u8]) -> Option<&[u8]> {
    let u32_at = |at: usize| {
        let bytes = image.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
    };
    if image.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let version = u16::from_le_bytes(image.get(0x206..0x208)?.try_into().ok()?);
    if version < 0x208 {
        return None;
    }
    let sectors = match image.get(0x1f1)? {
        0 => 4,
        sectors => usize::from(*sectors),
    };
    let start = ((sectors + 1) * 512).checked_add(u32_at(0x248)?)?;
    image.get(start..start.checked_add(u32_at(0x24c)?)?)
}

fn decompress(payload: &[u8], to: &Path) -> Result<()> {
    let (program, args): (&str, &[&str]) = match payload {
        [0xfd, b'7', b'z', b'X', b'Z', ..] => ("xz", &["-dc", "--single-stream"]),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => ("zstd", &["-dc"]),
        [0x1f, 0x8b, ..] => ("gzip", &["-dc"]),
        _ => bail!("the kernel is compressed in a way that is not known here"),
    };
    let file = fs::File::create(to).with_context(|| format!("cannot create {}", to.display()))?;
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::piped()).stdout(file).stderr(Stdio::null());
    let mut child = command.spawn().with_context(|| format!("cannot run `{program}`"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // The kernel's size follows the stream, so the program may stop reading or complain
        // before the end: what came out is what counts.
        let _ = stdin.write_all(payload);
    }
    child.wait().with_context(|| format!("cannot wait for `{program}`"))?;
    let mut magic = [0; 4];
    let mut file = fs::File::open(to).with_context(|| format!("cannot open {}", to.display()))?;
    std::io::Read::read_exact(&mut file, &mut magic).context("nothing came out")?;
    if &magic != b"\x7fELF" {
        bail!("`{program}` gave no ELF file");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{is_warning, payload};

    fn image(version: u16, offset: u32, length: u32) -> Vec<u8> {
        let mut image = vec![0; 1024 + 64];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x206..0x208].copy_from_slice(&version.to_le_bytes());
        image[0x248..0x24c].copy_from_slice(&offset.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&length.to_le_bytes());
        image[1024 + 16] = 0xfd;
        image
    }

    #[test]
    fn the_payload_lies_behind_the_setup_sectors() {
        let image = image(0x20f, 16, 8);
        assert_eq!(payload(&image).unwrap(), [0xfd, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_broken_image_is_refused() {
        assert!(payload(&image(0x207, 16, 8)).is_none());
        assert!(payload(&image(0x20f, 16, 1000)).is_none());
        assert!(payload(&image(0x20f, u32::MAX, 8)).is_none());
        assert!(payload(&image(0x20f, 16, 8)[..0x240]).is_none());
        assert!(payload(b"").is_none());
    }

    #[test]
    fn warnings_are_told_from_remarks() {
        assert!(is_warning("/src/main.c:3:5: warning: unused variable 'x' [-Wunused-variable]"));
        assert!(is_warning("WARNING: modpost: missing MODULE_DESCRIPTION() in hids_testbed.o"));
        assert!(is_warning("main.o: warning: objtool: f+0x3: unreachable instruction"));
        assert!(!is_warning("warning: the compiler differs from the one used to build the kernel"));
        assert!(!is_warning("  CC [M]  main.o"));
    }
}
