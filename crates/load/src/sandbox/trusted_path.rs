//! Whether other users can change where a path leads.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::unistd::geteuid;

/// Most links that the kernel follows in one path (`MAXSYMLINKS`; path_resolution(7)).
const MAX_LINKS: usize = 40;

/// Fails if others than root and this user can change a folder or link in `path`, so that the path may lead elsewhere the next
/// time. Links are followed as the kernel does.
///
/// # Errors
/// If they can, `path` does not exist, or a folder in it cannot be read.
pub fn refuse_changeable(path: &Path) -> io::Result<()> {
    follow(&mut PathBuf::from("/"), &std::path::absolute(path)?, &mut 0)
}

/// Follows `path` from the folder `here`, which is where it leads in the end.
fn follow(here: &mut PathBuf, path: &Path, links: &mut usize) -> io::Result<()> {
    for step in path.components() {
        let next = match step {
            Component::RootDir => PathBuf::from("/"),
            Component::ParentDir => here.parent().unwrap_or(here).to_owned(),
            _ => here.join(step),
        };
        let facts = fs::symlink_metadata(&next)?;
        let owned = facts.uid() == 0 || facts.uid() == geteuid().as_raw();
        // In a sticky folder only their owners can rename entries. A link's mode says nothing.
        let open = facts.mode() & 0o022 != 0 && facts.mode() & 0o1000 == 0 && !facts.is_symlink();
        if !owned || open {
            return Err(others_can_change(&next));
        }
        if !facts.is_symlink() {
            *here = next;
            continue;
        }
        *links += 1;
        if *links > MAX_LINKS {
            return Err(Errno::ELOOP.into());
        }
        follow(here, &fs::read_link(&next)?, links)?;
    }
    Ok(())
}

/// This program's folder for what it can make again, which need not exist: of `XDG_CACHE_HOME`, or `~/.cache`.
pub fn user_cache() -> Option<PathBuf> {
    let asked = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let caches = asked.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    caches.filter(|folder| folder.is_absolute()).map(|folder| folder.join("profiler"))
}

/// Creates `folder` and its missing parents, if only this user and root can change its place and its
/// entries: with `sudo` the home may be another user's, and below `/tmp` another user may have created it first.
///
/// # Errors
/// If others can, or it cannot be made.
pub fn make_private(folder: &Path) -> io::Result<()> {
    let there = folder.ancestors().find(|folder| folder.exists()).unwrap_or(folder);
    refuse_changeable(there)?;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    for folder in [folder.parent().unwrap_or(folder), folder] {
        let facts = fs::symlink_metadata(folder)?;
        let is_mine = facts.uid() == nix::unistd::geteuid().as_raw();
        if !facts.is_dir() || !is_mine || facts.mode() & 0o022 != 0 {
            return Err(others_can_change(folder));
        }
    }
    // Also by a link on the way.
    refuse_changeable(folder)
}

fn others_can_change(folder: &Path) -> io::Error {
    io::Error::other(format!("others can change {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[track_caller]
    fn assert_changeable(path: &Path, place: &Path) {
        let error = refuse_changeable(path).unwrap_err();
        assert_eq!(error.to_string(), others_can_change(place).to_string());
    }

    #[test]
    fn a_folder_that_others_can_change_on_the_way_is_found() {
        let parent = tempfile::tempdir().unwrap();
        let open = parent.path().canonicalize().unwrap().join("open");
        fs::create_dir_all(open.join("mine")).unwrap();
        let mode = |mode| fs::set_permissions(&open, fs::Permissions::from_mode(mode)).unwrap();
        mode(0o777);
        assert_changeable(&open.join("mine"), &open);
        // As `/tmp` is.
        mode(0o1777);
        refuse_changeable(&open.join("mine")).unwrap();
    }

    #[test]
    fn a_link_that_others_can_change_on_the_way_is_found() {
        let parent = tempfile::tempdir().unwrap();
        let parent = parent.path().canonicalize().unwrap();
        let open = parent.join("open");
        fs::create_dir_all(parent.join("mine/deep")).unwrap();
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        // Its target is safe, but it can be replaced.
        symlink(parent.join("mine"), open.join("link")).unwrap();
        assert_changeable(&open.join("link/deep"), &open);
        // The link is safe, but its target is not.
        symlink("../open", parent.join("mine/there")).unwrap();
        assert_changeable(&parent.join("mine/there"), &open);
        symlink("deep/..", parent.join("mine/here")).unwrap();
        refuse_changeable(&parent.join("mine/here/deep")).unwrap();
        symlink("round", parent.join("mine/round")).unwrap();
        let error = refuse_changeable(&parent.join("mine/round")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ELOOP));
        let error = refuse_changeable(&parent.join("mine/none")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_private_folder_is_one_that_nobody_else_can_write_to() {
        let parent = tempfile::tempdir().unwrap();
        let path = |name: &str| parent.path().join(name);
        make_private(&path("new/profiler/kvm")).unwrap();
        make_private(&path("new/profiler/kvm")).unwrap();
        let mode = fs::metadata(path("new/profiler")).unwrap().mode() & 0o777;
        assert_eq!(mode, 0o700);
        for open in ["new/profiler", "new"] {
            fs::set_permissions(path(open), fs::Permissions::from_mode(0o777)).unwrap();
            assert!(make_private(&path("new/profiler/kvm")).is_err());
            fs::set_permissions(path(open), fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::create_dir(path("elsewhere")).unwrap();
        symlink(path("elsewhere"), path("link")).unwrap();
        assert!(make_private(&path("link/kvm")).is_err());
    }
}
