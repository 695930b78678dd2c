//! The user that a load runs as.

use std::fs;
use std::str::FromStr;

use nix::unistd::User;
use serde::{Deserialize, Serialize};

/// The user that loads run as.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadUser {
    pub name: String,
    /// Its number.
    pub uid: u32,
    /// Its primary group.
    pub gid: u32,
}

impl LoadUser {
    /// The unprivileged user `nobody`; 65534 if /etc/passwd does not have it.
    pub fn nobody() -> Self {
        let (name, uid, gid) = ("nobody", 65_534, 65_534);
        local_user(name).unwrap_or_else(|| Self { name: name.to_owned(), uid, gid })
    }

    /// Whether this program runs as that user.
    pub fn is_me(&self) -> bool {
        nix::unistd::geteuid().as_raw() == self.uid
    }
}

impl FromStr for LoadUser {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        if let Some(user) = local_user(name) {
            return Ok(user);
        }
        match User::from_name(name) {
            Ok(Some(user)) => {
                Ok(Self { name: user.name, uid: user.uid.as_raw(), gid: user.gid.as_raw() })
            }
            Ok(None) => Err(format!("there is no user `{name}` on this machine: see /etc/passwd")),
            Err(errno) => Err(format!("the user `{name}` cannot be looked up: {}", errno.desc())),
        }
    }
}

/// A user of /etc/passwd. The C library's look-up asks nscd first by two calls of connect(2), which a
/// measurement of connect(2) would count.
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

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nbroken:x:one:2::/:/bin/sh\n\
                          nobody:x:65534:65533:nobody:/nonexistent:/usr/sbin/nologin\n";

    #[test]
    fn users_are_found_in_etc_passwd() {
        let found = user_in(PASSWD, "nobody");
        let nobody = LoadUser { name: "nobody".to_owned(), uid: 65_534, gid: 65_533 };
        assert_eq!(found, Some(nobody));
        for name in ["nobod", "broken", "", "x"] {
            assert_eq!(user_in(PASSWD, name), None, "{name}");
        }
    }
}
