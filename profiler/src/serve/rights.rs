//! The rights that the daemon keeps: the capabilities that attaching again takes, and the system calls that it makes.
//!
//! Rights are those of a thread, and a thread starts with those of the one that starts it: they are dropped before there is a
//! second one. docs/serve-rights.md has what fails without each capability, and on which kernel.

use std::collections::BTreeMap;
use std::fmt;

use procfs::process::Process;
use rustix::thread::{self, CapabilitySet, CapabilitySets};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, sock_filter,
};

use profiler_base::error::{Failure, bail, exit};
use profiler_base::limits;

/// A capability that is kept.
#[derive(Debug)]
pub struct Capability {
    /// Its bit.
    pub bit: CapabilitySet,
    /// Its name, as systemd and capabilities(7) have it.
    pub name: &'static str,
    /// What it is kept for.
    pub why: &'static str,
}

/// The capabilities that root needs to attach again.
pub const KEPT: [Capability; 2] = [
    Capability {
        bit: CapabilitySet::SYS_ADMIN,
        name: "CAP_SYS_ADMIN",
        why: "to find the BTF of a module that is loaded, which the kernel lists for it alone; it includes loading, \
              attaching and reading BPF programs and maps",
    },
    Capability {
        bit: CapabilitySet::SYSLOG,
        name: "CAP_SYSLOG",
        why: "to read the addresses of functions, which tell apart those of one name",
    },
];

/// Open files that the daemon may need: some eight a handler.
const OPEN_FILES: usize = 16_384;

/// Constants of libc, by name.
macro_rules! calls {
    ($($name:ident)*) => { [$(libc::$name),*] };
}

/// System calls that the daemon never makes, and that an attacker could use best. The list names what is refused, because
/// what a program calls changes with each version of its libraries; the unit adds systemd's list of what is allowed.
const REFUSED: [libc::c_long; 40] = calls![
    // Other processes and their memory.
    SYS_ptrace SYS_process_vm_readv SYS_process_vm_writev SYS_pidfd_getfd SYS_kcmp
    // The kernel itself.
    SYS_kexec_load SYS_kexec_file_load SYS_init_module SYS_finit_module SYS_delete_module SYS_reboot
    // Other uses of CAP_SYS_ADMIN: file systems, namespaces, swap, quotas, names.
    SYS_mount SYS_umount2 SYS_pivot_root SYS_move_mount SYS_open_tree SYS_fsopen SYS_fspick SYS_mount_setattr
    SYS_chroot SYS_unshare SYS_setns SYS_swapon SYS_swapoff SYS_quotactl SYS_quotactl_fd SYS_fanotify_init
    SYS_sethostname SYS_setdomainname SYS_open_by_handle_at SYS_syslog
    // Other users.
    SYS_setuid SYS_setgid SYS_setresuid SYS_setresgid SYS_keyctl
    // Frequent ways into the kernel, or around this filter.
    SYS_userfaultfd SYS_io_uring_setup SYS_process_madvise SYS_personality
];

/// Refused where no backend starts the [keeper](profiler_probe::keeper).
const PROGRAM_CALLS: [libc::c_long; 2] = calls![SYS_execve SYS_execveat];

/// Flags of clone(2) that do what `unshare` does. Its eighth, `CLONE_NEWTIME`, is for `unshare` and `clone3` alone.
const NAMESPACES: [libc::c_int; 7] = calls![
    CLONE_NEWNS CLONE_NEWCGROUP CLONE_NEWUTS CLONE_NEWIPC CLONE_NEWUSER CLONE_NEWPID CLONE_NEWNET
];

/// Where `CONFIG_X86_X32_ABI` is set, the kernel takes each call by its number with this bit, too (`__X32_SYSCALL_BIT`).
const X32: u32 = 0x4000_0000;

/// Whether the daemon may start a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exec {
    /// It may: backends that change tracefs start the keeper.
    Keeper,
    /// It may not.
    Never,
}

/// A step failed: why, and what to do.
fn failure<E: fmt::Display>(step: &str) -> impl Fn(E) -> Failure {
    let remedy = "start it as root by docs/systemd/profiler.service, without what adds rights, and outside of containers";
    move |why| Failure::new(exit::CANNOT_MEASURE, format!("{step}: {why}: {remedy}"))
}

/// Drops all rights that attaching again does not need, for good: capabilities from all five sets, and system calls. Raises the
/// limits of locked memory and open files first, which takes a capability. Returns lines that say what is left.
///
/// # Errors
/// When this process has several threads, or not all could be dropped.
pub fn drop_rights(exec: Exec) -> Result<Vec<String>, Failure> {
    let facts = Process::myself().and_then(|process| process.stat());
    let threads = facts.map_err(failure("reading /proc/self/stat"))?.num_threads;
    if threads > 1 {
        bail!(
            CANNOT_MEASURE,
            "rights cannot be dropped once there are {threads} threads: an error of the profiler, please report it"
        );
    }
    drop_rights_of_thread(exec)
}

/// The same for the calling thread and those that it starts from now on; other threads keep their rights.
///
/// # Errors
/// When not all could be dropped.
pub fn drop_rights_of_thread(exec: Exec) -> Result<Vec<String>, Failure> {
    limits::raise_locked_memory();
    limits::raise_open_files(OPEN_FILES);
    let keep = KEPT.iter().fold(CapabilitySet::empty(), |all, kept| all | kept.bit);
    drop_capabilities(keep)?;
    filter(exec)
        .and_then(|filter| seccompiler::apply_filter(&filter))
        .map_err(failure("refusing system calls, which takes CONFIG_SECCOMP_FILTER"))?;
    let held = thread::capabilities(None).map_err(failure("reading capabilities"))?;
    Ok(lines_about(held.effective, exec))
}

/// The rights that are left, a line each.
fn lines_about(effective: CapabilitySet, exec: Exec) -> Vec<String> {
    let held = KEPT.iter().filter(|kept| effective.contains(kept.bit));
    let mut lines: Vec<String> =
        held.map(|Capability { name, why, .. }| format!("kept {name}: {why}")).collect();
    let refused = refused(exec).count();
    lines.push(format!("{refused} system calls are refused, and new namespaces and the x32 ABI"));
    lines
}

/// Drops all capabilities but `keep` from this thread, and with them all ways to get them back.
///
/// # Errors
/// Which step failed.
pub fn drop_capabilities(keep: CapabilitySet) -> Result<(), Failure> {
    thread::set_no_new_privs(true).map_err(failure("setting no_new_privs"))?;
    for bit in (0..u64::BITS).map(|bit| CapabilitySet::from_bits_retain(1 << bit)) {
        // The kernel refuses those beyond its last one.
        if thread::capability_is_in_bounding_set(bit) != Ok(true) || keep.contains(bit) {
            continue;
        }
        match thread::remove_capability_from_bounding_set(bit) {
            // It takes CAP_SETPCAP. With no_new_privs the bounding set is that of nothing.
            Ok(()) | Err(rustix::io::Errno::PERM) => {}
            Err(error) => return Err(failure("dropping from the bounding set")(error)),
        }
    }
    thread::clear_ambient_capability_set().map_err(failure("clearing the ambient set"))?;
    let doing = "dropping capabilities";
    let held = thread::capabilities(None).map_err(failure(doing))?.permitted & keep;
    let inheritable = CapabilitySet::empty();
    let sets = CapabilitySets { effective: held, permitted: held, inheritable };
    thread::set_capabilities(None, sets).map_err(failure(doing))
}

fn refused(exec: Exec) -> impl Iterator<Item = libc::c_long> {
    let programs = if exec == Exec::Never { &PROGRAM_CALLS[..] } else { &[] };
    REFUSED.iter().chain(programs).copied()
}

/// Refuses system calls with EPERM; all others are as before. `clone3` does not exist: a filter cannot see its flags, and
/// libraries then call `clone`.
fn filter(exec: Exec) -> Result<BpfProgram, seccompiler::Error> {
    let mut rules: BTreeMap<i64, _> = refused(exec).map(|number| (number, Vec::new())).collect();
    rules.insert(libc::SYS_clone, NAMESPACES.map(with_flag).into_iter().collect::<Result<_, _>>()?);
    let eperm = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let arch = std::env::consts::ARCH.try_into()?;
    let listed: BpfProgram =
        SeccompFilter::new(rules, SeccompAction::Allow, eperm.clone(), arch)?.try_into()?;
    let enosys = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    let mut program = first_refused(eperm, enosys);
    program.extend(listed);
    Ok(program)
}

/// `clone` with this flag among its own.
fn with_flag(flag: libc::c_int) -> Result<SeccompRule, seccompiler::BackendError> {
    let flag = u64::from(flag.unsigned_abs());
    let is_set = SeccompCmpOp::MaskedEq(flag);
    SeccompRule::new(vec![SeccompCondition::new(0, SeccompCmpArgLen::Dword, is_set, flag)?])
}

/// The part that `seccompiler` cannot express: a range of numbers, and a second errno. It precedes its program.
fn first_refused(of_x32: SeccompAction, of_clone3: SeccompAction) -> BpfProgram {
    let clone3 = u32::try_from(libc::SYS_clone3).unwrap_or_default();
    vec![
        // The number is the first word of `struct seccomp_data`.
        instruction(libc::BPF_LD | libc::BPF_ABS, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JGE, X32, 1),
        instruction(libc::BPF_RET, of_x32.into(), 0),
        instruction(libc::BPF_JMP | libc::BPF_JEQ, clone3, 1),
        instruction(libc::BPF_RET, of_clone3.into(), 0),
    ]
}

/// One instruction of the filter; a comparison that is not met skips `jf` more.
fn instruction(code: u32, k: u32, jf: u8) -> sock_filter {
    sock_filter { code: u16::try_from(code).unwrap_or_default(), jt: 0, jf, k }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::process::Command;

    use nix::errno::Errno;
    use nix::sched::{CloneFlags, setns, unshare};
    use nix::sys::ptrace;
    use nix::unistd::{Pid, chroot};

    use super::*;

    /// What a thread of its own sees, whose rights do not outlive it.
    fn in_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| scope.spawn(work).join().unwrap())
    }

    /// What calls that need no privilege say; each says something else where it is allowed.
    fn calls() -> [Option<Errno>; 4] {
        let nobody = Pid::from_raw(i32::MAX);
        let no_namespace = tempfile::tempfile().unwrap();
        [
            unshare(CloneFlags::empty()).err(),
            setns(no_namespace, CloneFlags::empty()).err(),
            ptrace::attach(nobody).err(),
            chroot("/nowhere").err(),
        ]
    }

    /// What these say: quotactl_fd and fanotify_init of nothing; getpid by its x32 number; clone and clone3 for each namespace.
    fn ways_round() -> Vec<Option<Errno>> {
        use profiler_tests::call_in_vain as call;
        let mut said = vec![
            call(libc::SYS_quotactl_fd, -1, -1),
            call(libc::SYS_fanotify_init, -1, -1),
            call(libc::SYS_getpid | libc::c_long::from(X32), 0, 0),
        ];
        // CLONE_SIGHAND without CLONE_VM: no kernel takes that.
        said.extend(NAMESPACES.map(|flag| call(libc::SYS_clone, flag | libc::CLONE_SIGHAND, 0)));
        said.push(call(libc::SYS_clone3, 0, 0));
        said
    }

    fn starts_a_program() -> bool {
        Command::new("true").status().is_ok()
    }

    #[test]
    fn dangerous_calls_are_refused_and_others_go_on() {
        let (before, is_started) = in_thread(|| (calls(), starts_a_program()));
        assert_eq!(before[..3], [None, Some(Errno::EINVAL), Some(Errno::ESRCH)]);
        assert!(is_started);
        for (exec, may_start) in [(Exec::Keeper, true), (Exec::Never, false)] {
            let program = filter(exec).unwrap();
            in_thread(|| {
                seccompiler::apply_filter(&program).unwrap();
                assert_eq!(calls(), [Some(Errno::EPERM); 4], "{exec:?}");
                let mut said = ways_round();
                assert_eq!(said.pop(), Some(Some(Errno::ENOSYS)), "clone3");
                assert_eq!(said, [Some(Errno::EPERM); 3 + NAMESPACES.len()], "{exec:?}");
                assert_eq!(starts_a_program(), may_start, "{exec:?}");
                let inner = std::thread::spawn(calls).join().unwrap();
                assert_eq!(inner, [Some(Errno::EPERM); 4], "threads that it starts");
                // What the daemon does.
                std::fs::write(tempfile::NamedTempFile::new().unwrap(), "x").unwrap();
                std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            });
        }
    }

    #[test]
    fn each_refused_call_is_in_the_filter_once() {
        let numbers: BTreeSet<i64> = refused(Exec::Never).collect();
        assert_eq!(numbers.len(), refused(Exec::Never).count());
        // A compare and a return each, after the checks of the architecture and before the last return.
        let lengths = [Exec::Keeper, Exec::Never].map(|exec| filter(exec).unwrap().len());
        assert!(lengths[0] > REFUSED.len() && lengths[1] > lengths[0], "{lengths:?}");
    }

    fn of_thread() -> (CapabilitySets, u64, bool, bool) {
        let is_in = |bit: u32| {
            thread::capability_is_in_bounding_set(CapabilitySet::from_bits_retain(1 << bit))
                == Ok(true)
        };
        let bounding = (0..u64::BITS).filter(|bit| is_in(*bit)).map(|bit| 1 << bit).sum();
        let ambient = thread::capability_is_in_ambient_set(CapabilitySet::CHOWN).unwrap();
        (thread::capabilities(None).unwrap(), bounding, ambient, thread::no_new_privs().unwrap())
    }

    /// As root in a container all of them; as a user there is little to lose.
    #[test]
    fn capabilities_are_dropped_from_all_sets() {
        let keep = CapabilitySet::SYSLOG | CapabilitySet::CHOWN;
        let (before, bounding, ..) = in_thread(of_thread);
        let may = before.effective.contains(CapabilitySet::SETPCAP);
        let (sets, left, ambient, no_new_privs) = in_thread(|| {
            if may {
                let inheritable = CapabilitySet::CHOWN;
                thread::set_capabilities(None, CapabilitySets { inheritable, ..before }).unwrap();
                thread::configure_capability_in_ambient_set(CapabilitySet::CHOWN, true).unwrap();
                assert!(of_thread().2);
            }
            drop_capabilities(keep).unwrap();
            of_thread()
        });
        let held = before.permitted & keep;
        assert_eq!((sets.permitted, sets.effective), (held, held));
        assert_eq!((sets.inheritable, ambient), (CapabilitySet::empty(), false));
        assert!(no_new_privs);
        assert_eq!(left, if may { bounding & keep.bits() } else { bounding });
        assert_eq!(in_thread(of_thread).0, before, "of that thread alone");
    }

    #[test]
    fn other_threads_would_keep_theirs() {
        // That which runs the tests.
        let error = drop_rights(Exec::Never).unwrap_err();
        assert!(error.message.contains("once there are"), "{error}");
    }

    #[test]
    fn what_is_kept_is_said_with_the_reason() {
        let lines = lines_about(CapabilitySet::all(), Exec::Never);
        assert_eq!(lines.len(), KEPT.len() + 1);
        assert!(lines[0].starts_with("kept CAP_SYS_ADMIN: to find the BTF"), "{lines:?}");
        assert_eq!(
            lines[KEPT.len()],
            "42 system calls are refused, and new namespaces and the x32 ABI"
        );
        assert_eq!(lines_about(CapabilitySet::empty(), Exec::Never).len(), 1);
    }
}
