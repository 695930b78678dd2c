//! The handlers of Elkeid's published table, in its order; all of them run inside kprobes.

pub(crate) const TEN: [&str; 10] = [
    "connect_syscall_handler",
    "connect_syscall_entry_handler",
    "udp_recvmsg_handler",
    "udp_recvmsg_entry_handler",
    "bind_handler",
    "bind_entry_handler",
    "execve_entry_handler",
    "execve_handler",
    "security_inode_create_pre_handler",
    "ptrace_pre_handler",
];
