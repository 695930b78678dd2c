//! What a kernel says when it is in trouble.

/// A message of the kernel after which nothing measured in this VM can be trusted.
///
/// Only the kernel's console is searched, never the output of the command.
pub(crate) fn is_trouble(line: &str) -> bool {
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

#[cfg(test)]
mod tests {
    use super::is_trouble;

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
