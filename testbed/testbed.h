/* SPDX-License-Identifier: GPL-2.0 */
#ifndef HIDS_TESTBED_H
#define HIDS_TESTBED_H

#include <linux/compiler.h>
#include <linux/kprobes.h>
#include <linux/percpu.h>
#include <linux/seq_file.h>
#include <linux/types.h>
#include <linux/uaccess.h>
#include <linux/version.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(5, 8, 0)
static inline long copy_from_user_nofault(void *to, const void __user *from,
					  size_t size)
{
	unsigned long left;

	pagefault_disable();
	left = __copy_from_user_inatomic(to, from, size);
	pagefault_enable();
	return left ? -EFAULT : 0;
}
#endif

#if LINUX_VERSION_CODE < KERNEL_VERSION(4, 20, 0)
static inline unsigned long regs_get_kernel_argument(struct pt_regs *regs,
						     unsigned int number)
{
	const unsigned long arguments[] = { regs->di, regs->si, regs->dx,
					    regs->cx };

	return number < ARRAY_SIZE(arguments) ? arguments[number] : 0;
}
#endif

/*
 * A function whose symbol must stay whole: a clone (.isra, .constprop) or an
 * inlined copy would take calls away from whoever attaches to the name. gcc's
 * noipa also keeps it from being found empty, and its calls dropped.
 */
#ifndef __has_attribute
#define __has_attribute(x) 0
#endif
#if __has_attribute(__noipa__)
#define TB_FN noinline __used __attribute__((__noipa__))
#else
#define TB_FN noinline __used __noclone
#endif

void testbed_empty(void);
void tail_caller(void);

/* The ten handlers; X(name). */
#define TB_HANDLERS(X)                      \
	X(connect_syscall_entry_handler)    \
	X(connect_syscall_handler)          \
	X(bind_entry_handler)               \
	X(bind_handler)                     \
	X(execve_entry_handler)             \
	X(execve_handler)                   \
	X(udp_recvmsg_entry_handler)        \
	X(udp_recvmsg_handler)              \
	X(security_inode_create_pre_handler) \
	X(ptrace_pre_handler)

/* Functions called from the trigger file, which can be slowed down too. */
#define TB_SPINNABLE(X) \
	X(testbed_outer) \
	X(testbed_inner) \
	X(testbed_timed)

/*
 * The rest of the functions called from the trigger file. The two twins are
 * both called testbed_twin, in two files: their counters need two names.
 */
#define TB_PLAIN(X)           \
	X(testbed_recurse)    \
	X(testbed_sleep)      \
	X(testbed_migrate)    \
	X(testbed_irq_victim) \
	X(testbed_hold)       \
	X(testbed_clear)      \
	X(testbed_notrace)    \
	X(testbed_twin_first) \
	X(testbed_twin_second) \
	X(testbed_many) \
	X(testbed_empty)

#define TB_TEN(X, d) \
	X(d##0) X(d##1) X(d##2) X(d##3) X(d##4) \
	X(d##5) X(d##6) X(d##7) X(d##8) X(d##9)
#define TB_TRIVIALS(X)              \
	TB_TEN(X, testbed_trivial_0) \
	TB_TEN(X, testbed_trivial_1) \
	TB_TEN(X, testbed_trivial_2) \
	TB_TEN(X, testbed_trivial_3) \
	TB_TEN(X, testbed_trivial_4)

enum tb_id {
#define TB_ID(name) TB_ID_##name,
	TB_HANDLERS(TB_ID)
	TB_NR_HANDLERS,
	TB_HANDLERS_END = TB_NR_HANDLERS - 1,
	TB_SPINNABLE(TB_ID)
	TB_NR_SPIN,
	TB_SPIN_END = TB_NR_SPIN - 1,
	TB_PLAIN(TB_ID)
	TB_TRIVIALS(TB_ID)
#undef TB_ID
	TB_NR,
};

struct tb_counts {
	u64 calls[TB_NR];
	u64 nested;
};

DECLARE_PER_CPU(struct tb_counts, tb_counts);
extern unsigned long tb_spin_iterations[TB_NR_SPIN];

/* One add to this CPU's counter, which an interrupt cannot tear. */
#define tb_count(name) this_cpu_inc(tb_counts.calls[TB_ID_##name])

/*
 * Exactly two more instructions an iteration and none besides: the jump over
 * the loop is executed whether it is taken or not.
 */
static __always_inline void tb_spin_loop(unsigned long n)
{
#ifdef CONFIG_X86_64
	asm volatile("test %0, %0\n\t"
		     "jz 2f\n"
		     "1:\tdec %0\n\t"
		     "jnz 1b\n"
		     "2:"
		     : "+r"(n) : : "cc");
#elif defined(CONFIG_ARM64)
	asm volatile("cbz %0, 2f\n"
		     "1:\tsubs %0, %0, #1\n\t"
		     "b.ne 1b\n"
		     "2:"
		     : "+r"(n) : : "cc");
#else
	while (n--)
		barrier();
#endif
}

/*
 * A slower build: one handler does more work in its code, as after a change of
 * the driver, and no file or parameter tells.
 */
#ifdef TB_SLOW_HANDLER
#ifdef TB_SLOW_NOPS
#define tb_slower() \
	asm volatile(".rept " __stringify(TB_SLOW_NOPS) "\n\tnop\n\t.endr")
#else
#define tb_slower() tb_spin_loop(TB_SLOW_ITERATIONS)
#endif
#define tb_slow(name)                                   \
	do {                                            \
		if (TB_ID_##name == (TB_SLOW_HANDLER))  \
			tb_slower();                    \
	} while (0)
#else
#define tb_slow(name) do { } while (0)
#endif

#define tb_spin(name)                                                    \
	do {                                                             \
		tb_spin_loop(READ_ONCE(tb_spin_iterations[TB_ID_##name])); \
		tb_slow(name);                                           \
	} while (0)

/* handlers.c */
int tb_hooks_register(unsigned int maxactive);
void tb_hooks_unregister(void);
void tb_hooks_show_missed(struct seq_file *m);
void tb_hooks_show_records(struct seq_file *m);

int connect_syscall_entry_handler(struct kretprobe_instance *ri,
				  struct pt_regs *regs);
int connect_syscall_handler(struct kretprobe_instance *ri,
			    struct pt_regs *regs);
int bind_entry_handler(struct kretprobe_instance *ri, struct pt_regs *regs);
int bind_handler(struct kretprobe_instance *ri, struct pt_regs *regs);
int execve_entry_handler(struct kretprobe_instance *ri, struct pt_regs *regs);
int execve_handler(struct kretprobe_instance *ri, struct pt_regs *regs);
int udp_recvmsg_entry_handler(struct kretprobe_instance *ri,
			      struct pt_regs *regs);
int udp_recvmsg_handler(struct kretprobe_instance *ri, struct pt_regs *regs);
int security_inode_create_pre_handler(struct kprobe *p, struct pt_regs *regs);
int ptrace_pre_handler(struct kprobe *p, struct pt_regs *regs);

/* triggers.c */
int tb_trigger(char *command);
u64 tb_longest(void);
void tb_longest_reset(void);

/* planted.c */
#ifdef TB_PLANTED
void tb_plant(struct pt_regs *regs);
bool tb_planted_twin(void);
extern struct kprobe tb_on_connect_too;
int tb_planted_register(size_t data_size);
void tb_planted_unregister(void);
#else
static inline void tb_plant(struct pt_regs *regs) { }
static inline int tb_planted_register(size_t data_size) { return 0; }
static inline void tb_planted_unregister(void) { }
#endif

/* twin.c */
void tb_call_second_twin(void);

/* proc.c */
int tb_proc_create(void);
void tb_proc_remove(void);

#endif
