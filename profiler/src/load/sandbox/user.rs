//! The user that a load runs as.

use std::str::FromStr;

use nix::unistd::User;
use serde::{Deserialize, Serialize};

/// The user that loads run as.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadUser {
    /// Its name.
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
        name.parse().unwrap_or_else(|_| Self { name: name.to_owned(), uid, gid })
    }

    /// Whether this program runs as that user.
    pub fn is_me(&self) -> bool {
        nix::unistd::geteuid().as_raw() == self.uid
    }
}

impl FromStr for LoadUser {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match User::from_name(name) {
            Ok(Some(user)) => {
                Ok(Self { name: user.name, uid: user.uid.as_raw(), gid: user.gid.as_raw() })
            }
            Ok(None) => Err(format!("there is no user `{name}` on this machine: see /etc/passwd")),
            Err(errno) => Err(format!("the user `{name}` cannot be looked up: {}", errno.desc())),
        }
    }
}
