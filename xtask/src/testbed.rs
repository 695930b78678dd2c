//! The testbed module, built for each kernel and given BTF where its kernel can use it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use profiler_vm::debian::Unpacked;

use crate::cli::TestbedArgs;
use crate::kbuild;
use crate::paths;
use crate::process;
use crate::series::Series;
use crate::setup::{self, Part};

const MODULE: &str = "hids_testbed.ko";

/// How a build differs from the plain one.
#[derive(Debug, Default)]
pub(crate) struct Variant {
    /// The end of its folder's name.
    name: String,
    /// Variables for make, as words.
    variables: String,
}

impl Variant {
    /// Each call of `handler` does so many iterations more of the testbed's loop: two instructions each, and three
    /// besides.
    pub(crate) fn slow(handler: &str, iterations: u64) -> Self {
        Self {
            name: format!("-{handler}-{iterations}"),
            variables: format!("TB_SLOW_HANDLER={handler} TB_SLOW_ITERATIONS={iterations}"),
        }
    }

    /// With planted changes.
    pub(crate) fn planted() -> Self {
        Self { name: "-planted".to_owned(), variables: "TB_PLANTED=1".to_owned() }
    }

    /// The planted build with harmless changes besides.
    pub(crate) fn harmless() -> Self {
        Self { name: "-harmless".to_owned(), variables: "TB_PLANTED=1 TB_HARMLESS=1".to_owned() }
    }
}

/// Builds the module for each kernel that is named, or for all, and prints its path.
pub(crate) fn run(args: TestbedArgs) -> Result<()> {
    let slow = args.slow.map(|iterations| Variant::slow(&args.handler, iterations));
    let variant = slow.unwrap_or_default();
    let all = if args.arm64 { &setup::arm64::KERNELS[..] } else { &Series::ALL };
    let build = if args.arm64 { build_for_arm64 } else { build };
    for series in if args.kernel.is_empty() { all } else { &args.kernel } {
        println!("testbed: {}", build(*series, &variant)?.display());
    }
    Ok(())
}

/// The path of the module for one kernel; builds it if its sources or the kernel have changed.
pub(crate) fn build(series: Series, variant: &Variant) -> Result<PathBuf> {
    setup::ensure(&[setup::MODULE_BUILD, Part::kernel(&series)])?;
    let folder = paths::target().join(format!("testbed/{series}{}", variant.name));
    build_in(&setup::kernel(series)?, &folder, &variant.variables)
}

/// As [`build`], for a kernel of arm64.
pub(crate) fn build_for_arm64(series: Series, variant: &Variant) -> Result<PathBuf> {
    setup::ensure(&[setup::MODULE_BUILD, setup::ARM64])?;
    let folder = paths::arm64().join(format!("testbed-{series}{}", variant.name));
    build_in(&setup::arm64::kernel(series)?, &folder, &variant.variables)
}

fn build_in(kernel: &Unpacked, folder: &Path, variables: &str) -> Result<PathBuf> {
    let _lock = setup::lock()?;
    let module = folder.join(MODULE);
    let stamp_path = folder.join("stamp");
    let stamp = stamp(kernel)?;
    if module.exists() && fs::read_to_string(&stamp_path).is_ok_and(|found| found == stamp) {
        return Ok(module);
    }

    println!("testbed: building for {}", kernel.release);
    let source = folder.join("src");
    process::remove_dir(folder)?;
    process::create_dir(&source)?;
    process::run(Command::new("cp").args(sources()?).arg(&source))?;
    kbuild::make(kernel, &source, variables)?;
    let built = source.join(MODULE);
    if kbuild::kernel_takes_module_btf(kernel)? {
        kbuild::add_btf(kernel, &built, folder)?;
    }
    process::rename(&built, &module)?;
    process::write(&stamp_path, stamp)?;
    Ok(module)
}

/// Tracked sources only: a build by hand in the folder leaves more.
fn sources() -> Result<Vec<PathBuf>> {
    let mut files = process::files_below(&paths::root().join("testbed"))?;
    files.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let code = name.ends_with(".c") || name.ends_with(".h");
        name == "Kbuild" || name == "Makefile" || code && !name.ends_with(".mod.c")
    });
    Ok(files)
}

fn stamp(kernel: &Unpacked) -> Result<String> {
    let (root, compiler) = (paths::root(), kbuild::compiler(kernel)?);
    let digests = process::sha256sums(root, &sources()?)?;
    Ok(format!("{}\n{}\n{compiler}\n{digests}", root.display(), kernel.packages))
}
