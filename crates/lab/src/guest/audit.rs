//! Audit rules that auditctl has loaded, and the functions of the kernel that apply them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use profiler_base::error::{Failure, exit};
use profiler_kernel::hooks::{Hook, HookKind, Hooks};
use profiler_kernel::module::ModuleFacts;
use profiler_kernel::names::{is_function, lines_of};

use super::{agent, internal};
use crate::installs::Installs;
use crate::wire::Agent;

/// Where programs tell syslog something: syslog(3).
const SYSLOG: &str = "/dev/log";

/// A program that has sent nothing for this long has nothing more to say.
const SILENCE: Duration = Duration::from_secs(1);

/// What names of these functions begin with (kernel/audit.c, auditsc.c, auditfilter.c, audit_watch.c, audit_tree.c, audit_fsnotify.c).
const PREFIXES: [&str; 5] = ["audit_", "__audit_", "auditd_", "auditsc_", "kauditd_"];

/// Why rules were refused: with `-R` auditctl tells syslog alone, which is this process for a second try.
pub(super) fn explained(agent: &Agent, failure: Failure) -> Failure {
    let mut lines = told(agent).unwrap_or_default();
    lines.truncate(agent::LINES);
    let message = format!("{}\nit told syslog:\n{}", failure.message, lines.join("\n"));
    if lines.is_empty() { failure } else { Failure { message, ..failure } }
}

/// What auditctl tells syslog.
fn told(agent: &Agent) -> io::Result<Vec<String>> {
    let log = UnixDatagram::bind(SYSLOG)?;
    log.set_read_timeout(Some(SILENCE))?;
    let mut child = agent::command(agent)?.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
    let (mut lines, mut message) = (Vec::new(), [0; 1024]);
    while let Ok(bytes) = log.recv(&mut message) {
        lines.push(String::from_utf8_lossy(&message[..bytes]).trim_end_matches('\0').to_owned());
    }
    // It has said nothing for a while.
    child.kill()?;
    child.wait()?;
    Ok(lines)
}

/// Turns audit on, as auditd does when it starts; gives the facts, which say how many rules there are, and lines of
/// `/proc/kallsyms` in which these functions are those of a module.
pub(super) fn installed(agent: &Agent) -> Result<(ModuleFacts, String), Failure> {
    auditctl(agent, &["-e", "1"])?;
    let listed = auditctl(agent, &["-l"])?;
    let loaded: Vec<&str> = listed.lines().filter(|line| is_rule(line)).collect();
    let rules = agent.arguments.last().map_or(Ok(String::new()), fs::read_to_string);
    let rules = rules.map_err(|error| internal(format!("cannot read the rules: {error}")))?;
    let given = rules.lines().filter(|line| is_rule(line)).count();
    if loaded.is_empty() && given > 0 {
        let what = format!("none of its {given} rules was loaded (`auditctl -l`)");
        return Err(agent::failed(agent, exit::NO_TARGET, &what));
    }
    let functions = functions_of_kernel(&PREFIXES, Installs::AuditRules.module())?;
    if !functions.contains(" __audit_syscall_entry\t") {
        let what = "this kernel does not audit system calls (CONFIG_AUDITSYSCALL)";
        return Err(agent::failed(agent, exit::LAB_FAILED, what));
    }
    Ok((facts(&loaded, given), functions))
}

/// The facts of the `loaded` rules, of so many `given`. Recordings are compared only if as many rules were refused: those cost nothing.
fn facts(loaded: &[&str], given: usize) -> ModuleFacts {
    let count = loaded.len();
    let unknown =
        format!("which system calls its rules match: {count} of {given} rules were loaded");
    let mut list: Vec<Hook> = loaded.iter().map(|rule| hook(rule)).collect();
    list.sort_by(|one, other| one.place.cmp(&other.place));
    let hooks = Some(Hooks { list, unknown: vec![unknown] });
    let refused = given.saturating_sub(count).to_string();
    let parameters = BTreeMap::from([("rules refused".to_owned(), refused)]);
    let name = Installs::AuditRules.module().to_owned();
    ModuleFacts { name, hooks, parameters, ..ModuleFacts::default() }
}

/// A rule as auditctl lists it, with the function that goes through the rules of its list (kernel/auditsc.c, audit.c).
fn hook(rule: &str) -> Hook {
    let list = rule.split_whitespace().nth(1).unwrap_or_default();
    let words: Vec<&str> = list.split(',').collect();
    let function = if rule.starts_with("-w") || words.contains(&"exit") {
        "__audit_syscall_exit"
    } else if words.contains(&"task") {
        "audit_alloc"
    } else {
        "audit_filter"
    };
    Hook::new(HookKind::AuditRule, rule.trim(), vec![function.to_owned()])
}

/// What auditctl prints when it is run with these arguments.
fn auditctl(agent: &Agent, arguments: &[&str]) -> Result<String, Failure> {
    let program = agent.arguments.first().ok_or_else(|| internal("no auditctl"))?;
    let what = match Command::new(program).args(arguments).stdin(Stdio::null()).output() {
        Ok(Output { status, stdout, .. }) if status.success() => {
            return Ok(String::from_utf8_lossy(&stdout).into_owned());
        }
        Ok(Output { status, stderr, .. }) => {
            format!("it ended with {status}; it said:\n{}", String::from_utf8_lossy(&stderr))
        }
        Err(error) => error.to_string(),
    };
    let what = format!("`auditctl {}`: {what}", arguments.join(" "));
    Err(agent::failed(agent, exit::LAB_FAILED, &what))
}

/// Whether a line adds a rule, in a file or in what auditctl lists.
fn is_rule(line: &str) -> bool {
    ["-a", "-A", "-w"].contains(&line.split_whitespace().next().unwrap_or_default())
}

/// Lines of `/proc/kallsyms` in which the kernel's functions with these prefixes are those of a module.
pub(super) fn functions_of_kernel(prefixes: &[&str], module: &str) -> Result<String, Failure> {
    let text = fs::read_to_string("/proc/kallsyms")
        .map_err(|error| internal(format!("cannot read /proc/kallsyms: {error}")))?;
    Ok(functions(&text, prefixes, module))
}

fn functions(kallsyms: &str, prefixes: &[&str], module: &str) -> String {
    lines_of(kallsyms)
        .filter(|(_, kind, name, of)| {
            of.is_none() && is_function(kind) && prefixes.iter().any(|it| name.starts_with(it))
        })
        .map(|(address, kind, name, _)| format!("{address} {kind} {name}\t[{module}]\n"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_recording::CallTree;
    use profiler_recording::unlike::{Use, differences};
    use profiler_tests::recording;

    #[test]
    fn rules_are_told_from_settings() {
        for rule in ["-a always,exit -S all", "  -A exit,always", "-w /etc/passwd -p wa"] {
            assert!(is_rule(rule), "{rule}");
        }
        for other in ["", "-D", "-b 8192", "# -a x", "No rules", "-i", "-W /etc/passwd"] {
            assert!(!is_rule(other), "{other}");
        }
    }

    #[test]
    fn rules_that_only_one_side_refused_are_not_compared() {
        let of = |loaded, given| {
            let mut run = recording::runs(&[CallTree::default()]).remove(0);
            run.modules = vec![facts(&vec!["-a always,exit -S all"; loaded], given)];
            run
        };
        let unlike = |a, b| differences(&a, &b, Use::Comparison);
        assert_eq!(unlike(of(400, 405), of(401, 406)), []);
        let [found] = unlike(of(405, 405), of(138, 405)).try_into().unwrap();
        let expected = "parameters: audit: rules refused=0 against audit: rules refused=267";
        assert_eq!(found.to_string(), expected);
    }

    #[test]
    fn a_rule_is_called_where_its_list_is_gone_through() {
        let calls = |rule: &str| hook(rule).to_string();
        let watch = "audit-rule -w /etc/passwd -p wa (__audit_syscall_exit)";
        assert_eq!(calls("-w /etc/passwd -p wa"), watch);
        let open = "audit-rule -a always,exit -F arch=b64 -S openat (__audit_syscall_exit)";
        assert_eq!(calls("-a always,exit -F arch=b64 -S openat"), open);
        assert_eq!(calls("-a never,task"), "audit-rule -a never,task (audit_alloc)");
        assert_eq!(
            calls("-a exclude,never -F msgtype=CWD"),
            "audit-rule -a exclude,never -F msgtype=CWD (audit_filter)"
        );
    }

    #[test]
    fn functions_of_audit_are_those_of_a_module() {
        let text = "ffffffff81000000 T __audit_syscall_entry\nffffffff81000010 t audit_filter_rules.isra.0\n\
                    ffffffff81000020 D audit_enabled\nffffffff81000030 T do_audit_\nffffffffc0000000 t audit_x\t[m]\n";
        let expected = "ffffffff81000000 T __audit_syscall_entry\t[audit]\n\
                        ffffffff81000010 t audit_filter_rules.isra.0\t[audit]\n";
        assert_eq!(functions(text, &PREFIXES, "audit"), expected);
    }
}
