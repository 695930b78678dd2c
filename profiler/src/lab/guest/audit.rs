//! Audit rules that auditctl has loaded, and the functions of the kernel that apply them.

use std::fs;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::{agent, internal};
use crate::error::{Failure, exit};
use crate::kernel::module::ModuleFacts;
use crate::lab::installs::Installs;
use crate::lab::wire::Agent;

/// Where programs tell syslog something: syslog(3).
const SYSLOG: &str = "/dev/log";

/// A program that has said nothing for so long has said all.
const SILENCE: Duration = Duration::from_secs(1);

/// Lines of it that an error carries.
const LINES: usize = 10;

/// What names of these functions begin with (kernel/audit.c, auditsc.c, auditfilter.c, audit_watch.c, audit_tree.c, audit_fsnotify.c).
const PREFIXES: [&str; 5] = ["audit_", "__audit_", "auditd_", "auditsc_", "kauditd_"];

/// Why rules were refused: with `-R` auditctl tells syslog alone, which is this process for a second try.
pub(super) fn explained(agent: &Agent, failure: Failure) -> Failure {
    let heard = || -> io::Result<Vec<String>> {
        let log = UnixDatagram::bind(SYSLOG)?;
        log.set_read_timeout(Some(SILENCE))?;
        let (program, rest) = agent.arguments.split_first().ok_or(io::ErrorKind::NotFound)?;
        let mut command = Command::new(program);
        let mut child = command.args(rest).stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
        let (mut lines, mut message) = (Vec::new(), [0; 1024]);
        while let Ok(bytes) = log.recv(&mut message) {
            lines
                .push(String::from_utf8_lossy(&message[..bytes]).trim_end_matches('\0').to_owned());
        }
        // It has said nothing for a while.
        child.kill()?;
        child.wait()?;
        Ok(lines)
    };
    let mut lines = heard().unwrap_or_default();
    lines.truncate(LINES);
    let message = format!("{}\nit told syslog:\n{}", failure.message, lines.join("\n"));
    if lines.is_empty() { failure } else { Failure { message, ..failure } }
}

/// Turns audit on, as auditd does when it starts; gives the facts, and lines of `/proc/kallsyms` in which these functions are those
/// of a module.
pub(super) fn installed(agent: &Agent) -> Result<(ModuleFacts, String), Failure> {
    let failed = |what: String| agent::failed(agent, exit::LAB_FAILED, &what);
    let program = agent.arguments.first().ok_or_else(|| internal("no auditctl"))?;
    let mut enable = Command::new(program);
    let done = enable.args(["-e", "1"]).stdin(Stdio::null()).output();
    let done = done.map_err(|error| failed(error.to_string()))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        return Err(failed(format!("`-e 1` ended with {}; it said:\n{said}", done.status)));
    }
    let text = fs::read_to_string("/proc/kallsyms")
        .map_err(|error| internal(format!("cannot read /proc/kallsyms: {error}")))?;
    let module = Installs::AuditRules.module();
    let functions = functions(&text, module);
    if !functions.contains(" __audit_syscall_entry\t") {
        let what = "this kernel does not audit system calls (CONFIG_AUDITSYSCALL)".to_owned();
        return Err(failed(what));
    }
    Ok((ModuleFacts { name: module.to_owned(), ..ModuleFacts::default() }, functions))
}

fn functions(kallsyms: &str, module: &str) -> String {
    let is_one = |line: &&str| {
        let mut words = line.split(' ').skip(1);
        let is_function = matches!(words.next(), Some("t" | "T"));
        let name = words.next().unwrap_or_default();
        is_function
            && !name.contains('\t')
            && PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    };
    kallsyms.lines().filter(is_one).map(|line| format!("{line}\t[{module}]\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_audit_are_those_of_a_module() {
        let text = "ffffffff81000000 T __audit_syscall_entry\nffffffff81000010 t audit_filter_rules.isra.0\n\
                    ffffffff81000020 D audit_enabled\nffffffff81000030 T do_audit_\nffffffffc0000000 t audit_x\t[m]\n";
        let expected = "ffffffff81000000 T __audit_syscall_entry\t[audit]\n\
                        ffffffff81000010 t audit_filter_rules.isra.0\t[audit]\n";
        assert_eq!(functions(text, "audit"), expected);
    }
}
