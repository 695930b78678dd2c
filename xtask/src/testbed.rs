//! The testbed module, built for each kernel and given BTF where its kernel can use it.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::digest;
use crate::paths::Paths;
use crate::process;
use crate::series::Series;
use crate::setup::{self, Kernel, Part};

const MODULE: &str = "hids_testbed.ko";
const COMPILER: &str = "gcc-12";

/// The path of the module for one kernel; builds it if its sources or the kernel have changed.
pub(crate) fn build(paths: &Paths, series: Series) -> Result<PathBuf> {
    setup::ensure(paths, &[Part::ModuleBuild, Part::Kernel(series)])?;
    let kernel = Kernel::open(paths, series)
        .with_context(|| format!("no kernel in {}", paths.kernel(series).display()))?;
    let _lock = setup::lock(paths)?;
    let folder = paths.testbed(series);
    let module = folder.join(MODULE);
    let stamp_path = folder.join("stamp");
    let stamp = stamp(paths, &kernel)?;
    if module.exists() && fs::read_to_string(&stamp_path).is_ok_and(|found| found == stamp) {
        return Ok(module);
    }

    println!("testbed: building for {}", kernel.release);
    let source = folder.join("src");
    process::remove_dir(&folder)?;
    process::create_dir(&source)?;
    for file in sources(paths)? {
        let name = file.file_name().context("a source without a name")?;
        fs::copy(&file, source.join(name))
            .with_context(|| format!("cannot copy {}", file.display()))?;
    }
    let mut make = Command::new("make");
    make.arg("-C").arg(kernel.headers()).arg(format!("M={}", source.display()));
    make.args([&format!("CC={COMPILER}"), "modules"]);
    process::run_logged(&mut make, &folder.join("build.log"))?;
    let built = source.join(MODULE);
    if kernel_takes_module_btf(&kernel)? {
        add_btf(&kernel, &built, &folder)?;
    }
    fs::rename(&built, &module).with_context(|| format!("cannot move {}", built.display()))?;
    process::write(&stamp_path, stamp)?;
    Ok(module)
}

/// Tracked sources only: a build by hand in the folder leaves more.
fn sources(paths: &Paths) -> Result<Vec<PathBuf>> {
    let is_source = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let code = name.ends_with(".c") || name.ends_with(".h");
        name == "Kbuild" || name == "Makefile" || code && !name.ends_with(".mod.c")
    };
    Ok(digest::files_below(&paths.root().join("testbed"))?.into_iter().filter(is_source).collect())
}

fn stamp(paths: &Paths, kernel: &Kernel) -> Result<String> {
    let compiler = process::stdout(Command::new(COMPILER).arg("--version"))?;
    let mut stamp = format!(
        "{}\n{}\n{}\n",
        paths.root().display(),
        kernel.packages,
        compiler.lines().next().unwrap_or_default()
    );
    for file in sources(paths)? {
        stamp.push_str(&format!("{}  {}\n", digest::of_file(&file)?, file.display()));
    }
    Ok(stamp)
}

fn kernel_takes_module_btf(kernel: &Kernel) -> Result<bool> {
    let config = kernel.headers().join(".config");
    let text =
        fs::read_to_string(&config).with_context(|| format!("cannot read {}", config.display()))?;
    Ok(text.lines().any(|line| line == "CONFIG_DEBUG_INFO_BTF_MODULES=y"))
}

/// Adds BTF that stands on the kernel's own, unless the kernel's makefiles have done so.
fn add_btf(kernel: &Kernel, module: &Path, folder: &Path) -> Result<()> {
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
fn extract_btf(kernel: &Kernel, folder: &Path, to: &Path) -> Result<()> {
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
    use super::payload;

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
}
