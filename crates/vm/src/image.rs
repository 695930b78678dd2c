//! A kernel's file: its release, its modules, and the BTF inside it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::prctl::get_dumpable;

use profiler_system::files::failed;

use crate::Arch;

#[cfg(feature = "fuzzing")]
pub mod fuzzing;

/// Where the setup header of a bzImage says what it is (Documentation/arch/x86/boot.rst).
mod header {
    pub(super) const SETUP_SECTS: usize = 0x1f1;
    pub(super) const MAGIC: usize = 0x202;
    pub(super) const VERSION: usize = 0x206;
    pub(super) const KERNEL_VERSION: usize = 0x20e;
    pub(super) const PAYLOAD_OFFSET: usize = 0x248;
    pub(super) const PAYLOAD_LENGTH: usize = 0x24c;
    /// The first version of the header that has the offset of the payload.
    pub(super) const HAS_PAYLOAD: u16 = 0x208;
}

fn cannot_unpack(path: &Path, what: &str) -> io::Error {
    io::Error::other(format!("cannot unpack the kernel {}: {what}", path.display()))
}

fn no_image(path: &Path) -> io::Error {
    io::Error::other(format!(
        "{} is not a compressed x86 kernel (bzImage of boot protocol 2.08 or newer) or an unpacked one of arm64 (Image): \
         give a vmlinuz",
        path.display()
    ))
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    fs::read(path).map_err(failed("read", path))
}

/// A kernel that can be booted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelImage {
    /// The file, as an absolute path.
    pub path: PathBuf,
    /// Its release, as `uname -r` prints it.
    pub release: String,
    /// What it runs on.
    pub arch: Arch,
}

impl KernelImage {
    /// The kernel in the file `path`.
    ///
    /// # Errors
    /// If it cannot be read, or is neither a bzImage nor an Image of arm64.
    pub fn open(path: &Path) -> io::Result<Self> {
        let absolute = fs::canonicalize(path).map_err(failed("read", path))?;
        // The version's text lies in the setup code, which is at most 255 sectors long.
        let mut head = Vec::new();
        let file = File::open(&absolute).map_err(failed("read", path))?;
        let most = 256 * 512 + 512;
        file.take(most).read_to_end(&mut head).map_err(failed("read", path))?;
        let (release, arch) = if is_arm64(&head) {
            (banner(&read(&absolute)?).map(str::to_owned), Arch::Arm64)
        } else {
            (release(&head), Arch::X86_64)
        };
        let release = release.ok_or_else(|| no_image(path))?;
        Ok(Self { path: absolute, release, arch })
    }

    /// The raw BTF of the kernel, for modules to build on; `None` if it was built without CONFIG_DEBUG_INFO_BTF. Takes a second or
    /// two, and the program that the kernel was compressed with (`xz`, `zstd` or `gzip`).
    ///
    /// # Errors
    /// If the kernel cannot be unpacked.
    pub fn btf(&self) -> io::Result<Option<Vec<u8>>> {
        Ok(largest_btf(&self.unpacked()?).map(<[u8]>::to_vec))
    }

    /// The file of a module of the kernel's package, unpacked.
    ///
    /// # Errors
    /// If the package's folder does not have it, or it cannot be read.
    pub fn module(&self, name: &str) -> io::Result<Vec<u8>> {
        let above = self.path.ancestors().nth(2).unwrap_or(Path::new("/"));
        let folders = [above, Path::new("/")]
            .map(|root| root.join("lib/modules").join(&self.release).join("modules.dep"));
        let path = folders.iter().find_map(|list| listed(list, name)).ok_or_else(|| {
            let list = folders[0].display();
            io::Error::other(format!("cannot read {list}: no module {name} there"))
        })?;
        let bytes = read(&path)?;
        if bytes.starts_with(b"\x7fELF") {
            return Ok(bytes);
        }
        unpack(&bytes).map(|(bytes, _)| bytes).map_err(|what| cannot_unpack(&path, &what))
    }

    /// The kernel without its compression: for x86 an ELF file.
    fn unpacked(&self) -> io::Result<Vec<u8>> {
        let image = read(&self.path)?;
        if self.arch == Arch::Arm64 {
            return Ok(image);
        }
        let payload = payload(&image).ok_or_else(|| no_image(&self.path))?;
        decompress(payload).map_err(|what| cannot_unpack(&self.path, &what))
    }

    /// The kernel for QEMU to boot without its decompressor, which takes seconds under a translator; `None` if this kernel or
    /// machine cannot do that. The path leads to memory of this process, which keeps the kernel: it takes half a second to
    /// unpack, and boots follow each other.
    pub fn unpacked_in_memory(&self) -> Option<PathBuf> {
        static UNPACKED: Mutex<BTreeMap<PathBuf, File>> = Mutex::new(BTreeMap::new());
        // Otherwise other processes may not open our files.
        if !get_dumpable().unwrap_or_default() {
            return None;
        }
        let mut unpacked = UNPACKED.lock().unwrap_or_else(PoisonError::into_inner);
        if !unpacked.contains_key(&self.path) {
            let vmlinux = self.unpacked().ok().filter(|vmlinux| has_pvh_entry(vmlinux))?;
            unpacked.insert(self.path.clone(), in_memory(&vmlinux).ok()?);
        }
        let descriptor = unpacked.get(&self.path)?.as_raw_fd();
        Some(PathBuf::from(format!("/proc/{}/fd/{descriptor}", std::process::id())))
    }
}

/// Whether QEMU finds where to start the kernel: a note of Xen's of the kind `XEN_ELFNOTE_PHYS32_ENTRY` with 8 bytes
/// (`xen/interface/elfnote.h`), with CONFIG_PVH=y.
fn has_pvh_entry(vmlinux: &[u8]) -> bool {
    memchr::memmem::find(vmlinux, b"\x04\0\0\0\x08\0\0\0\x12\0\0\0Xen\0").is_some()
}

/// Whether it begins as an Image of arm64: Documentation/arm64/booting.rst.
fn is_arm64(image: &[u8]) -> bool {
    image.get(0x38..0x3c) == Some(b"ARM\x64")
}

/// The kernel's own BTF in an image, which may have lost its sections: the largest, by the header of `struct btf_header`
/// (Documentation/bpf/btf.rst).
fn largest_btf(image: &[u8]) -> Option<&[u8]> {
    /// Magic, version 1, no flags, a header of 24 bytes.
    const HEADER: [u8; 8] = [0x9f, 0xeb, 1, 0, 24, 0, 0, 0];
    let starts = memchr::memmem::find_iter(image, &HEADER);
    let found = starts.filter_map(|start| {
        let strings = u32_at(image, start + 16)?.checked_add(u32_at(image, start + 20)?)?;
        image.get(start..start.checked_add(24 + strings)?)
    });
    found.max_by_key(|btf| btf.len())
}

/// The release in the version banner of an unpacked kernel: `linux_banner` of init/version.c.
pub fn banner(image: &[u8]) -> Option<&str> {
    const BEFORE: &[u8] = b"Linux version ";
    /// Bytes of a release, and the space after it: `__NEW_UTS_LEN` of linux/utsname.h.
    const MOST: usize = 65;
    memchr::memmem::find_iter(image, BEFORE).find_map(|at| {
        let text = &image[at + BEFORE.len()..];
        let end = text.iter().take(MOST).position(|byte| *byte == b' ')?;
        let release = std::str::from_utf8(&text[..end]).ok()?;
        let is_one = release.starts_with(|c: char| c.is_ascii_digit());
        (is_one && !release.contains(['/', '\n', '='])).then_some(release)
    })
}

fn u16_at(image: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(image.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(image: &[u8], at: usize) -> Option<usize> {
    let bytes = image.get(at..at + 4)?;
    usize::try_from(u32::from_le_bytes(bytes.try_into().ok()?)).ok()
}

/// The boot protocol's version, if it is new enough.
fn protocol(image: &[u8]) -> Option<u16> {
    if image.get(header::MAGIC..header::MAGIC + 4)? != b"HdrS" {
        return None;
    }
    u16_at(image, header::VERSION).filter(|version| *version >= header::HAS_PAYLOAD)
}

/// The first word of the version text: the release.
fn release(image: &[u8]) -> Option<String> {
    protocol(image)?;
    let text = match u16_at(image, header::KERNEL_VERSION)? {
        0 => return None,
        offset => image.get(usize::from(offset) + 512..)?,
    };
    let text = text.split(|byte| *byte == 0).next()?;
    let release = std::str::from_utf8(text).ok()?.split_whitespace().next()?;
    // It becomes a part of files' names.
    (!release.contains('/')).then(|| release.to_owned())
}

/// The compressed kernel in a bzImage.
fn payload(image: &[u8]) -> Option<&[u8]> {
    protocol(image)?;
    let sectors = match image.get(header::SETUP_SECTS)? {
        0 => 4,
        sectors => usize::from(*sectors),
    };
    let start = ((sectors + 1) * 512).checked_add(u32_at(image, header::PAYLOAD_OFFSET)?)?;
    image.get(start..start.checked_add(u32_at(image, header::PAYLOAD_LENGTH)?)?)
}

/// The file of a module in the list of a kernel's modules.
fn listed(list: &Path, name: &str) -> Option<PathBuf> {
    let name = name.replace('-', "_");
    let text = fs::read_to_string(list).ok()?;
    let mut paths = text.lines().filter_map(|line| line.split(':').next());
    Some(list.with_file_name(paths.find(|path| module_name(path) == name)?))
}

/// The name of the module in a file, once it is loaded.
fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or_default();
    file.split(".ko").next().unwrap_or_default().replace('-', "_")
}

/// The Image of arm64 that a packed one holds, which is compressed as a whole or behind an EFI program that unpacks it
/// (`struct efi_zboot_header` of drivers/firmware/efi/libstub/zboot-header.S); other bytes as they are.
pub(crate) fn unpacked_for_arm64(image: Vec<u8>) -> Result<Vec<u8>, String> {
    let packed = match image.as_slice() {
        [0x1f, 0x8b, ..] => image.as_slice(),
        [b'M', b'Z', ..] if image.get(4..8) == Some(b"zimg") => {
            let payload = u32_at(&image, 8).zip(u32_at(&image, 12));
            let payload =
                payload.and_then(|(start, length)| image.get(start..start.checked_add(length)?));
            payload.ok_or("the image's packed part lies outside of it")?
        }
        _ => return Ok(image),
    };
    match unpack(packed)? {
        (_, false) => Err("what the image has packed is cut off".to_owned()),
        (image, _) if is_arm64(&image) => Ok(image),
        _ => Err("what the image has packed is no Image of arm64".to_owned()),
    }
}

/// What `xz`, `zstd` or `gzip` has compressed, and whether the program found nothing wrong.
fn unpack(payload: &[u8]) -> Result<(Vec<u8>, bool), String> {
    let (program, args): (&str, &[&str]) = match payload {
        [0xfd, b'7', b'z', b'X', b'Z', ..] => ("xz", &["-dc", "--single-stream"]),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => ("zstd", &["-dc"]),
        [0x1f, 0x8b, ..] => ("gzip", &["-dc"]),
        _ => return Err("it is compressed in a way that is not known here".to_owned()),
    };
    let packed = in_memory(payload).map_err(|error| format!("no temporary file: {error}"))?;
    // The kernel's size follows the stream, so the program may complain about the end: what came out is what counts.
    let mut command = Command::new(program);
    let output = command.args(args).stdin(packed).stderr(Stdio::null()).output();
    let Output { status, stdout: bytes, .. } = output.map_err(|error| {
        let install = match error.kind() {
            io::ErrorKind::NotFound => format!("; install `{program}`"),
            _ => String::new(),
        };
        format!("cannot run `{program}`: {error}{install}")
    })?;
    match bytes.starts_with(b"\x7fELF") || is_arm64(&bytes) {
        true => Ok((bytes, status.success())),
        false => Err(format!("`{program}` gave neither an ELF file nor an Image of arm64")),
    }
}

/// A file in memory with these bytes, for a program to read.
fn in_memory(bytes: &[u8]) -> io::Result<File> {
    let mut file = File::from(memfd_create("kernel", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}

fn decompress(payload: &[u8]) -> Result<Vec<u8>, String> {
    let (bytes, _) = unpack(payload)?;
    // The last four bytes of a payload are the size of what is in it (`size_append` of scripts/Makefile.lib; gzip writes it
    // itself).
    if payload.len().checked_sub(4).and_then(|at| u32_at(payload, at)) != Some(bytes.len()) {
        return Err(format!("it was unpacked to {} bytes, which is not all", bytes.len()));
    }
    Ok(bytes)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// What reads as a kernel of x86-64 of that release.
    pub(crate) fn named(release: &str) -> Vec<u8> {
        let mut image = image(0x20f, 16, 8);
        image[0x300..0x300 + release.len()].copy_from_slice(release.as_bytes());
        image[0x300 + release.len()] = b' ';
        image
    }

    fn image(version: u16, offset: u32, length: u32) -> Vec<u8> {
        let mut image = vec![0; 1024 + 64];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x206..0x208].copy_from_slice(&version.to_le_bytes());
        image[0x20e..0x210].copy_from_slice(&0x100_u16.to_le_bytes());
        image[0x300..0x31a].copy_from_slice(b"6.1.0-56-amd64 (debian) #1");
        image[0x248..0x24c].copy_from_slice(&offset.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&length.to_le_bytes());
        image[1024 + 16] = 0xfd;
        image
    }

    #[test]
    fn the_payload_lies_behind_the_setup_sectors() {
        let image = image(0x20f, 16, 8);
        assert_eq!(payload(&image).unwrap(), [0xfd, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_broken_image_is_refused() {
        assert!(payload(&image(0x207, 16, 8)).is_none());
        assert!(payload(&image(0x20f, 16, 1000)).is_none());
        assert!(payload(&image(0x20f, u32::MAX, 8)).is_none());
        assert!(payload(&image(0x20f, 16, 8)[..0x240]).is_none());
        assert!(payload(b"").is_none());
    }

    #[test]
    fn the_release_is_in_the_setup_code() {
        assert_eq!(release(&image(0x20f, 16, 8)).unwrap(), "6.1.0-56-amd64");
        assert_eq!(release(&image(0x20f, 16, 8)[..0x300]), None);
        assert_eq!(release(b"\x7fELF"), None);
        let mut elsewhere = image(0x20f, 16, 8);
        elsewhere[0x302] = b'/';
        assert_eq!(release(&elsewhere), None);
    }

    #[test]
    fn an_image_of_arm64_names_itself_anywhere() {
        let mut image = vec![0; 4096];
        image[0x38..0x3c].copy_from_slice(b"ARM\x64");
        image[3000..3041].copy_from_slice(b"Linux version 6.1.0-56-arm64 (debian) #1 ");
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), &image).unwrap();
        let kernel = KernelImage::open(file.path()).unwrap();
        assert_eq!((kernel.release.as_str(), kernel.arch), ("6.1.0-56-arm64", Arch::Arm64));
        assert!(kernel.unpacked_in_memory().is_none());
        fs::write(file.path(), &image[..3000]).unwrap();
        assert!(KernelImage::open(file.path()).is_err());
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut gzip = Command::new("gzip");
        let mut child = gzip.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(bytes).unwrap();
        child.wait_with_output().unwrap().stdout
    }

    #[test]
    fn a_packed_image_of_arm64_is_unpacked() {
        let mut image = vec![0; 4096];
        image[0x38..0x3c].copy_from_slice(b"ARM\x64");
        let packed = gzip(&image);
        assert_eq!(unpacked_for_arm64(packed.clone()).unwrap(), image);
        let random: Vec<u8> =
            (0_u32..5_000).flat_map(|n| n.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
        let long = gzip(&[&image[..], &random].concat());
        let cut = unpacked_for_arm64(long[..long.len() / 2].to_vec()).unwrap_err();
        assert_eq!(cut, "what the image has packed is cut off");
        let mut efi = b"MZ\0\0zimg".to_vec();
        efi.extend(u32::to_le_bytes(64));
        efi.extend(u32::try_from(packed.len()).unwrap().to_le_bytes());
        efi.resize(64, 0);
        assert!(unpacked_for_arm64(efi.clone()).unwrap_err().contains("outside of it"));
        efi.extend(packed);
        assert_eq!(unpacked_for_arm64(efi).unwrap(), image);
        assert_eq!(unpacked_for_arm64(named("6.1.0")).unwrap(), named("6.1.0"));
        assert!(
            unpacked_for_arm64(gzip(&elf(b"Xen\0", 18))).unwrap_err().contains("no Image of arm64")
        );
    }

    #[test]
    fn the_largest_btf_of_an_image_is_the_kernels() {
        let btf = |strings: u32| {
            let header = [0x0001_eb9f, 24, 0, 8, 8, strings].map(u32::to_le_bytes).concat();
            [header, vec![7; 8 + strings as usize]].concat()
        };
        let cut = &btf(4000)[..30];
        let image = [&[0; 100], &btf(5)[..], &[0; 3], &btf(90), &[0; 9], cut].concat();
        assert_eq!(largest_btf(&image).unwrap(), btf(90));
        assert_eq!(largest_btf(&[0; 100]), None);
    }

    /// An ELF file with a note.
    fn elf(owner: &[u8; 4], kind: u32) -> Vec<u8> {
        let note = [4, 8, kind].map(u32::to_le_bytes).concat();
        [&b"\x7fELF\x02\x01\x01"[..], &[0; 57], &note, owner, &[0; 8]].concat()
    }

    #[test]
    fn only_a_kernel_that_says_where_it_begins_is_booted_unpacked() {
        assert!(has_pvh_entry(&elf(b"Xen\0", 18)));
        assert!(!has_pvh_entry(&elf(b"Xen\0", 17)));
        assert!(!has_pvh_entry(&elf(b"GNU\0", 18)));
        assert!(!has_pvh_entry(b"\x7fELF"));
    }

    #[test]
    fn a_kernel_is_unpacked_whole_or_not_at_all() {
        let elf = elf(b"Xen\0", 18);
        let packed = gzip(&elf);
        assert_eq!(decompress(&packed).unwrap(), elf);
        let cut = decompress(&packed[..packed.len() - 20]).unwrap_err();
        assert!(cut.contains("which is not all"), "{cut}");
    }

    #[test]
    fn a_file_that_is_no_kernel_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = KernelImage::open(file.path()).unwrap_err().to_string();
        assert!(error.contains("is not a compressed x86 kernel"), "{error}");
        let error = KernelImage::open(Path::new("/no/vmlinuz")).unwrap_err().to_string();
        assert!(error.starts_with("cannot read /no/vmlinuz"), "{error}");
    }
}
