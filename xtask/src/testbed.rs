//! The testbed module, built for each kernel and given BTF where its kernel can use it.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use clap::ValueEnum as _;

use profiler_vm::debian::Unpacked;

use crate::cli::TestbedArgs;
use crate::kbuild;
use crate::paths;
use crate::process;
use crate::series::Series;
use crate::setup::{self, Part};

const MODULE: &str = "hids_testbed.ko";

/// Variables for make, as words, of a build in which each call of `handler` does so many iterations more of the testbed's loop: two
/// instructions each, and three besides.
pub(crate) fn slow(handler: &str, iterations: u64) -> String {
    format!("TB_SLOW_HANDLER={handler} TB_SLOW_ITERATIONS={iterations}")
}

/// Of one with planted changes.
pub(crate) const PLANTED: &str = "TB_PLANTED=planted";

/// Of the planted build with harmless changes besides.
pub(crate) const HARMLESS: &str = "TB_PLANTED=planted TB_HARMLESS=harmless";

/// Builds the module for each kernel that is named, or for all, and prints its path.
pub(crate) fn run(args: TestbedArgs) -> Result<()> {
    let variables = args.slow.map(|iterations| slow(&args.handler, iterations)).unwrap_or_default();
    for series in if args.kernel.is_empty() { Series::value_variants() } else { &args.kernel } {
        println!("testbed: {}", build(*series, &variables)?.display());
    }
    Ok(())
}

/// The path of the module for one kernel, built with variables for make; builds it if its sources, the compiler or the kernel have changed.
pub(crate) fn build(series: Series, variables: &str) -> Result<PathBuf> {
    setup::ensure(&[setup::MODULE_BUILD, Part::kernel(&series)])?;
    build_in(&setup::kernel(series)?, series.to_string(), variables)
}

/// As [`build`], for a kernel of arm64.
pub(crate) fn build_for_arm64(series: Series, variables: &str) -> Result<PathBuf> {
    setup::ensure(&[setup::MODULE_BUILD, setup::ARM64])?;
    build_in(&setup::arm64::kernel(series)?, format!("{series}-arm64"), variables)
}

/// Builds in a folder of this name, which ends with the variables' values.
fn build_in(kernel: &Unpacked, name: String, variables: &str) -> Result<PathBuf> {
    let _lock = setup::lock()?;
    let values = variables.split(' ').filter_map(|variable| variable.split_once('='));
    let name = values.fold(name, |name, (_, value)| format!("{name}-{value}"));
    let folder = paths::target().join("testbed").join(name);
    let module = folder.join(MODULE);
    let stamp_path = folder.join("stamp");
    let stamp = stamp(kernel)?;
    if module.exists() && fs::read_to_string(&stamp_path).is_ok_and(|found| found == stamp) {
        return Ok(module);
    }

    println!("testbed: building for {}", kernel.release);
    let source = folder.join("src");
    process::remove_dir(&folder)?;
    process::create_dir(&source)?;
    process::run(Command::new("cp").args(sources()?).arg(&source))?;
    kbuild::make(kernel, &source, variables)?;
    let built = source.join(MODULE);
    kbuild::add_btf(kernel, &built, &folder)?;
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
