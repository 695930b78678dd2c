//! Matches subjects to kernels, and adds BTF to modules.

use std::fs;
use std::path::{Path, PathBuf};

use profiler_base::error::{Failure, bail, exit};
use profiler_recording::Meter;
use profiler_run::args::PrepareArgs;
use profiler_vm::KernelImage;

use super::installs::Installs;
use super::subject::{Build, Subject};
use super::{KernelBuilds, Options, kernels};
use crate::prepare::{self, Inspected};

/// The given kernels, or those that the baseline's modules were built for, each with its subjects; modules are below `folder`, in copies
/// that get BTF if they have none and probes measure.
///
/// # Errors
/// If a kernel is missing or given twice, no module was built for one of them, or the modules cannot be
/// prepared or have different names.
pub fn of_kernels(options: &Options, folder: &Path) -> Result<Vec<KernelBuilds>, Failure> {
    let [baselines, candidates] = options.subjects.each_ref().map(|of| inspect(of));
    let sides = [baselines?, candidates?];
    let asked = match options.kernels.as_slice() {
        [] => default_kernels(&sides[0])?,
        given => given.to_vec(),
    };
    let mut found: Vec<KernelBuilds> = Vec::new();
    for given in &asked {
        let kernel = kernels::find(given)?;
        if found.iter().any(|other| other.kernel.release == kernel.release) {
            bail!(USAGE, "kernel {} was given twice", kernel.release);
        }
        let below = folder.join(&kernel.release);
        fs::create_dir_all(&below).map_err(Failure::cannot_write(&below))?;
        let btf = match options.run.meter {
            Meter::Probes => kernel_btf(&kernel, &below)?,
            Meter::Exact => None,
        };
        let mut builds = Vec::new();
        let named = ["baseline.ko", "candidate.ko"].into_iter().zip(&options.params);
        for (subjects, (name, params)) in sides.iter().zip(named).filter(|it| !it.0.is_empty()) {
            let given = of_kernel(subjects, &kernel)?;
            builds.push(build(given, params, btf.as_deref(), &below.join(name))?);
        }
        if let [baseline, candidate] = &builds[..]
            && baseline.name != candidate.name
        {
            bail!(
                BAD_INPUT,
                "baseline and candidate are not of one kind ({} and {}): give two builds of one driver, or two commands",
                baseline.name,
                candidate.name
            );
        }
        found.push(KernelBuilds { kernel, builds, folder: below });
    }
    Ok(found)
}

/// What is installed of a subject: of a module a copy at `output`, with BTF on that of the kernel.
fn build(
    (subject, module): &Given,
    params: &str,
    btf: Option<&Path>,
    output: &Path,
) -> Result<Build, Failure> {
    let given = subject.to_string();
    let (subject, name) = match module {
        None => {
            let installs = subject.command().map(|agent| agent.installs).unwrap_or_default();
            (subject.clone(), installs.module().to_owned())
        }
        Some(Inspected { name, .. }) if Installs::is_name(name) => {
            bail!(
                BAD_INPUT,
                "{given}: {name} is what others are called here, so no module may have that name"
            );
        }
        Some(module) => {
            make(module, btf, output)?;
            (Subject::Module(output.to_owned()), module.name.clone())
        }
    };
    Ok(Build { subject, given, name, params: params.to_owned() })
}

/// A subject, and what its file says if it is a module.
type Given = (Subject, Option<Inspected>);

fn inspect(subjects: &[Subject]) -> Result<Vec<Given>, Failure> {
    let given = subjects.iter().map(|subject| {
        let module = subject.module().map(prepare::inspect).transpose()?;
        Ok((subject.clone(), module))
    });
    given.collect()
}

fn default_kernels(given: &[Given]) -> Result<Vec<String>, Failure> {
    let releases: Option<Vec<String>> =
        given.iter().map(|(_, module)| module.as_ref()?.built_for.clone()).collect();
    releases.filter(|releases| !releases.is_empty()).ok_or_else(|| {
        Failure::new(
            exit::USAGE,
            "name the kernel to boot with --kernel, such as 6.1: it follows from modules alone",
        )
    })
}

/// The subject for this kernel: a command, or the module that it loads.
fn of_kernel<'a>(given: &'a [Given], kernel: &KernelImage) -> Result<&'a Given, Failure> {
    let fitting = given.iter().find(|(_, module)| {
        let built_for = module.as_ref().and_then(|module| module.built_for.as_ref());
        built_for.is_none_or(|release| *release == kernel.release)
    });
    fitting.ok_or_else(|| {
        let built_for: Vec<String> = given
            .iter()
            .filter_map(|(_, module)| module.as_ref())
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
    let bytes =
        kernel.btf().map_err(|error| Failure::new(exit::CANNOT_MEASURE, error.to_string()))?;
    let Some(bytes) = bytes else { return Ok(None) };
    let file = folder.join("vmlinux.btf");
    fs::write(&file, bytes).map_err(Failure::cannot_write(&file))?;
    Ok(Some(file))
}

/// A copy of the module with BTF.
fn make(module: &Inspected, btf: Option<&Path>, output: &Path) -> Result<(), Failure> {
    let Some(btf) = btf.filter(|_| !module.has_btf) else {
        let copied = fs::copy(&module.file, output).map(drop);
        return copied.map_err(Failure::cannot_write(output));
    };
    let options = PrepareArgs {
        file: module.file.clone(),
        btf: Some(btf.to_owned()),
        output: Some(output.to_owned()),
    };
    prepare::prepare(&options, None).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(built_for: Option<&str>) -> Given {
        let module = Inspected {
            file: "d.ko".into(),
            name: "d".into(),
            built_for: built_for.map(str::to_owned),
            has_btf: true,
            ..Inspected::default()
        };
        (Subject::Module("d.ko".into()), Some(module))
    }

    #[test]
    fn each_kernel_gets_the_module_built_for_it() {
        let kernel =
            KernelImage { path: "/k".into(), release: "6.1".into(), arch: profiler_vm::Arch::HERE };
        let modules = [module(Some("5.10")), module(Some("6.1"))];
        let fitting = of_kernel(&modules, &kernel).unwrap();
        assert_eq!(fitting.1.as_ref().unwrap().built_for.as_deref(), Some("6.1"));
        assert!(of_kernel(&[module(None)], &kernel).is_ok());
        let failure = of_kernel(&modules[..1], &kernel).unwrap_err();
        assert_eq!(failure.code, exit::BAD_INPUT);
        assert!(failure.message.contains("d.ko was built for 5.10"), "{failure}");
    }

    #[test]
    fn a_module_with_a_name_that_stands_for_others_is_refused() {
        for name in ["bpf", "audit", "kernel"] {
            let (subject, mut inspected) = module(None);
            inspected.as_mut().unwrap().name = name.to_owned();
            let failure = build(&(subject, inspected), "", None, Path::new("/x")).unwrap_err();
            assert_eq!(failure.code, exit::BAD_INPUT, "{failure}");
        }
    }

    #[test]
    fn the_kernels_follow_from_modules_alone() {
        let two = [module(Some("6.1")), module(Some("5.10"))];
        assert_eq!(default_kernels(&two).unwrap(), ["6.1", "5.10"]);
        for modules in [vec![], vec![module(None)], vec![module(Some("6.1")), module(None)]] {
            assert_eq!(default_kernels(&modules).unwrap_err().code, exit::USAGE);
        }
    }
}
