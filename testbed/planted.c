// SPDX-License-Identifier: GPL-2.0
/*
 * Changes that a gate has to see, one at a time: the digit in tb_planted says
 * which, and a test writes another one into the built file. All but one of the
 * places where they are made exist in each build.
 */
#include <linux/atomic.h>
#include <linux/bug.h>
#include <linux/moduleparam.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include <linux/workqueue.h>

#include "testbed.h"

enum planted {
	NOTHING = '0',
	CLEARS = '1', /* 64 KiB more in each call */
	SLOW_CALLS = '2', /* a slow path in 2 % of the calls */
	FAULTS = '3', /* on memory that is not there */
	WARNS = '4',
	FAILS = '5', /* every second operation */
	WORK_SELDOM = '6', /* a work item for each tenth operation */
	WORK_OFTEN = '7', /* one for each */
	TWICE = '8', /* the handler, for one operation */
	SLOW_FIFTH = '9', /* outside of handlers, in every fifth operation */
	SLOW_FEW = 'a', /* the same in 2 % */
	READS = 'b', /* a hook on each read, which is slow */
	TWIN = 'c', /* in a function whose name another one has, too */
	COLD = 'd', /* code that the compiler has put apart */
	INSIDE = 'e', /* a probe behind a function's entry */
	REFUSES = 'f', /* each operation fails */
};

static volatile const char tb_planted[] = "PLANTED=0";

static enum planted planted(void)
{
	return tb_planted[sizeof("PLANTED=") - 1];
}

bool tb_planted_twin(void)
{
	return planted() == TWIN;
}

#ifdef TB_HARMLESS
/* Five of the ten changes that cost nothing; the Kbuild has the others. */
static int nobody_reads_it;
module_param(nobody_reads_it, int, 0444);
MODULE_VERSION("2");
static __used const char nobody_needs_it[3000] = "more data";
static __used int nobody_calls_it(int value)
{
	return value * 3 + nobody_needs_it[value];
}
#define SAYS "hids_testbed: something is mapped at 0x10, which is odd\n"
#else
#define SAYS "hids_testbed: there is memory at 0x10\n"
#endif

static char cleared[65536];
static atomic_t calls, operations;

static void work(struct work_struct *unused)
{
	tb_spin_loop(100);
}

static DECLARE_WORK(work_item, work);

static noinline __cold void cold(void)
{
	barrier();
}

/* In connect_syscall_handler. */
void tb_plant(struct pt_regs *regs)
{
	unsigned int nth = atomic_inc_return(&calls);
	char byte;

	switch (planted()) {
	case CLEARS:
		memset(cleared, 0, sizeof(cleared));
		barrier_data(cleared);
		break;
	case SLOW_CALLS:
		if (nth % 50 == 0)
			tb_spin_loop(500);
		break;
	case FAULTS:
		if (copy_from_user_nofault(&byte, (void __user *)0x10, 1) == 0)
			pr_err(SAYS);
		break;
	case WARNS:
		WARN_ON_ONCE(nth > 20);
		break;
	case FAILS:
		if (nth % 2)
			regs_set_return_value(regs, -EPERM);
		break;
	case COLD:
		tb_spin_loop(30);
		cold();
		break;
	default:
		break;
	}
	/* Not above, where it would move what the others take. */
	if (planted() == REFUSES)
		regs_set_return_value(regs, -EPERM);
}

/* No handler of an operation, but a part of each. */
static int outside(struct kprobe *p, struct pt_regs *regs)
{
	unsigned int nth = atomic_inc_return(&operations);

	switch (planted()) {
	case WORK_SELDOM:
		if (nth % 10 == 0)
			schedule_work(&work_item);
		break;
	case WORK_OFTEN:
		schedule_work(&work_item);
		break;
	case SLOW_FIFTH:
		if (nth % 5 == 0)
			tb_spin_loop(1000);
		break;
	case SLOW_FEW:
		if (nth % 50 == 0)
			tb_spin_loop(500);
		break;
	default:
		break;
	}
	return 0;
}

static struct kprobe on_connect = {
	.symbol_name = "__sys_connect",
	.pre_handler = outside,
};

static int read_handler(struct kprobe *p, struct pt_regs *regs)
{
	tb_spin_loop(100);
	return 0;
}

static struct kprobe on_read = {
	.symbol_name = "vfs_read",
	.pre_handler = read_handler,
};

/* Behind the five bytes at the entry that are the tracer's: it becomes a jump. */
static struct kprobe inside = {
	.symbol_name = "__sys_connect",
	.offset = 5,
	.pre_handler = outside,
};

static struct kretprobe second = {
	.kp.symbol_name = "__sys_connect",
	.handler = connect_syscall_handler,
	.entry_handler = connect_syscall_entry_handler,
	.maxactive = 64,
};

static int register_more(size_t data_size)
{
	switch (planted()) {
	case TWICE:
		second.data_size = data_size;
		return register_kretprobe(&second);
	case READS:
		return register_kprobe(&on_read);
	case INSIDE:
		return register_kprobe(&inside);
	default:
		return 0;
	}
}

int tb_planted_register(size_t data_size)
{
	int err = register_kprobe(&on_connect);

	if (err)
		return err;
	err = register_kprobe(&tb_on_connect_too);
	if (err)
		goto no_twin;
	err = register_more(data_size);
	if (!err)
		return 0;
	unregister_kprobe(&tb_on_connect_too);
no_twin:
	unregister_kprobe(&on_connect);
	return err;
}

void tb_planted_unregister(void)
{
	if (planted() == TWICE)
		unregister_kretprobe(&second);
	if (planted() == READS)
		unregister_kprobe(&on_read);
	if (planted() == INSIDE)
		unregister_kprobe(&inside);
	unregister_kprobe(&tb_on_connect_too);
	unregister_kprobe(&on_connect);
	cancel_work_sync(&work_item);
}
