//! Base snapshots: a guest that has booted, for each kernel, QEMU and build of this program.
//!
//! They are kept in a cache of the user's that nobody else can change. A folder there is whole: it is renamed to its name
//! when all files are written, and a state that was damaged since is made anew.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use profiler_vm::{Arch, Interrupts, KernelImage, find_program};
use serde::{Deserialize, Serialize};

use super::Settings;
use super::cache::{self, touch};
use super::initramfs;
use super::machine::{self, MEMORY_FILE, Machine, MachineError, Spec, Start};
use super::memory;
use crate::error::{Failure, exit};
use crate::kernel::btf::Btf;
use crate::kernel::hooks::{self, Reader};
use crate::kernel::host::HostFacts;
use crate::kernel::names::{address_of, is_function};
use crate::load::{make_private, user_cache};

/// Snapshots that are kept; those that were used longest ago go first. One takes about 90 MB.
const MOST: usize = 8;

/// Longest that a boot may take: ten times what it takes on a machine that does nothing else.
const BOOT_LIMIT: Duration = Duration::from_secs(300);

/// Version of the layout of a snapshot's folder.
const LAYOUT: &str = "4";

const FACTS: &str = "facts.json";
/// The kernel's functions, as lines of `/proc/kallsyms`, and its vectors.
pub(super) const SYMBOLS: &str = "symbols";
/// What [`Reader`] needs: the symbols of data that hooks are found by, and types.
pub(super) const DATA: &str = "data";
const TYPES: &str = "btf";

/// Catches the signals that end guests early.
///
/// # Errors
/// If signals cannot be caught.
pub(super) fn interrupts() -> Result<Interrupts, Failure> {
    Interrupts::catch().map_err(|error| {
        let text = format!("cannot handle Ctrl-C, SIGTERM and SIGHUP: {error}");
        Failure::new(exit::INTERNAL, text)
    })
}

/// A guest that has booted.
#[derive(Debug)]
pub(super) struct Base {
    /// Has the guest's memory and state, and what belongs to them, such as counts without a driver.
    pub(super) folder: PathBuf,
    pub(super) facts: Facts,
}

/// What is known of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Facts {
    /// What the snapshot depends on, as a hash.
    pub(super) key: String,
    /// The guest.
    pub(super) host: HostFacts,
    /// How long the boot took, on the host's clock.
    pub(super) boot_ms: u64,
    /// Bytes of the guest's memory and state, and their checksum.
    state: [u64; 2],
}

impl Base {
    /// What reads hooks out of a guest; `data` is the text of [`DATA`].
    ///
    /// # Errors
    /// Why none can be read, in words.
    pub(super) fn reader(&self, data: &str) -> Result<Reader, String> {
        let path = self.folder.join(TYPES);
        let types = fs::read(&path).map_err(|error| error.to_string())?;
        if types.is_empty() {
            return Err(
                "this kernel has no BTF (CONFIG_DEBUG_INFO_BTF), or no symbols of data (CONFIG_KALLSYMS_ALL)"
                    .to_owned(),
            );
        }
        let types = Btf::parse(&types, &path, None).map_err(|error| error.to_string())?;
        Reader::new(types, data)
    }

    fn open(folder: &Path, key: &str) -> Option<Self> {
        let facts: Facts = serde_json::from_slice(&fs::read(folder.join(FACTS)).ok()?).ok()?;
        let base = Self { folder: folder.to_owned(), facts };
        let whole = base.facts.key == key && machine::checksum(folder).ok()? == base.facts.state;
        whole.then_some(base)
    }
}

/// Makes snapshots of a kernel. Those that cannot be kept, and the machine's own files, are in the folder of the settings.
pub(super) struct Maker<'a> {
    kernel: &'a KernelImage,
    settings: &'a Settings,
    interrupts: &'a Interrupts,
}

impl<'a> Maker<'a> {
    /// Of a kernel's guests, whose folder is made; `interrupts` end them.
    ///
    /// # Errors
    /// If there cannot be that folder.
    pub(super) fn new(
        kernel: &'a KernelImage,
        settings: &'a Settings,
        interrupts: &'a Interrupts,
    ) -> Result<Self, Failure> {
        let folder = &settings.folder;
        fs::create_dir_all(folder).map_err(Failure::cannot_write(folder))?;
        Ok(Self { kernel, settings, interrupts })
    }

    /// The snapshot from the cache, or a new one, of a kernel that boots with these arguments before those of each guest; `say`
    /// announces what takes time.
    ///
    /// # Errors
    /// If the kernel does not boot, or nothing can be written.
    pub(super) fn base(&self, arguments: &str, say: &dyn Fn(&str)) -> Result<Base, Failure> {
        let key = self.key(arguments)?;
        let release = &self.kernel.release;
        let name = format!("{release}-{}", &key[..16]);
        let Some(cache) = cache() else {
            say(
                "no folder of the user's own for snapshots: set XDG_CACHE_HOME or HOME; this one is not kept",
            );
            return self.make(arguments, &self.settings.folder.join(name), &key);
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
        let made = self.make(arguments, &new.path().join("snapshot"), &key)?;
        match fs::rename(&made.folder, &folder) {
            Ok(()) => forget_oldest(&folder),
            // Another process was faster.
            Err(_) if Base::open(&folder, &key).is_some() => {}
            Err(error) => return Err(Failure::cannot_write(&folder)(error)),
        }
        Ok(Base { folder, ..made })
    }

    /// What a snapshot depends on.
    fn key(&self, arguments: &str) -> Result<String, Failure> {
        let program = guest_program(self.kernel.arch)?;
        // By its place and time: a QEMU's file takes long to read, and its package replaces it whole.
        let qemu = find_program(self.kernel.arch.qemu())
            .and_then(|path| Some((path.metadata().ok()?, path)))
            .map(|(facts, path)| format!("{} {} {}", path.display(), facts.len(), facts.mtime()));
        let cpu = self.kernel.arch.translated_cpu();
        let memory = &self.settings.options.memory;
        let words = [LAYOUT, memory, cpu, arguments, &qemu.unwrap_or_default()];
        cache::key(&[&program, &self.kernel.path], &words).map_err(|error| {
            let text = format!("cannot read the kernel or the guest's program: {error}");
            Failure::new(exit::CANNOT_MEASURE, text)
        })
    }

    fn make(&self, arguments: &str, folder: &Path, key: &str) -> Result<Base, Failure> {
        fs::create_dir_all(folder).map_err(Failure::cannot_write(folder))?;
        let Settings { options, folder: scratch, .. } = self.settings;
        let machine_folder = scratch.join("base");
        let initramfs = self.initramfs(&machine_folder).map_err(Failure::cannot_write(folder))?;
        let kernel = self.kernel.unpacked_in_memory().unwrap_or_else(|| self.kernel.path.clone());
        let begun = Instant::now();
        let start = Start::Boot { kernel: &kernel, initramfs: &initramfs, arguments };
        let spec =
            Spec::counted(self.kernel.arch, &options.memory, start, &machine_folder, BOOT_LIMIT);
        let spec = Spec { saved_to: Some(folder), ..spec };
        let failed = |error: MachineError| {
            let at = format!("Linux {}", self.kernel.release);
            error.into_failure(&at, None, &machine_folder)
        };
        let mut machine = Machine::start(spec, self.interrupts).map_err(failed)?;
        let (host, symbols) = machine.booted().map_err(failed)?;
        let boot_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
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
        let functions = functions_of(&symbols) + &vectors;
        // Functions, too: those that say what a kprobe is.
        let data = hooks::needed(&symbols);
        for (name, bytes) in
            [(SYMBOLS, functions.as_bytes()), (DATA, data.as_bytes()), (TYPES, types.as_slice())]
        {
            fs::write(folder.join(name), bytes).map_err(Failure::cannot_write(folder))?;
        }
        let state = machine::checksum(folder).map_err(Failure::cannot_write(folder))?;
        let facts = Facts { key: key.to_owned(), host: *host, boot_ms, state };
        let text =
            serde_json::to_vec(&facts).map_err(|it| Failure::cannot_write(folder)(it.into()))?;
        fs::write(folder.join(FACTS), text).map_err(Failure::cannot_write(folder))?;
        Ok(Base { folder: folder.to_owned(), facts })
    }

    /// Writes the guest's files.
    pub(super) fn initramfs(&self, folder: &Path) -> io::Result<PathBuf> {
        fs::create_dir_all(folder)?;
        let path = folder.join("initramfs");
        let mut to = BufWriter::new(File::create(&path)?);
        let program =
            guest_program(self.kernel.arch).map_err(|failure| io::Error::other(failure.message))?;
        initramfs::write(&program, self.kernel.arch, &mut to)?;
        to.flush()?;
        Ok(path)
    }
}

/// The program that a guest runs: this one, or for another architecture that of its name beside it or in the user's cache.
fn guest_program(arch: Arch) -> Result<PathBuf, Failure> {
    if arch == Arch::HERE {
        return Ok(PathBuf::from("/proc/self/exe"));
    }
    let name = format!("profiler-{}", arch.name());
    let this = std::env::current_exe().unwrap_or_default();
    let beside = this
        .parent()
        .map(|folder| [folder.join(&name), folder.join("../lib/profiler").join(&name)]);
    let kept = user_cache().map(|cache| cache.join("guests").join(&name));
    let mut places = beside.into_iter().flatten().chain(kept);
    places.find(|path| path.is_file()).ok_or_else(|| {
        let text = format!(
            "no {name}, the program that runs in a guest of that architecture, beside {} or in the user's cache: \
             `cargo xtask guest` builds it",
            this.display()
        );
        Failure::new(exit::CANNOT_MEASURE, text)
    })
}

/// The lines of `/proc/kallsyms` that name functions of the kernel: all other symbols are of no use to the plugin.
fn functions_of(symbols: &str) -> String {
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
    /// Its folder.
    pub folder: PathBuf,
    /// The kernel's release.
    pub release: String,
    /// How long its boot took, if it says so.
    pub boot: Option<Duration>,
    /// When it was used last.
    used: SystemTime,
}

/// All snapshots in the cache, those used longest ago first.
pub fn kept() -> Vec<Kept> {
    let entries = cache().map(fs::read_dir).into_iter().flatten().flatten().flatten();
    let kept = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let (release, _) = name.rsplit_once('-')?;
        let file = entry.path().join(FACTS);
        let used = fs::metadata(&file).ok()?.modified().ok()?;
        let facts = fs::read(file).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let boot = facts.map(|facts: Facts| Duration::from_millis(facts.boot_ms));
        Some(Kept { folder: entry.path(), release: release.to_owned(), boot, used })
    });
    let mut kept: Vec<Kept> = kept.collect();
    kept.sort_by_key(|kept| kept.used);
    kept
}

fn forget_oldest(new: &Path) {
    let kept = kept();
    for old in &kept[..kept.len().saturating_sub(MOST)] {
        if old.folder != new {
            // There is one too many until the next time.
            let _ = fs::remove_dir_all(&old.folder);
        }
    }
}
