// SPDX-License-Identifier: GPL-2.0
/* hids_testbed: handlers shaped like those of a HIDS driver, with known truth. */
#include <linux/module.h>
#include <linux/string.h>
#include <linux/tracepoint.h>

#include "testbed.h"

#define MAXACTIVE_MIN 16
#define MAXACTIVE_MAX 65536

static unsigned int maxactive = 2048;
module_param(maxactive, uint, 0444);
MODULE_PARM_DESC(maxactive,
		 "tasks that may be inside one kretprobed function at once, before nmissed counts");

static char *secret = "hunter2";
module_param(secret, charp, 0400);
MODULE_PARM_DESC(secret, "what only root may read");

static bool every_call;
static bool is_loaded;

void every_call_handler(void *data, struct pt_regs *regs, long id);

TB_FN void every_call_handler(void *data, struct pt_regs *regs, long id)
{
}

static struct tracepoint *sys_enter;

static void find_sys_enter(struct tracepoint *found, void *unused)
{
	if (strcmp(found->name, "sys_enter") == 0)
		sys_enter = found;
}

static int hook_every_call(void)
{
	for_each_kernel_tracepoint(find_sys_enter, NULL);
	if (!sys_enter)
		return -ENOENT;
	return tracepoint_probe_register(sys_enter, every_call_handler, NULL);
}

/* A driver that hooks nothing until a program asks for it. */
static int set_every_call(const char *value, const struct kernel_param *param)
{
	int err;

	if (is_loaded && every_call)
		return -EBUSY;
	err = param_set_bool(value, param);
	if (err || !every_call || !is_loaded)
		return err;
	err = hook_every_call();
	every_call = !err;
	return err;
}

static const struct kernel_param_ops every_call_ops = {
	.set = set_every_call,
	.get = param_get_bool,
};

module_param_cb(every_call, &every_call_ops, &every_call, 0644);
__MODULE_PARM_TYPE(every_call, "bool");
MODULE_PARM_DESC(every_call,
		 "hook each system call, by the tracepoint sys_enter; 1 may be written while it is loaded, too");

static int __init tb_init(void)
{
	int err;

	if (maxactive < MAXACTIVE_MIN || maxactive > MAXACTIVE_MAX) {
		pr_err("hids_testbed: maxactive=%u is outside %u..%u\n",
		       maxactive, MAXACTIVE_MIN, MAXACTIVE_MAX);
		return -EINVAL;
	}
	err = tb_hooks_register(maxactive);
	if (err)
		return err;
	err = tb_proc_create();
	if (err) {
		pr_err("hids_testbed: cannot create /proc/hids_testbed: %d\n",
		       err);
		tb_hooks_unregister();
		return err;
	}
	/* Written from here on, it hooks at once. */
	kernel_param_lock(THIS_MODULE);
	if (every_call)
		err = hook_every_call();
	is_loaded = !err;
	kernel_param_unlock(THIS_MODULE);
	if (err) {
		tb_proc_remove();
		tb_hooks_unregister();
	}
	return err;
}

static void __exit tb_exit(void)
{
	bool hooked;

	/* What is written after this hooks nothing. */
	kernel_param_lock(THIS_MODULE);
	hooked = every_call;
	is_loaded = false;
	kernel_param_unlock(THIS_MODULE);
	if (hooked) {
		tracepoint_probe_unregister(sys_enter, every_call_handler, NULL);
		tracepoint_synchronize_unregister();
	}
	tb_proc_remove();
	tb_hooks_unregister();
}

module_init(tb_init);
module_exit(tb_exit);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("HIDS-like kprobe handlers with known call counts and delays");
