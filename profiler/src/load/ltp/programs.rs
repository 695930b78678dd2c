//! The programs of LTP's tests.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::error::{INSTALL, LtpError};
use crate::recording::loads::LtpTest;

/// Adds a notice of tests whose program does not exist.
///
/// # Errors
/// If none of the programs exists.
pub(super) fn check(
    root: &Path,
    tests: &[LtpTest],
    notices: &mut Vec<String>,
) -> Result<(), LtpError> {
    let reasons: Vec<(&str, String)> = tests
        .iter()
        .filter_map(|test| Some((test.name.as_str(), unusable(root, test.plain_program()?)?)))
        .collect();
    match reasons.as_slice() {
        [] => Ok(()),
        [(first, reason), ..] if reasons.len() == tests.len() => Err(LtpError::BadLtp(format!(
            "none of the {} tests can be executed ({first}: {reason}): is this LTP built and installed \
             completely? Otherwise {INSTALL}",
            tests.len()
        ))),
        some => {
            let line = |(name, reason): &(&str, String)| format!("{name}: {reason}");
            notices.push(format!(
                "tests that cannot be executed and count as `not run`: {}",
                some.iter().map(line).collect::<Vec<_>>().join("; ")
            ));
            Ok(())
        }
    }
}

/// Why a program cannot be executed; `None` if it can.
fn unusable(root: &Path, program: &str) -> Option<String> {
    let path = search_path(root);
    let (folders, places): (Vec<PathBuf>, _) = match program.contains('/') {
        true => (vec![PathBuf::new()], ""),
        false => (std::env::split_paths(&path).collect(), " in testcases/bin or PATH"),
    };
    let mut reason = format!("there is no program {program}{places}");
    for path in folders.iter().map(|folder| folder.join(program)) {
        match path.metadata() {
            Ok(data) if data.is_file() && data.permissions().mode() & 0o111 != 0 => return None,
            Ok(_) => reason = format!("{} is not executable", path.display()),
            Err(_) => {}
        }
    }
    Some(reason)
}

/// `PATH` of the tests: LTP's folders come first.
pub(super) fn search_path(root: &Path) -> OsString {
    let usual = std::env::var_os("PATH").filter(|path| !path.is_empty());
    let usual = usual.unwrap_or_else(|| "/usr/sbin:/usr/bin:/sbin:/bin".into());
    let own = [root.join("testcases/bin"), root.join("bin")];
    let all = own.into_iter().chain(std::env::split_paths(&usual));
    std::env::join_paths(all).unwrap_or(usual)
}
