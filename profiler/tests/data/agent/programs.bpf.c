// Programs for the lab's tests: each runs once in a connect(2). Defines change them: MORE adds one instruction to `at_entry`, INVALID
// is refused by the verifier, NO_TAIL_CALLS leaves out the table of programs, which needs libbpf to be filled. WALK adds a
// program that looks at each byte of an argument, if it is 1.

#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "GPL";

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} calls SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, __u64);
	__type(value, __u64);
} by_process SEC(".maps");

volatile __u32 next = 1;

#if !defined(NO_TAIL_CALLS) && !defined(WALK)
int called_by_tail_call(void *context);
int a_name_longer_than_fifteen_characters(void *context);

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 2);
	__uint(key_size, sizeof(__u32));
	__array(values, int(void *));
} jumps SEC(".maps") = {
	.values = { (void *)&called_by_tail_call, (void *)&a_name_longer_than_fifteen_characters },
};

#else
#define bpf_tail_call(context, map, number)
#endif

static __noinline int count(void)
{
	__u32 key = 0;
	__u64 *value = bpf_map_lookup_elem(&calls, &key);

	if (!value)
		return 0;
	__sync_fetch_and_add(value, 1);
	return 1;
}

SEC("tracepoint/syscalls/sys_enter_connect")
int on_tracepoint(void *context)
{
	__u64 process = bpf_get_current_pid_tgid(), one = 1;

	bpf_map_update_elem(&by_process, &process, &one, BPF_ANY);
	return count();
}

SEC("fentry/__sys_connect")
int BPF_PROG(at_entry, int fd)
{
	count();
#ifdef MORE
	asm volatile("r0 = 0" ::: "r0");
#endif
#ifdef INVALID
	return *(int *)(long)fd;
#endif
	return 0;
}

SEC("fexit/__sys_connect")
int BPF_PROG(at_exit, int fd)
{
	return 0;
}

SEC("lsm/socket_connect")
int BPF_PROG(on_lsm, void *socket)
{
	return 0;
}

SEC("kretprobe/__sys_connect")
int on_return(void *context)
{
	return 0;
}

// By a number that the compiler knows, which the kernel makes a jump of, and by one that it does not know.
SEC("kprobe/__sys_connect")
int on_kprobe(void *context)
{
	bpf_tail_call(context, &jumps, 0);
	return count();
}

SEC("kprobe")
int called_by_tail_call(void *context)
{
	bpf_tail_call(context, &jumps, next);
	return count();
}

SEC("kprobe")
int a_name_longer_than_fifteen_characters(void *context)
{
	return count();
}

#ifdef WALK
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
	next = sum;
	return 0;
}
#endif
