//! Gives the file of a kernel module the BTF that probes need.
//!
//! Modules built outside the kernel's tree mostly come without BTF. pahole makes it from their
//! debug information, on top of the BTF of the kernel that will load them.

mod defaults;

use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use object::{Object as _, ObjectKind, ObjectSection as _};

use profiler_base::atomic_file;
use profiler_base::error::{Failure, bail, exit};
use profiler_base::text::listed;
use profiler_kernel::btf::{BTF_FOLDER, Btf};
use profiler_kernel::module;
use profiler_run::args::PrepareArgs;
use profiler_system::{durable, find_program};
use profiler_vm::banner;

pub use defaults::{changed_defaults, defaults};

/// What was done.
#[derive(Debug)]
pub struct Prepared {
    /// The module as it was.
    pub module: Inspected,
    /// The file with BTF.
    pub output: PathBuf,
    /// BTF that it builds on.
    pub base: PathBuf,
    /// Functions that its BTF describes.
    pub functions: usize,
    /// Whether the original carries a signature, which the copy cannot.
    pub was_signed: bool,
}

/// Gives a module BTF; `running` is the release of the kernel that runs.
///
/// # Errors
/// If the file is not a module with debug information and without BTF, the kernel's BTF is not at hand or of another kernel,
/// pahole fails, or the output cannot be written.
pub fn prepare(args: &PrepareArgs, running: Option<&str>) -> Result<Prepared, Failure> {
    let path = &args.file;
    let bytes = read(path)?;
    let module = Inspected::parse(&bytes, path)?;
    if module.has_btf {
        return Err(unfit(path, "has BTF already: load it as it is"));
    }
    if !module.has_debug_info {
        let what = "has no debug information (no section .debug_info), from which BTF is made: build it with \
                    -g (for a driver: `make KCFLAGS=-g`) and do not strip it";
        return Err(unfit(path, what));
    }
    let of_running = Path::new(BTF_FOLDER).join("vmlinux");
    let base = args.btf.clone().unwrap_or_else(|| of_running.clone());
    // Checked first: then it does not matter whether that kernel has BTF.
    if args.btf.is_none() {
        check_release(&module, &base, running)?;
    }
    let base_bytes = fs::read(&base).map_err(|error| {
        let remedy = "name the BTF of the kernel that will load the module with --btf";
        no_base(&base, &format!("{error}; {remedy}"))
    })?;
    let base_btf = raw_btf(&base, &base_bytes)?;
    let running = running.filter(|_| fs::read(&of_running).is_ok_and(|bytes| bytes == base_btf));
    check_release(&module, &base, banner(&base_bytes).or(running))?;
    let output = args.output.clone().unwrap_or_else(|| path.with_extension("btf.ko"));

    let functions = write_with_btf(path, &bytes[..module.elf_bytes], (&base, base_btf), &output)?;
    let was_signed = module.elf_bytes < bytes.len();
    Ok(Prepared { module, output, base, functions, was_signed })
}

/// Refuses a kernel's BTF if it is of another release than the module was built for.
fn check_release(module: &Inspected, base: &Path, of: Option<&str>) -> Result<(), Failure> {
    match (&module.built_for, of) {
        (Some(built_for), Some(of)) if built_for != of => bail!(
            BAD_INPUT,
            "{} was built for kernel {built_for}, and {} is of {of}: name that kernel's BTF with --btf \
             (its vmlinux, or /sys/kernel/btf/vmlinux copied from a machine that runs it)",
            module.file.display(),
            base.display()
        ),
        _ => Ok(()),
    }
}

/// Writes the module with BTF on that of the kernel; the number of functions that it describes.
fn write_with_btf(
    path: &Path,
    elf: &[u8],
    (base, base_btf): (&Path, &[u8]),
    output: &Path,
) -> Result<usize, Failure> {
    // Written beside the output and moved there at the end: a failure leaves what was there.
    let cannot_write = |error| {
        let path = output.display();
        let text = format!("cannot write {path}: {error}: choose another file with -o");
        Failure::new(exit::BAD_OUTPUT, text)
    };
    let folder = match output.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut copy = atomic_file::temporary(folder, 0o600).map_err(cannot_write)?;
    copy.as_file_mut().write_all(elf).map_err(cannot_write)?;
    let said = pahole(base, copy.path(), path)?;

    let made = fs::read(copy.path()).map_err(cannot_write)?;
    let btf = section(&made, ".BTF").ok_or_else(|| {
        let why = "it wrote no section .BTF, for which it needs objcopy (package binutils)";
        no_btf(path, &format!("{why}; it said: {said}"))
    })?;
    let functions = Btf::parse(base_btf, base, None)
        .and_then(|base| Btf::parse(btf, path, Some(base)))
        .map_err(|error| no_btf(path, &error.to_string()))?
        .count();
    if functions == 0 {
        return Err(no_btf(path, "it found no function in the debug information"));
    }
    let permissions = fs::metadata(path).map_err(cannot_write)?.permissions();
    fs::set_permissions(copy.path(), permissions).map_err(cannot_write)?;
    durable::persist(copy, output).map_err(cannot_write)?;
    Ok(functions)
}

/// The bytes of a module's file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(path).map_err(|error| unreadable(path, &error))
}

pub(crate) fn unreadable(path: &Path, why: &dyn Display) -> Failure {
    Failure::new(exit::BAD_INPUT, format!("cannot read {}: {why}", path.display()))
}

/// A module's file that cannot be prepared.
fn unfit(path: &Path, what: &str) -> Failure {
    Failure::new(exit::BAD_INPUT, format!("{} {what}", path.display()))
}

/// pahole did not do it.
fn no_btf(path: &Path, said: &str) -> Failure {
    let text = format!("pahole gave {} no BTF: {said}", path.display());
    Failure::new(exit::BAD_INPUT, text)
}

/// A file that cannot be used as the kernel's BTF.
fn no_base(path: &Path, what: &str) -> Failure {
    let text = format!("{} cannot be used as the kernel's BTF: {what}", path.display());
    Failure::new(exit::CANNOT_MEASURE, text)
}

/// Reads what a module's file says of itself.
///
/// # Errors
/// If it cannot be read, is compressed, or is no module.
pub fn inspect(path: &Path) -> Result<Inspected, Failure> {
    Inspected::parse(&read(path)?, path)
}

/// Refuses parameters that the module does not have: insmod would ignore them. A file that cannot be read is left to
/// others.
///
/// # Errors
/// With the parameters that it lacks, and those that it has.
pub fn check_parameters(path: &Path, given: &str) -> Result<(), Failure> {
    let mut unknown = module::names_given(given);
    // Those of every module (kernel/module/main.c).
    let of_all = ["async_probe", "dyndbg"];
    let Some(known) = fs::read(path).ok().and_then(|file| parameters(&file)) else {
        return Ok(());
    };
    unknown.retain(|name| !known.contains(name) && !of_all.contains(&name.as_str()));
    if unknown.is_empty() {
        return Ok(());
    }
    let known: Vec<String> = known.into_iter().collect();
    let known = if known.is_empty() { "none".to_owned() } else { listed(&known) };
    let (path, unknown) = (path.display(), unknown.join(", "));
    bail!(
        USAGE,
        "{path} has no module parameter {unknown}, and the kernel would ignore it: it has {known}"
    )
}

/// Names of the parameters of a module's file; `None` if some cannot be read.
fn parameters(file: &[u8]) -> Option<BTreeSet<String>> {
    section(file, ".modinfo")?;
    let known: BTreeSet<String> =
        defaults(file).into_keys().map(|name| module::underscored(&name)).collect();
    let entries = section(file, "__param").unwrap_or_default().len() / KERNEL_PARAM;
    (entries <= known.len()).then_some(known)
}

/// The values that a module's file says of itself under `key`, which ends with `=`.
pub(crate) fn said_in(file: &[u8], key: &str) -> Vec<String> {
    let entries = section(file, ".modinfo").unwrap_or_default().split(|&byte| byte == 0);
    let values = entries.filter_map(|entry| entry.strip_prefix(key.as_bytes()));
    values.map(|value| String::from_utf8_lossy(value).into_owned()).collect()
}

/// Size of `struct kernel_param` (include/linux/moduleparam.h) on 64-bit machines.
const KERNEL_PARAM: usize = 40;

/// What a module's file says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inspected {
    pub file: PathBuf,
    /// The module's name once it is loaded.
    pub name: String,
    /// Release of the kernel that it was built for.
    pub built_for: Option<String>,
    /// Whether it has BTF already.
    pub has_btf: bool,
    pub(crate) has_debug_info: bool,
    /// Length without a signature at the end.
    pub(crate) elf_bytes: usize,
}

/// What the kernel's signing tool ends a module with (include/linux/module_signature.h).
pub(crate) const SIGNATURE_MAGIC: &[u8] = b"~Module signature appended~\n";

/// Length of `struct module_signature`, which precedes the magic and ends with the signature's
/// length, big endian.
const SIGNATURE_INFO: usize = 12;

impl Inspected {
    fn parse(bytes: &[u8], path: &Path) -> Result<Self, Failure> {
        let compressed = match bytes {
            [0x1f, 0x8b, ..] => Some("gzip"),
            [0xfd, b'7', b'z', b'X', b'Z', ..] => Some("xz"),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some("zstd"),
            _ => None,
        };
        if let Some(tool) = compressed {
            let remedy =
                format!("decompress it with `{tool} -d --keep` and prepare what comes out");
            return Err(unfit(path, &format!("is compressed ({tool}): {remedy}")));
        }
        let no_module = |what: &str| {
            unfit(path, &format!("is not a kernel module: {what}; give the .ko file of the driver"))
        };
        let file = object::File::parse(bytes).map_err(|error| no_module(&error.to_string()))?;
        let has = |name: &str| file.section_by_name(name).is_some();
        if !has(".modinfo") || !has(".gnu.linkonce.this_module") {
            return Err(no_module("it lacks the sections .modinfo and .gnu.linkonce.this_module"));
        }
        if file.kind() != ObjectKind::Relocatable {
            return Err(no_module("it is not a relocatable object"));
        }
        let name = said_in(bytes, "name=").into_iter().next();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().replace('-', "_");
        let magic = said_in(bytes, "vermagic=").into_iter().next();
        Ok(Self {
            file: path.to_owned(),
            name: name.unwrap_or(stem),
            built_for: magic.and_then(|it| it.split_whitespace().next().map(str::to_owned)),
            has_btf: has(".BTF"),
            has_debug_info: has(".debug_info"),
            elf_bytes: unsigned_length(bytes),
        })
    }
}

fn unsigned_length(bytes: &[u8]) -> usize {
    let unsigned = bytes.strip_suffix(SIGNATURE_MAGIC).and_then(|rest| {
        let info = rest.len().checked_sub(SIGNATURE_INFO)?;
        let length = rest.get(info + 8..)?.try_into().ok().map(u32::from_be_bytes)?;
        info.checked_sub(usize::try_from(length).ok()?)
    });
    unsigned.unwrap_or(bytes.len())
}

fn section<'a>(elf: &'a [u8], name: &str) -> Option<&'a [u8]> {
    object::File::parse(elf).ok()?.section_by_name(name)?.data().ok()
}

/// The kernel's BTF out of a raw file or of a vmlinux.
fn raw_btf<'a>(path: &Path, bytes: &'a [u8]) -> Result<&'a [u8], Failure> {
    if bytes.starts_with(b"\x7fELF") {
        return section(bytes, ".BTF").ok_or_else(|| no_base(path, "it has no section .BTF"));
    }
    if bytes.starts_with(&0xeb9f_u16.to_ne_bytes()) {
        return Ok(bytes);
    }
    Err(no_base(path, "it is neither raw BTF nor an ELF file (a compressed vmlinuz is neither)"))
}

/// Runs pahole and gives what it said on standard error: it may fail and still end well.
fn pahole(base: &Path, file: &Path, original: &Path) -> Result<String, Failure> {
    let mut command = Command::new("pahole");
    command.arg("-J").arg("--btf_base").arg(base).arg(file);
    // It adds the section by llvm-objcopy unless told of another.
    if std::env::var_os("LLVM_OBJCOPY").is_none() && find_program("llvm-objcopy").is_none() {
        command.env("LLVM_OBJCOPY", "objcopy");
    }
    let output = command.output().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            let text = "pahole is missing, which makes BTF: install package `pahole` (Debian, Ubuntu) or \
                        `dwarves` (Fedora, RHEL, Arch, Debian 11)";
            Failure::new(exit::CANNOT_MEASURE, text)
        }
        _ => no_btf(original, &error.to_string()),
    })?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    match output.status.success() {
        true => Ok(said),
        false => Err(no_btf(original, &format!("{}: {said}", output.status))),
    }
}

#[cfg(test)]
mod tests {
    use super::defaults::tests::module;
    use super::*;

    #[test]
    fn a_signature_is_no_part_of_the_module() {
        let mut signed = b"module".to_vec();
        signed.extend(b"signature");
        signed.extend([0; 8]);
        signed.extend(9_u32.to_be_bytes());
        signed.extend(SIGNATURE_MAGIC);
        assert_eq!(unsigned_length(&signed), 6);
        assert_eq!(unsigned_length(b"module"), 6);
        // A length that does not fit.
        let mut broken = vec![0xff; 12];
        broken.extend(SIGNATURE_MAGIC);
        assert_eq!(unsigned_length(&broken), broken.len());
        assert_eq!(unsigned_length(SIGNATURE_MAGIC), SIGNATURE_MAGIC.len());
    }

    #[test]
    fn parameters_that_a_module_lacks_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("d.ko");
        let known: [(&str, &str, &[u8]); 2] =
            [("bind_hook", "param_ops_int", &[0; 4]), ("name", "param_ops_charp", &[0; 8])];
        fs::write(&path, module(&known)).unwrap();
        let refused = |given: &str| check_parameters(&path, given).err().map(|e| e.to_string());
        for fits in
            ["", "  ", "bind-hook=1", "name=\"a b=c d\" bind_hook=0", "dyndbg=+p", "\"name=a b\""]
        {
            assert_eq!(refused(fits), None, "{fits}");
        }
        let text = refused("bind_hok=1 name=x").unwrap();
        assert!(text.contains("d.ko has no module parameter bind_hok, "), "{text}");
        assert!(text.contains("it has bind_hook, name"), "{text}");
        // One whose name cannot be read.
        fs::write(&path, module(&[("x".repeat(300).as_str(), "param_ops_int", &[0; 4])])).unwrap();
        assert_eq!(refused("bind_hok=1"), None);
        fs::write(&path, module(&[])).unwrap();
        assert!(refused("x").unwrap().contains("it has none"));
        assert!(check_parameters(Path::new("/none.ko"), "x=1").is_ok(), "it is said elsewhere");
    }
}
