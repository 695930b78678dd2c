// SPDX-License-Identifier: GPL-2.0
/* Functions called on demand, in the ways that are hard to measure right. */
#include <linux/atomic.h>
#include <linux/cpumask.h>
#include <linux/delay.h>
#include <linux/errno.h>
#include <linux/hrtimer.h>
#include <linux/kernel.h>
#include <linux/ktime.h>
#include <linux/math64.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/smp.h>
#include <linux/string.h>
#include <linux/version.h>

#include "testbed.h"

#if LINUX_VERSION_CODE < KERNEL_VERSION(5, 4, 0)
#define HRTIMER_MODE_REL_PINNED_HARD HRTIMER_MODE_REL_PINNED
#endif
#if LINUX_VERSION_CODE < KERNEL_VERSION(5, 3, 0)
#define cpus_of(task) (&(task)->cpus_allowed)
#else
#define cpus_of(task) ((task)->cpus_ptr)
#endif

#define COUNT_MAX 100000000UL
/* Each level may carry a tracer's frame too, on a stack of 16 KiB. */
#define DEPTH_MAX 32UL
#define SLEEP_USEC_MAX 10000000UL
#define HOLD_MSEC_MAX 3600000UL
#define CLEAR_BYTES_MAX 4096UL
#define IRQ_DELAY_NS 20000
#define IRQ_TIMEOUT_NS (2 * NSEC_PER_SEC)
#define RESCHED_EVERY 1024
#define TIMED_MSEC_MAX 600000UL
/* Places on the stack that timed calls are made from, and for how long at a time. */
#define TIMED_DEPTHS 32U
#define TIMED_NSEC (40 * NSEC_PER_MSEC)
#define TIMED_BATCH 64U

/* One call and the timer interrupt that enters the same function within it. */
struct irq_trial {
	struct hrtimer timer;
	bool inside;
	bool fired;
};

/* Prototypes, as BTF and -Wmissing-prototypes want them. */
void testbed_outer(void);
void testbed_inner(void);
unsigned int testbed_recurse(unsigned int depth);
void testbed_sleep(unsigned int usec);
int testbed_migrate(unsigned int cpu);
void testbed_irq_victim(struct irq_trial *trial);
void testbed_hold(unsigned int msec);
void testbed_clear(void *buffer, size_t bytes);
void testbed_timed(void);
unsigned int testbed_notrace(unsigned int value);

TB_FN void testbed_empty(void)
{
}

TB_FN void testbed_inner(void)
{
	tb_count(testbed_inner);
	tb_spin(testbed_inner);
}

TB_FN void testbed_outer(void)
{
	tb_count(testbed_outer);
	tb_spin(testbed_outer);
	testbed_inner();
	/* Keeps the call above from becoming a jump. */
	barrier();
}

TB_FN unsigned int testbed_recurse(unsigned int depth)
{
	unsigned int below = 0;

	tb_count(testbed_recurse);
	if (depth > 1)
		below = testbed_recurse(depth - 1);
	/* Keeps the recursion from becoming a loop. */
	barrier();
	return below + 1;
}

TB_FN void testbed_sleep(unsigned int usec)
{
	tb_count(testbed_sleep);
	usleep_range(usec, usec + usec / 8 + 1);
	barrier();
}

/* Enters on one CPU and leaves on the given one. */
TB_FN int testbed_migrate(unsigned int cpu)
{
	int err;

	tb_count(testbed_migrate);
	err = set_cpus_allowed_ptr(current, cpumask_of(cpu));
	barrier();
	return err;
}

TB_FN void testbed_irq_victim(struct irq_trial *trial)
{
	ktime_t give_up;

	tb_count(testbed_irq_victim);
	if (READ_ONCE(trial->inside)) {
		this_cpu_inc(tb_counts.nested);
		WRITE_ONCE(trial->fired, true);
		return;
	}
	WRITE_ONCE(trial->inside, true);
	give_up = ktime_add_ns(ktime_get(), IRQ_TIMEOUT_NS);
	/* Started in here, so that it cannot fire before this call began. */
	hrtimer_start(&trial->timer, ns_to_ktime(IRQ_DELAY_NS),
		      HRTIMER_MODE_REL_PINNED_HARD);
	while (!READ_ONCE(trial->fired) && ktime_before(ktime_get(), give_up))
		cpu_relax();
	WRITE_ONCE(trial->inside, false);
}

TB_FN void testbed_hold(unsigned int msec)
{
	tb_count(testbed_hold);
	msleep_interruptible(msec);
	barrier();
}

/* A memset as drivers have them before they fill in a buffer. */
TB_FN void testbed_clear(void *buffer, size_t bytes)
{
	tb_count(testbed_clear);
	memset(buffer, 0, bytes);
	/* Keeps the call above from becoming a jump. */
	barrier();
}

TB_FN void testbed_timed(void)
{
	tb_count(testbed_timed);
	tb_spin(testbed_timed);
}

/* Has no symbol: what a profiler is told of it must be "no such function". */
static __always_inline unsigned int testbed_inlined(unsigned int value)
{
	return value * 2654435761U + 1;
}

TB_FN notrace unsigned int testbed_notrace(unsigned int value)
{
	tb_count(testbed_notrace);
	return testbed_inlined(value);
}

/* More arguments than registers: before Linux 6.6 no trampoline takes them. */
unsigned long testbed_many(unsigned long a, unsigned long b, unsigned long c,
			   unsigned long d, unsigned long e, unsigned long f,
			   unsigned long g);

TB_FN unsigned long testbed_many(unsigned long a, unsigned long b,
				 unsigned long c, unsigned long d,
				 unsigned long e, unsigned long f,
				 unsigned long g)
{
	tb_count(testbed_many);
	return a + b + c + d + e + f + g;
}

/* The other one is in twin.c: one name, two functions. */
static TB_FN void testbed_twin(void)
{
	tb_count(testbed_twin_first);
}

#define DEFINE_TRIVIAL(name)         \
	void name(void);             \
	TB_FN void name(void)        \
	{                            \
		tb_count(name);      \
	}
TB_TRIVIALS(DEFINE_TRIVIAL)

static void (*const trivials[])(void) = {
#define TRIVIAL_REF(name) name,
	TB_TRIVIALS(TRIVIAL_REF)
#undef TRIVIAL_REF
};

/* Every so often in a long loop: lets others run, and a signal end it. */
static int breathe(unsigned long i)
{
	if (i % RESCHED_EVERY)
		return 0;
	cond_resched();
	return signal_pending(current) ? -EINTR : 0;
}

static int run_empty(unsigned long count, unsigned long unused)
{
	unsigned long i;
	int err = 0;

	for (i = 0; i < count && !err; i++) {
		tb_count(testbed_empty);
		testbed_empty();
		err = breathe(i + 1);
	}
	return err;
}

static int run_trivial(unsigned long count, unsigned long unused)
{
	unsigned long i;
	size_t f;
	int err = 0;

	for (i = 0; i < count && !err; i++) {
		for (f = 0; f < ARRAY_SIZE(trivials); f++)
			trivials[f]();
		err = breathe(i + 1);
	}
	return err;
}

/* Inlined, so that the call is a direct one. */
static __always_inline int repeat(void (*call)(void), unsigned long count)
{
	unsigned long i;
	int err = 0;

	for (i = 0; i < count && !err; i++) {
		call();
		err = breathe(i + 1);
	}
	return err;
}

static int run_nested(unsigned long count, unsigned long unused)
{
	return repeat(testbed_outer, count);
}

static int run_tail(unsigned long count, unsigned long unused)
{
	return repeat(tail_caller, count);
}

static int run_recurse(unsigned long depth, unsigned long unused)
{
	return testbed_recurse(depth) == depth ? 0 : -EIO;
}

static int run_sleep(unsigned long usec, unsigned long count)
{
	unsigned long i;

	for (i = 0; i < count; i++) {
		if (signal_pending(current))
			return -EINTR;
		testbed_sleep(usec);
	}
	return 0;
}

/* Sends each call from the CPU it was entered on to the next one. */
static int migrate_calls(unsigned long count)
{
	unsigned int from, to;
	unsigned long i;
	int err = 0;

	for (i = 0; i < count && !err; i++) {
		if (signal_pending(current))
			return -EINTR;
		from = raw_smp_processor_id();
		to = cpumask_next(from, cpu_online_mask);
		if (to >= nr_cpu_ids)
			to = cpumask_first(cpu_online_mask);
		if (to == from)
			return -ENODEV;
		/* Pinned first: else it might already run on "to" at entry. */
		err = set_cpus_allowed_ptr(current, cpumask_of(from));
		if (!err)
			err = testbed_migrate(to);
	}
	return err;
}

static int run_migrate(unsigned long count, unsigned long unused)
{
	cpumask_var_t before;
	int err, restored;

	if (!alloc_cpumask_var(&before, GFP_KERNEL))
		return -ENOMEM;
	cpumask_copy(before, cpus_of(current));
	err = migrate_calls(count);
	restored = set_cpus_allowed_ptr(current, before);
	free_cpumask_var(before);
	return err ? err : restored;
}

static enum hrtimer_restart irq_fire(struct hrtimer *timer)
{
	testbed_irq_victim(container_of(timer, struct irq_trial, timer));
	return HRTIMER_NORESTART;
}

static void irq_setup(struct irq_trial *trial)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 13, 0)
	hrtimer_setup(&trial->timer, irq_fire, CLOCK_MONOTONIC,
		      HRTIMER_MODE_REL_PINNED_HARD);
#else
	hrtimer_init(&trial->timer, CLOCK_MONOTONIC,
		     HRTIMER_MODE_REL_PINNED_HARD);
	trial->timer.function = irq_fire;
#endif
}

static int run_irq(unsigned long count, unsigned long unused)
{
	struct irq_trial *trial;
	unsigned long i;
	int err = 0;

	trial = kzalloc(sizeof(*trial), GFP_KERNEL);
	if (!trial)
		return -ENOMEM;
	irq_setup(trial);
	for (i = 0; i < count && !err; i++) {
		trial->fired = false;
		/* The timer is pinned to this CPU: it interrupts the call. */
		preempt_disable();
		testbed_irq_victim(trial);
		preempt_enable();
		hrtimer_cancel(&trial->timer);
		if (!trial->fired)
			err = -ETIMEDOUT;
		else
			err = breathe(i + 1);
	}
	kfree(trial);
	return err;
}

static int run_hold(unsigned long msec, unsigned long unused)
{
	testbed_hold(msec);
	return signal_pending(current) ? -EINTR : 0;
}

static int run_clear(unsigned long bytes, unsigned long count)
{
	void *buffer = kmalloc(CLEAR_BYTES_MAX, GFP_KERNEL);
	unsigned long i;
	int err = 0;

	if (!buffer)
		return -ENOMEM;
	for (i = 0; i < count && !err; i++) {
		testbed_clear(buffer, bytes);
		err = breathe(i + 1);
	}
	kfree(buffer);
	return err;
}

/* The longest call of testbed_timed(), with all that probes add to it. */
static atomic64_t longest_ns;

u64 tb_longest(void)
{
	return atomic64_read(&longest_ns);
}

void tb_longest_reset(void)
{
	atomic64_set(&longest_ns, 0);
}

/* By the clock that BPF programs read, outside of them and of their trampoline. */
static void timed_call(void)
{
	s64 took, longest = atomic64_read(&longest_ns);
	u64 start = ktime_get_mono_fast_ns();

	testbed_timed();
	took = ktime_get_mono_fast_ns() - start;
	while (took > longest &&
	       !atomic64_try_cmpxchg(&longest_ns, &longest, took))
		;
}

/* Calls from so many stack frames further down. */
static noinline void timed_calls(unsigned int depth)
{
	unsigned int i;

	if (depth > 0)
		timed_calls(depth - 1);
	else
		for (i = 0; i < TIMED_BATCH; i++)
			timed_call();
	/* Keeps the recursion from becoming a loop. */
	barrier();
}

static int run_timed(unsigned long msec, unsigned long unused)
{
	u64 begin = ktime_get_mono_fast_ns(), passed = 0;
	int err = 0;

	while (passed < msec * NSEC_PER_MSEC && !err) {
		timed_calls(div_u64(passed, TIMED_NSEC) % TIMED_DEPTHS);
		err = breathe(0);
		passed = ktime_get_mono_fast_ns() - begin;
	}
	return err;
}

static int run_notrace(unsigned long count, unsigned long unused)
{
	unsigned long i;
	int err = 0;

	for (i = 0; i < count && !err; i++) {
		testbed_notrace(i);
		err = breathe(i + 1);
	}
	return err;
}

/* The second twin is called twice as often as the first. */
static int run_twins(unsigned long count, unsigned long unused)
{
	unsigned long i;
	int err = 0;

	for (i = 0; i < count && !err; i++) {
		testbed_twin();
		tb_call_second_twin();
		tb_call_second_twin();
		err = breathe(i + 1);
	}
	return err;
}

static int run_many(unsigned long count, unsigned long unused)
{
	unsigned long i;
	int err = 0;

	for (i = 0; i < count && !err; i++) {
		testbed_many(1, 2, 3, 4, 5, 6, i);
		err = breathe(i + 1);
	}
	return err;
}

static const struct trigger {
	const char *name;
	int (*run)(unsigned long first, unsigned long second);
	unsigned long first_max;
	bool takes_count; /* an optional second number, else 1 */
} triggers[] = {
	{ "empty", run_empty, COUNT_MAX },
	{ "trivial", run_trivial, COUNT_MAX },
	{ "nested", run_nested, COUNT_MAX },
	{ "tail", run_tail, COUNT_MAX },
	{ "recurse", run_recurse, DEPTH_MAX },
	{ "sleep", run_sleep, SLEEP_USEC_MAX, true },
	{ "migrate", run_migrate, COUNT_MAX },
	{ "irq", run_irq, COUNT_MAX },
	{ "hold", run_hold, HOLD_MSEC_MAX },
	{ "clear", run_clear, CLEAR_BYTES_MAX, true },
	{ "timed", run_timed, TIMED_MSEC_MAX },
	{ "notrace", run_notrace, COUNT_MAX },
	{ "twins", run_twins, COUNT_MAX },
	{ "many", run_many, COUNT_MAX },
};

static int parse(const char *word, unsigned long max, unsigned long *n)
{
	int err;

	if (!word)
		return -EINVAL;
	err = kstrtoul(word, 10, n);
	if (err)
		return err;
	return *n < 1 || *n > max ? -ERANGE : 0;
}

/* The next word of *rest, or NULL. */
static char *next_word(char **rest)
{
	char *word;

	do {
		word = strsep(rest, " \t");
	} while (word && !*word);
	return word;
}

int tb_trigger(char *command)
{
	const char *name = next_word(&command);
	unsigned long first, second = 1;
	const struct trigger *t;
	const char *word;
	int err;

	if (!name)
		return -EINVAL;
	for (t = triggers; t < triggers + ARRAY_SIZE(triggers); t++) {
		if (strcmp(name, t->name))
			continue;
		err = parse(next_word(&command), t->first_max, &first);
		if (err)
			return err;
		word = next_word(&command);
		if (word && t->takes_count) {
			err = parse(word, COUNT_MAX, &second);
			if (err)
				return err;
			word = next_word(&command);
		}
		return word ? -EINVAL : t->run(first, second);
	}
	return -ENOENT;
}
