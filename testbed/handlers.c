// SPDX-License-Identifier: GPL-2.0
/*
 * The ten handlers and the probes that call them.
 *
 * They run inside kprobes: preemption is off, nothing may sleep, and no second
 * probe starts on this CPU meanwhile. So one scratch buffer a CPU is enough.
 *
 * A record holds nothing whose length or value changes from boot to boot under
 * the same load (no clock, no address), and numbers that do change are written
 * with a fixed width, so that a handler's instruction count is comparable
 * between boots.
 */
#include <linux/binfmts.h>
#include <linux/cred.h>
#include <linux/dcache.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/fs_struct.h>
#include <linux/in6.h>
#include <linux/kernel.h>
#include <linux/mm_types.h>
#include <linux/nsproxy.h>
#include <linux/path.h>
#include <linux/pid_namespace.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/socket.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include <linux/un.h>
#include <linux/utsname.h>
#include <linux/version.h>
#include <net/inet_sock.h>
#include <net/net_namespace.h>

#include "testbed.h"

#define PATH_LEN 512
#define RECORD_LEN 1024
#define FILENAME_LEN 256
#define PARENTS_MAX 4
#define CANDIDATES_MAX 3

enum hook_id {
	HOOK_CONNECT,
	HOOK_BIND,
	HOOK_EXECVE,
	HOOK_UDP_RECVMSG,
	HOOK_CREATE,
	HOOK_PTRACE,
	NR_HOOKS,
};

struct scratch {
	char exe[PATH_LEN];
	char path[PATH_LEN];
	char record[NR_HOOKS][RECORD_LEN];
};

/* Allocated, as a module's static per-CPU data share 8 KiB with all modules. */
static struct scratch __percpu *scratch;

/* What the entry handlers leave for the return handlers. */
struct sockaddr_data {
	int fd;
	int len;
	struct sockaddr_storage addr;
};

struct execve_data {
	int argc;
	char filename[FILENAME_LEN];
};

struct udp_data {
	struct sock *sk;
	struct msghdr *msg;
};

static int return_code(struct pt_regs *regs)
{
	return (int)regs_return_value(regs);
}

/* The running program's file with a reference, or NULL. Never sleeps. */
static struct file *current_exe(void)
{
	struct mm_struct *mm = current->mm;
	struct file *file;

	/* A kernel thread has none. */
	if (!mm)
		return NULL;
	rcu_read_lock();
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 7, 0)
	file = get_file_rcu(&mm->exe_file);
#else
	file = rcu_dereference(mm->exe_file);
	if (file && !get_file_rcu(file))
		file = NULL;
#endif
	rcu_read_unlock();
	return file;
}

static const char *or_unknown(const char *path)
{
	return IS_ERR_OR_NULL(path) ? "?" : path;
}

static const char *exe_path(struct scratch *s)
{
	struct file *file = current_exe();
	const char *path;

	if (!file)
		return "?";
	path = or_unknown(d_path(&file->f_path, s->exe, sizeof(s->exe)));
	fput(file);
	return path;
}

/*
 * The working directory below its mount's root. RCU keeps a dentry that another
 * thread's chdir drops meanwhile, so the lock of fs_struct is not needed.
 */
static const char *cwd_path(struct scratch *s)
{
	const char *path = NULL;
	struct dentry *dentry;

	rcu_read_lock();
	dentry = current->fs ? READ_ONCE(current->fs->pwd.dentry) : NULL;
	if (dentry)
		path = dentry_path_raw(dentry, s->path, sizeof(s->path));
	rcu_read_unlock();
	return or_unknown(path);
}

/* scnprintf's "%*phN" takes as many instructions for 1 as for 4194304. */
struct ids {
	__be32 tgid, pid, uid, pid_ns, net_ns, uts_ns;
};

static size_t put_ids(char *buf, size_t room)
{
	const struct nsproxy *ns = current->nsproxy;
	struct ids ids = {
		.tgid = cpu_to_be32(task_tgid_nr(current)),
		.pid = cpu_to_be32(task_pid_nr(current)),
		.uid = cpu_to_be32(from_kuid(&init_user_ns, current_uid())),
		.pid_ns = cpu_to_be32(task_active_pid_ns(current)->ns.inum),
	};

	if (ns) {
		ids.net_ns = cpu_to_be32(ns->net_ns->ns.inum);
		ids.uts_ns = cpu_to_be32(ns->uts_ns->ns.inum);
	}
	return scnprintf(buf, room,
			 " comm=%s tgid=%4phN pid=%4phN uid=%4phN ns=%4phN,%4phN,%4phN",
			 current->comm, &ids.tgid, &ids.pid, &ids.uid,
			 &ids.pid_ns, &ids.net_ns, &ids.uts_ns);
}

static size_t put_sockaddr(char *buf, size_t room,
			   const struct sockaddr_storage *addr, int len)
{
	const struct sockaddr_in6 *in6 = (const void *)addr;
	const struct sockaddr_in *in = (const void *)addr;
	const struct sockaddr_un *un = (const void *)addr;
	int name;

	if (len < (int)sizeof(addr->ss_family))
		return scnprintf(buf, room, " addr=none");
	if (addr->ss_family == AF_INET && len >= (int)sizeof(*in))
		return scnprintf(buf, room, " addr=%4phN port=%2phN",
				 &in->sin_addr, &in->sin_port);
	if (addr->ss_family == AF_INET6 &&
	    len >= (int)offsetofend(struct sockaddr_in6, sin6_addr))
		return scnprintf(buf, room, " addr=%16phN port=%2phN",
				 &in6->sin6_addr, &in6->sin6_port);
	if (addr->ss_family == AF_UNIX) {
		name = len - (int)offsetof(struct sockaddr_un, sun_path);
		return scnprintf(buf, room, " path=%.*s", name, un->sun_path);
	}
	return scnprintf(buf, room, " family=%u", addr->ss_family);
}

/* The ancestors, nearest first, as a HIDS shows who started whom. */
static size_t put_parents(char *buf, size_t room)
{
	struct task_struct *task = current;
	size_t used = 0;
	__be32 tgid;
	int i;

	rcu_read_lock();
	for (i = 0; i < PARENTS_MAX; i++) {
		task = rcu_dereference(task->real_parent);
		if (!task || !task_tgid_nr(task))
			break;
		tgid = cpu_to_be32(task_tgid_nr(task));
		used += scnprintf(buf + used, room - used, "<%4phN.%s", &tgid,
				  task->comm);
	}
	rcu_read_unlock();
	return used;
}

/*
 * Copies what the caller's task passed as a socket address. A page that is not
 * in memory cannot be waited for here: the address then counts as absent.
 */
static void stash_sockaddr(struct sockaddr_data *data, struct pt_regs *regs)
{
	const void __user *addr =
		(const void __user *)regs_get_kernel_argument(regs, 1);
	int len = (int)regs_get_kernel_argument(regs, 2);

	data->fd = (int)regs_get_kernel_argument(regs, 0);
	data->len = clamp_t(int, len, 0, sizeof(data->addr));
	if (copy_from_user_nofault(&data->addr, addr, data->len))
		data->len = 0;
}

static void record_sockaddr(enum hook_id hook, const char *what,
			    const struct sockaddr_data *data,
			    struct pt_regs *regs)
{
	struct scratch *s = this_cpu_ptr(scratch);
	char *buf = s->record[hook];
	size_t used;

	used = scnprintf(buf, RECORD_LEN, "%s fd=%d ret=%d exe=%s", what,
			 data->fd, return_code(regs), exe_path(s));
	used += put_sockaddr(buf + used, RECORD_LEN - used, &data->addr,
			     data->len);
	put_ids(buf + used, RECORD_LEN - used);
}

TB_FN int connect_syscall_entry_handler(struct kretprobe_instance *ri,
					struct pt_regs *regs)
{
	tb_count(connect_syscall_entry_handler);
	tb_spin(connect_syscall_entry_handler);
	stash_sockaddr((struct sockaddr_data *)ri->data, regs);
	return 0;
}

TB_FN int connect_syscall_handler(struct kretprobe_instance *ri,
				  struct pt_regs *regs)
{
	tb_count(connect_syscall_handler);
	tb_spin(connect_syscall_handler);
	tb_plant(regs);
	record_sockaddr(HOOK_CONNECT, "connect",
			(struct sockaddr_data *)ri->data, regs);
	return 0;
}

TB_FN int bind_entry_handler(struct kretprobe_instance *ri,
			     struct pt_regs *regs)
{
	tb_count(bind_entry_handler);
	tb_spin(bind_entry_handler);
	stash_sockaddr((struct sockaddr_data *)ri->data, regs);
	return 0;
}

TB_FN int bind_handler(struct kretprobe_instance *ri, struct pt_regs *regs)
{
	tb_count(bind_handler);
	tb_spin(bind_handler);
	record_sockaddr(HOOK_BIND, "bind", (struct sockaddr_data *)ri->data,
			regs);
	return 0;
}

TB_FN int execve_entry_handler(struct kretprobe_instance *ri,
			       struct pt_regs *regs)
{
	const struct linux_binprm *bprm =
		(const void *)regs_get_kernel_argument(regs, 0);
	struct execve_data *data = (struct execve_data *)ri->data;

	tb_count(execve_entry_handler);
	tb_spin(execve_entry_handler);
	data->argc = bprm->argc;
	if (strscpy(data->filename, bprm->filename, FILENAME_LEN) < 0)
		data->filename[FILENAME_LEN - 1] = '\0';
	return 0;
}

TB_FN int execve_handler(struct kretprobe_instance *ri, struct pt_regs *regs)
{
	const struct execve_data *data = (struct execve_data *)ri->data;
	struct scratch *s = this_cpu_ptr(scratch);
	char *buf = s->record[HOOK_EXECVE];
	size_t used;

	tb_count(execve_handler);
	tb_spin(execve_handler);
	used = scnprintf(buf, RECORD_LEN,
			 "execve ret=%d argc=%d file=%s exe=%s cwd=%s tree=",
			 return_code(regs), data->argc, data->filename,
			 exe_path(s), cwd_path(s));
	used += put_parents(buf + used, RECORD_LEN - used);
	put_ids(buf + used, RECORD_LEN - used);
	return 0;
}

TB_FN int udp_recvmsg_entry_handler(struct kretprobe_instance *ri,
				    struct pt_regs *regs)
{
	struct udp_data *data = (struct udp_data *)ri->data;

	tb_count(udp_recvmsg_entry_handler);
	tb_spin(udp_recvmsg_entry_handler);
	data->sk = (struct sock *)regs_get_kernel_argument(regs, 0);
	data->msg = (struct msghdr *)regs_get_kernel_argument(regs, 1);
	return 0;
}

TB_FN int udp_recvmsg_handler(struct kretprobe_instance *ri,
			      struct pt_regs *regs)
{
	const struct udp_data *data = (struct udp_data *)ri->data;
	const struct inet_sock *inet = inet_sk(data->sk);
	struct scratch *s = this_cpu_ptr(scratch);
	char *buf = s->record[HOOK_UDP_RECVMSG];
	int ret = return_code(regs);
	size_t used;

	tb_count(udp_recvmsg_handler);
	tb_spin(udp_recvmsg_handler);
	used = scnprintf(buf, RECORD_LEN,
			 "udp_recvmsg ret=%d local=%4phN:%2phN exe=%s", ret,
			 &inet->inet_rcv_saddr, &inet->inet_sport, exe_path(s));
	/* msg_name is a buffer of the kernel's, filled in on success alone. */
	if (ret >= 0 && data->msg->msg_name)
		used += put_sockaddr(buf + used, RECORD_LEN - used,
				     data->msg->msg_name,
				     data->msg->msg_namelen);
	put_ids(buf + used, RECORD_LEN - used);
	return 0;
}

TB_FN int security_inode_create_pre_handler(struct kprobe *p,
					    struct pt_regs *regs)
{
	struct dentry *dentry =
		(struct dentry *)regs_get_kernel_argument(regs, 1);
	umode_t mode = (umode_t)regs_get_kernel_argument(regs, 2);
	struct scratch *s = this_cpu_ptr(scratch);
	char *buf = s->record[HOOK_CREATE];
	size_t used;

	tb_count(security_inode_create_pre_handler);
	tb_spin(security_inode_create_pre_handler);
	used = scnprintf(buf, RECORD_LEN, "create mode=%06o path=%s exe=%s",
			 mode,
			 or_unknown(dentry_path_raw(dentry, s->path,
						    sizeof(s->path))),
			 exe_path(s));
	put_ids(buf + used, RECORD_LEN - used);
	return 0;
}

TB_FN int ptrace_pre_handler(struct kprobe *p, struct pt_regs *regs)
{
	struct task_struct *child =
		(struct task_struct *)regs_get_kernel_argument(regs, 0);
	__be32 request = cpu_to_be32(regs_get_kernel_argument(regs, 1));
	__be64 addr = cpu_to_be64(regs_get_kernel_argument(regs, 2));
	__be32 target = cpu_to_be32(task_tgid_nr(child));
	struct scratch *s = this_cpu_ptr(scratch);
	char *buf = s->record[HOOK_PTRACE];
	size_t used;

	tb_count(ptrace_pre_handler);
	tb_spin(ptrace_pre_handler);
	used = scnprintf(buf, RECORD_LEN,
			 "ptrace request=%4phN target=%4phN addr=%8phN",
			 &request, &target, &addr);
	put_ids(buf + used, RECORD_LEN - used);
	return 0;
}

/*
 * Functions to hook, best first. All of one line take the same arguments, as
 * the handler reads them; a kernel may have inlined or renamed the first.
 */
struct hook {
	const char *name;
	const char *symbols[CANDIDATES_MAX];
	struct kretprobe rp; /* of a plain kprobe, rp.kp alone is used */
	bool registered;
};

#define RETPROBE(_name, _entry, _return, _data) \
	.name = _name, .rp = { .entry_handler = _entry, .handler = _return, \
			       .data_size = sizeof(struct _data) }

static struct hook hooks[NR_HOOKS] = {
	[HOOK_CONNECT] = {
		RETPROBE("connect", connect_syscall_entry_handler,
			 connect_syscall_handler, sockaddr_data),
		/* (int fd, struct sockaddr __user *, int len) */
		.symbols = { "__sys_connect" },
	},
	[HOOK_BIND] = {
		RETPROBE("bind", bind_entry_handler, bind_handler,
			 sockaddr_data),
		/* (int fd, struct sockaddr __user *, int len) */
		.symbols = { "__sys_bind" },
	},
	[HOOK_EXECVE] = {
		RETPROBE("execve", execve_entry_handler, execve_handler,
			 execve_data),
		/* (struct linux_binprm *, ...) */
		.symbols = { "bprm_execve", "bprm_execve.part.0",
			     "security_bprm_check" },
	},
	[HOOK_UDP_RECVMSG] = {
		RETPROBE("udp_recvmsg", udp_recvmsg_entry_handler,
			 udp_recvmsg_handler, udp_data),
		/* (struct sock *, struct msghdr *, ...) */
		.symbols = { "udp_recvmsg" },
	},
	[HOOK_CREATE] = {
		.name = "security_inode_create",
		.rp.kp.pre_handler = security_inode_create_pre_handler,
		/* (struct inode *dir, struct dentry *, umode_t) */
		.symbols = { "security_inode_create" },
	},
	[HOOK_PTRACE] = {
		.name = "ptrace",
		.rp.kp.pre_handler = ptrace_pre_handler,
		/* (struct task_struct *child, long request, unsigned long addr, ...) */
		.symbols = { "arch_ptrace", "ptrace_request" },
	},
};

static int register_at(struct hook *hook, const char *symbol,
		       unsigned int maxactive)
{
	struct kretprobe *rp = &hook->rp;

	/* A failed attempt leaves its address and flags behind. */
	rp->kp.symbol_name = symbol;
	rp->kp.addr = NULL;
	rp->kp.flags = 0;
	if (!rp->handler)
		return register_kprobe(&rp->kp);
	rp->kp.pre_handler = NULL;
	rp->maxactive = maxactive;
	return register_kretprobe(rp);
}

static int register_hook(struct hook *hook, unsigned int maxactive)
{
	int i, err = -ENOENT;

	for (i = 0; i < CANDIDATES_MAX && hook->symbols[i]; i++) {
		err = register_at(hook, hook->symbols[i], maxactive);
		if (!err) {
			hook->registered = true;
			return 0;
		}
		pr_warn("hids_testbed: %s: cannot probe %s: %d\n", hook->name,
			hook->symbols[i], err);
	}
	pr_err("hids_testbed: %s: no function to hook on this kernel (last tried: %s): %d\n",
	       hook->name, hook->symbols[i - 1], err);
	return err;
}

int tb_hooks_register(unsigned int maxactive)
{
	int i, err;

	scratch = alloc_percpu(struct scratch);
	if (!scratch) {
		pr_err("hids_testbed: no memory for the handlers' buffers\n");
		return -ENOMEM;
	}
	for (i = 0; i < NR_HOOKS; i++) {
		err = register_hook(&hooks[i], maxactive);
		if (err) {
			tb_hooks_unregister();
			return err;
		}
	}
	err = tb_planted_register(sizeof(struct sockaddr_data));
	if (err)
		tb_hooks_unregister();
	return err;
}

void tb_hooks_unregister(void)
{
	int i;

	if (hooks[NR_HOOKS - 1].registered)
		tb_planted_unregister();
	for (i = 0; i < NR_HOOKS; i++) {
		if (!hooks[i].registered)
			continue;
		if (hooks[i].rp.handler)
			unregister_kretprobe(&hooks[i].rp);
		else
			unregister_kprobe(&hooks[i].rp.kp);
		hooks[i].registered = false;
	}
	free_percpu(scratch);
	scratch = NULL;
}

void tb_hooks_show_missed(struct seq_file *m)
{
	int i;

	/* No free instance, and a probe hit inside another probe's handler. */
	for (i = 0; i < NR_HOOKS; i++)
		seq_printf(m, "%s %lu\n", hooks[i].rp.kp.symbol_name,
			   hooks[i].rp.nmissed + hooks[i].rp.kp.nmissed);
}

/* Each CPU's latest record of a hook; torn if the hook runs meanwhile. */
void tb_hooks_show_records(struct seq_file *m)
{
	const char *record;
	int cpu, i;

	for_each_possible_cpu(cpu) {
		for (i = 0; i < NR_HOOKS; i++) {
			record = per_cpu_ptr(scratch, cpu)->record[i];
			if (record[0])
				seq_printf(m, "cpu=%d %.*s\n", cpu,
					   RECORD_LEN - 1, record);
		}
	}
}
