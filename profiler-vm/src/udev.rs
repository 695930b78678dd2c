//! What udev does in the guest: what virtme-ng needs. The rules of a system that boots on hardware are a third of the boot under
//! TCG, and what they start runs beside what is measured.
//!
//! virtme-ng's init mounts ours in one thread and starts udev in another: if udev is first, the system's rules apply, and the kernel's
//! `modprobe.blacklist` alone keeps drivers out.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::VmError;

/// Where the rules of the system are (`udev(7)`); those of its administrator, in `/etc/udev/rules.d`, are kept.
pub(crate) const RULES: &str = "/usr/lib/udev/rules.d";

/// Drivers of QEMU's devices, if they are modules, and names of the ports over which virtme-ng runs the command.
const WANTED: &str = r#"ACTION!="remove", SUBSYSTEM=="virtio", ENV{MODALIAS}=="?*", RUN{builtin}+="kmod load '$env{MODALIAS}'"
SUBSYSTEM=="virtio-ports", ATTR{name}=="?*", SYMLINK+="virtio-ports/$attr{name}"
"#;

/// Writes the folder of rules for a guest into `scratch`; `None` if this machine, whose files the guest has, has no such folder.
pub(crate) fn rules(scratch: &Path) -> Result<Option<PathBuf>, VmError> {
    if !Path::new(RULES).is_dir() {
        return Ok(None);
    }
    let folder = scratch.join("udev");
    fs::create_dir(&folder).map_err(VmError::file("create", &folder))?;
    let file = folder.join("50-vm.rules");
    fs::write(&file, WANTED).map_err(VmError::file("write", &file))?;
    Ok(Some(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_written_where_a_machine_has_some() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = rules(scratch.path()).unwrap();
        assert_eq!(folder.is_some(), Path::new(RULES).is_dir());
        let names = |folder| fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name());
        assert!(folder.is_none_or(|folder| names(folder).eq(["50-vm.rules"])));
    }
}
