//! What keeps a load from the rest of the machine: a user of its own, a folder for its files, and a
//! control group with limits.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use nix::sys::stat::Mode;
use nix::unistd::User;
use serde::{Deserialize, Serialize};

use super::folder::{Folder, remove_empty};
use crate::kernel::host::cgroup2_mount;

/// The user that loads run as.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadUser {
    /// Its name.
    pub name: String,
    /// Its number.
    pub uid: u32,
    /// Its own group.
    pub gid: u32,
}

impl LoadUser {
    /// The user that owns nothing; its usual number where the machine has no name for it.
    #[must_use]
    pub fn nobody() -> Self {
        let usual = || Self { name: "nobody".to_owned(), uid: 65_534, gid: 65_534 };
        local_user("nobody").unwrap_or_else(usual)
    }

    /// Whether this program runs as that user.
    #[must_use]
    pub fn is_me(&self) -> bool {
        nix::unistd::geteuid().as_raw() == self.uid
    }
}

/// A user that loads cannot run as.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadUser {
    /// There is none of that name.
    #[error("there is no user `{0}` on this machine: see /etc/passwd")]
    Unknown(String),
    /// The machine's list of users cannot be read.
    #[error("the user `{0}` cannot be looked up: {1}")]
    Unreadable(String, String),
}

impl FromStr for LoadUser {
    type Err = BadUser;

    fn from_str(name: &str) -> Result<Self, BadUser> {
        if let Some(user) = local_user(name) {
            return Ok(user);
        }
        match User::from_name(name) {
            Ok(Some(user)) => {
                Ok(Self { name: user.name, uid: user.uid.as_raw(), gid: user.gid.as_raw() })
            }
            Ok(None) => Err(BadUser::Unknown(name.to_owned())),
            Err(errno) => Err(BadUser::Unreadable(name.to_owned(), errno.desc().to_owned())),
        }
    }
}

/// A user of the machine's own list. The C library's look-up would do, but asks the name service's
/// daemon first: two calls of connect(2), which whoever measures that call now would count.
fn local_user(name: &str) -> Option<LoadUser> {
    user_in(&fs::read_to_string("/etc/passwd").ok()?, name)
}

/// `name:password:uid:gid:...`, as passwd(5) has it.
fn user_in(passwd: &str, name: &str) -> Option<LoadUser> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next()? != name {
            return None;
        }
        let mut numbers = fields.skip(1).map(|field| field.parse().ok());
        Some(LoadUser { name: name.to_owned(), uid: numbers.next()??, gid: numbers.next()?? })
    })
}

/// What a load is kept to. The default keeps it to nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Confinement {
    /// The user it runs as; `None` is the caller.
    pub user: Option<LoadUser>,
    /// CPUs that it may use in all, such as 0.5.
    pub cpu_max: Option<f64>,
    /// Bytes of memory that it may use.
    pub memory_max: Option<u64>,
    /// Where its folder for temporary files is made; by default where such files usually are.
    pub directory: Option<PathBuf>,
}

impl Confinement {
    /// Whether a load can run as its user.
    ///
    /// # Errors
    /// A sentence that says why not, and what to do.
    pub(super) fn check_user(&self) -> Result<(), String> {
        match &self.user {
            Some(user) if !user.is_me() && !nix::unistd::geteuid().is_root() => {
                Err(format!("only root can run a load as `{}`: leave out --load-user", user.name))
            }
            _ => Ok(()),
        }
    }
}

/// A load's folder for temporary files. It is gone when this is dropped.
#[derive(Debug)]
pub(super) struct Scratch {
    path: PathBuf,
    folder: Folder,
    /// Whose it is, where that is another user.
    user: Option<u32>,
}

impl Scratch {
    fn new(within: &Path, user: Option<&LoadUser>) -> io::Result<Self> {
        let made = tempfile::Builder::new().prefix("profiler-load-").tempdir_in(within)?;
        let folder = Folder::open(made.path())?;
        folder.hand_over(user, Mode::S_IRWXU)?;
        Ok(Self { path: made.keep(), folder, user: user.map(|user| user.uid) })
    }

    /// The folder of that path, which is `user`'s.
    pub(super) fn at(path: PathBuf, user: Option<u32>) -> io::Result<Self> {
        Ok(Self { folder: Folder::open(&path)?, path, user })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Nobody is there to be told; and what another user has put there that is not his, stays.
        let _ = self.folder.empty(self.user).and_then(|()| remove_empty(&self.path));
    }
}

/// The folder and the control group of one load. They are gone when this is dropped; the guard of the
/// load removes them too, for the case that this program is killed.
#[derive(Debug)]
pub(super) struct Enclosure {
    pub(super) scratch: Option<Scratch>,
    pub(super) group: Option<PathBuf>,
}

impl Enclosure {
    /// Makes what `confinement` asks for.
    ///
    /// # Errors
    /// A sentence that says what cannot be had here, and what to do.
    pub(super) fn new(confinement: &Confinement, with_scratch: bool) -> Result<Self, String> {
        confinement.check_user()?;
        let user = confinement.user.as_ref().filter(|user| !user.is_me());
        let group = if confinement.cpu_max.is_some() || confinement.memory_max.is_some() {
            Some(make_group(confinement.cpu_max, confinement.memory_max)?)
        } else {
            None
        };
        let mut enclosure = Self { scratch: None, group };
        if with_scratch {
            let within = confinement.directory.clone().unwrap_or_else(std::env::temp_dir);
            let folder = Scratch::new(&within, user).map_err(|error| {
                format!("a folder for its files in {}: {error}", within.display())
            })?;
            enclosure.scratch = Some(folder);
        }
        Ok(enclosure)
    }
}

impl Drop for Enclosure {
    fn drop(&mut self) {
        if let Some(group) = &self.group {
            // What remains can only be removed by hand; nothing of the result depends on it.
            let _ = remove_group(group);
        }
    }
}

fn make_group(cpu_max: Option<f64>, memory_max: Option<u64>) -> Result<PathBuf, String> {
    let mount = cgroup2_mount().ok_or(
        "limits need control groups of version 2, and none are mounted: \
         `mount -t cgroup2 none /sys/fs/cgroup`",
    )?;
    let mut controllers = Vec::new();
    if cpu_max.is_some() {
        controllers.push("cpu");
    }
    if memory_max.is_some() {
        controllers.push("memory");
    }
    let there = fs::read_to_string(mount.join("cgroup.controllers")).unwrap_or_default();
    for controller in controllers {
        if !there.split_whitespace().any(|name| name == controller) {
            return Err(format!(
                "the controller `{controller}` is not in {}: boot with cgroups of version 2 alone, or \
                 leave out the limit",
                mount.join("cgroup.controllers").display()
            ));
        }
        write(&mount.join("cgroup.subtree_control"), &format!("+{controller}"))?;
    }
    let name = format!("profiler-load-{}-{}", std::process::id(), next_number());
    let group = mount.join(name);
    fs::create_dir(&group)
        .map_err(|error| format!("the control group {}: {error}", group.display()))?;
    let limited = limit(&group, cpu_max, memory_max);
    if let Err(text) = limited {
        let _ = fs::remove_dir(&group);
        return Err(text);
    }
    Ok(group)
}

fn limit(group: &Path, cpu_max: Option<f64>, memory_max: Option<u64>) -> Result<(), String> {
    /// The kernel's own period, in microseconds.
    const PERIOD_US: f64 = 100_000.0;
    if let Some(cpus) = cpu_max {
        write(&group.join("cpu.max"), &format!("{:.0} {PERIOD_US:.0}", cpus * PERIOD_US))?;
    }
    if let Some(bytes) = memory_max {
        write(&group.join("memory.max"), &bytes.to_string())?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("write `{text}` to {}: {error}", path.display()))
}

/// Several loads of one process each have their own group.
fn next_number() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    NUMBER.fetch_add(1, Ordering::Relaxed)
}

/// Kills what is in a control group and removes it.
pub(super) fn remove_group(group: &Path) -> io::Result<()> {
    let patience = Instant::now() + Duration::from_secs(5);
    loop {
        match fs::remove_dir(group) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if Instant::now() >= patience => return Err(error),
            Err(_) => {}
            Ok(()) => return Ok(()),
        }
        // `cgroup.kill` is there from 5.14; before it the guard has killed them one by one.
        let _ = fs::write(group.join("cgroup.kill"), "1");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nbroken:x:one:2::/:/bin/sh\n\
                          nobody:x:65534:65533:nobody:/nonexistent:/usr/sbin/nologin\n";

    #[test]
    fn users_are_found_in_the_machines_own_list() {
        let found = user_in(PASSWD, "nobody");
        let nobody = LoadUser { name: "nobody".to_owned(), uid: 65_534, gid: 65_533 };
        assert_eq!(found, Some(nobody));
        for name in ["nobod", "broken", "", "x"] {
            assert_eq!(user_in(PASSWD, name), None, "{name}");
        }
    }
}
