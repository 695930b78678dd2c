//! Tests that may harm the machine they run on: they need `--allow-destructive`.

use regex::Regex;

use profiler_base::error::Failure;
use profiler_base::text::phrases;
use profiler_recording::loads::LtpTest;

use super::bad_choice;

/// Lists of LTP, by the start of their name, and what they do.
const SUITES: [(&str, &str); 13] = [
    ("crashme", "executes random bytes as code, as root"),
    ("cpuhotplug", "takes CPUs off line"),
    ("power_management_tests", "suspends the machine and changes CPU frequencies"),
    ("thermal", "heats the CPU to its limits"),
    ("net_stress", "floods and reconfigures network interfaces"),
    ("net.nfs", "mounts and exports file systems over the network"),
    ("scsi_debug", "loads a SCSI driver and makes file systems on its disk"),
    ("controllers", "mounts control groups and moves the limits of the machine's processes"),
    ("mm", "uses up all memory, so that the kernel kills other programs"),
    ("hugetlb", "takes memory away for huge pages"),
    ("tpm_tools", "takes ownership of the TPM"),
    ("ima", "loads integrity policies that stay until the next boot"),
    ("smack", "changes security labels of the running system"),
];

/// Single tests, by a regular expression over their names, and what they do.
const TESTS: [(&str, &str); 16] = [
    (
        r"^(clock_settime|settimeofday|stime|adjtimex|clock_adjtime|leapsec)\d",
        "sets the machine's clock",
    ),
    (r"^rtc02", "sets the machine's hardware clock"),
    (r"^(sethostname|setdomainname)\d", "renames the machine"),
    (r"^reboot\d", "calls reboot(2)"),
    (r"^(swapon|swapoff)\d", "switches swap space on and off"),
    (
        r"^(oom|min_free_kbytes|overcommit_memory|swapping|ksm|thp)\d*",
        "uses up the machine's memory",
    ),
    (r"^(cve-|dirtyc0w|meltdown)", "attacks the kernel: it may crash where the flaw is not fixed"),
    (r"^kexec", "loads another kernel"),
    (r"^(delete_module)\d", "unloads kernel modules"),
    (r"^(ioperm|iopl)\d", "reaches for I/O ports"),
    (r"^(quotactl|acct)\d", "changes accounting and quotas of mounted file systems"),
    (r"^(sysctl|syslog)\d", "changes kernel settings and the kernel's log level"),
    (r"^(pivot_root|umount2_?)\d", "changes what is mounted"),
    (
        r"^(fork_exec_loop|fork14|fork_bomb|pids_)",
        "starts as many processes as the machine can hold",
    ),
    (r"^vhangup\d", "hangs up the terminal"),
    (r"^(fanotify|inotify)_?perm", "blocks file access of all processes"),
];

/// Why `test` of `suite` may harm the machine; `None` if it is not known to.
fn reason(suite: &str, test: &LtpTest) -> Option<&'static str> {
    if let Some((_, reason)) = SUITES.iter().find(|(name, _)| {
        suite == *name || suite.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'))
    }) {
        return Some(reason);
    }
    TESTS.iter().find_map(|(pattern, reason)| {
        Regex::new(pattern).ok()?.is_match(&test.name).then_some(*reason)
    })
}

/// Fails if tests are known to be destructive.
pub(super) fn refuse(suite: &str, tests: &[LtpTest]) -> Result<(), Failure> {
    let harms = tests.iter().filter_map(|test| Some((&test.name, reason(suite, test)?)));
    let harmful: Vec<String> = harms.map(|(name, reason)| format!("{name} ({reason})")).collect();
    if harmful.is_empty() {
        return Ok(());
    }
    Err(bad_choice(format!(
        "{} may harm this machine: leave them out with --ltp-skip, or allow them with --allow-destructive",
        phrases(&harmful)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(suite: &str, name: &str) -> Option<&'static str> {
        reason(suite, &LtpTest { name: name.to_owned(), command: name.to_owned() })
    }

    #[test]
    fn destructive_tests_are_known_and_the_profiles_tests_are_not() {
        for (pattern, _) in TESTS {
            Regex::new(pattern).unwrap();
        }
        assert!(of("syscalls", "settimeofday01").is_some());
        assert!(of("syscalls", "leapsec01").is_some());
        assert!(of("kernel_misc", "rtc02").is_some());
        assert!(of("kernel_misc", "rtc01").is_none(), "it sets alarms alone");
        assert!(of("crashme", "f00f").is_some());
        assert!(of("net_stress.route", "route4-change-dst").is_some());
        assert!(of("mm", "mmap01").is_some());
        assert!(of("mmio", "mmap01").is_none());
        for name in ["connect01", "open15", "mount01", "ptrace11", "init_module01", "setuid01"] {
            assert_eq!(of("syscalls", name), None, "{name}");
        }
    }
}
