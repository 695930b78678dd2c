//! Matches modules to kernels, and adds BTF.

use std::fs;
use std::path::{Path, PathBuf};

use profiler_vm::{ImageError, KernelImage};

use super::plan::Build;
use super::{KernelBuilds, Options, kernel};
use crate::error::{Failure, exit};
use crate::prepare::{self, Inspected};

/// The given kernels, or the one that the first module was built for, each with its modules below `folder`, in copies
/// that get BTF if they have none and `with_btf`.
///
/// # Errors
/// If a kernel is missing or given twice, no module was built for one of them, or the modules cannot be
/// prepared or have different names.
pub fn of_kernels(
    options: &Options,
    with_btf: bool,
    folder: &Path,
) -> Result<Vec<KernelBuilds>, Failure> {
    let baselines = inspect(&options.baseline)?;
    let candidates = inspect(&options.candidate)?;
    let kernels = if options.kernels.is_empty() {
        find_kernels(&default_kernel(&baselines)?)?
    } else {
        find_kernels(&options.kernels)?
    };
    let with_builds = |kernel: KernelImage| {
        let below = folder.join(&kernel.release);
        fs::create_dir_all(&below).map_err(|error| Failure::cannot_write(&below, &error))?;
        let btf = if with_btf { kernel_btf(&kernel, &below)? } else { None };
        let build = |modules: &[Inspected], params: &str, name: &str| -> Result<Build, Failure> {
            let module = of_kernel(modules, &kernel)?;
            let output = below.join(name);
            make(module, btf.as_deref(), &output)?;
            let given = module.file.clone();
            Ok(Build { file: output, given, name: module.name.clone(), params: params.to_owned() })
        };
        let baseline = build(&baselines, &options.baseline_params, "baseline.ko")?;
        let candidate = match candidates.as_slice() {
            [] => None,
            some => Some(build(some, &options.candidate_params, "candidate.ko")?),
        };
        if let Some(candidate) = &candidate
            && candidate.name != baseline.name
        {
            let text = format!(
                "baseline and candidate are different modules ({} and {}): give two builds of one",
                baseline.name, candidate.name
            );
            return Err(Failure::new(exit::BAD_INPUT, text));
        }
        Ok(KernelBuilds { kernel, baseline, candidate })
    };
    kernels.into_iter().map(with_builds).collect()
}

fn find_kernels(asked: &[String]) -> Result<Vec<KernelImage>, Failure> {
    let mut kernels: Vec<KernelImage> = Vec::new();
    for given in asked {
        let kernel = kernel::find(given)
            .map_err(|error| Failure::new(exit::CANNOT_MEASURE, error.to_string()))?;
        if kernels.iter().any(|other| other.release == kernel.release) {
            let text = format!("kernel {} was given twice", kernel.release);
            return Err(Failure::new(exit::USAGE, text));
        }
        kernels.push(kernel);
    }
    Ok(kernels)
}

fn inspect(files: &[PathBuf]) -> Result<Vec<Inspected>, Failure> {
    files.iter().map(|file| prepare::inspect(file)).collect()
}

fn default_kernel(modules: &[Inspected]) -> Result<Vec<String>, Failure> {
    match modules {
        [Inspected { built_for: Some(release), .. }] => Ok(vec![release.clone()]),
        _ => Err(Failure::new(
            exit::USAGE,
            "name the kernel to boot with --kernel: it does not follow from the module",
        )),
    }
}

/// The module among `modules` that this kernel loads.
fn of_kernel<'a>(modules: &'a [Inspected], kernel: &KernelImage) -> Result<&'a Inspected, Failure> {
    let fits = |module: &&Inspected| {
        module.built_for.as_ref().is_none_or(|release| *release == kernel.release)
    };
    modules.iter().find(fits).ok_or_else(|| {
        let built_for: Vec<String> = modules
            .iter()
            .map(|module| {
                let release = module.built_for.as_deref().unwrap_or("any kernel");
                format!("{} was built for {release}", module.file.display())
            })
            .collect();
        let text = format!(
            "no module for kernel {}: {}; build it against that kernel's headers",
            kernel.release,
            built_for.join(", ")
        );
        Failure::new(exit::BAD_INPUT, text)
    })
}

/// The kernel's BTF in a file. A kernel without BTF loads modules as they are.
fn kernel_btf(kernel: &KernelImage, folder: &Path) -> Result<Option<PathBuf>, Failure> {
    let bytes = match kernel.btf() {
        Ok(bytes) => bytes,
        Err(ImageError::NoBtf { .. }) => return Ok(None),
        Err(error) => return Err(Failure::new(exit::CANNOT_MEASURE, error.to_string())),
    };
    let file = folder.join("vmlinux.btf");
    fs::write(&file, bytes).map_err(|error| Failure::cannot_write(&file, &error))?;
    Ok(Some(file))
}

/// A copy of the module with BTF.
fn make(module: &Inspected, btf: Option<&Path>, output: &Path) -> Result<(), Failure> {
    match btf {
        Some(btf) if !module.has_btf => {
            let options = prepare::Options {
                file: module.file.clone(),
                btf: Some(btf.to_owned()),
                output: Some(output.to_owned()),
                in_place: false,
            };
            prepare::prepare(&options, None)?;
        }
        _ => {
            fs::copy(&module.file, output)
                .map_err(|error| Failure::cannot_write(output, &error))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(built_for: Option<&str>) -> Inspected {
        Inspected {
            file: "d.ko".into(),
            name: "d".into(),
            built_for: built_for.map(str::to_owned),
            has_btf: true,
            ..Inspected::default()
        }
    }

    #[test]
    fn each_kernel_gets_the_module_built_for_it() {
        let kernel = KernelImage { path: "/k".into(), release: "6.1".into() };
        let modules = [module(Some("5.10")), module(Some("6.1"))];
        assert_eq!(of_kernel(&modules, &kernel).unwrap().built_for.as_deref(), Some("6.1"));
        assert!(of_kernel(&[module(None)], &kernel).is_ok());
        let failure = of_kernel(&modules[..1], &kernel).unwrap_err();
        assert_eq!(failure.code, exit::BAD_INPUT);
        assert!(failure.message.contains("d.ko was built for 5.10"), "{failure}");
    }

    #[test]
    fn the_kernel_follows_from_one_module_alone() {
        assert_eq!(default_kernel(&[module(Some("6.1"))]).unwrap(), ["6.1"]);
        for modules in [vec![module(None)], vec![module(Some("6.1")), module(Some("5.10"))]] {
            assert_eq!(default_kernel(&modules).unwrap_err().code, exit::USAGE);
        }
    }
}
