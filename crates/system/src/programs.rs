//! Programs and their command lines.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// PATH of the caller, and the folders of system programs, which an ordinary user's may lack.
pub fn search_path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/sbin:/sbin");
    path
}

/// The file of a program, as a shell finds it by [`search_path`].
pub fn find_program(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|path| is_program(path));
    }
    let path = search_path();
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
}

/// The text as one word for a shell.
pub fn quote(word: &str) -> String {
    // A NUL is in no word of a command.
    shlex::try_quote(word).unwrap_or_default().into_owned()
}

/// The command as a user would type it.
pub fn text(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| quote(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_a_shell_would_split_them() {
        let mut command = Command::new("vng");
        command.args(["--run", "/boot/vmlinuz", "a b", ""]);
        assert_eq!(text(&command), "vng --run /boot/vmlinuz 'a b' ''");
    }
}
