//! Mounts and loop devices that tests leave behind.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::load::syscalls::detach_loop;

/// Which mounts may be unmounted.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct MountRules {
    /// The user that tests run as, if not the caller.
    pub(super) user: Option<u32>,
    /// The mounts that existed before the load.
    pub(super) before: BTreeSet<MountKey>,
}

impl MountRules {
    /// Whether tests have mounted it. Another user can mount by FUSE only, whose options contain the user;
    /// any other mount may have been moved there, together with the folder that it is in.
    pub(super) fn may_unmount(&self, mount: &Mount) -> bool {
        let by_user = |user: u32| {
            let is_fuse = mount.fs_type == "fuse" || mount.fs_type.starts_with("fuse.");
            is_fuse && mount.options.split(',').any(|option| option == format!("user_id={user}"))
        };
        !self.before.contains(&mount.key) && self.user.is_none_or(by_user)
    }
}

/// Identifies a mount. Ids alone are reused.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct MountKey {
    pub(super) id: u64,
    device: String,
}

/// A line of `/proc/self/mountinfo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mount {
    pub(super) key: MountKey,
    /// Where it is mounted.
    pub(super) point: PathBuf,
    /// Type of its file system, such as `ext4`.
    fs_type: String,
    /// Options of its file system.
    options: String,
}

/// All mounts, in the order in which they were mounted.
pub(super) fn all() -> io::Result<Vec<Mount>> {
    Ok(parse_all(&fs::read("/proc/self/mountinfo")?).collect())
}

/// The mounts of a table, whose names tests choose.
pub(super) fn parse_all(table: &[u8]) -> impl Iterator<Item = Mount> {
    table.split(|&byte| byte == b'\n').filter_map(parse)
}

/// `36 35 98:0 /root /point rw,noatime shared:1 - ext3 /dev/root rw`, see proc(5).
fn parse(line: &[u8]) -> Option<Mount> {
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    let mut fields = line.split(|&byte| byte == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let device = text(fields.nth(1)?);
    let point = unescape(fields.nth(1)?);
    let mut of_file_system = fields.skip_while(|&field| field != b"-").skip(1);
    let fs_type = text(of_file_system.next()?);
    let options = text(of_file_system.nth(1)?);
    Some(Mount { key: MountKey { id, device }, point, fs_type, options })
}

/// A path of the mount table, in which a blank is `\040`.
fn unescape(text: &[u8]) -> PathBuf {
    let mut path = Vec::new();
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        let octal = (byte == b'\\')
            .then(|| after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok()))
            .flatten()
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match octal {
            Some(byte) => {
                path.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                path.push(byte);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(path))
}

/// Detaches the files in `folder` from loop devices, which keep them when the test that attached them is
/// killed. Errors are ignored: only root can have attached one.
pub(super) fn detach_loops(folder: &Path) {
    for entry in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let name = entry.file_name();
        if !name.as_encoded_bytes().starts_with(b"loop") {
            continue;
        }
        let Ok(file) = fs::read(entry.path().join("loop/backing_file")) else { continue };
        let file = file.strip_suffix(b"\n").unwrap_or(&file);
        if Path::new(OsStr::from_bytes(file)).starts_with(folder) {
            let _ = detach_loop(&Path::new("/dev").join(&name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_the_mount_table_are_unescaped() {
        assert_eq!(unescape(br"/a\040b\134c"), Path::new(r"/a b\c"));
        assert_eq!(unescape(br"/plain\9"), Path::new(r"/plain\9"));
    }

    const TABLE: &str = "22 1 0:20 / / rw,relatime shared:1 - overlay overlay rw,lowerdir=/l
90 22 0:44 / /work/mnt rw - tmpfs none rw
91 22 0:45 / /work/mine rw,nosuid - fuse.sshfs me@there: rw,user_id=65534,group_id=65534
92 22 0:46 / /work/his rw,nosuid - fuse /dev/fuse rw,user_id=1000,group_id=1000";

    fn may_unmount(user: Option<u32>, before: &[&str]) -> Vec<u64> {
        let mounts: Vec<Mount> =
            TABLE.lines().map(|line| parse(line.as_bytes()).unwrap()).collect();
        let key = |mount: &Mount| mount.key.clone();
        let was = mounts.iter().filter(|mount| before.contains(&mount.key.device.as_str()));
        let rules = MountRules { user, before: was.map(key).collect() };
        let unmounted = mounts.iter().filter(|mount| rules.may_unmount(mount));
        unmounted.map(|mount| mount.key.id).collect()
    }

    #[test]
    fn mounts_that_existed_before_are_never_unmounted() {
        assert_eq!(may_unmount(None, &["0:20"]), [90, 91, 92]);
        assert_eq!(may_unmount(None, &["0:20", "0:44", "0:46"]), [91]);
        assert_eq!(may_unmount(Some(65_534), &["0:20", "0:45"]), [0; 0]);
    }

    #[test]
    fn of_another_users_tests_only_mounts_by_that_user_are_unmounted() {
        assert_eq!(may_unmount(Some(65_534), &[]), [91]);
        assert_eq!(may_unmount(Some(1), &[]), [0; 0]);
    }
}
