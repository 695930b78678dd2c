//! The script that runs the command in the guest, and the lines by which it reports.

use std::fmt::Write as _;
use std::path::Path;

/// Printed when the guest is up: lines before it are not the command's.
pub(crate) fn start_line(nonce: &str) -> String {
    format!("PROFILER-VM-START {nonce}")
}

/// Begins what is printed when the command has ended; its exit code follows.
pub(crate) fn done_prefix(nonce: &str) -> String {
    format!("PROFILER-VM-DONE {nonce} rc=")
}

/// The text as one word for a shell.
pub fn quote(word: &str) -> String {
    // A NUL is in no word of a command.
    shlex::try_quote(word).unwrap_or_default().into_owned()
}

/// Turns the output to virtme-ng's port for it. virtme-ng's init has done so unless udev, which names the ports
/// by links, was slower than it: then it has taken the kernel's console, and commands would write among
/// the kernel's own lines. The kernel names the ports without udev's help.
const OUTPUT: &str = "\
# The command of a VM.
is_port() { case $(readlink /proc/$$/fd/1) in /dev/vport*) ;; *) return 1 ;; esac }
is_port || modprobe -q virtio_console
tries=100
while ! is_port && [ $tries -gt 0 ]; do
    for port in /sys/class/virtio-ports/*; do
        if [ \"$(cat $port/name)\" = virtme.stdout ]; then exec >/dev/${port##*/}; fi
    done
    is_port || sleep 0.1
    tries=$((tries - 1))
done
";

/// The script for `sh` in the guest.
pub(crate) fn script(
    directory: &Path,
    env: &[(String, String)],
    command: &[String],
    nonce: &str,
) -> String {
    let mut text = String::from(OUTPUT);
    text.push_str(
        "exec </dev/null 2>&1\n\
         export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root\n\
         ip link set dev lo up\n\
         mounted() { grep -q \" $1 \" /proc/mounts; }\n\
         mounted /sys/kernel/debug || mount -t debugfs debugfs /sys/kernel/debug\n\
         mounted /sys/kernel/tracing || mount -t tracefs tracefs /sys/kernel/tracing\n\
         mounted /sys/fs/bpf || mount -t bpf bpf /sys/fs/bpf\n",
    );
    let mut line = |line: &str| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{line}");
    };
    line(&format!("cd {} || exit 1", quote(&directory.to_string_lossy())));
    for (name, value) in env {
        line(&format!("export {name}={}", quote(value)));
    }
    line(&format!("echo '{}'", start_line(nonce)));
    let words: Vec<String> = command.iter().map(|word| quote(word)).collect();
    line(&format!("( exec {} )", words.join(" ")));
    line("rc=$?");
    line("sync");
    line(&format!("echo '{}'$rc", done_prefix(nonce)));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn words_arrive_in_the_command_as_they_are() {
        let command = ["printf", "%s|", "a b", "it's", "$HOME", "*"].map(str::to_owned);
        let env = [("X".to_owned(), "1 '2'".to_owned())];
        let script = script(Path::new("/"), &env, &command, "n1");
        // The mounts fail outside of a VM, which does not matter here.
        let body = script.split("PROFILER-VM-START n1'\n").nth(1).unwrap();
        let output = Command::new("sh").arg("-c").arg(body).output().unwrap();
        let output = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output, "a b|it's|$HOME|*|PROFILER-VM-DONE n1 rc=0\n");
        assert!(script.contains("export X=\"1 '2'\"\n"), "{script}");
    }
}
