//! Files in the folder that the guest may write to. The driver that is measured runs there as root, and QEMU on the host as
//! the user: whatever the guest puts in a file's place must neither lead QEMU to another file nor block it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// `O_NOFOLLOW` and `O_NONBLOCK` of Linux (`fcntl.h`): a link is an error, and a FIFO is not waited for.
const NO_LINK: i32 = if cfg!(target_arch = "aarch64") { 0o100_000 } else { 0o400_000 } | 0o4_000;

/// Most bytes that are read: the symbols of a kernel are about 10 MiB.
const MOST: u64 = 256 << 20;

/// A new file in the place of whatever is there.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => OpenOptions::new().write(true).create_new(true).open(path),
    }
}

/// The text of a file, if it is one and not too large: what a part of it leaves out would be missing in the counts.
pub(crate) fn read(path: &Path) -> io::Result<String> {
    read_at_most(path, MOST)
}

fn read_at_most(path: &Path, most: u64) -> io::Result<String> {
    let file = OpenOptions::new().read(true).custom_flags(NO_LINK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other(format!("{} is no file", path.display())));
    }
    let mut text = String::new();
    file.take(most + 1).read_to_string(&mut text)?;
    if text.len() as u64 > most {
        return Err(io::Error::other(format!("{} has more than {most} bytes", path.display())));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::*;

    #[test]
    fn nothing_in_its_place_leads_elsewhere() {
        let folder = std::env::temp_dir().join(format!("profiler-qemu-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let [link, other, fifo] = ["link", "other", "fifo"].map(|name| folder.join(name));
        fs::write(&other, "secret").unwrap();
        symlink(&other, &link).unwrap();
        assert!(read(&link).is_err());
        assert_eq!(read_at_most(&other, 6).unwrap(), "secret");
        assert!(
            read_at_most(&other, 5).unwrap_err().to_string().ends_with("has more than 5 bytes")
        );
        create(&link).unwrap().write_all(b"counts").unwrap();
        assert_eq!(
            (read(&link).unwrap().as_str(), read(&other).unwrap().as_str()),
            ("counts", "secret")
        );
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        assert!(read(&fifo).unwrap_err().to_string().contains("is no file"));
        create(&fifo).unwrap().write_all(b"counts").unwrap();
        assert_eq!(read(&fifo).unwrap(), "counts");
        fs::remove_dir_all(folder).unwrap();
    }
}
