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
