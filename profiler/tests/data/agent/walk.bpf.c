// A program that looks at each byte of an argument of execve(2), if WALK is 1.

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

volatile __u32 sum_of_all;

struct execve {
	__u64 common, number;
	const char *path;
	const char *const *arguments;
};

SEC("tracepoint/syscalls/sys_enter_execve")
int on_execve(struct execve *context)
{
	const char *argument = 0;
	char text[128];
	long bytes;
	__u32 sum = 0;

	bpf_probe_read_user(&argument, sizeof(argument), &context->arguments[2]);
	bytes = bpf_probe_read_user_str(text, sizeof(text), argument);
	if (WALK)
		for (int at = 0; at < sizeof(text) && at < bytes; at++)
			sum += text[at];
	sum_of_all = sum;
	return 0;
}
