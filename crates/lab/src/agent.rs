//! A program that the guest runs: it attaches BPF programs, or opens the device of a driver that hooks the kernel only then.
//!
//! It may come from a change that nobody has reviewed: nothing of it runs on the host, and of the files that it names only libraries
//! and loaders in the system's folders are read.

use std::error::Error;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::Arc;

use object::LittleEndian;
use object::elf::DT_NEEDED;
use object::read::elf::{ElfFile64, ProgramHeader as _};
use sha2::{Digest as _, Sha256};

use profiler_base::error::{Failure, exit};
use profiler_system::find_program;

use super::installs::Installs;
use super::wire;

/// Largest size of all its files: the guest holds them in memory twice while it reads them.
const MOST_BYTES: u64 = 128 << 20;

/// Bytes of a loader's path and of a library's name, and libraries of a file, at most: it may name one of a megabyte a million times.
const MOST_PATH: usize = libc::PATH_MAX as usize;
const MOST_NAME: usize = 255;
const MOST_LIBRARIES: usize = 1000;

/// Where libraries and loaders are: those of Debian's and of other systems.
const FOLDERS: [&str; 8] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
];

/// Most bytes of a kernel's arguments: the kernel takes 2,048 (`COMMAND_LINE_SIZE` of x86 and arm64), and the guest has others.
const MOST_ARGUMENTS: usize = 1000;

/// A program with its arguments, and the files that it needs.
#[derive(Clone, PartialEq, Eq)]
pub struct Agent {
    /// What it installs.
    pub(super) installs: Installs,
    /// How it was given, behind its kind.
    pub(super) command: String,
    /// The program's path and its arguments.
    arguments: Vec<String>,
    /// The program, what else was named, and libraries; shared by copies of this.
    files: Arc<Vec<AgentFile>>,
    /// SHA-256 of the files with their paths and modes, in hexadecimal.
    checksum: String,
}

/// A file as it was read: it may change while builds are measured.
#[derive(PartialEq, Eq)]
pub(super) struct AgentFile {
    pub(super) path: String,
    mode: u32,
    pub(super) bytes: Vec<u8>,
}

/// What it depends on: what it installs, its words, and the checksum of its files.
impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?} {}", self.installs, self.arguments, self.checksum)
    }
}

impl Agent {
    /// The program of `command`, which is split as a shell would, with its libraries and these `further` files.
    ///
    /// # Errors
    /// If there is no such program, it is a script, or a file cannot be read.
    pub fn new(command: &str, further: &[PathBuf]) -> Result<Self, Failure> {
        let arguments = shlex::split(command).ok_or_else(|| "a quote is not closed".to_owned());
        arguments
            .and_then(|mut arguments| {
                let files = Files::of_program(&mut arguments, further)?;
                Ok(Self::with(Installs::BpfPrograms, command, arguments, files))
            })
            .map_err(|why| Failure::new(exit::USAGE, format!("cannot run `{command}`: {why}")))
    }

    fn with(installs: Installs, command: &str, arguments: Vec<String>, files: Files) -> Self {
        let Files(files) = files;
        let mut hash = Sha256::new();
        for file in &files {
            hash.update(format!("{:?} {:o} ", file.path, file.mode));
            hash.update(Sha256::digest(&file.bytes));
        }
        let checksum = format!("{:x}", hash.finalize());
        let command = command.to_owned();
        Self { installs, command, arguments, files: Arc::new(files), checksum }
    }

    /// The agent of a subject such as `run: COMMAND`, which needs these `further` files; `None` if it is a module's file.
    ///
    /// # Errors
    /// If there is no such program, or a file cannot be read.
    #[must_use]
    pub fn given(given: &str, further: &[PathBuf]) -> Option<Result<Self, Failure>> {
        let (installs, rest) = Installs::given(given)?;
        let made = match installs {
            Installs::BpfPrograms => return Some(Self::new(rest, further)),
            Installs::BpfObject => Self::of_bpf_object(rest, further),
            Installs::AuditRules => Self::of_audit_rules(rest, further),
            Installs::KernelArguments => Self::of_kernel_arguments(rest),
        };
        let prefix = installs.as_ref();
        let failed = |why| Failure::new(exit::USAGE, format!("{prefix} {rest}: {why}"));
        Some(made.map_err(failed))
    }

    /// auditctl(8), which loads a file of rules; these watch `further` files.
    fn of_audit_rules(rules: &str, further: &[PathBuf]) -> Result<Self, Box<dyn Error>> {
        if find_program("auditctl").is_none() {
            let text = "it takes `auditctl`, which is not there: install auditd (RHEL: audit)";
            return Err(text.into());
        }
        let absolute = std::path::absolute(rules)?;
        let mut words = ["auditctl", "-R", &absolute.to_string_lossy()].map(str::to_owned).to_vec();
        let further = [slice::from_ref(&absolute), further].concat();
        let mut files = Files::of_program(&mut words, &further)?;
        // The program is the first.
        if let Some(rules) = files.0.get_mut(1) {
            rules.bytes = without_state(&rules.bytes);
        }
        Ok(Self::with(Installs::AuditRules, rules, words, files))
    }

    /// A file with BPF programs, which the guest loads itself.
    fn of_bpf_object(object: &str, further: &[PathBuf]) -> Result<Self, Box<dyn Error>> {
        let mut files = Files::default();
        files.add(Path::new(object), libc::O_NOFOLLOW)?;
        files.add_further(further)?;
        let arguments = vec![files.0[0].path.clone()];
        Ok(Self::with(Installs::BpfObject, object, arguments, files))
    }

    /// Arguments that the kernel boots with, before those of each guest.
    fn of_kernel_arguments(arguments: &str) -> Result<Self, Box<dyn Error>> {
        let is_text = arguments.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
        let is_whole = arguments.matches('"').count().is_multiple_of(2)
            && arguments.split(' ').all(|word| word != "--");
        if !(1..=MOST_ARGUMENTS).contains(&arguments.len()) || !is_text || !is_whole {
            let text = "a kernel takes 1 to 1,000 characters of ASCII, with each quote closed, and without --";
            return Err(text.into());
        }
        let words = vec![arguments.to_owned()];
        Ok(Self::with(Installs::KernelArguments, arguments, words, Files::default()))
    }

    /// The arguments that the kernel boots with, if it is that.
    pub(super) fn kernel_arguments(&self) -> Option<&str> {
        (self.installs == Installs::KernelArguments).then_some(&*self.command)
    }

    /// A checksum of its arguments and files, in hexadecimal: what a build id is for a module.
    pub(super) fn id(&self) -> String {
        format!("{:.40x}", Sha256::digest(format!("{self:?}")))
    }

    /// Its program and arguments as they were given, and the beginning of the checksum of its files, if it has some.
    #[must_use]
    pub fn words(&self) -> String {
        match self.kernel_arguments() {
            Some(_) => self.to_string(),
            None => format!("{} ({})", self.command, &self.checksum[..12]),
        }
    }

    /// Appends its files to `bytes`; gives what the guest is to do with them.
    pub(super) fn pack(&self, bytes: &mut Vec<u8>) -> wire::Agent {
        let mut files = Vec::new();
        for file in self.files.iter() {
            let place = [bytes.len() as u64, file.bytes.len() as u64];
            bytes.extend(&file.bytes);
            files.push(wire::AgentFile { path: file.path.clone(), mode: file.mode, bytes: place });
        }
        wire::Agent { arguments: self.arguments.clone(), files, installs: self.installs }
    }
}

/// Audit rules with an empty line in place of each that turns audit on or off, or locks it (`-e`), or says what a record that is lost
/// does (`-f`), which may be a panic: the guest turns audit on itself, and nobody takes its records.
fn without_state(rules: &[u8]) -> Vec<u8> {
    let lines = rules.split_inclusive(|byte| *byte == b'\n');
    let kept = lines.flat_map(|line| match line.trim_ascii_start() {
        [b'-', b'e' | b'f', ..] => b"\n",
        _ => line,
    });
    kept.copied().collect()
}

/// As it was given.
impl fmt::Display for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.installs.as_ref(), self.command)
    }
}

/// A program, and behind it its shared libraries and their loader; a static program is alone.
///
/// # Errors
/// If one of them cannot be read.
pub(super) fn with_libraries(program: &Path) -> Result<Vec<AgentFile>, String> {
    let mut files = Files::default();
    files.add(program, 0)?;
    files.add_libraries()?;
    Ok(files.0)
}

/// Files that are being read, the program first.
#[derive(Default)]
struct Files(Vec<AgentFile>);

impl Files {
    /// Those of the program that is the first word, whose place of that gets its path, and these.
    fn of_program(words: &mut [String], further: &[PathBuf]) -> Result<Self, String> {
        let name = words.first_mut().ok_or("it names no program")?;
        let program = find_program(name).ok_or_else(|| format!("there is no program {name}"))?;
        let mut files = Self::default();
        files.add(&program, 0)?;
        files.add_further(further)?;
        files.add_libraries()?;
        name.clone_from(&files.0[0].path);
        Ok(files)
    }

    /// A link of a checkout may lead to a key of this user.
    fn add_further(&mut self, files: &[PathBuf]) -> Result<(), String> {
        files.iter().try_for_each(|file| self.add(file, libc::O_NOFOLLOW))
    }

    fn add(&mut self, path: &Path, flags: i32) -> Result<(), String> {
        let known: u64 = self.0.iter().map(|file| file.bytes.len() as u64).sum();
        let file = read(path, flags, MOST_BYTES - known);
        self.0.push(file.map_err(|error| format!("{}: {error}", path.display()))?);
        Ok(())
    }

    /// Adds what the program is linked with, and what that is. Loaders of this machine would find it, and run what a program has
    /// for them to audit it: ld.so(8).
    fn add_libraries(&mut self) -> Result<(), String> {
        let (named, mut number) = (self.0.len(), 0);
        while let Some(file) = self.0.get(number) {
            let path = file.path.clone();
            let Linked { machine, loader, libraries } = match linked(&file.bytes) {
                // A file that is named beside the program may be anything.
                Err(_) if (1..named).contains(&number) => Default::default(),
                linked => linked.map_err(|why| format!("{path}: {why}"))?,
            };
            if let Some(loader) = loader {
                if !is_of_system(&loader) {
                    return Err(format!("{path}: {loader} is not a loader of this system"));
                }
                self.add_new(Path::new(&loader))?;
            }
            for name in libraries {
                let folders = FOLDERS.join(", ");
                let found = library(&name, machine).ok_or_else(|| {
                    format!("{path} needs {name}, which none of {folders} has: link it statically")
                })?;
                self.add_new(&found)?;
            }
            number += 1;
        }
        Ok(())
    }

    fn add_new(&mut self, path: &Path) -> Result<(), String> {
        let is_here = self.0.iter().any(|file| Path::new(&file.path) == path);
        if is_here { Ok(()) } else { self.add(path, 0) }
    }
}

/// Rights that a file keeps in the guest, where root alone writes: auditctl refuses rules that all may write to, which a checkout
/// under a umask of 0 makes of each file.
const KEPT_RIGHTS: u32 = 0o755;

/// A file as it is now, without waiting for one that is no file.
fn read(path: &Path, flags: i32, most: u64) -> io::Result<AgentFile> {
    let file = OpenOptions::new().read(true).custom_flags(flags | libc::O_NONBLOCK).open(path);
    let file: File = file.map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => io::Error::other("is a link: name the file that it leads to"),
        _ => error,
    })?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("is no file; name each file of a folder"));
    }
    let mut bytes = Vec::new();
    if file.take(most + 1).read_to_end(&mut bytes)? as u64 > most {
        let text = format!("all files have more than {} MiB", MOST_BYTES >> 20);
        return Err(io::Error::other(text));
    }
    let path = std::path::absolute(path)?;
    let path = path.to_str().ok_or_else(|| io::Error::other("the path is not UTF-8"))?.to_owned();
    Ok(AgentFile { path, mode: metadata.permissions().mode() & KEPT_RIGHTS, bytes })
}

/// What an ELF file is linked with.
#[derive(Default)]
struct Linked {
    /// The machine that it is for, as its header has it.
    machine: u16,
    loader: Option<String>,
    libraries: Vec<String>,
}

fn linked(bytes: &[u8]) -> Result<Linked, String> {
    if bytes.starts_with(b"#!") {
        let text = "is a script: name its interpreter, and give the script by --agent-file";
        return Err(text.to_owned());
    }
    parsed(bytes).map_err(|error| format!("is no ELF program for x86-64: {error}"))
}

fn parsed(bytes: &[u8]) -> Result<Linked, Box<dyn Error>> {
    let file = ElfFile64::<LittleEndian>::parse(bytes)?;
    let machine = file.elf_header().e_machine.get(LittleEndian);
    let mut linked = Linked { machine, ..Linked::default() };
    for segment in file.elf_program_headers() {
        if let Some(path) = segment.interpreter(LittleEndian, bytes)? {
            // The kernel takes the first.
            linked.loader = Some(text(path, MOST_PATH)?);
            break;
        }
    }
    let table = file.elf_dynamic_table()?;
    for entry in table.iter().filter(|entry| entry.tag == DT_NEEDED) {
        if linked.libraries.len() == MOST_LIBRARIES {
            return Err(format!("it needs more than {MOST_LIBRARIES} libraries").into());
        }
        linked.libraries.push(text(table.string(entry)?, MOST_NAME)?);
    }
    Ok(linked)
}

/// A name in a file, of so many bytes at most.
fn text(bytes: &[u8], most: usize) -> Result<String, String> {
    match bytes.len() > most {
        true => Err(format!("it names what has more than {most} bytes")),
        false => Ok(String::from_utf8_lossy(bytes).into_owned()),
    }
}

/// A library for this machine by its name, in the system's folders, which may have those of another architecture, too.
fn library(name: &str, machine: u16) -> Option<PathBuf> {
    let is_name = !name.is_empty() && !name.contains('/');
    let mut places = FOLDERS.iter().map(|folder| Path::new(folder).join(name));
    places.find(|path| is_name && path.is_file() && machine_of(path) == Some(machine))
}

/// The machine that an ELF file is for, by the beginning of its header.
fn machine_of(file: &Path) -> Option<u16> {
    let mut header = [0; 20];
    File::open(file).ok()?.read_exact(&mut header).ok()?;
    let [.., low, high] = header;
    Some(u16::from_le_bytes([low, high]))
}

/// Whether a file is directly in one of the system's folders.
fn is_of_system(path: &str) -> bool {
    FOLDERS.iter().any(|folder| Path::new(path).parent() == Some(Path::new(folder)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_subject_is_told_by_its_kind_or_its_name() {
        let kind = Installs::given;
        assert_eq!(kind("run: ./a x.bpf.o"), Some((Installs::BpfPrograms, "./a x.bpf.o")));
        assert_eq!(kind("/b/x.bpf.o"), Some((Installs::BpfObject, "/b/x.bpf.o")));
        assert_eq!(kind("bpf:x y.o"), Some((Installs::BpfObject, "x y.o")));
        assert!(kind("./a x.bpf.o").is_none() && kind("d.ko").is_none());
        let arguments = |given| Agent::given(given, &[]).unwrap();
        let lsm = arguments("kernel: lsm=yama quiet").unwrap();
        assert_eq!(lsm.kernel_arguments(), Some("lsm=yama quiet"));
        for bad in ["kernel:", "kernel: a -- b", "kernel: a\nb", "kernel: dyndbg=\"a"] {
            assert_eq!(arguments(bad).unwrap_err().code, exit::USAGE, "{bad}");
        }
        let file = tempfile::Builder::new().prefix("a b").suffix(".bpf.o").tempfile().unwrap();
        let path = file.path().to_str().unwrap();
        assert_eq!(
            kind(path),
            Some((Installs::BpfObject, path)),
            "a file with a space in its name"
        );
        // The same program and files are another subject where they install something else.
        let [run, audit] = [Installs::BpfPrograms, Installs::AuditRules]
            .map(|installs| Agent::with(installs, "a", vec!["a".to_owned()], Files::default()));
        assert_ne!((run.id(), format!("{run:?}")), (audit.id(), format!("{audit:?}")));
        assert_ne!(run.id(), audit.id());
    }

    #[test]
    fn audit_rules_leave_the_state_of_audit_to_the_guest() {
        let rules = b"-D\n-f 2\n-a always,exit -F arch=b64 -S all\n\t-e2\n-b 64\n-e 2";
        let expected = b"-D\n\n-a always,exit -F arch=b64 -S all\n\n-b 64\n\n";
        assert_eq!(without_state(rules), expected);
    }

    #[test]
    fn a_program_brings_its_libraries() {
        let agent = Agent::new("sh -c 'exit 3'", &["Cargo.toml".into()]).unwrap();
        assert!(agent.arguments[0].starts_with('/') && agent.arguments[0].ends_with("/sh"));
        assert_eq!(agent.arguments[1..], ["-c", "exit 3"]);
        assert!(agent.words().starts_with("sh -c 'exit 3' ("));
        let has = |end: &str| agent.files.iter().any(|file| Path::new(&file.path).ends_with(end));
        assert!(has("libc.so.6") && has("ld-linux-x86-64.so.2") && has("Cargo.toml"), "{agent:?}");
        let mut bytes = vec![7; 10];
        let packed = agent.pack(&mut bytes);
        let [at, size] = packed.files[1].bytes.map(|number| number as usize);
        assert_eq!(bytes[at..at + size], *fs::read("Cargo.toml").unwrap());
        assert_eq!(packed.files[0].mode & 0o500, 0o500);
        let other = Agent::new("sh -c 'exit 3'", &["build.rs".into()]).unwrap();
        assert_ne!(agent.words(), other.words(), "its files count");
        assert!(library("libc.so.6", object::elf::EM_X86_64).is_some());
        assert_eq!(library("libc.so.6", object::elf::EM_386), None, "of another machine");
    }

    #[test]
    fn what_cannot_be_started_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let program = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            fs::write(&path, bytes).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            path.display().to_string()
        };
        let mut other = fs::read("/bin/true").unwrap();
        let at = other.windows(7).position(|part| part == b"/lib64/").unwrap();
        other[at + 1..at + 4].copy_from_slice(b"tmp");
        let mut library = fs::read("/bin/bash").unwrap();
        let at = library.windows(9).position(|part| part == b"libc.so.6").unwrap();
        library[at..at + MOST_NAME + 1].fill(b'x');
        // A header, and one of a loader's path behind it.
        let mut loader = b"\x7fELF\x02\x01\x01".to_vec();
        loader.resize(120 + MOST_PATH + 1, b'x');
        loader[7..120].fill(0);
        for (at, value) in [(20, 1), (32, 64), (54, 56), (56, 1), (64, 3), (72, 120)] {
            loader[at] = value;
        }
        loader[96..104].copy_from_slice(&(MOST_PATH as u64 + 2).to_le_bytes());
        loader.push(0);
        for (command, why) in [
            ("'", "quote"),
            ("", "names no program"),
            ("/no/such", "there is no program /no/such"),
            (&program("script", b"#!/bin/sh\n"), "is a script"),
            (&program("other", &other), "not a loader of this system"),
            (&program("text", b"text"), "is no ELF program"),
            (&program("library", &library), "it names what has more than 255 bytes"),
            (&program("loader", &loader), "it names what has more than 4096 bytes"),
        ] {
            let failure = Agent::new(command, &[]).unwrap_err();
            assert_eq!(failure.code, exit::USAGE);
            assert!(failure.message.contains(why), "{command}: {failure}");
        }
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/etc/passwd", &link).unwrap();
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for (file, why) in
            [(folder.path().to_owned(), "is no file"), (link, "is a link"), (pipe, "is no file")]
        {
            let failure = Agent::new("sh", &[file]).unwrap_err();
            assert!(failure.message.contains(why), "{failure}");
        }
    }
}
