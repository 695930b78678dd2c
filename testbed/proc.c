// SPDX-License-Identifier: GPL-2.0
/* The files in /proc/hids_testbed. */
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/proc_fs.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include <linux/version.h>

#include "testbed.h"

#if LINUX_VERSION_CODE < KERNEL_VERSION(5, 6, 0)
#define proc_ops file_operations
#define proc_open open
#define proc_read read
#define proc_write write
#define proc_lseek llseek
#define proc_release release
#endif

#define COMMAND_MAX 128

DEFINE_PER_CPU(struct tb_counts, tb_counts);
unsigned long tb_spin_iterations[TB_NR_SPIN];

static const char *const names[TB_NR] = {
#define TB_NAME(name) [TB_ID_##name] = #name,
	TB_HANDLERS(TB_NAME)
	TB_SPINNABLE(TB_NAME)
	TB_PLAIN(TB_NAME)
	TB_TRIVIALS(TB_NAME)
#undef TB_NAME
};

/*
 * A reset takes the sums of now as the new zero. Storing zeros in another
 * CPU's counters could lose the calls it counts meanwhile.
 */
static struct tb_counts zero;
static DEFINE_MUTEX(zero_lock);

static u64 sum_calls(unsigned int id)
{
	u64 sum = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		sum += READ_ONCE(per_cpu(tb_counts, cpu).calls[id]);
	return sum;
}

static u64 sum_nested(void)
{
	u64 sum = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		sum += READ_ONCE(per_cpu(tb_counts, cpu).nested);
	return sum;
}

static int calls_show(struct seq_file *m, void *v)
{
	unsigned int id;

	mutex_lock(&zero_lock);
	for (id = 0; id < TB_NR; id++)
		seq_printf(m, "%s %llu\n", names[id],
			   sum_calls(id) - zero.calls[id]);
	mutex_unlock(&zero_lock);
	return 0;
}

static ssize_t calls_write(struct file *file, const char __user *buf,
			   size_t len, loff_t *pos)
{
	unsigned int id;

	mutex_lock(&zero_lock);
	for (id = 0; id < TB_NR; id++)
		zero.calls[id] = sum_calls(id);
	mutex_unlock(&zero_lock);
	return len;
}

static int nested_show(struct seq_file *m, void *v)
{
	mutex_lock(&zero_lock);
	seq_printf(m, "%s %llu\n", names[TB_ID_testbed_irq_victim],
		   sum_nested() - zero.nested);
	mutex_unlock(&zero_lock);
	return 0;
}

static ssize_t nested_write(struct file *file, const char __user *buf,
			    size_t len, loff_t *pos)
{
	mutex_lock(&zero_lock);
	zero.nested = sum_nested();
	mutex_unlock(&zero_lock);
	return len;
}

static int longest_show(struct seq_file *m, void *v)
{
	seq_printf(m, "testbed_timed %llu\n", tb_longest());
	return 0;
}

static int missed_show(struct seq_file *m, void *v)
{
	tb_hooks_show_missed(m);
	return 0;
}

static int records_show(struct seq_file *m, void *v)
{
	tb_hooks_show_records(m);
	return 0;
}

static int spin_show(struct seq_file *m, void *v)
{
	unsigned int id;

	for (id = 0; id < TB_NR_SPIN; id++)
		seq_printf(m, "%s %lu\n", names[id],
			   READ_ONCE(tb_spin_iterations[id]));
	return 0;
}

static int set_spin(char *command)
{
	char *name = strsep(&command, " \t");
	unsigned long n;
	int id, err;

	if (!command)
		return -EINVAL;
	err = kstrtoul(strim(command), 10, &n);
	if (err)
		return err;
	id = match_string(names, TB_NR_SPIN, name);
	if (id < 0)
		return -ENOENT;
	WRITE_ONCE(tb_spin_iterations[id], n);
	return 0;
}

static int trigger_show(struct seq_file *m, void *v)
{
	seq_puts(m, "empty COUNT\ntrivial COUNT\nnested COUNT\nrecurse DEPTH\n"
		    "sleep USEC [COUNT]\nmigrate COUNT\nirq COUNT\n"
		    "hold MSEC\ntimed MSEC\nnotrace COUNT\ntwins COUNT\nmany COUNT\n"
		    "clear BYTES [COUNT]\n");
	return 0;
}

static ssize_t run_command(int (*run)(char *), const char __user *buf,
			   size_t len)
{
	char *text;
	int err;

	if (len > COMMAND_MAX)
		return -E2BIG;
	text = memdup_user_nul(buf, len);
	if (IS_ERR(text))
		return PTR_ERR(text);
	err = run(strim(text));
	kfree(text);
	return err ? err : len;
}

static ssize_t spin_write(struct file *file, const char __user *buf,
			  size_t len, loff_t *pos)
{
	return run_command(set_spin, buf, len);
}

static ssize_t longest_write(struct file *file, const char __user *buf,
			     size_t len, loff_t *pos)
{
	tb_longest_reset();
	return len;
}

static ssize_t trigger_write(struct file *file, const char __user *buf,
			     size_t len, loff_t *pos)
{
	ssize_t ret;

	/* rmmod then says "in use", rather than wait for a long sleep here. */
	if (!try_module_get(THIS_MODULE))
		return -ENODEV;
	ret = run_command(tb_trigger, buf, len);
	module_put(THIS_MODULE);
	return ret;
}

#define TB_FILE(name, write)                                            \
	static int name##_open(struct inode *inode, struct file *file)  \
	{                                                               \
		return single_open(file, name##_show, NULL);            \
	}                                                               \
	static const struct proc_ops name##_ops = {                     \
		.proc_open = name##_open,                               \
		.proc_read = seq_read,                                  \
		.proc_write = write,                                    \
		.proc_lseek = seq_lseek,                                \
		.proc_release = single_release,                         \
	}

TB_FILE(calls, calls_write);
TB_FILE(nested, nested_write);
TB_FILE(longest, longest_write);
TB_FILE(missed, NULL);
TB_FILE(records, NULL);
TB_FILE(spin, spin_write);
TB_FILE(trigger, trigger_write);

static const struct {
	const char *name;
	umode_t mode;
	const struct proc_ops *ops;
} files[] = {
	{ "calls", 0644, &calls_ops },
	{ "nested", 0644, &nested_ops },
	{ "longest", 0644, &longest_ops },
	{ "missed", 0444, &missed_ops },
	{ "records", 0400, &records_ops },
	{ "spin", 0644, &spin_ops },
	{ "trigger", 0600, &trigger_ops },
};

static struct proc_dir_entry *dir;

int tb_proc_create(void)
{
	size_t i;

	dir = proc_mkdir("hids_testbed", NULL);
	if (!dir)
		return -ENOMEM;
	for (i = 0; i < ARRAY_SIZE(files); i++) {
		if (!proc_create(files[i].name, files[i].mode, dir,
				 files[i].ops)) {
			tb_proc_remove();
			return -ENOMEM;
		}
	}
	return 0;
}

void tb_proc_remove(void)
{
	proc_remove(dir);
}
