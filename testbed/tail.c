// SPDX-License-Identifier: GPL-2.0
/* A function that goes on to another by a jump, in a kernel with frame pointers, too: see Kbuild. */

#include "testbed.h"

TB_FN void tail_caller(void)
{
	testbed_empty();
}
