//! Kernel messages that mean trouble: oops, panic, lockup, stall.

use std::fmt;

/// A report of the kernel: the first line, and the lines that came soon after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// As on the console; never empty.
    pub lines: Vec<String>,
}

impl Trouble {
    /// From the first line of a console or a log on that [`is_trouble`] or [`is_fault`] is true of.
    pub fn find<'a>(
        lines: impl Iterator<Item = &'a str>,
        is_sign: fn(&str) -> bool,
    ) -> Option<Self> {
        let lines = lines.skip_while(|line| !is_sign(line)).map(str::to_owned).collect();
        Some(Self { lines }).filter(|trouble| !trouble.lines.is_empty())
    }

    /// Whether the report names code of this module, as `function+0x12/0x34 [module]` does.
    pub fn names_module(&self, module: &str) -> bool {
        let tag = format!("[{module}]");
        // "Modules linked in" lists every module, with flags in brackets.
        self.lines.iter().any(|line| line.contains("+0x") && line.contains(&tag))
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.lines.first().map_or("", |line| line.trim()))
    }
}

/// A message of the kernel after which nothing measured in this VM can be trusted.
///
/// Only the kernel's console is searched, never the output of the command.
pub fn is_trouble(line: &str) -> bool {
    const SIGNS: [&str; 11] = [
        "Kernel panic",
        "Oops:",
        "BUG:",
        "soft lockup",
        "hard LOCKUP",
        "general protection fault",
        "unable to handle",
        "blocked for more than",
        "self-detected stall",
        "detected stalls",
        "detected expedited stalls",
    ];
    SIGNS.iter().any(|sign| line.contains(sign))
}

/// A line of the kernel's log that says that its code is wrong, though the kernel may go on: trouble, a `WARN`, and what lockdep,
/// KASAN, UBSAN and reference counters find (lib/ubsan.c, mm/kasan/report.c, lib/refcount.c, kernel/locking/lockdep.c and
/// kernel/panic.c, whose `WARN` has a place in the code). A driver may print `WARNING:` itself.
pub fn is_fault(line: &str) -> bool {
    const SIGNS: [&str; 9] = [
        "UBSAN: ",
        "KASAN: ",
        "refcount_t: ",
        "WARNING: possible ",
        "WARNING: inconsistent lock state",
        "WARNING: suspicious RCU usage",
        "WARNING: bad unlock balance",
        "WARNING: held lock freed",
        "kernel BUG at ",
    ];
    is_trouble(line)
        || SIGNS.iter().any(|sign| line.contains(sign))
        || (line.contains("WARNING: ") && line.contains(" at ") && line.contains("+0x"))
}

#[cfg(test)]
mod tests {
    use super::{Trouble, is_fault, is_trouble};

    #[test]
    fn a_report_of_the_log_begins_with_what_it_is() {
        for line in [
            "WARNING: CPU: 0 PID: 101 at /tb/handlers.c:250 bind_handler+0x1a/0x90 [hids_driver]",
            "WARNING: /tb/handlers.c:250 at bind_handler+0x1a/0x90 [hids_driver], CPU#0: init/101",
            "WARNING: possible circular locking dependency detected",
            "WARNING: suspicious RCU usage",
            "UBSAN: array-index-out-of-bounds in /tb/handlers.c:12:3",
            "BUG: KASAN: slab-out-of-bounds in bind_handler+0x12/0x90 [hids_driver]",
            "refcount_t: underflow; use-after-free.",
        ] {
            let log = ["driver: loaded", "------------[ cut here ]------------", line, "more"];
            let found = Trouble::find(log.into_iter(), is_fault).unwrap();
            assert_eq!((found.to_string(), found.lines.len()), (line.to_owned(), 2));
        }
        for line in [
            "hids_testbed: module verification failed: signature and/or required key missing",
            "driver: WARNING: the table is full",
            "process 'x' launched '/y' with NULL argv: empty string added",
        ] {
            assert!(!is_fault(line), "{line}");
        }
    }

    #[test]
    fn trouble_is_seen() {
        for line in [
            "[   12.1] Kernel panic - not syncing: Fatal exception",
            "[    9.0] BUG: kernel NULL pointer dereference, address: 0000000000000000",
            "[    9.0] Oops: 0002 [#1] PREEMPT SMP PTI",
            "[   40.2] watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [cat:212]",
            "[   40.2] NMI watchdog: Watchdog detected hard LOCKUP on cpu 1",
            "[   60.0] rcu: INFO: rcu_preempt self-detected stall on CPU",
            "[   60.0] rcu: INFO: rcu_sched detected stalls on CPUs/tasks: { 1-... }",
            "[  241.6] INFO: task insmod:301 blocked for more than 120 seconds.",
        ] {
            assert!(is_trouble(line), "{line}");
        }
    }

    #[test]
    fn the_module_at_fault_is_named_by_its_code() {
        let report =
            |lines: &[&str]| Trouble { lines: lines.iter().map(|l| (*l).into()).collect() };
        let of_driver = report(&[
            "[    9.0] BUG: kernel NULL pointer dereference, address: 0000000000000000",
            "[    9.0] RIP: 0010:bind_handler+0x12/0x90 [hids_driver]",
        ]);
        assert!(of_driver.names_module("hids_driver"));
        assert!(!of_driver.names_module("driver"));
        let elsewhere =
            report(&["[ 9.0] Oops: 0002 [#1]", "Modules linked in: hids_driver(OE) [x]"]);
        assert!(!elsewhere.names_module("hids_driver"));
        assert!(of_driver.to_string().ends_with("address: 0000000000000000"));
    }

    #[test]
    fn ordinary_lines_are_no_trouble() {
        for line in [
            "[    0.1] printk: console [ttyS0] enabled",
            "[    3.2] hids_testbed: loading out-of-tree module taints kernel.",
            "[    3.2] debugfs: Directory 'x' with parent 'y' already present!",
            "",
        ] {
            assert!(!is_trouble(line), "{line}");
        }
    }
}
