//! A guest's memory as a file, most of which is a hole.
//!
//! Machines that are restored map it privately, so that none reads more of it than it uses, and none changes it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use nix::errno::Errno;
use nix::unistd::{Whence, lseek};

/// Bytes of a page of the guest.
const PAGE: usize = 4096;

/// Bytes that are read at a time: some may be of a hole.
const CHUNK: usize = 256 << 10;

/// What the kernel fills memory with that it frees after its boot: `POISON_FREE_INITMEM` of its `include/linux/poison.h`.
const FREED: u8 = 0xcc;

/// Copies the pages that are not empty to a new file of the same size.
pub(super) fn copy(from: &Path, to: &Path) -> io::Result<()> {
    copy_unless(from, to, |fill, _| fill == 0)
}

/// Makes holes of the empty pages, and of most that the kernel has freed and not used since: those of its initramfs. All guests that
/// are restored from there find the same in free memory.
pub(super) fn trim(file: &Path) -> io::Result<()> {
    let whole = file.with_extension("whole");
    fs::rename(file, &whole)?;
    copy_unless(&whole, file, |fill, bytes| fill == 0 || (fill == FREED && bytes == CHUNK))?;
    fs::remove_file(whole)
}

/// Copies all pages but those in runs of one fill, and of so many bytes, that are left out.
fn copy_unless(from: &Path, to: &Path, is_left_out: impl Fn(u8, usize) -> bool) -> io::Result<()> {
    let copy = File::create_new(to)?;
    copy.set_len(from.metadata()?.len())?;
    each_run(&File::open(from)?, |at, bytes, fill| match fill {
        Some(fill) if is_left_out(fill, bytes.len()) => Ok(()),
        _ => copy.write_all_at(bytes, at),
    })
}

/// Adds the pages that are not empty to `crc`. Where holes lie does not matter: a copy may have others.
pub(super) fn checksum(file: &Path, crc: &mut flate2::Crc) -> io::Result<()> {
    each_run(&File::open(file)?, |at, bytes, fill| {
        for (at, page) in (at..).step_by(PAGE).zip(bytes.chunks(PAGE)) {
            if fill != Some(0) {
                crc.update(&at.to_le_bytes());
                crc.update(page);
            }
        }
        Ok(())
    })
}

/// Calls `then` for runs of pages of one fill, or of none, with their offset and the byte that they are filled with. Leaves out most
/// of the holes.
fn each_run(
    file: &File,
    mut then: impl FnMut(u64, &[u8], Option<u8>) -> io::Result<()>,
) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    let mut at = 0_u64;
    loop {
        let data = match lseek(file, at.cast_signed(), Whence::SeekData) {
            // Nothing but a hole is left: lseek(2).
            Err(Errno::ENXIO) => return Ok(()),
            data => data?.cast_unsigned(),
        };
        at = data - data % PAGE as u64;
        let bytes = file.read_at(&mut buffer, at)?;
        if bytes == 0 {
            return Ok(());
        }
        let mut rest = &buffer[..bytes];
        let pages: Vec<&[u8]> = rest.chunks(PAGE).collect();
        for run in pages.chunk_by(|one, next| fill_of(one) == fill_of(next)) {
            let (bytes, more) = rest.split_at(rest.len().min(run.len() * PAGE));
            then(at, bytes, fill_of(run[0]))?;
            (at, rest) = (at + bytes.len() as u64, more);
        }
    }
}

/// The byte that a page is filled with, if all of its bytes are that.
fn fill_of(page: &[u8]) -> Option<u8> {
    let first = *page.first()?;
    (page == &[first; PAGE][..page.len()]).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_the_same_pages_and_a_changed_bit_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let [memory, same, dense] =
            ["memory", "same", "dense"].map(|name| folder.path().join(name));
        let file = File::create_new(&memory).unwrap();
        file.set_len(64 << 20).unwrap();
        file.write_all_at(&[1; 3 * PAGE], 5 * PAGE as u64).unwrap();
        file.write_all_at(b"last", (64 << 20) - 4).unwrap();
        file.write_all_at(&[0; PAGE], 9 << 20).unwrap();
        let sum = |path: &Path| {
            let mut crc = flate2::Crc::new();
            checksum(path, &mut crc).unwrap();
            (crc.amount(), crc.sum())
        };
        copy(&memory, &same).unwrap();
        let bytes = std::fs::read(&memory).unwrap();
        assert!(std::fs::read(&same).unwrap() == bytes);
        std::fs::write(&dense, bytes).unwrap();
        assert_eq!(sum(&memory).0, 4 * (PAGE as u32 + 8));
        assert_eq!([sum(&same), sum(&dense)], [sum(&memory); 2]);
        File::options().write(true).open(&same).unwrap().write_all_at(&[3], 6 << 12).unwrap();
        assert_ne!(sum(&same), sum(&memory));
        // The same page elsewhere.
        let (moved, other) = (folder.path().join("moved"), folder.path().join("other"));
        for (path, at) in [(&moved, 0), (&other, PAGE as u64)] {
            File::create_new(path).unwrap().write_all_at(&[1; PAGE], at).unwrap();
        }
        assert_ne!(sum(&moved).1, sum(&other).1);
        assert!(copy(&memory, &same).is_err(), "there is a file");
    }

    #[test]
    fn empty_pages_and_a_freed_initramfs_take_no_room() {
        use std::os::unix::fs::MetadataExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("memory");
        let file = File::create_new(&path).unwrap();
        let mut bytes = vec![1; 8 << 20];
        bytes[1 << 20..3 << 20].fill(0);
        // An initramfs across chunks, and a page that is filled alike and is not freed.
        bytes[3 << 20..6 << 20].fill(FREED);
        bytes[7 << 20..(7 << 20) + PAGE].fill(FREED);
        file.write_all_at(&bytes, 0).unwrap();
        file.sync_all().unwrap();
        let room = || path.metadata().unwrap().blocks() * 512;
        let before = room();
        trim(&path).unwrap();
        assert_eq!(before - room(), 5 << 20);
        bytes[3 << 20..6 << 20].fill(0);
        assert!(std::fs::read(&path).unwrap() == bytes);
    }
}
