//! The testbed module, built for each kernel and given BTF where its kernel can use it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use profiler_vm::debian::Unpacked;

use crate::cli::TestbedArgs;
use crate::digest;
use crate::kbuild;
use crate::paths::Paths;
use crate::process;
use crate::series::Series;
use crate::setup::{self, Part};

const MODULE: &str = "hids_testbed.ko";

/// A build in which one handler takes longer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Slow {
    /// The handler.
    pub(crate) handler: String,
    /// Iterations of the testbed's loop that each of its calls does more: two instructions each, and three besides.
    pub(crate) iterations: u64,
}

impl Slow {
    /// The end of a folder's name, and variables of the Kbuild.
    fn variant(&self) -> (String, String) {
        let Self { handler, iterations } = self;
        let variables =
            format!("TB_SLOW_HANDLER := {handler}\nTB_SLOW_ITERATIONS := {iterations}\n");
        (format!("-{handler}-{iterations}"), variables)
    }
}

/// Builds the module for each kernel that is named, or for all, and prints its path.
pub(crate) fn run(paths: &Paths, args: TestbedArgs) -> Result<()> {
    let TestbedArgs { kernel: kernels, arm64, slow, handler } = args;
    let slow = slow.map(|iterations| Slow { handler, iterations });
    let all = if arm64 { &setup::arm64::KERNELS[..] } else { &Series::ALL };
    for series in if kernels.is_empty() { all } else { &kernels } {
        let module = match &slow {
            slow if arm64 => build_for_arm64(paths, *series, slow.as_ref())?,
            Some(slow) => build_slow(paths, *series, slow)?,
            None => build(paths, *series)?,
        };
        println!("testbed: {}", module.display());
    }
    Ok(())
}

/// The path of the module for one kernel; builds it if its sources or the kernel have changed.
pub(crate) fn build(paths: &Paths, series: Series) -> Result<PathBuf> {
    build_variant(paths, series, "", "")
}

/// As [`build`], of a slower module.
pub(crate) fn build_slow(paths: &Paths, series: Series, slow: &Slow) -> Result<PathBuf> {
    let (name, variables) = slow.variant();
    build_variant(paths, series, &name, &variables)
}

/// As [`build`], for a kernel of arm64; of a slower module, if one is named.
pub(crate) fn build_for_arm64(
    paths: &Paths,
    series: Series,
    slow: Option<&Slow>,
) -> Result<PathBuf> {
    setup::ensure(paths, &[Part::ModuleBuild, Part::Arm64])?;
    let (name, variables) = slow.map(Slow::variant).unwrap_or_default();
    let folder = paths.arm64().join(format!("testbed-{series}{name}"));
    build_in(paths, &setup::arm64::kernel(paths, series)?, &folder, &variables)
}

/// As [`build`], of a module with planted changes; or of one with harmless ones besides.
pub(crate) fn build_planted(paths: &Paths, series: Series, harmless: bool) -> Result<PathBuf> {
    let (name, more) = if harmless { ("harmless", "TB_HARMLESS := 1\n") } else { ("planted", "") };
    build_variant(paths, series, &format!("-{name}"), &format!("TB_PLANTED := 1\n{more}"))
}

/// Builds it with these variables of its Kbuild, in a folder whose name ends in `name`.
fn build_variant(paths: &Paths, series: Series, name: &str, variables: &str) -> Result<PathBuf> {
    setup::ensure(paths, &[Part::ModuleBuild, Part::Kernel(series)])?;
    let folder = paths.target().join("testbed").join(format!("{series}{name}"));
    build_in(paths, &setup::kernel(paths, series)?, &folder, variables)
}

fn build_in(paths: &Paths, kernel: &Unpacked, folder: &Path, variables: &str) -> Result<PathBuf> {
    let _lock = setup::lock(paths)?;
    let module = folder.join(MODULE);
    let stamp_path = folder.join("stamp");
    let stamp = stamp(paths, kernel)?;
    if module.exists() && fs::read_to_string(&stamp_path).is_ok_and(|found| found == stamp) {
        return Ok(module);
    }

    println!("testbed: building for {}", kernel.release);
    let source = folder.join("src");
    process::remove_dir(folder)?;
    process::create_dir(&source)?;
    for file in sources(paths)? {
        let name = file.file_name().context("a source without a name")?;
        process::copy(&file, &source.join(name))?;
    }
    let kbuild = source.join("Kbuild");
    let text = process::read(&kbuild)?;
    process::write(&kbuild, variables.to_owned() + &text)?;
    kbuild::make(kernel, &source, &folder.join("build.log"))?;
    let built = source.join(MODULE);
    if kbuild::kernel_takes_module_btf(kernel)? {
        kbuild::add_btf(kernel, &built, folder)?;
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

fn stamp(paths: &Paths, kernel: &Unpacked) -> Result<String> {
    let mut stamp =
        format!("{}\n{}\n{}\n", paths.root().display(), kernel.packages, kbuild::compiler(kernel)?);
    for file in sources(paths)? {
        stamp.push_str(&format!("{}  {}\n", digest::of_file(&file)?, file.display()));
    }
    Ok(stamp)
}
