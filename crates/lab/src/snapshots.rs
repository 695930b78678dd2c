//! Base snapshots: a guest that has booted, for each kernel, QEMU and build of this program.
//!
//! They are kept in a cache of the user's that nobody else can change. A folder there is whole: it is renamed to its name
//! when all files are written, and a state that was damaged since is made anew.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use profiler_base::error::{Failure, exit};
use profiler_kernel::btf::Btf;
use profiler_kernel::hooks::{self, Reader};
use profiler_kernel::host::HostFacts;
use profiler_kernel::names::{address_of, is_function};
use profiler_load::{make_private, user_cache};
use profiler_system::{catch_signals, find_program};
use profiler_vm::KernelImage;

use super::cache::{self, touch};
use super::initramfs::guest_program;
use super::machine::{self, MEMORY_FILE, Machine, MachineError, Spec, Start};
use super::memory;
use super::{KernelBuilds, Options};

/// Snapshots that are kept; those that were used longest ago go first. One takes about 90 MB.
const MOST: usize = 8;

/// Longest that a boot may take: ten times what it takes on a machine that does nothing else.
const BOOT_LIMIT: Duration = Duration::from_secs(300);

/// Version of the layout of a snapshot's folder.
const LAYOUT: &str = "6";

const FACTS: &str = "facts.json";
/// The types that [`Reader`] needs.
const TYPES: &str = "btf";

/// Makes the folder of a kernel's guests, and catches the signals that end them early.
///
/// # Errors
/// If there cannot be that folder, or signals cannot be caught.
pub(super) fn prepare(folder: &Path) -> Result<(), Failure> {
    fs::create_dir_all(folder).map_err(Failure::cannot_write(folder))?;
    catch_signals().map_err(|error| {
        let text = format!("cannot handle Ctrl-C, SIGTERM and SIGHUP: {error}");
        Failure::new(exit::INTERNAL, text)
    })
}

/// A guest that has booted.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Base {
    /// Has the guest's memory and state, and what belongs to them, such as counts without a driver.
    #[serde(skip)]
    pub(super) folder: PathBuf,
    /// What the snapshot depends on, as a hash.
    pub(super) key: String,
    /// The guest.
    pub(super) host: HostFacts,
    /// The checksum of the guest's memory and state.
    state: u32,
    /// The kernel's functions, as lines of `/proc/kallsyms`, and its vectors.
    pub(super) symbols: String,
    /// Of its other symbols those that hooks are found by.
    pub(super) data: String,
}

impl Base {
    /// What reads hooks out of a guest.
    ///
    /// # Errors
    /// Why none can be read, in words.
    pub(super) fn reader(&self) -> Result<Reader, String> {
        let path = self.folder.join(TYPES);
        let types = fs::read(&path).map_err(|error| error.to_string())?;
        if types.is_empty() {
            return Err(
                "this kernel has no BTF (CONFIG_DEBUG_INFO_BTF), or no symbols of data (CONFIG_KALLSYMS_ALL)"
                    .to_owned(),
            );
        }
        let types = Btf::parse(&types, &path, None).map_err(|error| error.to_string())?;
        Reader::new(types, &self.data)
    }

    fn open(folder: &Path, key: &str) -> Option<Self> {
        let base: Self = serde_json::from_slice(&fs::read(folder.join(FACTS)).ok()?).ok()?;
        let whole = base.key == key && machine::checksum(folder).ok()? == base.state;
        whole.then(|| Self { folder: folder.to_owned(), ..base })
    }
}

/// The snapshot from the cache, or a new one, of a kernel that boots with these arguments before those of each guest; `say`
/// announces what takes time.
///
/// # Errors
/// If the kernel does not boot, or nothing can be written.
pub(super) fn base(
    builds: &KernelBuilds,
    options: &Options,
    arguments: &str,
    say: &dyn Fn(&str),
) -> Result<Base, Failure> {
    let KernelBuilds { kernel, folder, .. } = builds;
    let key = key(kernel, &options.memory, arguments)?;
    let release = &kernel.release;
    let name = format!("{release}-{}", &key[..16]);
    let Some(cache) = cache() else {
        say(
            "no folder of the user's own for snapshots: set XDG_CACHE_HOME or HOME; this one is not kept",
        );
        return make(builds, options, arguments, &folder.join(name), key);
    };
    let folder = cache.join(&name);
    if let Some(base) = Base::open(&folder, &key) {
        touch(&folder.join(FACTS));
        return Ok(base);
    }
    if folder.exists() {
        say(&format!("the snapshot {} is damaged, and made anew", folder.display()));
        fs::remove_dir_all(&folder).map_err(Failure::cannot_write(&folder))?;
    }
    let once = match arguments {
        "" => "once for this kernel".to_owned(),
        arguments => format!("once with `{arguments}`"),
    };
    say(&format!("booting Linux {release} for a snapshot, {once}"));
    let new = tempfile::Builder::new()
        .prefix(".new-")
        .tempdir_in(&cache)
        .map_err(Failure::cannot_write(&cache))?;
    let made = make(builds, options, arguments, &new.path().join("snapshot"), key)?;
    match fs::rename(&made.folder, &folder) {
        Ok(()) => forget_oldest(&folder),
        // Another process was faster.
        Err(_) if Base::open(&folder, &made.key).is_some() => {}
        Err(error) => return Err(Failure::cannot_write(&folder)(error)),
    }
    Ok(Base { folder, ..made })
}

/// What a snapshot depends on.
fn key(kernel: &KernelImage, memory: &str, arguments: &str) -> Result<String, Failure> {
    let program = guest_program(kernel.arch)?;
    // By its place and time: a QEMU's file takes long to read, and its package replaces it whole.
    let qemu = find_program(kernel.arch.qemu())
        .and_then(|path| Some((path.metadata().ok()?, path)))
        .map(|(facts, path)| format!("{} {} {}", path.display(), facts.len(), facts.mtime()));
    let cpu = kernel.arch.translated_cpu();
    let words = [LAYOUT, memory, cpu, arguments, &qemu.unwrap_or_default()];
    cache::key(&[&program, &kernel.path], &words).map_err(|error| {
        let text = format!("cannot read the kernel or the guest's program: {error}");
        Failure::new(exit::CANNOT_MEASURE, text)
    })
}

fn make(
    builds: &KernelBuilds,
    options: &Options,
    arguments: &str,
    folder: &Path,
    key: String,
) -> Result<Base, Failure> {
    fs::create_dir_all(folder).map_err(Failure::cannot_write(folder))?;
    let KernelBuilds { kernel, folder: scratch, .. } = builds;
    let machine_folder = scratch.join("base");
    let start = Start::Boot(arguments);
    let spec = Spec::counted(kernel, &options.memory, start, &machine_folder, BOOT_LIMIT);
    let spec = Spec { saved_to: Some(folder), ..spec };
    let failed = |error: MachineError| {
        error.into_failure(&format!("Linux {}", kernel.release), None, &machine_folder)
    };
    let mut machine = Machine::start(spec).map_err(failed)?;
    let (host, symbols) = machine.booted().map_err(failed)?;
    let symbols = String::from_utf8_lossy(&symbols);
    machine.find_kernel(&[&symbols]);
    let types = match types_at(&symbols) {
        Some(place) => machine.memory(place).map_err(failed)?,
        None => Vec::new(),
    };
    let vectors = machine.vectors().map_err(failed)?;
    machine.save(folder).map_err(failed)?;
    drop(machine);
    memory::trim(&folder.join(MEMORY_FILE)).map_err(Failure::cannot_write(folder))?;
    let base = Base {
        folder: folder.to_owned(),
        key,
        host: *host,
        state: machine::checksum(folder).map_err(Failure::cannot_write(folder))?,
        symbols: functions_of(&symbols) + &vectors,
        data: hooks::needed(&symbols),
    };
    let facts = serde_json::to_vec(&base).map_err(|it| Failure::cannot_write(folder)(it.into()))?;
    for (name, bytes) in [(TYPES, types), (FACTS, facts)] {
        fs::write(folder.join(name), bytes).map_err(Failure::cannot_write(folder))?;
    }
    Ok(base)
}

/// The lines of `/proc/kallsyms` that name functions: all other symbols are of no use to the plugin.
pub(super) fn functions_of(symbols: &str) -> String {
    let lines = symbols.lines();
    let functions = lines.filter(|it| it.split_ascii_whitespace().nth(1).is_some_and(is_function));
    functions.flat_map(|line| [line, "\n"]).collect()
}

/// Where the kernel has its BTF: first address and bytes.
fn types_at(kallsyms: &str) -> Option<[u64; 2]> {
    let start = address_of(kallsyms, "__start_BTF")?;
    Some([start, address_of(kallsyms, "__stop_BTF")?.checked_sub(start)?])
}

/// The folder of all snapshots, if the user has one that nobody else can change.
pub(crate) fn cache() -> Option<PathBuf> {
    let folder = user_cache()?.join("snapshots");
    make_private(&folder).is_ok().then_some(folder)
}

/// A snapshot in the cache.
#[derive(Debug, Clone)]
pub struct Kept {
    pub folder: PathBuf,
    /// The kernel's release.
    pub release: String,
    /// When it was used last.
    used: SystemTime,
}

/// All snapshots in the cache, those used longest ago first.
pub fn kept() -> Vec<Kept> {
    let entries = cache().map(fs::read_dir).into_iter().flatten().flatten().flatten();
    let kept = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let (release, _) = name.rsplit_once('-')?;
        let folder = entry.path();
        let used = fs::metadata(folder.join(FACTS)).ok()?.modified().ok()?;
        Some(Kept { folder, release: release.to_owned(), used })
    });
    let mut kept: Vec<Kept> = kept.collect();
    kept.sort_by_key(|kept| kept.used);
    kept
}

/// Removes what is too much, but never the `new` one, whatever the clock of the file system says.
fn forget_oldest(new: &Path) {
    let kept = kept();
    let oldest = &kept[..kept.len().saturating_sub(MOST)];
    for old in oldest.iter().filter(|old| old.folder != new) {
        // There is one too many until the next time.
        let _ = fs::remove_dir_all(&old.folder);
    }
}
