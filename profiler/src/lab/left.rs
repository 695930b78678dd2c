//! Files that a guest left in the folder of its boot. The driver runs there as root, and may have put anything in their
//! place: no link is followed, no FIFO waited for, and no more read than a bound.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// The bytes of the file `path`, which lies directly in the folder that the guest shares.
///
/// # Errors
/// If it is missing, no file, or larger than `most` bytes.
pub(super) fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!("it has more than {} MiB", most >> 20)));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn only_a_file_of_the_folder_itself_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("file"), "abc").unwrap();
        std::os::unix::fs::symlink(path("file"), path("link")).unwrap();
        mkfifo(&path("fifo"), Mode::S_IRWXU).unwrap();
        assert_eq!(read(&path("file"), 3).unwrap(), b"abc");
        let refused = |name, most| read(&path(name), most).unwrap_err().to_string();
        assert!(refused("file", 2).contains("more than"));
        assert_eq!(refused("fifo", 9), "it is no file");
        assert_eq!(refused(".", 9), "it is no file");
        for name in ["link", "missing"] {
            assert!(read(&path(name), 9).is_err(), "{name}");
        }
    }
}
