//! A guest as the host sees it: QEMU's process, its jobs and answers, its snapshots.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Display;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use command_fds::{CommandFdExt as _, FdMapping};
use serde_json::{Value, json};

use profiler_base::error::{Failure, exit};
use profiler_base::text::last_lines;
use profiler_kernel::hooks::{Hooks, Reader};
use profiler_kernel::host::HostFacts;
use profiler_kernel::names::Names;
use profiler_load::dying_with_parent;
use profiler_system::{caught_signal, search_path};
use profiler_vm::{Accel, Arch, KernelImage, Trouble, is_trouble};

use super::initramfs::{self, guest_program};
use super::pages::Pages;
use super::qmp::Qmp;
use super::wire::{Answer, FILES, HEADER, Header, JOBS, Job, MAGIC, MAX_ANSWER, REPORT_LINES};
use super::{memory, vectors};

/// Descriptors that QEMU has its control socket and the state of a snapshot on.
const CONTROL: i32 = 3;
const STATE: i32 = 4;

/// Bytes of the console that are kept: what a guest prints before these is forgotten.
const CONSOLE_BYTES: u64 = 1 << 20;

/// Characters of a text of the guest's that an error quotes, or of a line of the kernel's.
const MOST_TEXT: usize = 16 << 10;

/// Files of a snapshot: the guest's memory, which a restored machine maps, and the state of all else.
pub(super) const MEMORY_FILE: &str = "memory";
const STATE_FILE: &str = "state";

/// The console's text, in the folder of a machine, its jobs with their files, and what it boots from.
const CONSOLE: &str = "console.txt";
const JOBS_FILE: &str = "jobs";
const FILES_FILE: &str = "files";
const INITRAMFS: &str = "initramfs";

/// Bytes of a page of the guest's memory, those that are read at once, and the most pages that are read to find what a driver has
/// registered.
const PAGE: u64 = 4096;
const BLOCK: u64 = 64 * PAGE;
const MOST_PAGES: usize = 1 << 15;

/// Kernel arguments of each guest, beside those of [`REPEATABLE`]. A kernel that breaks ends the machine.
const ALWAYS: &str = "quiet nokaslr no_timer_check oops=panic panic=-1";

/// Kernel arguments that make two guests run the same instructions.
const REPEATABLE: [&str; 5] = [
    // Programs and their stacks lie at the same addresses in every boot.
    "norandmaps",
    // The kernel's stack begins at the same place in every call.
    "randomize_kstack_offset=off",
    // The random numbers that seed hash tables come from QEMU's fixed seed.
    "random.trust_cpu=on",
    // No watchdog wakes up every few seconds.
    "nowatchdog",
    // khugepaged has nothing to do.
    "transparent_hugepage=never",
];

/// Where a machine begins.
#[derive(Debug, Clone, Copy)]
pub(super) enum Start<'a> {
    /// It boots the kernel, with arguments before those of each guest.
    Boot(&'a str),
    /// It continues from the snapshot in this folder.
    Restore(&'a Path),
}

/// A machine that is to be started.
pub(super) struct Spec<'a> {
    pub(super) kernel: &'a KernelImage,
    /// Memory, as QEMU takes it.
    pub(super) memory: &'a str,
    /// For the wall clock, what runs its instructions, and on how many CPUs. `None` is virtual time: a nanosecond an instruction, on
    /// one CPU, by QEMU's translator.
    pub(super) wall: Option<(Accel, u32)>,
    pub(super) start: Start<'a>,
    /// The folder that a snapshot of it is saved to.
    pub(super) saved_to: Option<&'a Path>,
    /// What the guest does.
    pub(super) jobs: &'a [Job],
    /// Files of these jobs, one behind the other.
    pub(super) files: &'a [u8],
    /// QEMU's argument for the plugin.
    pub(super) plugin: Option<String>,
    /// A folder for the machine's own files.
    pub(super) folder: &'a Path,
    /// When it has to have ended.
    pub(super) deadline: Instant,
}

impl<'a> Spec<'a> {
    /// A machine whose instructions can be counted, with no jobs, for `limit` at most.
    pub(super) fn counted(
        kernel: &'a KernelImage,
        memory: &'a str,
        start: Start<'a>,
        folder: &'a Path,
        limit: Duration,
    ) -> Self {
        Self {
            kernel,
            memory,
            wall: None,
            start,
            folder,
            deadline: Instant::now() + limit,
            saved_to: None,
            jobs: &[],
            files: &[],
            plugin: None,
        }
    }
}

/// A running machine; dropping it ends it.
pub(super) struct Machine {
    qemu: Qemu,
    qmp: Qmp,
    folder: PathBuf,
    /// When it has to have ended.
    pub(super) deadline: Instant,
    arch: Arch,
    /// How the kernel's memory is found, where QEMU reads a process's alone.
    pages: Option<Pages>,
}

/// What a fatal report of the kernel means.
const BROKE: &str = "the kernel broke";

/// Why a machine gave no answer.
#[derive(Debug)]
pub(super) enum MachineError {
    /// QEMU's program could not be started, or does not take what it is given.
    Unusable(String),
    /// A signal ended it, or the guest reports a failure.
    Failed(Failure),
    /// The kernel's report, and what it means.
    Trouble(Trouble, &'static str),
    /// Anything else: the kernel's messages may say more.
    Broken(String),
}

impl Machine {
    /// Starts QEMU. A guest that is restored is stopped until [`Self::next_answer`].
    pub(super) fn start(spec: Spec<'_>) -> Result<Self, MachineError> {
        let folder = spec.folder;
        fs::create_dir_all(folder).map_err(cannot_use(folder))?;
        let jobs = serde_json::to_vec(spec.jobs).map_err(|it| cannot_use(folder)(it.into()))?;
        // fw_cfg takes no empty file on some versions.
        let files = if spec.files.is_empty() { b"-" } else { spec.files };
        for (name, bytes) in [(JOBS_FILE, &*jobs), (FILES_FILE, files)] {
            fs::write(folder.join(name), bytes).map_err(cannot_use(folder))?;
        }
        let (ours, theirs) = UnixStream::pair().map_err(cannot_use(folder))?;
        let arch = spec.kernel.arch;
        let mut command = command(&spec);
        let mut descriptors =
            vec![FdMapping { parent_fd: OwnedFd::from(theirs), child_fd: CONTROL }];
        if let Start::Boot(_) = spec.start {
            let program = guest_program(arch).map_err(MachineError::Failed)?;
            let initramfs = folder.join(INITRAMFS);
            initramfs::write(&program, arch, &initramfs).map_err(cannot_use(folder))?;
        }
        if let Start::Restore(from) = spec.start {
            if let Some(to) = spec.saved_to {
                let copied = memory::copy(&from.join(MEMORY_FILE), &to.join(MEMORY_FILE));
                copied.map_err(|error| unwritable(to, &error))?;
            }
            let state = File::open(from.join(STATE_FILE)).map_err(cannot_use(folder))?;
            descriptors.push(FdMapping { parent_fd: OwnedFd::from(state), child_fd: STATE });
        }
        let mapped = command.fd_mappings(descriptors);
        mapped.map_err(|error| cannot_use(folder)(io::Error::other(error)))?;
        let errors = File::create(folder.join("qemu.txt")).map_err(cannot_use(folder))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
        dying_with_parent(&mut command);
        let child = command.spawn().map_err(|error| {
            MachineError::Unusable(format!(
                "cannot run {}: {error}: install package {} (Debian, Ubuntu) or qemu-kvm-core",
                arch.qemu(),
                arch.package()
            ))
        })?;
        // QEMU has its own copy of its descriptors; without ours the end of QEMU is the end of the socket.
        drop(command);
        let qemu = Qemu(child);
        let qmp = Qmp::begin(ours).map_err(|_| match caught_signal() {
            Some(signal) => MachineError::ended_by(signal),
            None => MachineError::Unusable(format!("QEMU does not start: {}", said(folder))),
        })?;
        // QEMU has read them, and they are large.
        for name in [FILES_FILE, INITRAMFS] {
            let _ = fs::remove_file(folder.join(name));
        }
        let (folder, deadline) = (folder.to_owned(), spec.deadline);
        let mut machine = Self { qemu, qmp, folder, deadline, arch, pages: None };
        if spec.saved_to.is_some() || matches!(spec.start, Start::Restore(_)) {
            // Memory lies in a file of its own and not in the state: QEMU's `qapi/migration.json`.
            let without = json!([{ "capability": "x-ignore-shared", "state": true }]);
            machine.execute("migrate-set-capabilities", &json!({ "capabilities": without }))?;
        }
        if let Start::Restore(_) = spec.start {
            machine.execute("migrate-incoming", &json!({ "uri": format!("fd:{STATE}") }))?;
            machine.wait("query-status", |status| status == "inmigrate")?;
        }
        Ok(machine)
    }

    fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value, MachineError> {
        self.qmp.execute(command, arguments, &[]).map_err(|error| self.broken(error))
    }

    /// Repeats a query while the status that it returns `is_pending`.
    fn wait(
        &mut self,
        query: &str,
        is_pending: impl Fn(&str) -> bool,
    ) -> Result<Value, MachineError> {
        loop {
            let state = self.execute(query, &json!({}))?;
            if !is_pending(state["status"].as_str().unwrap_or_default()) {
                return Ok(state);
            }
            if Instant::now() > self.deadline {
                return Err(self.broken(io::ErrorKind::TimedOut.into()));
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Lets a guest that has stopped go on until it answers, see [`Self::answer`].
    pub(super) fn next_answer<T>(
        &mut self,
        of: impl FnOnce(Answer) -> Option<T>,
    ) -> Result<(T, Vec<u8>), MachineError> {
        self.execute("cont", &json!({}))?;
        self.answer(of)
    }

    /// Waits for the answer of a guest that runs; gives what is `of` interest in it, and what is attached.
    fn answer<T>(
        &mut self,
        of: impl FnOnce(Answer) -> Option<T>,
    ) -> Result<(T, Vec<u8>), MachineError> {
        let mut died = false;
        loop {
            let event = self.qmp.event(self.deadline);
            match event.map_err(|error| self.broken(error))?.as_str() {
                "STOP" if died => return Err(self.broken(io::ErrorKind::UnexpectedEof.into())),
                "STOP" => break,
                "SHUTDOWN" | "RESET" => died = true,
                _ => {}
            }
        }
        if let Some(trouble) = self.trouble() {
            return Err(MachineError::Trouble(trouble, BROKE));
        }
        let header = self.memory([HEADER, size_of::<Header>() as u64])?;
        let words = header.as_chunks().0.iter().copied().map(u64::from_le_bytes);
        let [MAGIC, text, text_bytes, attached, attached_bytes] = Vec::from_iter(words)[..] else {
            let text = "the guest stopped without an answer".to_owned();
            return Err(MachineError::Broken(text));
        };
        let text = self.memory([text, text_bytes])?;
        let attachment = self.memory([attached, attached_bytes])?;
        match answer_of(&text) {
            Ok(Answer::Failed(Failure { code, message })) => {
                Err(MachineError::Failed(Failure { code: of_guest(code), message }))
            }
            Ok(Answer::Warned(lines)) => {
                Err(MachineError::Trouble(Trouble { lines }, "the kernel reports a fault"))
            }
            Ok(answer) => match of(answer) {
                Some(found) => Ok((found, attachment)),
                None => Err(MachineError::Broken("the guest answered another question".to_owned())),
            },
            Err(error) => {
                Err(MachineError::Broken(format!("the guest's answer is damaged: {error}")))
            }
        }
    }

    /// Waits for a guest that boots; returns its facts, and the kernel's symbols.
    pub(super) fn booted(&mut self) -> Result<(Box<HostFacts>, Vec<u8>), MachineError> {
        self.answer(Answer::try_as_booted)
    }

    /// Bytes of the guest's memory as its first process and the kernel see it; the guest is stopped.
    pub(super) fn memory(&mut self, [address, bytes]: [u64; 2]) -> Result<Vec<u8>, MachineError> {
        if bytes == 0 {
            return Ok(Vec::new());
        }
        if bytes > MAX_ANSWER {
            let text =
                format!("the guest's answer has {bytes} bytes, and {MAX_ANSWER} are the most");
            return Err(MachineError::Broken(text));
        }
        self.peek(address, bytes).map_err(|error| self.broken(error))
    }

    /// Where the stopped guest's CPU goes by each vector, as lines of a request to the plugin; none on arm64.
    pub(super) fn vectors(&mut self) -> Result<String, MachineError> {
        if self.arch != Arch::X86_64 {
            return Ok(String::new());
        }
        let asked = json!({ "command-line": "info registers" });
        let registers = self.execute("human-monitor-command", &asked)?;
        // Without them interrupts would be counted as calls.
        let missing = || {
            MachineError::Broken("the CPU's table of interrupt vectors cannot be read".to_owned())
        };
        let table = vectors::table(registers.as_str().unwrap_or_default()).ok_or_else(missing)?;
        let lines = vectors::lines(&self.memory(table)?);
        if lines.is_empty() { Err(missing()) } else { Ok(lines) }
    }

    /// Finds the kernel's page tables by its symbols: memory of arm64's kernel is read through them.
    pub(super) fn find_kernel(&mut self, symbols: &[&str]) {
        if self.arch == Arch::Arm64 && self.pages.is_none() {
            self.pages = Pages::of(&symbols.concat());
        }
    }

    /// Bytes at an address; those of the kernel have to be in one piece.
    fn peek(&mut self, address: u64, bytes: u64) -> io::Result<Vec<u8>> {
        // Between the halves of x86-64 there is nothing.
        if self.arch == Arch::X86_64 && (1 << 47..0xffff_8000_0000_0000).contains(&address) {
            return Err(io::Error::other(format!("no address: {address:#x}")));
        }
        let Some(pages) = self.pages.filter(|_| address >> 63 == 1) else {
            return self.read("memsave", address, bytes);
        };
        match pages.physical(address, |at| self.read("pmemsave", at, 8))? {
            Some(place) => self.read("pmemsave", place, bytes),
            None => Err(io::Error::other(format!("no memory at {address:#x}"))),
        }
    }

    /// Bytes by one of QEMU's commands.
    fn read(&mut self, command: &str, address: u64, bytes: u64) -> io::Result<Vec<u8>> {
        let file = self.folder.join("memory");
        // QEMU's integers have a sign, and the kernel's half of the addresses is the upper one.
        let place = json!({ "val": address.cast_signed(), "size": bytes, "filename": file });
        self.qmp.execute(command, &place, &[])?;
        let read = fs::read(&file);
        let _ = fs::remove_file(&file);
        read.map_err(|error| io::Error::other(format!("cannot read {}: {error}", file.display())))
    }

    /// What the driver `module` has registered in the stopped guest; `modules` has the symbols of modules, of which `kernel` has
    /// functions and data.
    pub(super) fn hooks(
        &mut self,
        reader: &Reader,
        module: &str,
        kernel: [&str; 2],
        modules: &str,
    ) -> Hooks {
        let [functions, data] = kernel;
        self.find_kernel(&[data, functions]);
        let names = Names::of(&[functions, modules]);
        let pages = RefCell::new((HashMap::new(), self));
        let symbols = [data, modules].concat();
        reader.hooks(module, &names, &symbols, &|at| word(&mut pages.borrow_mut(), at))
    }

    /// Writes what its memory's file lacks of a snapshot of the stopped guest; `to` is [`Spec::saved_to`], and the machine is of
    /// no more use.
    pub(super) fn save(&mut self, to: &Path) -> Result<(), MachineError> {
        let file = File::create_new(to.join(STATE_FILE)).map_err(|error| unwritable(to, &error))?;
        let given =
            self.qmp.execute("getfd", &json!({ "fdname": "snapshot" }), &[file.as_raw_fd()]);
        given.map_err(|error| self.broken(error))?;
        self.execute("migrate-set-parameters", &json!({ "max-bandwidth": 1_u64 << 40 }))?;
        self.execute("migrate", &json!({ "uri": "fd:snapshot" }))?;
        let ended = ["completed", "failed", "cancelled"];
        let state = self.wait("query-migrate", |status| !ended.contains(&status))?;
        if state["status"] == "completed" {
            return Ok(());
        }
        Err(unwritable(to, &state["error-desc"].as_str().unwrap_or("is the disk full?")))
    }

    /// What the kernel has printed last, which is kept for `--logs` and for errors, and the trouble in it.
    fn trouble(&mut self) -> Option<Trouble> {
        let read = json!({ "device": "console", "size": CONSOLE_BYTES });
        let text = self.qmp.execute("ringbuf-read", &read, &[]).unwrap_or_default();
        let text = text.as_str().unwrap_or_default();
        let _ = fs::write(self.folder.join(CONSOLE), text);
        Trouble::find(text.lines().map(str::trim_end), is_trouble)
    }

    fn broken(&mut self, error: io::Error) -> MachineError {
        if let Some(signal) = caught_signal() {
            return MachineError::ended_by(signal);
        }
        if let Some(trouble) = self.trouble() {
            return MachineError::Trouble(trouble, BROKE);
        }
        let what = match error.kind() {
            io::ErrorKind::TimedOut => "it did not end in time".to_owned(),
            // Writes to a page that its memory's file has no room for: mmap(2).
            io::ErrorKind::UnexpectedEof if self.qemu.end() == Some(libc::SIGBUS) => {
                "no room is left for the guest's memory: is the disk full?".to_owned()
            }
            io::ErrorKind::UnexpectedEof => "it ended before the job did".to_owned(),
            _ => error.to_string(),
        };
        let console = fs::read_to_string(self.folder.join(CONSOLE)).unwrap_or_default();
        let last = last_lines(&console, REPORT_LINES / 2);
        let text = [what, said(&self.folder), last].join("\n");
        MachineError::Broken(text.trim_end().to_owned())
    }
}

/// A guest's answer, the texts of which are cut to what an error may quote.
fn answer_of(text: &[u8]) -> serde_json::Result<Answer> {
    let mut answer = serde_json::from_slice(text)?;
    cut(&mut answer);
    serde_json::from_value(answer)
}

fn cut(value: &mut Value) {
    match value {
        Value::String(text) if text.len() > MOST_TEXT => {
            *text = text.chars().take(MOST_TEXT).collect();
        }
        Value::Array(values) => values.iter_mut().for_each(cut),
        Value::Object(members) => members.values_mut().for_each(cut),
        _ => {}
    }
}

/// A word of a guest's memory, by pages that were read before. A guest may have lists without end.
fn word(
    (pages, machine): &mut (HashMap<u64, Vec<u8>>, &mut Machine),
    address: u64,
) -> io::Result<u64> {
    let mut bytes = [0; 8];
    for (byte, address) in bytes.iter_mut().zip((0..8).map(|at| address.wrapping_add(at))) {
        let (page, at) = (address & !(PAGE - 1), (address & (PAGE - 1)) as usize);
        if !pages.contains_key(&page) {
            if pages.len() >= MOST_PAGES {
                return Err(io::Error::other("too much memory would have to be read"));
            }
            // Each command takes QEMU as long as a hundred pages; those of modules do not follow each other.
            // What page tables are followed for lies in one piece by the page.
            let size = if machine.pages.is_some() { PAGE } else { BLOCK };
            let block = page & !(size - 1);
            match machine.peek(block, size) {
                Ok(bytes) => pages.extend(
                    (block..)
                        .step_by(PAGE as usize)
                        .zip(bytes.chunks(PAGE as usize).map(Vec::from)),
                ),
                // One that is not there stays so: empty.
                Err(_) => drop(pages.insert(page, machine.peek(page, PAGE).unwrap_or_default())),
            }
        }
        let found = pages.get(&page).and_then(|page| page.get(at));
        *byte = *found.ok_or_else(|| io::Error::other(format!("no memory at {address:#x}")))?;
    }
    Ok(u64::from_le_bytes(bytes))
}

fn cannot_use(folder: &Path) -> impl Fn(io::Error) -> MachineError {
    move |error| MachineError::Broken(format!("cannot use {}: {error}", folder.display()))
}

fn unwritable(folder: &Path, why: &dyn Display) -> MachineError {
    MachineError::Broken(format!("cannot write the snapshot {}: {why}", folder.display()))
}

/// Of the bytes of a snapshot: finds what a disk has damaged.
pub(super) fn checksum(snapshot: &Path) -> io::Result<u32> {
    let mut crc = flate2::Crc::new();
    crc.update(&fs::read(snapshot.join(STATE_FILE))?);
    memory::checksum(&snapshot.join(MEMORY_FILE), &mut crc)?;
    Ok(crc.sum())
}

/// QEMU's process, which ends with it.
struct Qemu(Child);

impl Qemu {
    /// Ends it; gives the signal that did, if it has not ended by itself.
    fn end(&mut self) -> Option<i32> {
        // One that is about to end keeps its own signal.
        let _ = self.0.kill();
        self.0.wait().ok()?.signal()
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        self.end();
    }
}

/// What QEMU has printed.
fn said(folder: &Path) -> String {
    let text = fs::read(folder.join("qemu.txt")).unwrap_or_default();
    let text = String::from_utf8_lossy(&text[..text.len().min(4096)]).into_owned();
    text.trim().to_owned()
}

/// A comma in a value of QEMU's options is doubled.
pub(super) fn value(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

fn command(spec: &Spec<'_>) -> Command {
    let Spec { kernel, memory, wall, folder, .. } = *spec;
    let arch = kernel.arch;
    let mut command = Command::new(arch.qemu());
    command.env("PATH", search_path());
    command.args(["-nodefaults", "-no-user-config", "-display", "none"]);
    let cpus = wall.map_or(1, |(_, cpus)| cpus).to_string();
    command.args(["-m", memory, "-smp", &cpus]);
    // What is restored without being saved again is mapped privately.
    let mapped = match (spec.saved_to, spec.start) {
        (Some(to), _) => Some((to, "on")),
        (None, Start::Restore(from)) => Some((from, "off")),
        (None, Start::Boot(_)) => None,
    };
    let (mut machine, pause) = match arch {
        Arch::X86_64 => ("q35,smm=off".to_owned(), "pvpanic"),
        Arch::Arm64 => ("virt".to_owned(), "pvpanic-pci,addr=1f.0"),
    };
    if let Some((folder, shared)) = mapped {
        machine.push_str(",memory-backend=memory");
        // `-m` counts in MiB, and this in bytes, if nothing else is said.
        let unit = if memory.ends_with(|last: char| last.is_ascii_digit()) { "M" } else { "" };
        let file = value(&folder.join(MEMORY_FILE));
        command.arg("-object").arg(format!(
            "memory-backend-file,id=memory,size={memory}{unit},mem-path={file},share={shared}"
        ));
    }
    command.args(["-machine", &machine]);
    let is_hardware = wall.is_some_and(|(accel, _)| accel == Accel::Kvm);
    match is_hardware {
        true => command.args(["-accel", "kvm", "-cpu", "host"]),
        false => command.args(["-accel", "tcg", "-cpu", arch.translated_cpu()]),
    };
    if wall.is_none() {
        command.args(["-icount", "shift=0,sleep=off"]);
        // RDRAND gives the same numbers in every guest, and the date begins at the same second and runs on the guest's clock.
        command.args(["-seed", "1", "-rtc", "base=2026-01-01T00:00:00,clock=vm"]);
    }
    // A guest that stops by itself, in whatever way, stays to be looked at.
    command.args(["-action", "reboot=shutdown,shutdown=pause,panic=pause", "-device", pause]);
    command.arg("-chardev").arg(format!("ringbuf,id=console,size={CONSOLE_BYTES}"));
    command.args(["-serial", "chardev:console"]);
    command.arg("-chardev").arg(format!("socket,id=control,fd={CONTROL}"));
    command.args(["-mon", "chardev=control,mode=control"]);
    for (name, file) in [(JOBS, JOBS_FILE), (FILES, FILES_FILE)] {
        let file = value(&folder.join(file));
        command.arg("-fw_cfg").arg(format!("name={name},file={file}"));
    }
    if let Some(plugin) = &spec.plugin {
        command.args(["-plugin", plugin]);
    }
    match spec.start {
        Start::Boot(arguments) => {
            // QEMU's translator takes seconds to unpack it.
            let unpacked = if is_hardware { None } else { kernel.unpacked_in_memory() };
            command.arg("-kernel").arg(unpacked.as_ref().unwrap_or(&kernel.path));
            command.arg("-initrd").arg(folder.join(INITRAMFS));
            command.arg("-append").arg(kernel_command_line(arch, wall.is_none(), arguments));
        }
        Start::Restore(_) => {
            command.args(["-incoming", "defer"]);
        }
    }
    command
}

/// Of what is there twice the kernel takes the last: a guest's own words come behind the user's.
fn kernel_command_line(arch: Arch, is_repeatable: bool, arguments: &str) -> String {
    let console = match arch {
        // A kernel of one CPU keeps the `lock` prefixes that one of several has.
        Arch::X86_64 => "console=ttyS0 noreplace-smp",
        // The first process has the registers of fw_cfg, whatever driver has them, too.
        Arch::Arm64 => "console=ttyAMA0 iomem=relaxed",
    };
    let words = REPEATABLE.into_iter().filter(|_| is_repeatable);
    // The kernel gives the first process words that it does not know, but for those before its name, and what follows the dashes.
    let after = ["rdinit=/init", "--", super::guest::ARGUMENT];
    [arguments, console, ALWAYS].into_iter().chain(words).chain(after).collect::<Vec<_>>().join(" ")
}

/// Copies the console's text to a file that outlives the lab's `folder`, and says which.
fn kept(folder: &Path) -> String {
    let console = folder.join(CONSOLE);
    let file = tempfile::Builder::new().prefix("profiler-console-").suffix(".txt").tempfile();
    let copied = file.and_then(|file| {
        fs::write(&file, fs::read(&console)?)?;
        Ok(file.keep()?.1)
    });
    format!("the kernel's messages: {}", copied.unwrap_or(console).display())
}

impl MachineError {
    fn ended_by(signal: i32) -> Self {
        let code = u8::try_from(128 + signal).unwrap_or(exit::TERMINATED);
        Self::Failed(Failure::new(code, "ended by a signal"))
    }

    /// What it means to the user; `at` says for which build and run it was.
    pub(super) fn into_failure(self, at: &str, module: Option<&str>, folder: &Path) -> Failure {
        match self {
            Self::Unusable(text) => Failure::new(exit::CANNOT_MEASURE, of_plugin(&text)),
            Self::Failed(Failure { code, message }) => {
                Failure::new(code, format!("{at}: {message}"))
            }
            Self::Trouble(trouble, what) => {
                let who = match module.filter(|name| trouble.names_module(name)) {
                    Some(name) => format!("{what} in the driver {name}"),
                    None => what.to_owned(),
                };
                let report = trouble.lines[..trouble.lines.len().min(REPORT_LINES)].join("\n");
                let text = format!("{at}: {who}: {trouble}\n{report}\n{}", kept(folder));
                Failure::new(exit::LAB_FAILED, text)
            }
            Self::Broken(text) => {
                Failure::new(exit::LAB_FAILED, format!("{at}: {text}\n{}", kept(folder)))
            }
        }
    }
}

/// A guest's exit code, which a driver may have forged: only those of failures that happen there, never a verdict's.
fn of_guest(code: u8) -> u8 {
    use exit::{CANNOT_MEASURE, INTERNAL, LAB_FAILED, LOAD_FAILED, LOSSES, NO_HITS, NO_TARGET};
    match code {
        INTERNAL | CANNOT_MEASURE | NO_TARGET | LOAD_FAILED | NO_HITS | LOSSES => code,
        _ => LAB_FAILED,
    }
}

/// Names the remedy if QEMU cannot load the plugin: its `plugins/loader.c` and `qemu/plugin.h`.
fn of_plugin(text: &str) -> String {
    const SIGNS: [&str; 4] = [
        "plugin interface not enabled",
        "Could not load plugin",
        "-plugin: invalid option",
        "profiler-qemu: ",
    ];
    if !SIGNS.iter().any(|sign| text.contains(sign)) {
        return text.to_owned();
    }
    format!(
        "QEMU does not take the plugin that counts instructions: {text}\n\
         install a QEMU 7.2 or newer with plugins (--enable-plugins; qemu-system-x86 of Debian and Ubuntu has \
         them), or measure with --meter probes"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_load::{LoadFailure, LoadOutcome, LoadRun, LoadSpec, LoadStatus};

    #[test]
    fn no_word_that_a_kernel_does_not_know_is_for_the_first_process() {
        for arch in [Arch::X86_64, Arch::Arm64] {
            let line = kernel_command_line(arch, true, "lsm=yama quiet");
            assert!(
                line.contains(" nowatchdog ") && line.ends_with(" rdinit=/init -- __lab-guest"),
                "{line}"
            );
        }
    }

    #[test]
    fn a_failure_names_messages_that_outlive_the_lab() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(CONSOLE), "last words").unwrap();
        let failure =
            MachineError::Broken("gone".to_owned()).into_failure("boot 1", None, folder.path());
        drop(folder);
        let path = failure.message.rsplit("messages: ").next().unwrap();
        assert_eq!(fs::read_to_string(path).unwrap(), "last words");
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_failure_that_names_no_messages_leaves_none() {
        let folder = tempfile::tempdir().unwrap();
        let words = folder.path().display().to_string();
        fs::write(folder.path().join(CONSOLE), &words).unwrap();
        let guest = MachineError::Failed(Failure::new(exit::LOAD_FAILED, ""));
        for error in [MachineError::ended_by(2), guest] {
            let failure = error.into_failure("boot 1", None, folder.path());
            assert!(!failure.message.contains("messages"), "{failure}");
        }
        let left = |file: io::Result<fs::DirEntry>| {
            let path = file.unwrap().path();
            let is_copy = path.to_string_lossy().contains("profiler-console-");
            is_copy && fs::read_to_string(path).is_ok_and(|text| text == words)
        };
        assert!(!fs::read_dir(std::env::temp_dir()).unwrap().any(left));
    }

    #[test]
    fn texts_of_a_guest_are_cut() {
        let text = "ä".repeat(2 * MOST_TEXT);
        let guest = Failure::new(exit::LOAD_FAILED, text.clone());
        let status = LoadStatus::Failed(LoadFailure::BrokeOff { text: text.clone() });
        let outcome = LoadOutcome::ended(status, Instant::now());
        let run = LoadRun { spec: LoadSpec::Command { argv: Vec::new() }, outcome };
        let answers =
            [Answer::Failed(guest), Answer::Warned(vec![text]), Answer::Counted(vec![vec![run]])];
        for answer in answers {
            let answer = answer_of(&serde_json::to_vec(&answer).unwrap()).unwrap();
            assert_eq!(format!("{answer:?}").matches('ä').count(), MOST_TEXT);
        }
    }
}
