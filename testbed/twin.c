// SPDX-License-Identifier: GPL-2.0
/* A second function of a name that triggers.c has as well. */
#include "testbed.h"

static TB_FN void testbed_twin(void)
{
	tb_count(testbed_twin_second);
}

void tb_call_second_twin(void)
{
	testbed_twin();
	/* Keeps the call above from becoming a jump. */
	barrier();
}

#ifdef TB_PLANTED
/* planted.c has another of this name. */
static int outside(struct kprobe *p, struct pt_regs *regs)
{
	if (tb_planted_twin())
		asm volatile(".rept 80\n\tnop\n\t.endr");
	return 0;
}

struct kprobe tb_on_connect_too = {
	.symbol_name = "__sys_connect",
	.pre_handler = outside,
};
#endif
